"""The rollout workers of a training apart. The first leads: it also validates, and says when stage and run are over.

A step is divided into shards (`training.shards`), of which worker w of W rolls out those with shard % W == w. When all
shards of a step are marked as complete, the roles' trainers learn from them and publish what they became.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from functools import partial
from pathlib import Path

from backend.services.beacon import Beacon
from backend.store.records import PublishedRecord, ShardRecord
from backend.store.store import Store
from backend.training.checkpoints import TrainingState
from backend.training.curriculum import Stage
from backend.training.learner import StepData
from backend.training.metrics import team_metrics
from backend.training.sharding import part, step_queries
from backend.training.shares import role_shares
from backend.training.trainer import Trainer
from simulator.errors import RunFailed, UserError

LEADER = "rollout-0"
STATE = "services/leader.json"
_STAGE = "stage "


class Worker(Trainer):
    """Rolls out its shards of every step with the weights that the trainers published. `number` of `workers`; number 0
    leads. The steps, the validation and the curriculum are those of `Trainer`; what differs is where the weights come
    from and who learns."""

    def attend(self, store: Store, beacon: Beacon, number: int, workers: int) -> None:
        """Work with the others of the run from here on. Raises `UserError` for a number that has no shard."""
        if not 0 <= number < workers <= self.config.shards:
            raise UserError(
                f"worker {number} of {workers} would have nothing to do: training.shards = {self.config.shards}; there "
                "can be as many workers as shards"
            )
        self.store, self.beacon = store, beacon
        self.own = range(number, self.config.shards, workers)
        self.learners = {}  # the roles learn elsewhere

    # -- the leader -------------------------------------------------------------------------------------------------

    def resume(self) -> bool:
        """Go to where this worker was when it last finished a step; False at the beginning."""
        known = (self.folder / STATE).is_file()
        if known:
            self.state = leader_state(self.folder)
        self.journal.drop_metrics_after(self.state.step if known else -1)
        return known

    def _start(self) -> None:
        self._take(self.state.step)

    def _roll_out(self, stage: Stage) -> tuple[StepData, dict[str, float]]:
        step = self.state.step
        self.beacon.say("working", step, f"{_STAGE}{stage.number}")
        self._do_shards(step, stage)
        self.beacon.wait(step, f"{_STAGE}{stage.number}: for the other workers", lambda: self._complete(step))
        metrics = {"stage": float(stage.number), **team_metrics(self.store.rollouts(self.journal.run, step))}
        return StepData(stage, [], []), metrics

    def _learn(self, data: StepData) -> dict[str, float]:
        step = self.state.step + 1
        metrics: dict[str, float] = {}
        for record in self._take(step):
            told = record.metrics
            metrics |= told["metrics"]
            if told["rolled_back"]:
                self.state.rollbacks.append((record.step - 1, record.role))
            metrics[f"{record.role}/staleness"] = float(step - record.step)
        return metrics

    def _save(self) -> None:
        path = self.folder / STATE
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".tmp")
        with partial.open("w") as file:
            json.dump(asdict(self.state), file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)

    # -- all workers ------------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Roll out this worker's shards of each step that the leader is at, until the run is over (`RunOver`)."""
        step = -1
        while True:
            step, stage = self.beacon.wait(step + 1, "for the leader", partial(self._announced, step))
            self._take(step)
            self._do_shards(step, self.curriculum.stage(stage))

    def _announced(self, after: int) -> tuple[int, int] | None:
        """The step that the leader is at, if it is later than `after`, and its stage."""
        for one in self.store.services(self.journal.run):
            told = one.message or ""
            if one.name == LEADER and one.step is not None and one.step > after and told.startswith(_STAGE):
                return one.step, int(told.removeprefix(_STAGE).partition(":")[0])
        return None

    def _do_shards(self, step: int, stage: Stage) -> None:
        """Roll out this worker's shards of `step`, unless they are complete already: then a former life of it did."""
        run = self.journal.run
        done = {mark.shard for mark in self.store.shards(run, step)}
        asked, practised = step_queries(self.pool, self.config, step, stage)
        for shard in self.own:
            if shard in done:
                continue
            shards = self.config.shards
            queries = [one.number for one in (*part(asked, shard, shards), *part(practised, shard, shards))]
            self.store.clear_shard(run, step, shard, queries)
            self.state.step = step
            rolled = self._shard(stage, shard)
            method = self.config.credit if stage.beta[1] > 0.0 else "broadcast"
            shares = role_shares(self.team, rolled.team, self.rollout_settings, method)
            records = self.journal.rollouts(step, stage.number, rolled.team, rolled.practice, shares)
            calls = sum(1 + len(one.subs) for group in rolled.team for one in group)
            calls += sum(len(one.subs) for group in rolled.practice for one in group)
            self.store.add_shard(ShardRecord(run, step, shard, len(queries), len(records), calls))

    def _complete(self, step: int) -> bool | None:
        return self.store.step_complete(self.journal.run, step, self.config.shards) or None

    def _take(self, step: int) -> list[PublishedRecord]:
        """Wait for the weights that roll out `step`, and answer with them: those of `staleness` steps before, or in an
        unsynchronised run each role's newest since then."""
        records = self.beacon.wait(step, "for the trainers", lambda: self._published(step))
        files = {record.role: self.folder / record.path for record in records}
        self.policies.load_files(files)
        for record in records:
            found = self.policies.version(record.role)
            if found != record.version:
                raise RunFailed(
                    f"{files[record.role]} holds {found}, its record says {record.version}: start that role's trainer "
                    "again"
                )
        self.publisher.publish(self.policies.roles)
        return records

    def _published(self, step: int) -> list[PublishedRecord] | None:
        """Each role's weights for `step`, None while one of them is missing."""
        oldest = max(0, step - self.config.staleness)
        found: dict[str, PublishedRecord] = {}
        for made in range(step if self.config.unsynchronised else oldest, oldest - 1, -1):
            for one in self.store.published(self.journal.run, made):
                found.setdefault(one.role, one)
            if found.keys() >= set(self.policies.roles):
                return [found[role] for role in self.policies.roles]
        return None


def leader_state(folder: Path) -> TrainingState:
    """Where the leader of the run in `folder` was when it last finished a step."""
    raw = json.loads((folder / STATE).read_text())
    raw["rollbacks"] = [(int(step), str(role)) for step, role in raw["rollbacks"]]
    return TrainingState(**raw)
