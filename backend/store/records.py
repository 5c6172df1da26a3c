"""What the store holds: one frozen dataclass per table.

A record's `key` is made of its identifying fields, so writing a record twice leaves one record. Times are milliseconds
since the epoch, UTC. Values are checked when a record is turned into a row, because the database would not: it drops
fields that it does not know, wraps integers beyond 64 bits, and turns a null inside an object into an absent field.
Free-form documents are therefore kept as JSON text, which comes back exactly as it went in.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Self

import numpy as np

from backend.store.errors import StoreError

RunStatus = Literal["running", "finished", "failed", "interrupted"]

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True)
class _Codec:
    """How a field is written and read where the database has no type for it."""

    encode: Callable[[Any, str], Any]
    decode: Callable[[Any], Any]


def _encode_json(value: Any, where: str) -> str:
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"), default=_numpy_scalar)
    except (ValueError, TypeError) as error:
        raise StoreError(f"{where} cannot be stored as JSON: {error}") from error


def _numpy_scalar(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a value of type {type(value).__name__}")


def _array_codec(dtype: str, kind: type) -> _Codec:
    def encode(value: Any, where: str) -> bytes:
        try:
            array = np.asarray(value, dtype=np.float64 if kind is float else np.int64)
        except (ValueError, TypeError, OverflowError) as error:
            raise StoreError(f"{where}: {error}") from error
        if array.ndim != 1:
            raise StoreError(f"{where} has shape {array.shape}, expected one dimension")
        if kind is float and not np.isfinite(array).all():
            raise StoreError(f"{where} holds a value that is not finite")
        narrow = array.astype(dtype)
        if kind is not float and not np.array_equal(narrow, array):
            raise StoreError(f"{where} holds a value that does not fit {np.dtype(dtype).name}")
        return narrow.tobytes()

    def decode(value: Any) -> tuple[Any, ...]:
        return tuple(np.frombuffer(value, dtype=dtype).tolist())

    return _Codec(encode, decode)


def _clean(value: str | None, where: str) -> str | None:
    """Free text, of a model or an exception: what the database cannot hold becomes a question mark."""
    return None if value is None else value.replace("\0", "?").encode(errors="replace").decode()


# Metadata of fields that are not plain values.
_JSON = {"codec": _Codec(_encode_json, json.loads)}
_INT32 = {"codec": _array_codec("<i4", int)}
_FLOAT32 = {"codec": _array_codec("<f4", float)}
_TEXT = {"codec": _Codec(_clean, lambda value: value)}
_MASK = {"codec": _array_codec("?", bool)}


def _plain(value: Any, where: str, allow_nan: bool) -> Any:
    """`value` as the database takes it, numpy scalars made plain; `StoreError` for what would be stored wrongly."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value not in _INT64:
            raise StoreError(f"{where} is {value}, which does not fit 64 bits")
        return value
    if isinstance(value, float):
        if not (allow_nan or math.isfinite(value)):
            raise StoreError(f"{where} is {value}; only finite numbers are stored here")
        return value
    if isinstance(value, str):
        if "\0" in value or not _is_utf8(value):
            raise StoreError(f"{where} holds a NUL character or half a surrogate pair: {value[:60]!r}")
        return value
    if isinstance(value, dict):
        return {_plain(str(k), where, allow_nan): _plain(v, f"{where}[{k!r}]", allow_nan) for k, v in value.items()}
    if isinstance(value, tuple):
        return [_plain(item, where, allow_nan) for item in value]
    raise StoreError(f"{where} has type {type(value).__name__}, which the store does not take")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True)
class Record:
    """Base of all records. `table` names the table, `identity` the fields that make the key."""

    table: ClassVar[str]
    identity: ClassVar[tuple[str, ...]]
    allow_nan: ClassVar[bool] = False

    run: str

    def row(self) -> dict[str, Any]:
        """The record as the database takes it. Raises `StoreError`, naming the field, for a value it cannot hold."""
        if not _RUN_ID.fullmatch(self.run):
            raise StoreError(
                f"run id {self.run!r}: use up to 100 letters, digits, '.', '_', '-'; begin with a letter or digit"
            )
        row: dict[str, Any] = {}
        who = str(self)
        for item in fields(self):
            value, where = getattr(self, item.name), f"{who}: {item.name}"
            codec = item.metadata.get("codec")
            row[item.name] = codec.encode(value, where) if codec else _plain(value, where, self.allow_nan)
        return row

    def __str__(self) -> str:
        """The table and the key, for messages."""
        return f"{self.table} {[getattr(self, name) for name in self.identity]}"

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Self:
        """The inverse of `row`. A field that the database left out was None."""
        values: dict[str, Any] = {}
        for item in fields(cls):
            value = row.get(item.name)
            codec = item.metadata.get("codec")
            if codec:
                value = codec.decode(value)
            elif isinstance(value, list):
                value = tuple(value)
            values[item.name] = value
        return cls(**values)


@dataclass(frozen=True)
class RunRecord(Record):
    """One training, backtest, evaluation or demo. `run` is its id and also names its folder of files."""

    table = "run"
    identity = ("run",)

    kind: str  # train, backtest, evaluate, demo
    seed: int
    data_hash: str  # `Market.content_hash`
    started_at: int
    config: dict[str, Any] = field(metadata=_JSON)
    status: RunStatus = "running"
    finished_at: int | None = None
    message: str | None = field(default=None, metadata=_TEXT)  # why it failed, or a word on the result


@dataclass(frozen=True)
class QueryRecord(Record):
    """One market window of a training step; its K rollouts start from the same state."""

    table = "query"
    identity = ("run", "step", "query")

    step: int
    query: int  # position within the step
    stage: int  # of the curriculum: 1 or 2
    symbols: tuple[str, ...]
    bar: int  # the decision is made at the close of this bar
    time: int
    seed: int


@dataclass(frozen=True)
class RolloutRecord(Record):
    """One rollout of a query. `calls` counts the calls per sub-agent, zero included."""

    table = "rollout"
    identity = ("run", "step", "query", "rollout")

    step: int
    query: int
    rollout: int
    seed: int
    valid: bool  # the manager's format
    outcome: float  # r_outcome, in [0, 1]
    calls: dict[str, int]
    parts: dict[str, float]  # of the outcome: net return, fees, spread, funding, ...


@dataclass(frozen=True)
class TrajectoryRecord(Record):
    """One conversation of one role. `ids`, `mask`, `sampled_logps` have equal length.

    `mask` is True where the model sampled the token; `sampled_logps` is 0 elsewhere and is kept in float32. `ordinal`
    counts the calls of the role within the rollout. `caller` is the (role, ordinal) that delegated this conversation,
    None for the one that nobody called.
    """

    table = "trajectory"
    identity = ("run", "step", "query", "rollout", "role", "ordinal")

    step: int
    query: int
    rollout: int
    role: str
    ordinal: int
    policy_version: str
    ids: tuple[int, ...] = field(metadata=_INT32)
    mask: tuple[bool, ...] = field(metadata=_MASK)
    sampled_logps: tuple[float, ...] = field(metadata=_FLOAT32)
    valid: bool = True
    truncated: bool = False
    reason: str | None = field(default=None, metadata=_TEXT)  # why it is not valid
    caller: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.mask) == len(self.sampled_logps):
            raise StoreError(
                f"{self}: {len(self.ids)} ids, {len(self.mask)} mask and {len(self.sampled_logps)} "
                "sampled_logps; the lengths must be equal"
            )


@dataclass(frozen=True)
class Delegation(Record):
    """Edge of the graph: within a rollout `caller` called (role, ordinal) as its call number `position`."""

    table = "delegated"
    identity = ("run", "step", "query", "rollout", "role", "ordinal")

    step: int
    query: int
    rollout: int
    caller: tuple[str, int]
    role: str
    ordinal: int
    position: int  # 0, 1, ... among the calls that this caller made


@dataclass(frozen=True)
class RewardRecord(Record):
    """Reward of one trajectory. Every part is kept, so that it can be weighed anew later."""

    table = "reward"
    identity = ("run", "step", "query", "rollout", "role", "ordinal")

    step: int
    query: int
    rollout: int
    role: str
    ordinal: int
    total: float
    parts: dict[str, float]  # format, outcome, expert and what they were made of; an absent part has no key
    advantage: float | None = None


@dataclass(frozen=True)
class AdapterRecord(Record):
    """Weights of one role after a step, in a safetensors file."""

    table = "adapter"
    identity = ("run", "role", "version")

    role: str
    version: str
    step: int
    path: str  # relative to the run's folder
    checksum: str  # SHA-256 of the file


@dataclass(frozen=True)
class EvaluationRecord(Record):
    """The outcome of measuring one policy, or a comparison, at a step."""

    table = "evaluation"
    identity = ("run", "name", "step")

    name: str
    step: int
    result: dict[str, Any] = field(metadata=_JSON)


@dataclass(frozen=True)
class BacktestRecord(Record):
    """One strategy over one window. `result` is `BacktestResult.to_dict()`."""

    table = "backtest"
    identity = ("run", "name")

    name: str
    result: dict[str, Any] = field(metadata=_JSON)


@dataclass(frozen=True)
class DecisionRecord(Record):
    """One decision told as a story: conversations, what the guard did, orders, outcome."""

    table = "decision"
    identity = ("run", "backtest", "ordinal")

    backtest: str  # `BacktestRecord.name`
    ordinal: int
    time: int
    story: dict[str, Any] = field(metadata=_JSON)


@dataclass(frozen=True)
class MetricRecord(Record):
    """Metrics of one step by name, as `manager/reward/mean`. NaN is allowed: that a metric was NaN is worth knowing."""

    table = "metric"
    identity = ("run", "step")
    allow_nan = True

    step: int
    values: dict[str, float]
