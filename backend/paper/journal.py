"""The journal of a session: what it knew, decided and did, in the store before it takes effect.

| kind | what | written before |
| --- | --- | --- |
| `start` | the history, and where the session begins | anything else |
| `bar` | a bar of all symbols, what filled in it, what the guard sends at its close | the next order or decision |
| `decision` | the orders that were decided, with everything said, the guard's state | they are sent |
| `missed` | that nothing was decided at a close, and why | the session continues |
| `control` | kill switch, stop, resume; the orders of the switch | they are sent |
| `notice` | what the feed tells of itself, and data that was not used | the next event |
| `end` | that the session is over | its result is stored |

The account follows: the same bars and requests give the same account, and a resumed session compares what fills with
what filled then. What an entry holds is checked when it is read, since a store may be somebody else's, or damaged: its
outer parts here, an order, a fill, a history or a conversation where it is made again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from backend.store.errors import StoreError
from backend.store.records import JournalRecord
from backend.store.store import Store
from simulator.errors import DataError
from simulator.exchange.exchange_records import array_from_json, array_to_json, record_from_json, record_to_json
from simulator.exchange.orders import OrderRequest
from simulator.live.bar_assembly import LiveBar
from simulator.live.broker import Happened
from simulator.market.events import FundingEvent
from simulator.market.market import Market
from simulator.market.timeframes import BAR_COLUMNS, interval_of

EntryKind = Literal["start", "bar", "decision", "missed", "control", "notice", "end"]
_PORTION = 500  # entries that are read at a time


class Journal:
    """The journal of the session `run` in `store`, of which `written` entries are there."""

    def __init__(self, store: Store, run: str, written: int = 0) -> None:
        self._store, self._run, self._next = store, run, written
        self._listener: Callable[[str, int, dict[str, Any]], None] | None = None
        self._one_at_a_time = threading.Lock()

    def write(self, kind: EntryKind, time: int, document: dict[str, Any]) -> None:
        """Add an entry; it is on disk when this returns. Raises `StoreError` where it could not be written."""
        with self._one_at_a_time:
            self._store.put(JournalRecord(self._run, self._next, kind, time, document))
            self._next += 1
            if self._listener is not None:
                self._listener(kind, time, document)

    def tell(self, listener: Callable[[str, int, dict[str, Any]], None]) -> None:
        """Call `listener` with kind, time and document of each entry once it is on disk."""
        self._listener = listener


def entries_of(store: Store, run: str) -> list[JournalRecord]:
    """The whole journal, in order. Raises `StoreError` for one that has a gap or no beginning."""
    return list(entries_in_portions(store, run))


def entries_in_portions(store: Store, run: str, first: int = 0) -> Iterator[JournalRecord]:
    """The journal from its entry `first` on, of which only a part is in memory. Raises `StoreError` as `entries_of`."""
    begun = first
    # The last portion, which is empty, shows that nothing stands behind a gap. A session that runs may write meanwhile.
    while portion := store.journal_between(run, first, first + _PORTION):
        whole = [one.ordinal for one in portion] == [*range(first, first + len(portion))]
        if not whole or (first == 0 and portion[0].kind != "start"):
            raise _broken(run)
        for entry in portion:
            if problem := entry_problem(entry.kind, entry.document):
                raise StoreError(
                    f"entry {entry.ordinal} of the journal of session {run} is not as this program writes it "
                    f"({problem}): restore a backup of the store, or begin another session"
                )
        yield from portion
        first += len(portion)
    if first == begun == 0:
        raise _broken(run)


def newest_entries(store: Store, run: str, count: int = 500) -> list[JournalRecord]:
    """The last entries of a session, `count` or more and the newest bar among them where there is one, without the
    first entry. Ordinals have no gap, so the last one is found by bisection."""
    low, high = 0, 1
    while store.journal_between(run, high, high + 1):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if store.journal_between(run, middle, middle + 1) else (low, middle)
    while True:
        first = max(1, high - count)
        found = list(entries_in_portions(store, run, first))
        if first == 1 or any(entry.kind == "bar" for entry in found):
            return found
        count *= 8


def _broken(run: str) -> StoreError:
    return StoreError(
        f"the journal of session {run} is not whole: restore a backup of the store, or begin another session"
    )


def history_to_json(market: Market) -> dict[str, Any]:
    """A market without news and series."""
    return {
        "symbols": list(market.symbols),
        "timeframe": market.timeframe,
        "source": market.source,
        "kinds": dict(market.kinds),
        "open_time": int(market.open_time[0]),
        "columns": {name: array_to_json(getattr(market, name)) for name in BAR_COLUMNS},
        "funding": {
            symbol: [[event.time, event.rate] for event in events] for symbol, events in market.funding.items()
        },
    }


def history_from_json(data: Mapping[str, Any]) -> Market:
    """The market again. Raises `DataError` for a damaged one."""
    try:
        symbols = tuple(data["symbols"])
        arrays: dict[str, Any] = {
            name: array_from_json(data["columns"][name], (None, len(symbols))) for name in BAR_COLUMNS
        }
        bars = len(arrays["close"])
        interval = interval_of(data["timeframe"])
        return Market(
            symbols=symbols, timeframe=data["timeframe"], source=data["source"], kinds=dict(data["kinds"]),
            open_time=int(data["open_time"]) + interval * np.arange(bars, dtype=np.int64), **arrays,
            funding={
                symbol: tuple(FundingEvent(int(time), float(rate)) for time, rate in events)
                for symbol, events in data["funding"].items()
            },
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"the session's history is damaged: {error!r}; restore a backup of the store.") from error


def bar_to_json(bar: LiveBar) -> dict[str, Any]:
    """A bar as it was known."""
    return {
        "open_time": bar.open_time,
        "known_at": bar.known_at,
        "candles": {symbol: list(values) for symbol, values in bar.candles.items()},
        "half_spread": bar.half_spread,
        "funding": [list(one) for one in bar.funding],
    }


def bar_from_json(data: Mapping[str, Any]) -> LiveBar:
    """The bar again. Raises `DataError` for a damaged one."""
    try:
        return LiveBar(
            int(data["open_time"]),
            int(data["known_at"]),
            {symbol: _five(values) for symbol, values in data["candles"].items()},
            {symbol: float(data["half_spread"][symbol]) for symbol in data["candles"]},
            tuple((str(symbol), int(time), float(rate)) for symbol, time, rate in data["funding"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"a bar of the session is damaged: {error!r}; restore a backup of the store.") from error


def requests_to_json(requests: Sequence[OrderRequest], late_ms: Sequence[int]) -> list[list[Any]]:
    """What is sent, each request with its lateness."""
    return [[record_to_json(one), late] for one, late in zip(requests, late_ms, strict=True)]


def requests_from_json(data: Sequence[Sequence[Any]]) -> tuple[list[OrderRequest], list[int]]:
    """The requests and their latenesses. Raises `DataError` for damaged ones."""
    return [record_from_json(one) for one, _ in data], [int(late) for _, late in data]


def happened_to_json(happened: Happened) -> dict[str, Any]:
    """What a bar brought."""
    return {
        "ledger": [record_to_json(one) for one in happened.ledger],
        "rejections": [record_to_json(one) for one in happened.rejections],
    }


def _five(values: Sequence[Any]) -> tuple[float, float, float, float, float]:
    first, high, low, last, volume = (float(value) for value in values)
    return first, high, low, last, volume


# What each kind of entry holds

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
    totals: dict[str, int]
    waiting: list[_Record] = []
    feed: dict[str, int] = {}


class _Start(_Shape):
    history: dict[str, Any]
    decide_every: Annotated[int, Field(ge=1)]
    last: int | None  # of a live session, which has no end
    cash: FiniteFloat
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


class _End(_Shape):
    why: str


_SHAPES: Mapping[str, type[_Shape]] = {
    "start": _Start, "bar": _BarEntry, "decision": _Decision, "missed": _Look, "control": _Control, "notice": _Notice,
    "end": _End,
}  # fmt: skip


def entry_problem(kind: str, document: Mapping[str, Any]) -> str:
    """What is wrong with an entry, in a few words; empty where nothing is."""
    shape = _SHAPES.get(kind)
    if shape is None:
        return f"its kind is unknown, '{kind[:50]}'"
    try:
        shape.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{'.'.join(str(part)[:50] for part in first['loc'])}: {first['msg']}"
    return ""
