"""Measures what `benchmarks.cluster` reckons with, and compares what it predicts with real runs on this machine.

`python -m benchmarks.cluster_costs` takes some minutes on a machine of its own:

1. A short training in this process gives the costs: processor time of a shard and its spread, of a role's learning and
   of the loading of weights; bytes of a shard's tokens and of the weights; what the database takes of a question.
2. `train --launch processes` runs with 1, 2 and 4 rollout workers and a trainer for each role. The first of them gives
   what no single process shows: the processor time of the process that holds the store for a shard's records, of a
   trainer with all that it reads and keeps, of who leads; and how long a step waits without work. Two processes that
   roll out and know nothing of each other give what busy cores cost each other.
3. A table: steps an hour as measured and as predicted with these costs and this machine's cores; processor time a
   rollout, which other work on the machine hardly changes. The steps are counted from the second on, so that no start
   is in them.

`--json FILE` writes all of it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from backend.builders.market import load_market
from backend.config.load import load_config
from backend.config.schema import Config
from backend.distributed.local_launcher import run_processes
from backend.store.records import RunRecord
from backend.store.run_record import recorded_run
from backend.store.store import Store
from backend.training.curriculum.curriculum import Curriculum, StepPlan
from backend.training.in_process import local_learners
from backend.training.learning.step_data import StepData
from backend.training.rl_job import training_parts
from backend.training.start import begin
from benchmarks.bench_services_workers import processor_seconds, seconds_alone
from benchmarks.cluster import Cluster, Costs, Prediction, simulate
from cryptosentinel.scheduler import Throughput
from simulator.market.market import Market

WORKERS = (1, 2, 4)
STEPS = 6  # of a real run: the first is not counted
MEASURED_STEPS = 3  # of the training in this process, which has a warm-up before them
ASKED = 200
RUN = "costs"
SETTINGS = (
    "training.queries_per_step=32", "training.rollouts_per_query=8", "training.shards=8", "training.stage1_steps=0",
    "training.stage1_max_steps=0", f"training.stage2_steps={STEPS}", "training.validation_every=1000",
    "training.validation_queries=2", "training.scenario_paths=16", "nano.steps=80", "nano.decisions=100",
)  # fmt: skip
_ROLLOUTS = 32 * 8  # of a step
_TRAINERS = 4
_SILENT: Callable[[str, int, int], None] = lambda what, done, total: None  # noqa: E731  # of no interest here


@dataclass(frozen=True)
class RealRun:
    """A real run: seconds of a step, and processor seconds that a step takes in the workers, in the trainers and in
    the process that holds the store."""

    workers: int
    step: float
    rollout_seconds: float
    trainer_seconds: float
    store_seconds: float

    @property
    def steps_per_hour(self) -> float:
        """As the simulation has it."""
        return 3600.0 / self.step


def measured_costs(config: Config, market: Market, base: Path, folder: Path) -> Costs:
    """The costs of a training in this process. Those of the store's writes are of `with_store_seconds`."""
    shards: list[float] = []
    learning: list[float] = []
    loading: list[float] = []
    with Store.open(folder / "store") as store:
        store.add_run(RunRecord(RUN, "train", 1, market.content_hash, 1, {}))
        parts = training_parts(config, market, store, RUN, folder, base, folder)
        learners = local_learners(parts)
        parts.publisher.publish(parts.policies.roles)
        for step in range(MEASURED_STEPS + 1):
            plan = StepPlan(step, Curriculum(config.training).stage(2), step)
            team = []
            for queries in parts.collector.queries(step, plan.stage):
                began = time.process_time()
                rollouts = parts.collector.roll_out(step, queries, Throughput())
                shards.append(time.process_time() - began)
                team += rollouts.team
            outcomes = parts.collector.role_outcomes(team, plan.stage)
            parts.recorder.rollouts(step, 2, team, [], outcomes, store, step)
            data = StepData(plan.stage, team, team, outcomes)
            for learner in learners.values():
                began = time.process_time()
                learner.train(step, data)
                learning.append(time.process_time() - began)
            began = time.process_time()
            parts.publisher.publish(parts.policies.roles)
            loading.append(time.process_time() - began)
        ask = _seconds_of_a_question(store)
        parts.recorder.close()
    count = config.training.shards
    shards, learning, loading = shards[count:], learning[len(learners) :], loading[1:]
    written = sum(path.stat().st_size for path in (folder / "store" / "objects").rglob("*") if path.is_file())
    weights = sum(one.numel() * one.element_size() for role in learners for one in parts.policies.trainable(role))
    return Costs(
        shard=statistics.mean(shards),
        tail=statistics.pstdev(map(math.log, shards)),
        train=statistics.mean(learning),
        load=statistics.mean(loading),
        shard_bytes=written / (count * (MEASURED_STEPS + 1)),
        weight_bytes=float(weights),
        ask=ask,
    )


def _seconds_of_a_question(store: Store) -> float:
    """What a process that waits asks at a time: who is alive, and which shards are complete."""
    began = time.process_time()
    for _ in range(ASKED):
        store.services(RUN)
        store.shards(RUN, 1)
    return (time.process_time() - began) / ASKED


def real_run(config: Config, market: Market, folder: Path, workers: int) -> RealRun:
    """A training in processes, and what it took."""
    folder.mkdir()
    names: dict[int, str] = {}
    looks: list[tuple[int, float, dict[int, float]]] = []

    def started(name: str, process: int) -> None:
        names[process] = name

    def stepped(step: int) -> None:
        looks.append((step, time.perf_counter(), {one: processor_seconds(one) for one in (os.getpid(), *names)}))

    address = str(folder / "store")
    with Store.open(address) as store, recorded_run(store, RUN, "train", 1, market.content_hash, config):
        run_processes(address, RUN, folder, workers, stepped, started)
    (first, began, before), (last, ended, after) = looks[1], looks[-1]
    steps = last - first

    def taken(kind: str) -> float:
        return sum(after[one] - before[one] for one, name in names.items() if name.startswith(kind)) / steps

    own = os.getpid()
    return RealRun(
        workers, (ended - began) / steps, taken("rollout"), taken("trainer"), (after[own] - before[own]) / steps
    )


def with_real_run(costs: Costs, alone: RealRun, shards: int, cores: int) -> Costs:
    """The costs with what a run with one worker shows, questions of who waits included. What its steps last beyond all
    of this is waited without work, so that this one run is met exactly; what is said of others is a prediction."""
    found = replace(
        costs,
        write=alone.store_seconds / shards,
        train=max(costs.train, alone.trainer_seconds / _TRAINERS),
        lead=max(0.0, alone.rollout_seconds - shards * costs.shard - costs.load),
        ask=0.0,  # which is in these
        read=0.0,
    )
    waited = alone.step - 3600.0 / predicted(found, alone.workers, shards, cores)
    return replace(found, notice=max(0.0, waited))


def prediction(costs: Costs, workers: int, shards: int, cores: int) -> Prediction:
    """What is predicted of a run on one machine."""
    return simulate(Cluster(workers, shards, per_machine=workers, cores=cores), costs, steps=200)


def predicted(costs: Costs, workers: int, shards: int, cores: int) -> float:
    """Steps an hour of it."""
    return prediction(costs, workers, shards, cores).steps_per_hour


def table(costs: Costs, runs: Sequence[RealRun], shards: int, cores: int) -> list[str]:
    """The lines that are printed."""
    lines = [f"{name}: {value:.4g}" for name, value in asdict(costs).items() if value not in (0.0, math.inf)]
    lines += ["", "workers  steps/h measured  predicted  error  times one worker  predicted  processor ms a rollout"]
    first = predicted(costs, runs[0].workers, shards, cores)
    lines[-1] += "  busiest"
    for one in runs:
        outcome = prediction(costs, one.workers, shards, cores)
        foretold = outcome.steps_per_hour
        error = foretold / one.steps_per_hour - 1.0
        processor = 1000.0 * (one.rollout_seconds + one.store_seconds) / _ROLLOUTS
        lines.append(
            f"{one.workers:7}  {one.steps_per_hour:16.0f}  {foretold:9.0f}  {error:+5.0%}  "
            f"{one.steps_per_hour / runs[0].steps_per_hour:16.2f}  {foretold / first:9.2f}  {processor:22.2f}  "
            f"{outcome.bottleneck} ({outcome.busy[outcome.bottleneck]:.2f})"
        )
    return lines


def main() -> None:
    """Measure, compare and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, action="append", help="rollout workers of a real run, repeatable")
    parser.add_argument("--json", type=Path, help="a file for costs and runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        config = load_config("quick", SETTINGS)
        market = load_market(config.market, config.costs)
        base = begin(config, market, folder, _SILENT)
        config = load_config("quick", (*SETTINGS, f"training.base_model={base}"))
        (folder / "measured").mkdir()
        costs = measured_costs(config, market, base, folder / "measured")
        crowded = max(1.0, max(seconds_alone(base, cores)) / max(seconds_alone(base, 1)))
        runs = [
            real_run(config, market, folder / f"run-{workers}", workers) for workers in arguments.workers or WORKERS
        ]
    shards = config.training.shards
    costs = with_real_run(replace(costs, crowded=crowded), runs[0], shards, cores)
    print(
        f"{cores} cores, {shards} shards of {_ROLLOUTS // shards} rollouts a step",
        *table(costs, runs, shards, cores),
        sep="\n",
    )
    if arguments.json:
        arguments.json.write_text(json.dumps({"costs": asdict(costs), "runs": [asdict(one) for one in runs]}, indent=1))


if __name__ == "__main__":
    main()
