"""The rollout workers of a training apart. The first leads: it also validates, and says when stage and run are over.

A step is divided into shards (`training.shards`), of which worker w of W rolls out those with shard % W == w. When all
shards of a step are marked as complete, the roles' trainers learn from them and publish what they became.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from backend.distributed.heartbeat import LEADER, Beacon
from backend.distributed.run_files import SERVICES, RunFiles
from backend.distributed.step_data import PUT_BACK, closing_shard, is_complete, put_back, step_data, trained
from backend.policies.tensor_files import write_tensors
from backend.store.records import PublishedRecord, ShardRecord
from backend.store.store import Store
from backend.training.checkpoints import TrainingState
from backend.training.curriculum.curriculum import Stage
from backend.training.curriculum.queries import Query
from backend.training.learning.metrics import team_metrics
from backend.training.learning.step_data import StepData
from backend.training.rollout.counterfactual import role_shares
from backend.training.rollout.dynamic_sampling import further, missing, samples_on, told
from backend.training.rollout.sharding import Shard, part, step_queries
from backend.training.trainer import Trainer
from cryptosentinel.agents.registry import MANAGER
from simulator.errors import RunFailed, UserError

STATE = "services/leader.json"
_STAGE = re.compile(r"stage (\d+), (\d+) steps in")  # what the leader says, for the other workers

_log = logging.getLogger(__name__)


class Worker(Trainer):
    """Rolls out its shards of every step with the weights that the trainers published. `number` of `workers`; number 0
    leads. The steps, the validation and the curriculum are those of `Trainer`; what differs is where the weights come
    from and who learns."""

    def attend(self, store: Store, beacon: Beacon, number: int, workers: int, files: RunFiles | None = None) -> None:
        """Work with the others of the run from here on. Raises `UserError` for a number that has no shard."""
        if not 0 <= number < workers <= self.config.shards:
            raise UserError(
                f"worker {number} of {workers} would have nothing to do: training.shards = {self.config.shards}; there "
                "can be as many workers as shards"
            )
        self.store, self.beacon = store, beacon
        self.files = files or RunFiles(self.folder)
        self.own = range(number, self.config.shards, workers)
        self.learners = {}  # the roles learn elsewhere
        self._doing = ""

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
        self._doing = f"stage {stage.number}, {step - self.state.stage_began} steps in"
        self.beacon.say("working", step, self._doing)
        self._do_shards(step, stage)
        sampled = self._do_further(step, stage)
        if (closing := closing_shard(self.config)) is not None:
            self.store.add_shard(ShardRecord(self.journal.run, step, closing, 0, 0, 0))
        self.beacon.wait(step, self._for_others(), lambda: is_complete(self.store, self.journal.run, step, self.config))
        records = self.store.rollouts(self.journal.run, step)
        metrics = {"stage": float(stage.number), **team_metrics(records), **sampled}
        return StepData(stage, [], []), metrics

    def _learn(self, data: StepData) -> dict[str, float]:
        step = self.state.step + 1
        metrics: dict[str, float] = {}
        for record in self._take(step, as_trained=True):
            learnt = record.metrics
            metrics |= learnt["metrics"]
            if learnt["rolled_back"]:
                self.state.rollbacks.append((record.step - 1, record.role))
            metrics[f"{record.role}/staleness"] = float(step - record.step)
        return metrics

    def _reject(self) -> None:
        """Put the best version of every role in the place of what its trainer published. The trainers find it there
        before they learn from the step that comes, and the other workers before they roll it out."""
        super()._reject()
        step = self.state.step
        for record in self.store.published(self.journal.run, step):
            if PUT_BACK in record.metrics:  # a former life of this process did it
                continue
            path = self.folder / SERVICES / "put_back" / record.role / f"step-{step:06d}.safetensors"
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".tmp")
            write_tensors(partial, self.policies.role_state(record.role), self.policies.header(record.role))
            partial.replace(path)
            self.store.add_published(put_back(record, self.policies.version(record.role), path, self.folder))

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
        step = loaded = -1
        while True:
            step, stage = self.beacon.wait(step + 1, "for the leader", partial(self._announced, step))
            # The leader has validated since then, and may have put former weights back.
            if loaded != step or any(PUT_BACK in one.metrics for one in self._published(step) or ()):
                self._take(step)
            self._do_shards(step, stage)
            self._do_further(step, stage)
            if not self.config.unsynchronised:
                # While the leader validates and writes; where the newest weights are wanted, they are looked for later.
                loaded = step + 1
                self._take(loaded)

    def _announced(self, after: int) -> tuple[int, Stage] | None:
        """The step that the leader is at, if it is later than `after`, and its stage."""
        for one in self.store.services(self.journal.run):
            said = _STAGE.match(one.message or "")
            if one.name == LEADER and one.step is not None and one.step > after and said is not None:
                self._doing = said[0]
                return one.step, self._stage(one.step, int(said[1]), int(said[2]))
        return None

    def _do_shards(self, step: int, stage: Stage) -> None:
        """Roll out this worker's shards of `step`, unless they are complete already: then a former life of it did."""
        asked, practised = step_queries(self.pool, self.config, step, stage, self.team)
        done, shards = self._marked(step), self.config.shards
        for shard in self.own:
            if shard not in done:
                queries = [*part(asked, shard, shards), *part(practised, shard, shards)]
                self._do_shard(step, stage, shard, queries, partial(self._shard, stage, shard))

    def _do_further(self, step: int, stage: Stage) -> dict[str, float]:
        """Roll out this worker's part of the queries that dynamic sampling adds to a step, and answer with its metrics.

        All workers decide alike what is missing, each time that all shards until then are complete.
        """
        config, known = self.config, self.config.queries_per_step
        if not samples_on(config, stage):
            return {}
        lacking = self._lacking(step, stage, known, 0)
        for number in range(config.dynamic_rounds):
            if not lacking:
                break
            queries = further(self.pool, config, step, stage, number, known, lacking)
            done = self._marked(step)
            for place in self.own:
                shard, own = (number + 1) * config.shards + place, part(queries, place, config.shards)
                if shard not in done:
                    self._do_shard(step, stage, shard, own, partial(self._further_shard, own))
            known += lacking
            lacking = self._lacking(step, stage, known, number + 1)
        return told(config, known, lacking)

    def _further_shard(self, queries: Sequence[Query]) -> Shard:
        return Shard(self._collect(queries), [])

    def _lacking(self, step: int, stage: Stage, known: int, rounds: int) -> int:
        """How many queries are missing after the first `known`, once the shards of that many rounds are complete."""
        awaited = set(range((rounds + 1) * self.config.shards))
        self.beacon.wait(step, self._for_others(), lambda: awaited <= self._marked(step) or None)
        heard = step_data(self.store, self.journal.run, step, MANAGER.key, self.config, self.curriculum)
        return missing(self.config, stage, heard.team[:known])

    def _do_shard(
        self, step: int, stage: Stage, shard: int, queries: Sequence[Query], roll: Callable[[], Shard]
    ) -> None:
        """Roll a shard out, write it, and mark it as complete."""
        run = self.journal.run
        self.beacon.check()
        self.store.clear_shard(run, step, shard, [one.number for one in queries])
        self.state.step = step
        rolled = roll()
        method = self.config.credit if stage.pays_outcome else "broadcast"
        shares = role_shares(self.team, rolled.team, self.rollout_settings, method)
        self.beacon.check()
        records = self.journal.rollouts(step, stage.number, rolled.team, rolled.practice, shares)
        calls = sum(1 + len(one.subs) for group in rolled.team for one in group)
        calls += sum(len(one.subs) for group in rolled.practice for one in group)
        self.store.add_shard(ShardRecord(run, step, shard, len(queries), len(records), calls))
        _log.info("shard %d: %d windows, %d rollouts, %d conversations", shard, len(queries), len(records), calls)

    def _for_others(self) -> str:
        """What a worker says while it waits for the others; from the leader's, they read the stage."""
        return f"{self._doing}: for the other workers"

    def _marked(self, step: int) -> set[int]:
        """The shards of a step that are complete."""
        return {mark.shard for mark in self.store.shards(self.journal.run, step)}

    def _take(self, step: int, as_trained: bool = False) -> list[PublishedRecord]:
        """Wait for the weights that roll out `step`, and answer with them: those of `staleness` steps before, or in an
        unsynchronised run each role's newest since then. With `as_trained`, also where others were put in their
        place."""
        records = self.beacon.wait(step, "for the trainers", lambda: self._published(step))
        if as_trained:
            records = [trained(record) for record in records]
        files = {record.role: self.files.fetch(record.path, record.checksum) for record in records}
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
