"""What the store holds: one frozen dataclass per table.

A record's key is made of its identifying fields, so writing a record twice leaves one record. Times are milliseconds
since the epoch, UTC. The database knows no fields: a value is checked by its type here, when it is written and when it
is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Self, get_type_hints

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from backend.store.encoding import FLOAT32, INT32, JSON, MASK, TEXT, Codec, database_value
from backend.store.errors import StoreError

RunStatus = Literal["running", "finished", "failed", "interrupted", "deleting"]
PAPER = "paper"  # the kind of run that a paper session is

_STRICT = ConfigDict(strict=True)
_ARRAYS = tuple(one["codec"] for one in (INT32, FLOAT32, MASK))
_ANY: TypeAdapter[Any] = TypeAdapter(Any)
# A field: how it is written where it is not a plain value, and the check of its type.
_Column = tuple[str, Codec | None, TypeAdapter[Any]]
_COLUMNS: dict[str, tuple[_Column, ...]] = {}  # by table
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def valid_run_id(text: object) -> str:
    """`text`, which is the id of a run. Raises `StoreError` for one that could not name its folder."""
    if not isinstance(text, str) or not _RUN_ID.fullmatch(text):
        raise StoreError(f"run id {text!r}: use up to 100 letters, digits, '.', '_', '-'; begin with a letter or digit")
    return text


@dataclass(frozen=True)
class Record:
    """Base of all records. `table` names the table, `identity` the fields that make the key."""

    table: ClassVar[str]
    identity: ClassVar[tuple[str, ...]]
    allow_nan: ClassVar[bool] = False

    run: str

    def row(self) -> dict[str, Any]:
        """The record as the database takes it. Raises `StoreError`, naming the field, for a value it cannot hold."""
        valid_run_id(self.run)
        row: dict[str, Any] = {}
        for name, codec, check in _columns(type(self)):
            value = getattr(self, name)
            try:
                row[name] = database_value(value, self.allow_nan) if codec is None else codec.encode(value)
                if codec is None:
                    check.validate_python(_tuple(row[name]))
            except ValidationError as error:
                raise StoreError(f"{self}: {name} is {value!r:.60}: {_reason(error)}") from error
            except ValueError as error:
                raise StoreError(f"{self}: {name}{error}") from error
        return row

    def __str__(self) -> str:
        """The table and the key, for messages."""
        return f"{self.table} {[getattr(self, name) for name in self.identity]}"

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Self:
        """The inverse of `row`. A field that the database left out was None.

        Raises `StoreError`, naming the table and the field, for a row that no record gives: what lies in a store or in
        an export may have been written by anybody.
        """
        values: dict[str, Any] = {}
        for name, codec, check in _columns(cls):
            try:
                value = row.get(name)
                values[name] = check.validate_python(codec.decode(value) if codec else _tuple(value))
            except (ValueError, TypeError, OverflowError) as error:
                raise StoreError(
                    f"a record of the table {cls.table} cannot be read, its {name} is damaged ({_reason(error)}): "
                    "import the run again from its export, or make the run again"
                ) from error
        valid_run_id(values["run"])
        return cls(**values)


def _columns(kind: type[Record]) -> tuple[_Column, ...]:
    """The fields of a record. Arrays are checked when they are decoded."""
    if kind.table not in _COLUMNS:
        hints, codecs = get_type_hints(kind), {item.name: item.metadata.get("codec") for item in fields(kind)}
        _COLUMNS[kind.table] = tuple(
            (name, codec, _ANY if codec in _ARRAYS else TypeAdapter(hints[name], config=_STRICT))
            for name, codec in codecs.items()
        )
    return _COLUMNS[kind.table]


def _tuple(value: Any) -> Any:
    """A list of the database as a tuple."""
    return tuple(value) if isinstance(value, list) else value


def _reason(error: Exception) -> str:
    """Why a value is refused, on one line."""
    if isinstance(error, ValidationError):
        return error.errors(include_url=False, include_input=False)[0]["msg"]
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


@dataclass(frozen=True)
class RunRecord(Record):
    """One training, backtest, evaluation or demo. `run` is its id and also names its folder of files."""

    table = "run"
    identity = ("run",)

    kind: str  # train, sft, backtest, evaluate, demo, experiment, paper
    seed: int
    data_hash: str  # `Market.content_hash`
    started_at: int
    config: dict[str, Any] = field(metadata=JSON)
    status: RunStatus = "running"
    finished_at: int | None = None
    message: str | None = field(default=None, metadata=TEXT)  # why it failed, or a word on the result
    imported: bool = False  # it came out of a file: it is read, and never resumed


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
    """One rollout of a query. `calls` counts the calls per sub-agent, zero included. Where `parts` say that it repeats
    the beginning of another rollout, these are the calls after that."""

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

    A trainer in another process makes credit of `format_score` in [0, 1]; of `expert`, the expert's score in [0, 1],
    None where there is none; and of `shared`, the part of the team's outcome that this call is credited with, None for
    the manager, whose outcome is the rollout's. `thought_tokens` and `thoughts_cut` are as
    `algorithm.trajectory.Trajectory` has them.
    """

    table = "trajectory"
    identity = ("run", "step", "query", "rollout", "role", "ordinal")

    step: int
    query: int
    rollout: int
    role: str
    ordinal: int
    policy_version: str
    ids: tuple[int, ...] = field(metadata=INT32)
    mask: tuple[bool, ...] = field(metadata=MASK)
    sampled_logps: tuple[float, ...] = field(metadata=FLOAT32)
    valid: bool = True
    truncated: bool = False
    reason: str | None = field(default=None, metadata=TEXT)  # why it is not valid
    caller: tuple[str, int] | None = None
    format_score: float = 0.0
    expert: float | None = None
    shared: float | None = None
    thought_tokens: int = 0
    thoughts_cut: int = 0

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.mask) == len(self.sampled_logps):
            raise StoreError(
                f"{self}: {len(self.ids)} ids, {len(self.mask)} mask and {len(self.sampled_logps)} "
                "sampled_logps; the lengths must be equal"
            )
        for name in ("format_score", "expert", "shared"):
            score = getattr(self, name)
            if score is not None and not 0.0 <= score <= 1.0:
                raise StoreError(f"{self}: {name} is {score}, which is outside [0, 1]")


@dataclass(frozen=True)
class RewardRecord(Record):
    """Reward of one trajectory. Every part is kept, so that it can be weighed again later."""

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
    result: dict[str, Any] = field(metadata=JSON)


@dataclass(frozen=True)
class BacktestRecord(Record):
    """One strategy over one window. `result` is a `BacktestDocument`, see `backend.decisions.backtest_document`."""

    table = "backtest"
    identity = ("run", "name")

    name: str
    result: dict[str, Any] = field(metadata=JSON)


@dataclass(frozen=True)
class DecisionRecord(Record):
    """One decision: conversations, what the guard did, orders, outcome. `document` is a `DecisionDocument`, see
    `backend.decisions.document`."""

    table = "decision"
    identity = ("run", "backtest", "ordinal")

    backtest: str  # `BacktestRecord.name`
    ordinal: int
    time: int
    document: dict[str, Any] = field(metadata=JSON)


@dataclass(frozen=True)
class JournalRecord(Record):
    """One entry of a paper session's journal, written before what it says takes effect: see `backend.paper.journal`."""

    table = "journal"
    identity = ("run", "ordinal")

    ordinal: int  # 0, 1, ... without a gap; -1 and -2 are the last two snapshots
    kind: str
    time: int  # by the session's clock
    document: dict[str, Any] = field(metadata=JSON)


@dataclass(frozen=True)
class MetricRecord(Record):
    """Metrics of one step by name, as `manager/reward/mean`. NaN is allowed: that a metric was NaN is worth knowing."""

    table = "metric"
    identity = ("run", "step")
    allow_nan = True

    step: int
    values: dict[str, float]


@dataclass(frozen=True)
class ShardRecord(Record):
    """Marks a shard of a step as complete, with how many records it has: they are written in one transaction."""

    table = "shard"
    identity = ("run", "step", "shard")

    step: int
    shard: int  # 0, 1, ... of the step
    queries: int
    rollouts: int
    trajectories: int


@dataclass(frozen=True)
class PublishedRecord(Record):
    """The weights that a role's trainer made for a step, for those who roll out that step. Step 0 begins the run."""

    table = "published"
    identity = ("run", "step", "role")

    role: str
    step: int
    version: str
    path: str  # relative to the run's folder
    checksum: str  # SHA-256 of the file
    metrics: dict[str, Any] = field(metadata=JSON)


@dataclass(frozen=True)
class TrialRecord(Record):
    """One way of trading that was tested on one window: a row of the ledger of trials.

    It names the run that tested it and is not a part of it: it stays when the run is deleted, and no export has it.
    """

    table = "trial"
    identity = ("run", "name")

    name: str  # of what was tested, within the run
    data_hash: str  # `Market.content_hash`
    start: int  # of the window, ms
    stop: int
    digest: str  # of all that decides what it does: configuration, prompts, seed, weights, source
    tested_at: int


# Every kind of record that belongs to a run; last the run itself, whose record makes all else visible.
KINDS: tuple[type[Record], ...] = (
    QueryRecord, RolloutRecord, TrajectoryRecord, RewardRecord, ShardRecord, PublishedRecord, AdapterRecord,
    EvaluationRecord, BacktestRecord, DecisionRecord, JournalRecord, MetricRecord, RunRecord,
)  # fmt: skip
ALL_KINDS: tuple[type[Record], ...] = (*KINDS, TrialRecord)


class StoredDocument(BaseModel):
    """Base of the documents inside records: a record holds one as JSON and knows nothing of its fields."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def to_json(self) -> dict[str, Any]:
        """The document as JSON types; `from_json` brings back an equal one."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, document: Mapping[str, Any], where: str) -> Self:
        """The document in a record; `where` names the run and the record. Raises `StoreError` for a damaged one."""
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            reason = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
            raise StoreError(
                f"{where} cannot be read ({reason}): its document is damaged; import the run again from its export, or "
                "repeat the run"
            ) from error
