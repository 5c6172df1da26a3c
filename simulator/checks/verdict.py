"""The look-ahead verdict that ends the backtest of a user's strategy.

The strategy runs again through the same window in an `AlteredFuture`: at each of its decisions everything later is
other data. Then it runs, in the real market and in an altered one, through pieces of the rest of the history, since a
leak may show in one month of five years only. Indicators that were computed for the whole history are made again with
altered later bars at cuts all over it, and the arrays are compared up to the cut.

Where a decision differs, a last run on the very same data says whether the strategy looks ahead or decides otherwise
each time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal, cast

import numpy as np

from simulator.arrays import FloatArray
from simulator.backtest.run import AccountAtClose, BacktestRun, Strategy, Window, fit
from simulator.checks.altered_future import (
    AlteredFuture,
    IndicatorDifference,
    IndicatorName,
    Indicators,
    altered_bars,
    by_name,
    compared,
)
from simulator.checks.lookahead import CheckProgress, first_difference
from simulator.checks.perturbation import truncated
from simulator.errors import RunFailed
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import OrderRequest
from simulator.market.market import Bars, Indicator, Market, MarketView, name_of
from simulator.market.timeframes import format_time

Status = Literal["clean", "look_ahead", "not_repeatable", "skipped"]
Decisions = Mapping[int, tuple[OrderRequest, ...]]  # by bar, those that sent something

_PIECES = 32  # the rest of the history is tested in so many parts, none shorter than _SHORTEST decisions
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
            self.decided[view.index] = tuple(requests)
            return self.decided[view.index]
        return ()


class LookaheadCheck:
    """Compares a strategy with itself.

    Args:
        load: loads the strategy's code anew and returns what makes an instance; each run here has a load of its own,
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
            if unstable:
                notes.append(f"{_words(unstable)} depends on the state of the strategy: compared at its first use only")
            if failed:
                notes.append(f"it fails in {failed} of {len(pieces)} parts of the history outside the window")
            if not self._with_orders:
                notes.append("no decision sent an order, which proves little")
        close = [self._close(bar) for bar in self._bars] or [0, 0]
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

    def _real(self, window: Window) -> tuple[Decisions, int | None, Indicators]:
        """What a new instance sends in the real market, the bar at which it failed, and the indicators that it made."""
        market, bar, decided = self._market.without_indicators(), window.start, {}
        run = BacktestRun(market, window, **self._terms)
        try:
            strategy = RecordedStrategy(self._load()())
            decided = strategy.decided
            fit(strategy, market.view(bar))
            for bar in range(window.start, window.stop, window.decide_every):
                _send(run, bar, strategy.decide(market.view(bar), _account(run, bar)))
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
        future = AlteredFuture(real, window.start, rng, indicators)
        run, bar = BacktestRun(self._market, window, **self._terms), window.start
        try:
            strategy = RecordedStrategy(self._load()())
            fit(strategy, future.view(bar))
            for bar in range(window.start, window.stop, window.decide_every):
                found, expected = strategy.decide(future.view(bar), _account(run, bar)), decided.get(bar, ())
                difference = first_difference(expected, found)
                if difference is not None:
                    symbol, field, mine, its = difference
                    return self._finding("order", bar, bar, f"{symbol} {field}", mine, its)
                if future.differences:
                    return self._changed(future.differences[0])
                self._bars = [min([bar, *self._bars]), max([bar, *self._bars])]
                self._cuts += 1
                self._with_orders += bool(found)
                _send(run, bar, found)
        except (RunFailed, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - that it fails here and not in the real market is a finding
            expected = decided.get(bar, ())
            return self._finding("failure", bar, bar, "decision", repr(list(expected)), _said(error))
        return None

    def _repeats(self, found: VerdictFinding, window: Window, decided: Decisions, indicators: Indicators) -> bool:
        """Whether two more instances, one after the other, do as the first up to the finding on the very same data.

        Two, since a state that changes from run to run may come back in every second one.
        """
        until = Window(window.start, max(found.cut, window.start) + 1, window.decide_every)
        for _ in range(2):
            again, stopped, made = self._real(until)
            if found.kind == "indicator":
                once = by_name(indicators)
                pairs = (
                    (name, zip(once.get(name, ()), arrays, strict=False)) for name, arrays in by_name(made).items()
                )
                if any(compared(name, one, other, len(one) - 1) for name, both in pairs for one, other in both):
                    return False
            elif stopped is not None or any(
                first_difference(decided.get(bar, ()), again.get(bar, ())) is not None
                for bar in range(until.start, until.stop, until.decide_every)
            ):
                return False
        return True

    def _indicators(self, own: Indicators) -> tuple[int, int, IndicatorName | None, VerdictFinding | None]:
        """How many arrays were compared, at how many cuts, one that cannot be made again, and the first difference."""
        market = self._market
        whole = {symbol: market.view(len(market) - 1).bars(symbol, len(market)) for symbol in market.symbols}
        unstable, steady = None, []
        for (symbol, indicator, parameters), values in list(own.items())[: _MOST_ARRAYS // 2]:
            name = (symbol, name_of(indicator), parameters)
            # An indicator that reads the state of the strategy is another one by now, which says nothing.
            if _made(indicator, whole[symbol], parameters, name, values, len(market) - 1) is None:
                steady.append((name, indicator, values))
            else:
                unstable = name
        if not steady or len(market) < 3:
            return 0, 0, unstable, None
        count = min(max(2, min(_CUTS, _MOST_ARRAYS // len(steady))), len(market) - 2)
        rng = np.random.default_rng([self._seed, count])
        edges = np.linspace(0, len(market) - 1, count + 1).astype(int).tolist()
        for low, high in pairwise(edges):
            cut = int(rng.integers(low, max(low + 1, high)))
            other = {symbol: altered_bars(bars, cut, rng) for symbol, bars in whole.items()}
            for name, indicator, values in steady:
                difference = _made(indicator, other[name[0]], name[2], name, values, cut)
                if isinstance(difference, str):
                    found = self._finding("indicator", cut, cut, _words(name), "values", difference)
                    return len(steady), count, unstable, found
                if difference is not None:
                    return len(steady), count, unstable, self._changed(difference)
        return len(steady), count, unstable, None

    def _changed(self, one: IndicatorDifference) -> VerdictFinding:
        return self._finding(
            "indicator", one.bar, one.cut, f"indicator {_words(one.name)}", f"{one.expected:.8g}", f"{one.found:.8g}"
        )

    def _finding(self, kind: str, bar: int, cut: int, what: str, expected: str, found: str) -> VerdictFinding:
        return VerdictFinding(kind, self._close(bar), self._close(cut), cut, what, _short(expected), _short(found))

    def _close(self, bar: int) -> int:
        return int(self._market.open_time[bar]) + self._market.interval


def _made(
    indicator: Indicator, bars: Bars, parameters: tuple[float, ...], name: IndicatorName, values: FloatArray, cut: int
) -> IndicatorDifference | str | None:
    """What differs from `values` up to bar `cut` where the indicator is made of `bars`; a text where it fails."""
    try:
        again = np.asarray(indicator(bars, *parameters))
    except Exception as error:  # noqa: BLE001 - anybody's code
        return _said(error)
    if again.shape != values.shape:
        return f"an array of shape {again.shape}"
    return compared(name, values, again, cut)


def _account(run: BacktestRun, bar: int) -> AccountView:
    return cast(AccountView, AccountAtClose(run, bar))


def _send(run: BacktestRun, bar: int, requests: Sequence[OrderRequest]) -> None:
    """Submit at the close of `bar`; bars in which nothing is sent are not taken one by one."""
    if requests:
        run.catch_up(bar)
        run.submit(requests)


def _far_apart(parts: Sequence[range]) -> list[range]:
    """The parts in another order, in which neighbours lie far apart: the places' binary digits are read backwards."""
    width = max(1, (len(parts) - 1).bit_length())
    return [parts[place] for place in sorted(range(len(parts)), key=lambda place: int(f"{place:0{width}b}"[::-1], 2))]


def _words(name: IndicatorName) -> str:
    symbol, function, parameters = name
    return f"{function}({', '.join([symbol, *map('{:g}'.format, parameters)])})"


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
