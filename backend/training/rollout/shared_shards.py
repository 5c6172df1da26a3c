"""The shards of a step and of a validation, rolled out by this process and its helpers side by side.

A helper has the team, the engine and the windows of its own, made from the same configuration. With each shard it gets
the weights, so that it has nothing to remember. A shard is the same in every process (`sharding.py`).
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from backend.builders.market import remembered_market
from backend.config.schema import Config
from backend.policies.adapters import publisher
from backend.processes import Helper, Workers, WorkReport, silent
from backend.training.curriculum.queries import Query
from backend.training.rollout.collect import Rollout
from backend.training.rollout.sharding import Shard, ShardCollector, ShardQueries, begun_parts
from cryptosentinel.scheduler import Throughput
from simulator.market.market import Market

HelperWeights = Mapping[
    str, tuple[str, Mapping[str, Tensor]]
]  # by role: the version's name, and the role's own parameters


@dataclass(frozen=True)
class TrainingPlace:
    """What a helper needs to work for a training: its configuration, and where its models lie."""

    config: Config
    base: Path
    start: Path | None


@dataclass(frozen=True)
class _ShardTask:
    """A shard to be rolled out; of a validation where there is no `step`. `queries` are packed (`packed`)."""

    place: TrainingPlace
    weights: HelperWeights
    step: int | None
    queries: bytes


class SharedShards:
    """Rolls out all shards of a step, and of a validation, with as many processes as there are."""

    def __init__(self, collector: ShardCollector, workers: Workers, place: TrainingPlace | None) -> None:
        """`place` is for the helpers among the `workers`."""
        self._collector = collector
        self._markets = markets_of(collector.parts.pool.market)
        self._workers = workers
        self._place = place

    def roll_out(self, step: int, shards: Sequence[ShardQueries], throughput: Throughput) -> list[Shard]:
        """The shards of a step, with the weights that the engine has."""
        answers = self._workers.share(partial(self._roll_out, step), shards)
        for _, busy in answers:
            throughput.add(busy)
        return [shard for shard, _ in answers]

    def validate(self, shards: Sequence[list[Query]], seed: int) -> list[list[Rollout]]:
        """The rollouts of all states of a validation, as one list a state."""
        parts = [ShardQueries(queries) for queries in shards]
        answers = self._workers.share(partial(self._validate, seed), parts)
        return [group for shard, _ in answers for group in shard.team]

    def _roll_out(self, step: int, helper: Helper | None, queries: ShardQueries) -> tuple[Shard, Throughput]:
        if helper is not None:
            return self._asked(helper, step, queries)
        throughput = Throughput()
        return self._collector.roll_out(step, queries, throughput), throughput

    def _validate(self, seed: int, helper: Helper | None, queries: ShardQueries) -> tuple[Shard, Throughput]:
        if helper is not None:
            return self._asked(helper, None, queries)
        return Shard(self._collector.validate(queries.team, seed), []), Throughput()

    def _asked(self, helper: Helper, step: int | None, queries: ShardQueries) -> tuple[Shard, Throughput]:
        assert self._place is not None  # there is a helper
        policies = self._collector.parts.policies
        weights = {role: (policies.version(role), policies.role_state(role)) for role in policies.roles}
        task = _ShardTask(self._place, weights, step, to_bytes(queries))
        answer: tuple[Shard, Throughput] = from_bytes(helper.do(_roll_out_here, task, silent), self._markets)
        return answer


# -- in a helper ----------------------------------------------------------------------------------------------


class HelpersParts:
    """What a helper works with, made when it is first asked for a training."""

    def __init__(self, place: TrainingPlace) -> None:
        market = remembered_market(place.config.market, place.config.costs)
        self.place = place
        self.parts = parts = begun_parts(place.config, market, "helper", place.base, place.start)
        self._publisher = publisher(parts.engine, parts.policies, Path())  # of an engine in this process: no files
        self.collector = ShardCollector(parts, self._publisher)
        self.markets = markets_of(parts.pool.market)
        self._published = {role: parts.policies.version(role) for role in parts.policies.roles}

    def publish(self, weights: HelperWeights) -> None:
        """Let the engine answer with these weights."""
        for role, (version, state) in weights.items():
            if self._published[role] != version:
                self.parts.policies.load_role_state(role, state)
                self._publisher.publish([role])
                self._published[role] = version


_PARTS: list[HelpersParts] = []  # of the training that this helper was last asked for


def helpers_parts(place: TrainingPlace) -> HelpersParts:
    """In a helper: what it works with for a training."""
    if not _PARTS or _PARTS[0].place != place:
        _PARTS[:] = [HelpersParts(place)]
    return _PARTS[0]


def _roll_out_here(task: _ShardTask, report: WorkReport) -> bytes:
    here = helpers_parts(task.place)
    here.publish(task.weights)
    queries: ShardQueries = from_bytes(task.queries, here.markets)
    throughput = Throughput()
    if task.step is None:
        shard = Shard(here.collector.validate(queries.team, task.place.config.training.seed), [])
    else:
        shard = here.collector.roll_out(task.step, queries, throughput)
    return to_bytes((shard, throughput))


# -- between both ---------------------------------------------------------------------------------------------


def markets_of(market: Market) -> dict[tuple[str, ...], Market]:
    """The whole market and that of each coin, by their symbols: what windows refer to, and what both sides have."""
    return {one.symbols: one for one in (*(market.select((symbol,)) for symbol in market.symbols), market)}


class _Pickler(pickle.Pickler):
    """Markets are large and both sides have them: they go by their symbols."""

    def persistent_id(self, obj: Any) -> tuple[str, ...] | None:
        return obj.symbols if isinstance(obj, Market) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, markets: Mapping[tuple[str, ...], Market]) -> None:
        super().__init__(io.BytesIO(data))
        self._markets = markets

    def persistent_load(self, symbols: Any) -> Market:
        return self._markets[symbols]


def to_bytes(content: object) -> bytes:
    """`content` as bytes, its markets by their symbols."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(content)
    return buffer.getvalue()


def from_bytes(data: bytes, markets: Mapping[tuple[str, ...], Market]) -> Any:
    """The inverse of `to_bytes`. Only for bytes of this run's own processes: it unpickles."""
    return _Unpickler(data, markets).load()
