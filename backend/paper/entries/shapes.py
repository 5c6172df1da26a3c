"""What each kind of entry of a journal holds, checked when it is read: a store may be somebody else's, or damaged.

Only the outer parts are checked here, by which the rest of the program finds its way. What an order, a fill, a history
or a conversation holds is checked by who makes it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

_SentRequest = Annotated[list[Any], Field(min_length=2, max_length=2)]
_FiveNumbers = Annotated[list[FiniteFloat], Field(min_length=5, max_length=5)]


class _Shape(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class _Record(_Shape):
    kind_of_record: str


class _Account(_Shape):
    equity: FiniteFloat
    cash: FiniteFloat
    positions: dict[str, FiniteFloat]
    entry_prices: dict[str, FiniteFloat] = {}  # of the symbols that are held


class _Happened(_Shape):
    ledger: list[_Record]
    rejections: list[_Record]


class _Bar(_Shape):
    open_time: int
    known_at: int
    candles: dict[str, _FiveNumbers]
    half_spread: dict[str, FiniteFloat]
    funding: list[list[Any]]


class _Look(_Shape):
    """What the guard or the switch sends at a close."""

    bar_index: int
    requests: list[_SentRequest] = []
    late: int = 0
    clamps: list[dict[str, Any]] = []
    guard: dict[str, Any] | None = None
    missed: str = ""


class _BarEntry(_Look):
    bar: _Bar
    happened: _Happened
    due: bool
    account: _Account
    waiting: list[_Record] = []
    feed: dict[str, int] = {}


class _Keeps(_Shape):
    every: Annotated[int, Field(ge=1)]
    bars: Annotated[int, Field(ge=1)]


class _Start(_Shape):
    history: dict[str, Any]
    decide_every: Annotated[int, Field(ge=1)]
    last: int | None  # of a live session, which has no end
    cash: FiniteFloat
    keeps: _Keeps | None = None
    inside: str = ""
    rules: dict[str, dict[str, Any]] | None = None


class _Decision(_Shape):
    bar: int
    begun: int
    requests: list[_SentRequest]
    dropped: bool
    decisions: list[dict[str, Any]]
    guard: dict[str, Any] | None = None
    cut_off: str = ""


class _Control(_Shape):
    what: str
    bar_index: int
    requests: list[_SentRequest]


class _Notice(_Shape):
    kind: str
    detail: str


class _Promotion(_Shape):
    team: str
    digest: str
    bar_index: int


class _End(_Shape):
    why: str


_SHAPES: Mapping[str, type[_Shape]] = {
    "start": _Start, "bar": _BarEntry, "decision": _Decision, "missed": _Look, "control": _Control, "notice": _Notice,
    "sandbox": _Shape, "promotion": _Promotion, "end": _End,
}  # fmt: skip


def entry_problem(kind: str, document: Mapping[str, Any]) -> str:
    """What is wrong with an entry, in a few words; empty where nothing is."""
    shape = _SHAPES.get(kind)
    if shape is None:
        return f"it is of no known kind, '{kind[:50]}'"
    try:
        shape.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{'.'.join(str(part)[:50] for part in first['loc'])}: {first['msg']}"
    return ""
