"""How a training in many processes would go on a cluster: steps an hour, and what is busy first.

`python -m benchmarks.cluster --workers 2 --workers 512` simulates the steps of a run event by event: free workers claim
the next shard, roll it out for a time with a tail (log-normal), send its tokens through the network of the store's
machine and its records through the database, both first come, first served. When all shards are there, the trainers
read, learn and publish, and every worker loads the new weights. Processes that wait ask the database meanwhile.
Workers die after exponential times; their shards go to others when their silence is noticed. Where all processes are
on one machine, its cores compute what comes first.

The costs are those of the small nano (`SMALL_NANO`, of which one is measured), or the caller's;
`python -m benchmarks.cluster_costs` measures them and compares what comes of them with real runs. It is a model: no
cache, no validation, one network link.
"""

from __future__ import annotations

import argparse
import heapq
import random
from dataclasses import dataclass, replace
from math import exp, inf


@dataclass(frozen=True)
class Costs:
    """What work costs, in seconds and bytes. `tail` is the standard deviation of the logarithm of a shard's time, whose
    mean is `shard`. `write` and `read` are the database's, of a shard's records and of a role's step; `ask` is that
    of one question of a process that waits, which asks every `pause`."""

    shard: float
    train: float
    tail: float = 0.0
    write: float = 0.0
    read: float = 0.0
    shard_bytes: float = 0.0
    weight_bytes: float = 0.0  # of all roles
    link: float = inf  # bytes a second from and to the store's machine
    ask: float = 0.0
    pause: float = 0.5
    load: float = 0.0  # of a worker, which merges the weights of all roles for its engine in every step
    # Of worker 0, which leads, in every step before it rolls out: it reads outcomes, records metrics, keeps the run's
    # state. The others begin meanwhile, as they do where no validation comes between two steps.
    lead: float = 0.0
    notice: float = 0.0  # in every step, without work: until who waits has noticed, and the disk has what it keeps
    crowded: float = 1.0  # times that work takes while all cores of a machine are busy: they share cache and memory


@dataclass(frozen=True)
class Cluster:
    """Processes of a run. Of the workers, `per_machine` share what has come to their machine. `lifetime` is the mean of
    a worker in seconds, `silent` how long it takes to notice that one is dead, `restart` until another stands in its
    place. `cores` are those of the one machine on which all of them are; without a number each process has its own."""

    workers: int
    shards: int
    trainers: int = 4
    cores: int | None = None
    per_machine: int = 1
    staleness: int = 0
    lifetime: float = inf
    silent: float = 20.0
    restart: float = 60.0


@dataclass(frozen=True)
class Prediction:
    """What comes out: `busy` is the share of the time in which each part works; `repeated` shards were lost."""

    steps_per_hour: float
    busy: dict[str, float]
    repeated: int

    @property
    def bottleneck(self) -> str:
        """The part that is busy most: what a faster one of would help first."""
        return max(self.busy, key=lambda part: self.busy[part])


# The time of a shard is measured: 135.9 rollouts a second with one worker, 32 windows x 8 rollouts in two shards
# (`services.workers`, an earlier version of that row). All others are assumed.
SMALL_NANO = Costs(
    shard=0.94, tail=0.15, train=0.6, write=0.05, read=0.05, shard_bytes=2e6, weight_bytes=4e6, link=1.25e8, ask=0.001
)


_TRAINERS = -1  # in place of a worker's number


def simulate(cluster: Cluster, costs: Costs, steps: int = 50, seed: int = 1) -> Prediction:
    """Predict a run of `steps` steps. Raises ValueError where the database answers no more than the waiting ask."""
    return _Run(cluster, costs, random.Random(seed)).predict(steps)


class _Run:
    def __init__(self, cluster: Cluster, costs: Costs, rng: random.Random) -> None:
        self._cluster, self._costs, self._rng = cluster, costs, rng
        # Of the database's time: while shards are rolled out, and while roles learn and all workers wait for them.
        per_process = costs.ask / costs.pause
        self._asked = (cluster.trainers + max(0, cluster.workers - cluster.shards)) * per_process
        self._asked_meanwhile = cluster.workers * per_process if not cluster.staleness else self._asked
        if (asked := max(self._asked, self._asked_meanwhile)) >= 1.0:
            raise ValueError(
                f"{cluster.workers} workers and {cluster.trainers} trainers ask the database for {asked:.1f} s a "
                "second while they wait: it breaks first"
            )
        self._worked = self._trained = self._wrote = self._sent = 0.0
        self._database_free = self._link_free = 0.0
        self._repeated = 0
        self._dies = [self._life() for _ in range(cluster.workers)]
        self._cores = [0.0] * (cluster.cores or 0)  # when each is free

    def predict(self, steps: int) -> Prediction:
        cluster, costs = self._cluster, self._costs
        published = [0.0]  # when the weights of each step are there
        rolled_out = 0.0
        for step in range(steps):
            began = max(rolled_out, published[max(0, step - cluster.staleness)]) + costs.notice
            rolled_out = self._roll_out(began)
            previous = published[-1]
            published.append(max(self._train(max(rolled_out, previous)) for _ in range(cluster.trainers)))
        seconds = published[-1]
        busy = {
            "rollout workers": self._worked / (seconds * cluster.workers),
            "trainers": self._trained / (seconds * cluster.trainers),
            "database": self._wrote / seconds,
            "network": self._sent / seconds,
        }
        return Prediction(3600.0 * steps / seconds, busy, self._repeated)

    def _roll_out(self, began: float) -> float:
        """When all shards of a step that begins then are stored."""
        cluster, costs = self._cluster, self._costs
        free: list[tuple[float, int, int, bool]] = []  # when, which worker, with which shard, done
        arrived = began
        for worker in range(cluster.workers):
            if worker % cluster.per_machine == 0:
                arrived = self._transfer(began, costs.weight_bytes)
            before_rollouts = costs.load if worker else costs.load + costs.lead
            loaded = self._compute(arrived, before_rollouts)
            self._worked += before_rollouts
            heapq.heappush(free, (loaded, worker, -1, False))
        waiting = [(began, shard) for shard in range(cluster.shards)]
        idle: list[int] = []
        stored, last = 0, began
        while stored < cluster.shards:
            now, worker, shard, done = heapq.heappop(free)
            if worker == _TRAINERS:  # they read what has come
                self._transfer(now, costs.shard_bytes)
                continue
            if done:
                now = last = self._query(self._transfer(now, costs.shard_bytes), costs.write, self._asked)
                stored += 1
                if stored < cluster.shards:
                    heapq.heappush(free, (now, _TRAINERS, shard, False))
            elif shard < 0 and waiting:
                possible, number = waiting[0]
                if possible > now or self._dies[worker] <= now:  # or it died while it waited
                    back = self._replaced(worker) if self._dies[worker] <= now else possible
                    heapq.heappush(free, (max(now, back), worker, -1, False))
                    continue
                heapq.heappop(waiting)
                seconds = self._shard_seconds()
                end = self._compute(now, seconds)
                if self._dies[worker] < end:
                    died = self._dies[worker]
                    self._worked += died - now
                    self._repeated += 1
                    heapq.heappush(waiting, (died + cluster.silent, number))
                    heapq.heappush(free, (self._replaced(worker), worker, -1, False))
                    for other in idle:
                        heapq.heappush(free, (died + cluster.silent, other, -1, False))
                    idle.clear()
                else:
                    self._worked += seconds
                    heapq.heappush(free, (end, worker, number, True))
                continue
            elif shard < 0:
                idle.append(worker)  # nothing is left for it, unless another dies
                continue
            heapq.heappush(free, (now, worker, -1, False))
        for now, worker, _, _ in sorted(free):
            if worker == _TRAINERS:
                self._transfer(now, costs.shard_bytes)
        return last

    def _replaced(self, worker: int) -> float:
        """When another stands in the place of a worker that dies."""
        back = self._dies[worker] + self._cluster.restart
        self._dies[worker] = back + self._life()
        return back

    def _train(self, began: float) -> float:
        """When a role's weights are published."""
        costs = self._costs
        last = costs.shard_bytes / self._cluster.trainers  # of a shard; the others have been read as they came
        read = self._query(self._transfer(began, last), costs.read, self._asked_meanwhile)
        self._trained += costs.train
        return self._compute(read, costs.train)

    def _compute(self, now: float, seconds: float) -> float:
        """When a process that begins to compute now is done."""
        if not self._cores:
            return now + seconds
        began = max(now, heapq.heappop(self._cores))
        if self._cores and min(self._cores) > began:
            seconds *= self._costs.crowded
        end = began + seconds
        heapq.heappush(self._cores, end)
        return end

    def _shard_seconds(self) -> float:
        tail = self._costs.tail
        return self._costs.shard * exp(self._rng.gauss(0.0, tail) - tail * tail / 2.0)

    def _life(self) -> float:
        return self._rng.expovariate(1.0 / self._cluster.lifetime) if self._cluster.lifetime < inf else inf

    def _transfer(self, now: float, size: float) -> float:
        seconds = size / self._costs.link
        self._sent += seconds
        self._link_free = max(now, self._link_free) + seconds
        return self._link_free

    def _query(self, now: float, seconds: float, asked: float) -> float:
        seconds /= 1.0 - asked
        self._wrote += seconds
        self._database_free = self._compute(max(now, self._database_free), seconds)
        return self._database_free


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, action="append", help="rollout workers, repeatable")
    parser.add_argument("--shards", type=int, default=1024, help="of a step, at the cost of one each")
    parser.add_argument("--per-machine", type=int, default=1, help="workers that share what comes to their machine")
    parser.add_argument("--lifetime", type=float, default=inf, help="mean seconds until a worker dies")
    parser.add_argument("--cores", type=int, help="of the one machine on which all processes are")
    for name in (
        "shard", "train", "load", "tail", "write", "read", "shard_bytes", "weight_bytes", "link", "ask", "pause",
    ):  # fmt: skip
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=getattr(SMALL_NANO, name))
    arguments = parser.parse_args()
    costs = replace(
        SMALL_NANO, **{name: value for name, value in vars(arguments).items() if name in Costs.__dataclass_fields__}
    )
    print("workers  staleness  steps/h  repeated  busiest (share of its time)")
    for workers in arguments.workers or (1, 2, 4, 8, 32, 128, 512):
        for staleness in (0, 1):
            cluster = Cluster(
                workers,
                arguments.shards,
                per_machine=arguments.per_machine,
                staleness=staleness,
                cores=arguments.cores,
                lifetime=arguments.lifetime,
            )
            try:
                outcome = simulate(cluster, costs)
            except ValueError as error:
                print(f"{workers:7}  {staleness:9}  {error}")
                continue
            busiest = f"{outcome.bottleneck} ({outcome.busy[outcome.bottleneck]:.2f})"
            print(f"{workers:7}  {staleness:9}  {outcome.steps_per_hour:7.1f}  {outcome.repeated:8}  {busiest}")


if __name__ == "__main__":
    main()
