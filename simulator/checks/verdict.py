"""The look-ahead verdict: does a decision depend on anything that became known after it?

A strategy or a team runs again through its window in an `AlteredFuture`: at each of its decisions everything later is
other data. A strategy then also runs, in the real market and in an altered one, through pieces of the rest of the
history, since a leak may show in one month of five years only. Indicators that were computed for the whole history are
made again with altered later bars at cuts all over it, and the arrays are compared up to the cut.

Where a decision differs, more runs on the very same data say whether it looks ahead or decides otherwise each time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from itertools import pairwise
from typing import Any, Literal, cast

import numpy as np

from simulator.arrays import FloatArray
from simulator.backtest.run import AccountAtClose, BacktestRun, Strategy, Window, check_requests, fit
from simulator.checks.perturbation import (
    AlteredFuture,
    AlteredRun,
    IndicatorName,
    Indicators,
    altered_bars,
    by_name,
    first_differing,
    truncated,
)
from simulator.errors import RunFailed
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import OrderRequest
from simulator.market.market import Bars, Indicator, Market, MarketView, name_of
from simulator.market.timeframes import format_time

Status = Literal["clean", "look_ahead", "not_repeatable", "skipped"]
Decisions = Mapping[int, tuple[OrderRequest, ...]]  # by bar, those that sent something
Drive = Callable[[BacktestRun], None]  # drives a run to its end, with an instance that has seen no other run
CheckProgress = Callable[[int, int], None]  # parts done, of how many

_PIECES = 32  # the rest of the history is tested in up to so many parts, none shorter than _SHORTEST decisions
_SHORTEST = 16
_BEHIND = 500  # bars of altered future behind a window
_CUTS = 64  # of an indicator, spread evenly over the history
_MOST_ARRAYS = 4096  # indicator arrays that are made again, at most
_LONGEST = 160  # characters of a value in a finding


@dataclass(frozen=True)
class VerdictFinding:
    """One difference that later data made.

    Attributes:
        kind: `order`, `indicator`, or `failure` (it failed in the altered market alone).
        time: close (ms) of the bar of the decision or the value. after, cut: close and number of the bar after which
            everything was altered.
        what: the symbol and the field of the order, or the indicator. expected, found: in the real market and in the
            altered one.
    """

    kind: str
    time: int
    after: int
    cut: int
    what: str
    expected: str
    found: str

    def sentence(self) -> str:
        """The finding in words."""
        what = "order" if self.kind == "order" else "it failed: the" if self.kind == "failure" else "value"
        return (
            f"{what} at {format_time(self.time)} UTC changed when only what comes after {format_time(self.after)} UTC "
            f"was altered: {self.what}: {self.expected} became {self.found}"
        )


@dataclass(frozen=True)
class LookaheadVerdict:
    """What the check found.

    Attributes:
        cuts: decisions that were compared, each with everything after it altered. with_orders: those that sent orders.
        first, last: closes (ms) of the first and the last of them; 0 without any.
        coverage: share of the decisions of the whole history that were compared.
        indicators: arrays that were compared, each at `indicator_cuts` cuts.
        notes: what could not be judged, and why.
    """

    status: Status
    cuts: int = 0
    with_orders: int = 0
    first: int = 0
    last: int = 0
    coverage: float = 0.0
    indicators: int = 0
    indicator_cuts: int = 0
    findings: tuple[VerdictFinding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def trusted(self) -> bool:
        """Whether nothing speaks against the numbers; a check that was skipped says nothing."""
        return self.status in ("clean", "skipped")

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON types."""
        return asdict(self)

    def sentence(self) -> str:
        """The verdict in words."""
        if self.status == "skipped":
            return "not checked for look-ahead, as asked"
        if self.status == "look_ahead":
            return f"LOOK-AHEAD: {self.findings[0].sentence()}"
        if self.status == "not_repeatable":
            [one] = self.findings
            return (
                f"NOT REPEATABLE: two runs on the same data differ, first at {format_time(one.time)} UTC ({one.what}: "
                f"{one.expected} became {one.found}), so nothing can be said about look-ahead: fix its seeds, and let "
                "it read neither the clock nor a file that changes"
            )
        where = "the whole history" if self.coverage >= 1.0 else f"{100 * self.coverage:.0f} % of the history"
        arrays = f"; {self.indicators} indicators compared at {self.indicator_cuts} cuts" if self.indicators else ""
        notes = "".join(f"; {note}" for note in self.notes)
        return f"no look-ahead found in {self.cuts:,} cuts over {where}{arrays}{notes}"


SKIPPED = LookaheadVerdict("skipped")
_REPEATED = 64
_NO_ORDERS = "no decision sent an order, which proves little"


class RecordedStrategy:
    """A strategy whose decisions are kept in `decided`, by bar, where they sent something."""

    def __init__(self, strategy: Strategy) -> None:
        self.name = getattr(strategy, "name", type(strategy).__name__)
        self.decided: dict[int, tuple[OrderRequest, ...]] = {}
        self._strategy = strategy

    def fit(self, view: MarketView) -> None:
        fit(self._strategy, view)

    def decide(self, view: MarketView, account: AccountView) -> Sequence[OrderRequest]:
        requests = self._strategy.decide(view, account)
        if requests:
            check_requests(requests, view.now)
            self.decided[view.index] = tuple(requests)
            return self.decided[view.index]
        return ()


def drive_strategies(make: Callable[[], Strategy]) -> Drive:
    """Runs of the strategies that `make` builds, one for each run."""

    def drive(run: BacktestRun) -> None:
        strategy = make()
        fit(strategy, run.view())
        while not run.done:
            run.apply(strategy.decide(run.view(), run.account()))

    return drive


def first_difference(
    expected: Sequence[Any], found: Sequence[Any], tolerance: float = 0.0
) -> tuple[str, str, str, str] | None:
    """Symbol, field and both values of the first difference of two lists of orders; None for equal ones.

    Orders are compared field by field. A NaN equals a NaN; floats may differ by `tolerance`, relative.
    """
    for mine, its in zip(expected, found, strict=False):
        symbol = str(getattr(mine, "symbol", "-"))
        if type(mine) is not type(its) or not is_dataclass(mine):
            if not _same(mine, its, tolerance):
                return symbol, "order", repr(mine), repr(its)
            continue
        for one in fields(mine):
            values = getattr(mine, one.name), getattr(its, one.name)
            if not _same(*values, tolerance):
                return symbol, one.name, repr(values[0]), repr(values[1])
    if len(expected) == len(found):
        return None
    extra = (expected if len(expected) > len(found) else found)[min(len(expected), len(found))]
    sides = ("no order", repr(extra)) if len(found) > len(expected) else (repr(extra), "no order")
    return str(getattr(extra, "symbol", "-")), "order", *sides


def _same(one: Any, other: Any, tolerance: float) -> bool:
    floats = tolerance and isinstance(one, float) and isinstance(other, float)
    if floats and math.isclose(one, other, rel_tol=tolerance):
        return True
    return repr(one) == repr(other) or bool(one == other)


def verdict_of_drive(
    drive: Drive, market: Market, window: Window, terms: Mapping[str, Any], seed: int = 1
) -> LookaheadVerdict:
    """The verdict on what drives a run, such as a team, in one window. `terms` are those of `BacktestRun`."""
    real = _RecordedRun(market, window, **terms)
    drive(real)
    altered = _RecordedAltered(market, window, seed, **terms)
    found: VerdictFinding | None = None
    try:
        drive(altered)
    except (RunFailed, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - that it fails here and not in the real market is a finding
        bar = altered.index
        found = _finding(market, "failure", bar, bar, "decision", repr(list(real.sent.get(bar, ()))), _said(error))
    for bar in sorted(real.sent.keys() | altered.sent.keys()):
        if bar > altered.index or (found is not None and bar >= found.cut):
            break
        difference = first_difference(real.sent.get(bar, ()), altered.sent.get(bar, ()))
        if difference is not None:
            found = _finding(market, "order", bar, bar, " ".join(difference[:2]), *difference[2:])
            break
    repeats = True
    if found is not None:
        again = _RecordedRun(market, window, **terms)
        drive(again)
        bars = real.sent.keys() | again.sent.keys()
        repeats = all(first_difference(real.sent.get(bar, ()), again.sent.get(bar, ())) is None for bar in bars)
    ordered = sum(bool(orders) for orders in altered.sent.values())
    closes = [_close_of(market, bar) for bar in (window.start, altered.index - 1)]
    return LookaheadVerdict(
        "clean" if found is None else "look_ahead" if repeats else "not_repeatable",
        len(altered.sent), ordered, closes[0], closes[1],
        min(1.0, len(altered.sent) * window.decide_every / (len(market) - 1)),
        findings=() if found is None else (found,),
        notes=() if ordered or found is not None else (_NO_ORDERS,),
    )  # fmt: skip


class _RecordedRun(BacktestRun):
    """A run that keeps what was `sent`, by bar."""

    def __init__(self, *arguments: Any, **terms: Any) -> None:
        super().__init__(*arguments, **terms)
        self.sent: dict[int, tuple[OrderRequest, ...]] = {}

    def submit(self, requests: Sequence[OrderRequest], thinking_ms: Sequence[int] = ()) -> None:
        self.sent[self.index] = tuple(requests)
        super().submit(requests, thinking_ms)


class _RecordedAltered(_RecordedRun, AlteredRun):
    """The same in an altered market."""


class LookaheadCheck:
    """Compares a strategy with itself.

    Args:
        load: loads the strategy's code again and returns what makes an instance; each run here has a load of its own,
            so that it shares nothing with another.
        market: the market of the run, with the indicators that the run made. window, decided: the run, and what it
            sent. terms: `cash`, `costs` and the rest that `BacktestRun` takes. first: bars before any decision.
        seconds: for the history outside the window; all of it is tested where that is enough. clock: counts seconds.
    """

    def __init__(
        self,
        load: Callable[[], Callable[[], Strategy]],
        market: Market,
        window: Window,
        decided: Decisions,
        terms: Mapping[str, Any],
        *,
        first: int = 0,
        seed: int = 1,
        seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        on_progress: CheckProgress | None = None,
    ) -> None:
        self._load, self._market, self._window, self._decided = load, market, window, decided
        self._terms, self._first, self._seed = terms, first, seed
        self._seconds, self._clock, self._on_progress = seconds, clock, on_progress
        self._cuts, self._with_orders = 0, 0
        self._bars: list[int] = []  # of the first and the last decision that was compared

    def verdict(self) -> LookaheadVerdict:
        """Run the check."""
        pieces = list(self._pieces())
        total = self._window.decisions + sum(piece.decisions for piece in pieces)
        own = dict(self._market.indicators)
        found, failed = self._differs(self._window, self._decided, own), 0
        if found is not None:
            repeats = self._repeats(found, self._window, self._decided, own)
        else:
            found, repeats, failed = self._elsewhere(pieces)
        arrays, cuts, notes = 0, 0, []
        if found is None:
            arrays, cuts, unstable, found = self._indicators(own)
            repeats = found is None or self._repeats(found, self._window, self._decided, own)
            if unstable:
                notes.append(f"{_words(unstable)} depends on the state of the strategy: compared at its first use only")
            if failed:
                notes.append(f"it fails in {failed} of {len(pieces)} parts of the history outside the window")
            if not self._with_orders:
                notes.append(_NO_ORDERS)
        close = [_close_of(self._market, bar) for bar in self._bars] or [0, 0]
        return LookaheadVerdict(
            status="clean" if found is None else "look_ahead" if repeats else "not_repeatable",
            cuts=self._cuts,
            with_orders=self._with_orders,
            first=close[0],
            last=close[1],
            coverage=self._cuts / total,
            indicators=arrays,
            indicator_cuts=cuts,
            findings=() if found is None else (found,),
            notes=tuple(notes),
        )

    def _pieces(self) -> Iterator[Window]:
        """Windows over the history outside the window, those that lie far apart first."""
        window, every = self._window, self._window.decide_every
        earliest = window.start - max(0, window.start - self._first) // every * every
        before = range(earliest, window.start, every)
        after = range(window.start + window.decisions * every, len(self._market) - 1, every)
        parts: list[range] = []
        for bars in (before, after):
            count = min(_PIECES, len(bars) // _SHORTEST + 1)
            edges = np.linspace(0, len(bars), count + 1).astype(int).tolist()
            parts += [bars[low:high] for low, high in pairwise(edges)]
        # The beginning of each part comes before the rest of any, so that too little time is spread over everything.
        begun = [part[: -(-len(part) // 4)] for part in parts]
        rest = [part[len(head) :] for part, head in zip(parts, begun, strict=True)]
        for part in (*_far_apart(begun), *_far_apart(rest)):
            if len(part):
                yield Window(part[0], part[-1] + 1, every)

    def _elsewhere(self, pieces: Sequence[Window]) -> tuple[VerdictFinding | None, bool, int]:
        """Test the pieces until something is found or the time is over.

        Returns the finding, whether the strategy repeats itself there, and in how many pieces it failed.
        """
        begun, failed = self._clock(), 0
        for number, piece in enumerate(pieces):
            if self._clock() - begun > self._seconds:
                break
            decided, stopped, indicators = self._real(piece)
            failed += stopped is not None
            if stopped is None or stopped > piece.start:
                played = piece if stopped is None else Window(piece.start, stopped, piece.decide_every)
                found = self._differs(played, decided, indicators)
                if found is not None:
                    return found, self._repeats(found, played, decided, indicators), failed
            if self._on_progress is not None:
                self._on_progress(number + 1, len(pieces))
        return None, True, failed

    def _played(
        self, window: Window, view: Callable[[int], MarketView]
    ) -> Iterator[tuple[int, Sequence[OrderRequest]]]:
        """The decisions of a new instance that is shown these views, bar by bar; its orders are filled at the real
        prices, and bars in which nothing is sent are not taken one by one."""
        run = BacktestRun(self._market, window, **self._terms)
        strategy = RecordedStrategy(self._load()())
        fit(strategy, view(window.start))
        for bar in range(window.start, window.stop, window.decide_every):
            requests = strategy.decide(view(bar), cast(AccountView, AccountAtClose(run, bar)))
            yield bar, requests
            if requests:
                run.catch_up(bar)
                run.submit(requests)

    def _real(self, window: Window) -> tuple[Decisions, int | None, Indicators]:
        """What a new instance sends in the real market, the bar at which it failed, and the indicators that it made."""
        market, decided, bar = self._market.without_indicators(), dict[int, tuple[OrderRequest, ...]](), window.start
        try:
            for at, requests in self._played(window, market.view):
                bar = at + window.decide_every
                if requests:
                    decided[at] = tuple(requests)
        except (RunFailed, MemoryError):
            raise
        except Exception:  # noqa: BLE001 - a strategy is anybody's code; it may need more history than there is
            return decided, bar, market.indicators
        return decided, None, market.indicators

    def _differs(self, window: Window, decided: Decisions, indicators: Indicators) -> VerdictFinding | None:
        """The first decision of `window` that is another one where everything later is altered."""
        rng = np.random.default_rng([self._seed, window.start])
        # What lies far behind the window need not be made up. That the history ends elsewhere is a difference too.
        real = truncated(self._market, min(len(self._market) - 1, window.stop + _BEHIND))
        future, following = AlteredFuture(real, window.start, rng, indicators), window.start
        try:
            for bar, found in self._played(window, future.view):
                following = bar + window.decide_every
                difference = first_difference(decided.get(bar, ()), found)
                if difference is not None:
                    return _finding(self._market, "order", bar, bar, " ".join(difference[:2]), *difference[2:])
                if future.changed is not None:
                    return self._of_indicator(future.changed[0], future.changed[1], bar, *future.changed[2:])
                self._bars = [min([bar, *self._bars]), max([bar, *self._bars])]
                self._cuts += 1
                self._with_orders += bool(found)
        except (RunFailed, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - that it fails here and not in the real market is a finding
            expected = decided.get(following, ())
            return _finding(
                self._market, "failure", following, following, "decision", repr(list(expected)), _said(error)
            )
        return None

    def _repeats(self, found: VerdictFinding, window: Window, decided: Decisions, indicators: Indicators) -> bool:
        """Whether two more instances, one after the other, do as the first on the very same data: up to the finding,
        and in at least the first `_REPEATED` decisions, as one that draws its orders may draw a few of them alike.

        Two, since a state that changes from run to run may come back in every second one.
        """
        last = max(found.cut, window.start + _REPEATED * window.decide_every)
        until = Window(window.start, min(last + 1, window.stop), window.decide_every)
        for _ in range(2):
            again, stopped, made = self._real(until)
            if found.kind == "indicator":
                once = by_name(indicators)
                pairs = [
                    pair
                    for name, arrays in by_name(made).items()
                    for pair in zip(once.get(name, ()), arrays, strict=False)
                ]
                if any(first_differing(one, other, len(one) - 1) is not None for one, other in pairs):
                    return False
            elif stopped is not None or any(
                first_difference(decided.get(bar, ()), again.get(bar, ())) is not None
                for bar in range(until.start, until.stop, until.decide_every)
            ):
                return False
        return True

    def _indicators(self, own: Indicators) -> tuple[int, int, IndicatorName | None, VerdictFinding | None]:
        """How many arrays were compared, at how many cuts, one that cannot be made again, and the first difference."""
        market, end = self._market, len(self._market) - 1
        whole = {symbol: market.view(end).bars(symbol, len(market)) for symbol in market.symbols}
        unstable, steady = None, []
        for (symbol, indicator, parameters), values in list(own.items())[: _MOST_ARRAYS // 2]:
            name = (symbol, name_of(indicator), parameters)
            # An indicator that reads the state of the strategy is another one by now, which says nothing.
            if self._remade(name, indicator, whole[symbol], values, end) is None:
                steady.append((name, indicator, values))
            else:
                unstable = name
        if not steady or len(market) < 3:
            return 0, 0, unstable, None
        count = min(max(2, min(_CUTS, _MOST_ARRAYS // len(steady))), len(market) - 2)
        rng = np.random.default_rng([self._seed, count])
        edges = np.linspace(0, end, count + 1).astype(int).tolist()
        for low, high in pairwise(edges):
            cut = int(rng.integers(low, max(low + 1, high)))
            other = {symbol: altered_bars(bars, cut, rng) for symbol, bars in whole.items()}
            for name, indicator, values in steady:
                found = self._remade(name, indicator, other[name[0]], values, cut)
                if found is not None:
                    return len(steady), count, unstable, found
        return len(steady), count, unstable, None

    def _remade(
        self, name: IndicatorName, indicator: Indicator, bars: Bars, values: FloatArray, cut: int
    ) -> VerdictFinding | None:
        """What differs from `values` up to bar `cut` where the indicator is made of `bars`."""
        try:
            again = np.asarray(indicator(bars, *name[2]))
        except Exception as error:  # noqa: BLE001 - anybody's code
            return _finding(self._market, "indicator", cut, cut, _words(name), "values", _said(error))
        if again.shape != values.shape:
            return _finding(
                self._market, "indicator", cut, cut, _words(name), "values", f"an array of shape {again.shape}"
            )
        bar = first_differing(values, again, cut)
        if bar is None:
            return None
        return self._of_indicator(name, bar, cut, float(values[bar]), float(again[bar]))

    def _of_indicator(self, name: IndicatorName, bar: int, cut: int, expected: float, found: float) -> VerdictFinding:
        what = f"indicator {_words(name)}"
        return _finding(self._market, "indicator", bar, cut, what, f"{expected:.8g}", f"{found:.8g}")


def _finding(market: Market, kind: str, bar: int, cut: int, what: str, expected: str, found: str) -> VerdictFinding:
    closes = _close_of(market, bar), _close_of(market, cut)
    return VerdictFinding(kind, *closes, cut, what, _short(expected), _short(found))


def _close_of(market: Market, bar: int) -> int:
    return int(market.open_time[bar]) + market.interval


def _far_apart(parts: Sequence[range]) -> list[range]:
    """The parts in another order, in which neighbors lie far apart: the places' binary digits are read backwards."""
    width = max(1, (len(parts) - 1).bit_length())
    return [parts[place] for place in sorted(range(len(parts)), key=lambda place: int(f"{place:0{width}b}"[::-1], 2))]


def _words(name: IndicatorName) -> str:
    symbol, function, parameters = name
    return f"{function}({', '.join([symbol, *map('{:g}'.format, parameters)])})"


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
