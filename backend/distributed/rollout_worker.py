"""The rollout workers of a training whose roles learn in processes of their own.

A step is divided into shards (`training.shards`). A worker that is free claims the next one in the store, which gives
each to one of them; that of a worker that has died or gone silent is given to another, and what the former one still
writes is refused (`backend.store.sharing.fences`). When all shards of a step are complete, the roles' trainers learn
from them and publish new weights. Worker 0 is the coordinator: for its trainer it is the source of all rollouts, and it
announces which step is next. The others follow.
"""

from __future__ import annotations

import logging
import random
import time
from functools import partial

from backend.distributed.heartbeat import COORDINATOR, DEAD_AFTER, Heartbeat, StepAnnouncement
from backend.distributed.published_weights import PublishedWeights
from backend.distributed.step_records import is_complete
from backend.store.records import ClaimRecord, ShardRecord
from backend.store.sharing.fences import Fence, StoreFenced, claim_order
from backend.training.components import RolloutBatch, TrainingParts
from backend.training.curriculum.curriculum import Curriculum, StepPlan
from backend.training.learning.step_data import StepData
from backend.training.learning.training_metrics import team_metrics
from backend.training.rollout.sharding import ShardQueries
from cryptosentinel.scheduler import Throughput

_log = logging.getLogger(__name__)
_ALL_COMPLETE = -1  # in place of the number of a shard
_FOR_OTHERS = "for the other workers"
_HELD_SECONDS = 1.0  # between two questions whether shards of other workers have become free
_HELD_AT_ONCE = 8  # of these shards: others ask for others
_NEWER_SECONDS = 1.0  # between two questions for newer weights while a shard is rolled out


class RolloutWorker:
    """Rolls out shards of every step, as many as it gets."""

    def __init__(self, parts: TrainingParts, heartbeat: Heartbeat, weights: PublishedWeights) -> None:
        self._config = parts.config
        self._weights = weights
        self._curriculum = Curriculum(parts.config)
        self._collector = parts.collector
        self._recorder = parts.recorder
        self._store = parts.recorder.store
        self._run = parts.recorder.run
        self._heartbeat = heartbeat

    def collect(self, plan: StepPlan) -> RolloutBatch:
        """As `RolloutSource.collect`, for the coordinator: announce the step, roll out shards of it, and wait for
        those of the others. The rollouts stay in the store, where the trainers read them."""
        step, stage = plan.step, plan.stage
        self._heartbeat.announce(step, StepAnnouncement(stage.number, plan.stage_steps))
        throughput = Throughput()
        self._roll_out(plan, throughput)
        complete = partial(is_complete, self._store, self._run, step, self._config)
        self._heartbeat.wait(step, _FOR_OTHERS, complete)
        if plan.goes_on:  # what is left to do of this step is the coordinator's alone: the others need not wait for it
            self._heartbeat.announce(step + 1, StepAnnouncement(stage.number, plan.stage_steps + 1))
        records = self._store.rollouts(self._run, step)
        metrics = {"stage": float(stage.number), **team_metrics(records)}
        return RolloutBatch(StepData(stage, [], []), metrics, throughput.metrics())

    def follow(self) -> None:
        """Roll out shards of each step that the coordinator announces. Raises `RunOver` at the end of the
        run."""
        step = loaded = -1
        while True:
            plan = self._heartbeat.wait(step + 1, "for the coordinator", partial(self._announced_after, step))
            step = plan.step
            if loaded != step:
                self._weights.load(step)
            self._roll_out(plan, Throughput())
            loaded = step + 1
            self._weights.load(loaded)  # while the coordinator validates and writes

    def _announced_after(self, step: int) -> StepPlan | None:
        """The step that the coordinator is at, if it is later than `step`."""
        for service in self._store.services(self._run):
            announced = StepAnnouncement.parse(service.message or "")
            if service.name == COORDINATOR and service.step is not None and service.step > step and announced:
                stage = self._curriculum.stage(announced.stage)
                return StepPlan(service.step, stage, announced.stage_steps)
        return None

    def _roll_out(self, plan: StepPlan, throughput: Throughput) -> None:
        """Roll out what is free of the shards, until all of them are complete: should another worker die, this one
        gets what that one had."""
        queries, wanted = self._collector.queries(plan.step, plan.stage), range(self._config.shards)
        held_again = 0.0  # on the monotonic clock: when those of others are asked for

        def next_shard() -> int | None:
            nonlocal held_again
            complete, claims = self._complete_shards(plan.step), self._store.claims(self._run, plan.step)
            left = [shard for shard in wanted if shard not in complete]
            now = time.monotonic()
            asks_for_held, held_again = now >= held_again, now + _HELD_SECONDS if now >= held_again else held_again
            free = [shard for shard in left if shard not in claims]
            held = [shard for shard in left if shard in claims] if asks_for_held else []
            for shard in (
                *claim_order(free, self._heartbeat.process),
                *random.sample(held, min(len(held), _HELD_AT_ONCE)),
            ):
                if self._claim(plan.step, shard):
                    return shard
            return None if left else _ALL_COMPLETE

        while (shard := self._heartbeat.wait(plan.step, _FOR_OTHERS, next_shard)) != _ALL_COMPLETE:
            self._roll_out_shard(plan, shard, queries[shard], throughput)

    def _claim(self, step: int, shard: int) -> bool:
        claim = ClaimRecord(self._run, step, shard, self._heartbeat.name, self._heartbeat.process)
        return self._store.claim_shard(claim, DEAD_AFTER)

    def _roll_out_shard(self, plan: StepPlan, shard: int, queries: ShardQueries, throughput: Throughput) -> None:
        """Roll a shard out that this worker has claimed, write it, and mark it as complete."""
        step, stage, numbers = plan.step, plan.stage, queries.numbers()
        self._heartbeat.check()
        store = self._store.fenced(Fence(ClaimRecord.table, (self._run, step, shard), self._heartbeat.process))
        try:
            store.clear_shard(self._run, step, shard, numbers)
            rollouts = self._collector.roll_out(step, queries, throughput)
            outcomes = self._collector.role_outcomes(rollouts.team, stage)
            self._heartbeat.check()
            records = self._recorder.rollouts(
                step, stage.number, rollouts.team, rollouts.practice, outcomes, store, shard
            )
            calls = sum(1 + len(one.subs) for group in rollouts.team for one in group)
            calls += sum(len(one.subs) for group in rollouts.practice for one in group)
            store.add_shard(ShardRecord(self._run, step, shard, len(numbers), len(records), calls))
        except StoreFenced as error:
            self._heartbeat.check()
            _log.warning(
                "shard %d of step %d was given to another worker, as this one was silent: %s", shard, step, error
            )
            return
        _log.info("shard %d: %d windows, %d rollouts, %d conversations", shard, len(numbers), len(records), calls)

    def _complete_shards(self, step: int) -> set[int]:
        return {marker.shard for marker in self._store.shards(self._run, step)}
