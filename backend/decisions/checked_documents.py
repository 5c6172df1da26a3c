"""The shape of the documents in records, checked before anything reads them.

Backtests and decisions have models of their own. The documents of a run and of an evaluation grow by use, so what is
checked of them is what is read: a field may be absent, but what is there has its type. A record of a store or of an
export may have been written by anybody.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backend.decisions.backtest_document import Number, StoredBacktest
from backend.decisions.document import EXAMPLE_DECISION, ExampleDecision, StoredDecision
from backend.store.errors import StoreError
from backend.store.records import BacktestRecord, DecisionRecord, EvaluationRecord, Record, RunRecord

_Step = Annotated[int, Field(ge=0, le=2**53)]


class _Checked(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Row(_Checked):
    """Means over windows or states, the return of each window, and how often each role does what counts."""

    behaviors: dict[str, Number | None] = {}
    __pydantic_extra__: dict[str, Number | list[Number] | None]


class _Difference(_Checked):
    of: str
    against: str
    mean: Number
    ci95: Annotated[list[Number], Field(min_length=2, max_length=2)]
    costs_saved: Number
    per_window: list[Number] = []


_Interval = Annotated[list[Number], Field(min_length=2, max_length=2)]
_Estimate = Annotated[list[Number], Field(min_length=3, max_length=3)]


class _Answer(_Checked):
    """The result in money."""

    sentence: str
    learned: str
    caveat: str
    bp: dict[str, Number]
    bp_ci95: dict[str, _Interval]
    minus_teacher: _Estimate
    minus_initial: _Estimate
    minus_holding: _Estimate
    control: _Estimate | None
    achievable_share: Number | None
    behaviors: dict[str, dict[str, Number | None]]
    seconds: Number


class _Stage(_Checked):
    stage: _Step
    from_step: _Step


class _Rollback(_Checked):
    step: _Step
    role: str


class _Evaluation(_Checked):
    """A comparison, or the words that close a run."""

    windows: int | None = None
    rows: dict[str, _Row] = {}
    difference: _Difference | None = None
    equity: dict[str, list[Number]] = {}
    equity_days: list[Number] = []
    unknown_to_training: list[str] = []
    verdict: str | None = None
    wall_seconds: Number | None = None
    peak_memory_mb: Number | None = None
    stages: list[_Stage] = []
    rollbacks: list[_Rollback] = []
    best_step: _Step | None = None


class _Run(_Checked):
    config: dict[str, Any] = {}
    versions: dict[str, str] = {}
    hardware: dict[str, Any] = {}
    notes: list[str] = []
    teams: list[str] = []
    venue: dict[str, Any] = {}
    summary: _Evaluation | None = None


def check_document(record: Record) -> None:
    """Raise `StoreError`, naming the record and the field, for a document that cannot be read or shown."""
    match record:
        case BacktestRecord():
            StoredBacktest.from_record(record)
        case DecisionRecord():
            StoredDecision.from_record(record)
        case EvaluationRecord(name=name, result=result) if name == EXAMPLE_DECISION:
            ExampleDecision.from_json(result, f"evaluation {name} in run {record.run}")
        case EvaluationRecord(name="answer"):
            _check(_Answer, record.result, f"evaluation {record.name} in run {record.run}")
        case EvaluationRecord():
            _check(_Evaluation, record.result, f"evaluation {record.name} in run {record.run}")
        case RunRecord():
            _check(_Run, record.config, f"the record of run {record.run}")


def _check(model: type[BaseModel], document: dict[str, Any], where: str) -> None:
    try:
        model.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise StoreError(
            f"{where} cannot be read ({place}: {first['msg']}): its document is damaged; import the run again from its "
            "export, or make the run again"
        ) from error
