"""A rollout worker: rolls out shards of a step with the step's weights and writes them to the store."""

from __future__ import annotations

from backend.distributed.files import RunFiles
from backend.distributed.published import PublishedWeights
from backend.training.components import TrainingParts
from backend.training.curriculum.curriculum import Curriculum
from backend.training.rollout.sharding import ShardQueries
from backend.training.rollout.shared_shards import from_bytes, markets_of
from cryptosentinel.scheduler import Throughput


class RolloutWorker:
    """Rolls out what it is given, and keeps nothing that the next shard depends on."""

    def __init__(self, parts: TrainingParts, files: RunFiles) -> None:
        recorder = parts.recorder
        self._weights = PublishedWeights(recorder.store, recorder.run, parts.policies, parts.publisher, files)
        self._curriculum = Curriculum(parts.config)
        self._collector = parts.collector
        self._recorder = recorder
        self._markets = markets_of(parts.pool.market)

    def roll_out(self, step: int, stage: int, shard: int, queries: bytes) -> Throughput:
        """Roll a shard out and write it, all in one transaction; what the engine did for it. `queries` are packed
        `ShardQueries`.

        A second call for a shard that is stored writes nothing: an actor that was thought dead, or a call that Ray has
        repeated, can neither change nor mix it (`Store.add_shard`).
        """
        throughput = Throughput()
        if shard in {mark.shard for mark in self._recorder.store.shards(self._recorder.run, step)}:
            return throughput
        asked: ShardQueries = from_bytes(queries, self._markets)
        self._weights.load(step)
        rollouts = self._collector.roll_out(step, asked, throughput)
        outcomes = self._collector.role_outcomes(rollouts.team, self._curriculum.stage(stage))
        self._recorder.shard(step, stage, shard, rollouts, outcomes)
        return throughput
