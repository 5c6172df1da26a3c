"""The look-ahead verdict: every cheat of the zoo is found, and no honest strategy is ever accused."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.arrays import FloatArray
from simulator.backtest.run import Strategy, Window, orders_for_target, run_backtest
from simulator.checks.perturbation import AlteredFuture, truncated
from simulator.checks.recursion import choose_bars
from simulator.checks.verdict import (
    LookaheadCheck,
    LookaheadVerdict,
    RecordedStrategy,
    drive_strategies,
    first_difference,
    verdict_of_drive,
)
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Order, OrderRequest
from simulator.market.market import Bars, Market, MarketView
from simulator.synthetic.truth import truth_of
from tests.lookahead_scenes import WITHOUT_ARGUMENTS, Follows, Signal, market_behind, rich_market

BARS, WARM_UP = 900, 121
WINDOW = Window(700, BARS - 1, 2)
SHORT = Window(720, BARS - 1, 2)
# A stretch of the history outside the window, 30 of 900 bars: a month of some years.
MONTH = range(300, 330)


def judged(load: Callable[[], Callable[[], Strategy]], window: Window = WINDOW, **options: Any) -> LookaheadVerdict:
    """The verdict on what `load` makes, after its backtest in `window`."""
    market = rich_market(BARS).without_indicators()
    recorded = RecordedStrategy(load()())
    run_backtest(market, recorded, window)
    given = {"first": WARM_UP, "seconds": float("inf")} | options
    return LookaheadCheck(load, market, window, recorded.decided, {}, **given).verdict()


def checked(make: Callable[[], Strategy]) -> LookaheadVerdict:
    """The verdict by whole runs, as of a team."""
    return verdict_of_drive(drive_strategies(make), rich_market(BARS), SHORT, {})


def driven(signal: Signal) -> LookaheadVerdict:
    return checked(lambda: Follows(signal))


class Uses:
    """Holds what an indicator says, a sign or a fraction, of each coin."""

    name = "uses"

    def __init__(self, indicator: Callable[[Bars], FloatArray], newest: bool = True) -> None:
        self.indicator, self.newest = indicator, newest

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
        orders: list[Order] = []
        for symbol in view.symbols:
            if self.newest:
                value = view.latest(symbol, self.indicator)
            else:
                value = float(view.computed(symbol, self.indicator)[-1])
            orders += orders_for_target(view, account, symbol, float(np.clip(np.nan_to_num(value), -0.5, 0.5)))
        return orders


def filled(bars: Bars) -> FloatArray:
    return np.nan_to_num(bars.close, nan=100.0)


# Indicators that cheat.


def shifted(bars: Bars) -> FloatArray:
    """pandas' shift(-1): the next close."""
    return np.append(np.sign(np.diff(filled(bars))), 0.0)


def normalised(bars: Bars) -> FloatArray:
    close = filled(bars)
    score: FloatArray = (close - close.mean()) / close.std()
    return score


def centred(bars: Bars) -> FloatArray:
    close = filled(bars)
    smooth: FloatArray = np.convolve(close, np.full(9, 1.0 / 9.0), mode="same") / close - 1.0
    return 20.0 * smooth


def unclosed(bars: Bars) -> FloatArray:
    """The direction of the coarse bar of four that each bar lies in, told before it is over."""
    close = filled(bars)
    rows = len(close) // 4 * 4
    blocks = close[:rows].reshape(-1, 4)
    return np.append(np.repeat(np.sign(blocks[:, 3] - blocks[:, 0]), 4), np.zeros(len(close) - rows))


def in_one_month(bars: Bars) -> FloatArray:
    honest = np.sign(np.append(0.0, np.diff(filled(bars))))
    honest[list(MONTH)] = shifted(bars)[list(MONTH)]
    return honest


def on_one_coin(bars: Bars) -> FloatArray:
    return shifted(bars) if bars.symbol == "BBBUSDT" else np.sign(np.append(0.0, np.diff(filled(bars))))


# Strategies that cheat, each by a way that no attribute opens.


def next_move(view: MarketView, symbol: str) -> float:
    market = market_behind(view)
    column, after = market.column(symbol), min(view.index + 1, len(market) - 1)
    return float(np.sign(market.close[after, column] - market.close[view.index, column]))


def next_move_in_one_month(view: MarketView, symbol: str) -> float:
    return next_move(view, symbol) if view.index in MONTH else 0.5


def next_move_of_the_other(view: MarketView, symbol: str) -> float:
    return next_move(view, "BBBUSDT") if symbol == "AAAUSDT" else 0.0


def behind_the_array(view: MarketView, symbol: str) -> float:
    """Reads the memory behind an array that it was given."""
    known = view.computed(symbol, shifted_back)
    more = np.lib.stride_tricks.as_strided(known, (len(known) + 3,))
    return float(np.sign(more[-1] - more[-4])) if view.index + 3 < BARS else 0.0


def shifted_back(bars: Bars) -> FloatArray:
    return filled(bars)


def last_of_series(view: MarketView, symbol: str) -> float:
    return float(market_behind(view).series["onchain/fees"].columns["value"][-1]) / 30.0


def coarse_ahead(view: MarketView, symbol: str) -> float:
    coarse = market_behind(view).coarser("1d")
    row = min(int(np.searchsorted(coarse.open_time, view.now, side="right")), len(coarse.close)) - 1
    return float(np.sign(np.nan_to_num(coarse.close[row, 0] - coarse.open[row, 0])))


def next_open(view: MarketView, symbol: str) -> float:
    market = market_behind(view)
    column = market.column(symbol)
    return 20.0 * float(market.open[min(view.index + 1, len(market) - 1), column] / view.last_close(symbol) - 1.0)


def past_the_end(view: MarketView, symbol: str) -> float:
    market = market_behind(view)
    return float(market.low[view.index + 1, market.column(symbol)] > market.close[view.index, 0])


def by_event_time(view: MarketView, symbol: str) -> float:
    market = market_behind(view)
    return float(len([item for item in market.news if item.time <= view.now]) % 5) / 4.0


def next_headline(view: MarketView, symbol: str) -> float:
    market = market_behind(view)
    return float(len(next((item.text for item in market.news if item.known_at > view.now), "")) % 7) / 6.0


def next_funding(view: MarketView, symbol: str) -> float:
    market = market_behind(view)
    return 1e3 * next((one.rate for one in market.funding[symbol] if one.time > view.now), 0.0)


def next_series(view: MarketView, symbol: str) -> float:
    market = market_behind(view)
    one = market.series["onchain/fees"]
    return float(np.nan_to_num(one.columns["value"][one.known_at > view.now][:1].sum())) / 20.0


def whole_deviation(view: MarketView, symbol: str) -> float:
    market = market_behind(view)
    moves = np.diff(np.log(market.close[:, market.column(symbol)]))
    return float(moves[view.index - 1] / np.nanstd(moves)) / 4.0


def holes_ahead(view: MarketView, symbol: str) -> float:
    market = market_behind(view)
    return float(market.present[view.index + 1 :].mean()) if view.index < len(market) - 1 else 0.0


def spread_ahead(view: MarketView, symbol: str) -> float:
    market = market_behind(view)
    return float(np.nanmean(market.half_spread[view.index :])) * 1e3


def behind_the_door(view: MarketView, symbol: str) -> float:
    market = market_behind(view)
    return float(np.nanmax(market.high[view.index :, 0]) / np.nanmax(market.high[view.index, 0]) - 1.0)


class FittedOnAll(Follows):
    """Learns one number from everything."""

    def __init__(self) -> None:
        super().__init__(lambda view, symbol: self.level / view.last_close(symbol) - 1.0)
        self.level = 0.0

    def fit(self, view: MarketView) -> None:
        self.level = float(np.nanmean(market_behind(view).close))


INDICATORS = {one.__name__: one for one in (shifted, normalised, centred, unclosed, on_one_coin)}
PEEKS = {
    one.__name__: one
    for one in (
        next_move, next_move_of_the_other, behind_the_array, last_of_series, coarse_ahead, next_open, past_the_end,
        by_event_time, next_headline, next_funding, next_series, whole_deviation, holes_ahead, spread_ahead,
        behind_the_door,
    )
}  # fmt: skip


@pytest.mark.parametrize("newest", [True, False])
@pytest.mark.parametrize("name", INDICATORS)
def test_an_indicator_that_cheats_is_found(name: str, newest: bool) -> None:
    verdict = judged(lambda: lambda: Uses(INDICATORS[name], newest))
    assert verdict.status == "look_ahead", verdict.sentence()
    assert verdict.sentence().startswith("LOOK-AHEAD: ")


@pytest.mark.parametrize("name", PEEKS)
@pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning", "ignore:Mean of empty:RuntimeWarning")
def test_a_strategy_that_cheats_is_found_at_its_decision(name: str) -> None:
    """In pieces of the history, and by one whole run as a team is checked."""
    for verdict, window in ((judged(lambda: lambda: Follows(PEEKS[name])), WINDOW), (driven(PEEKS[name]), SHORT)):
        assert verdict.status == "look_ahead", verdict.sentence()
        [finding] = verdict.findings
        assert finding.kind in ("order", "failure") and window.start <= finding.cut < window.stop
        assert finding.time == finding.after == rich_market(BARS).view(finding.cut).now


def test_the_first_order_that_differs_is_shown() -> None:
    class NextOpen:
        name = "next_open"

        def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
            opens = np.append(market_behind(view).open[:, 0], np.nan)
            return [Order("BBBUSDT", 1.0), Order("AAAUSDT", float(opens[view.index + 1]))]

    market, [finding] = rich_market(BARS), checked(NextOpen).findings
    assert finding.cut == SHORT.start and finding.what == "AAAUSDT quantity"
    assert finding.expected == repr(float(market.open[finding.cut + 1, 0])) != finding.found
    assert f"AAAUSDT quantity: {finding.expected} became {finding.found}" in finding.sentence()


def test_the_hidden_truth_is_no_way_either() -> None:
    def regime(view: MarketView, symbol: str) -> float:
        return float(truth_of(market_behind(view)).regime[view.index, 0])

    [finding] = driven(regime).findings
    assert (finding.kind, finding.cut) == ("failure", SHORT.start) and "its hidden state is not known" in finding.found


def test_what_cheats_in_one_month_of_the_history_only_is_found() -> None:
    """Far from the window of the backtest, where its orders are honest."""
    verdict = judged(lambda: lambda: Follows(next_move_in_one_month))
    assert verdict.status == "look_ahead" and verdict.findings[0].cut in MONTH, verdict.sentence()
    arrays = judged(lambda: lambda: Uses(in_one_month))
    assert arrays.status == "look_ahead" and arrays.findings[0].kind == "indicator", arrays.sentence()
    assert "in_one_month" in arrays.findings[0].what


def test_an_indicator_that_moves_no_order_is_compared_too() -> None:
    class Looks(Uses):
        def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
            super().decide(view, account)
            return ()

    verdict = judged(lambda: lambda: Looks(in_one_month))
    assert verdict.status == "look_ahead" and verdict.findings[0].kind == "indicator"


def test_what_was_fitted_on_everything_is_found_at_the_first_decision() -> None:
    verdict = judged(lambda: FittedOnAll)
    assert verdict.status == "look_ahead" and verdict.findings[0].cut == WINDOW.start


GLOBAL = """
SEEN = {}

class Cheat:
    name = "cheat"

    def decide(self, view, account):
        for symbol in view.symbols:
            view.computed(symbol, remember)
        ahead = SEEN["AAAUSDT"][min(view.index + 1, len(SEEN["AAAUSDT"]) - 1)]
        return orders_for_target(view, account, "AAAUSDT", 0.5 if ahead > view.last_close("AAAUSDT") else 0.0)

def remember(bars):
    SEEN.setdefault(bars.symbol, bars.close)
    return bars.close * 0.0
"""


def test_what_a_module_remembers_of_later_bars_is_found() -> None:
    assert judged(loaded(GLOBAL, "Cheat")).status == "look_ahead"


# What two runs on the same data do differently is no look-ahead.


class Diced:
    name = "diced"

    def __init__(self, seed: int | None) -> None:
        self.rng = np.random.default_rng(seed)

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
        return orders_for_target(view, account, "AAAUSDT", float(self.rng.uniform(-1.0, 1.0)), 0.05, 0.1)


def test_what_does_not_repeat_is_called_so() -> None:
    assert judged(lambda: lambda: Diced(None)).status == checked(lambda: Diced(None)).status == "not_repeatable"
    runs = itertools.count()  # as a module that counts, or a file that a run leaves behind

    def counts() -> Strategy:
        exposure = 0.1 * next(runs)
        return Follows(lambda view, symbol: exposure)

    counting = judged(lambda: counts)
    assert counting.status == "not_repeatable" and "fix its seeds" in counting.sentence()
    drawn = np.random.default_rng(1)
    noisy = judged(lambda: lambda: Uses(lambda bars: drawn.random(len(bars))))
    assert noisy.status == "not_repeatable"
    once = itertools.count()

    def breaks() -> Strategy:
        if next(once):
            raise ValueError("the file is locked")
        return Diced(1)

    assert judged(lambda: breaks).status == "not_repeatable"


# Honest ones.


class Learns:
    """Learns a level from the past, and reads every kind of data."""

    name = "learns"

    def fit(self, view: MarketView) -> None:
        self.level = {symbol: float(np.nanmean(view.bars(symbol, 10**6).close)) for symbol in view.symbols}

    def decide(self, view: MarketView, account: AccountView) -> Sequence[OrderRequest]:
        orders: list[OrderRequest] = []
        for symbol in view.symbols:
            coarse = view.bars(symbol, 5, "1d").close
            funding, fees = view.funding(symbol, 3), view.series("onchain/fees", 4)
            said = sum(len(item.text) for item in view.news(symbol, 3))
            score = view.last_close(symbol) / self.level[symbol] - 1.0 + (0.01 * said + float(np.nansum(coarse))) % 0.3
            score += 100.0 * sum(event.rate for event in funding) + float(fees.columns["value"].sum()) % 0.2
            orders += orders_for_target(view, account, symbol, float(np.clip(score, -0.5, 0.5)))
            close = view.last_close(symbol)
            orders.append(Order(symbol, 0.1, kind="limit", limit=round(0.9 * close, 2), expire_bars=7))
        return [] if len(account.pending) > 5 else orders


def recursive(bars: Bars) -> FloatArray:
    values, level = np.empty(len(bars)), 100.0
    for row, close in enumerate(filled(bars)):
        level += 0.1 * (close - level)
        values[row] = close / level - 1.0
    return 5.0 * values


def by_fft(bars: Bars) -> FloatArray:
    """A causal filter whose rounding depends on everything."""
    moves = np.append(0.0, np.diff(np.log(filled(bars))))
    width = 2 * len(moves)
    kernel = np.zeros(width)
    kernel[:30] = 1.0
    spectrum = np.fft.rfft(moves, width) * np.fft.rfft(kernel)
    smooth: FloatArray = np.fft.irfft(spectrum, width)[: len(moves)]
    return np.round(10.0 * smooth, 3)


class NewFunctions(Uses):
    """Gives the view another function object at each decision."""

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
        scale = 1.0 + view.index % 3
        self.indicator = lambda bars: recursive(bars) * scale
        return super().decide(view, account)


class Trains:
    """An indicator of the instance, whose parameter is learned again and again."""

    name = "trains"

    def __init__(self) -> None:
        self.weight, self.asked = 1.0, 0

    def predict(self, bars: Bars) -> FloatArray:
        return self.weight * recursive(bars)

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
        value = view.latest("AAAUSDT", self.predict)
        self.weight *= 1.01
        return orders_for_target(view, account, "AAAUSDT", float(np.clip(value, -0.5, 0.5)))


def no_absent_bars(bars: Bars) -> FloatArray:
    if len(bars) == 0:
        raise ValueError("needs bars")
    return recursive(bars)


NUMBER = """
made = 0

class Numbered:
    name = "numbered"

    def __init__(self):
        global made
        made += 1
        self.exposure = 0.1 * made

    def decide(self, view, account):
        return orders_for_target(view, account, "AAAUSDT", self.exposure)
"""


def loaded(source: str, name: str) -> Callable[[], Callable[[], Strategy]]:
    """Loads a module anew at each call."""

    def load() -> Callable[[], Strategy]:
        module: dict[str, Any] = {"orders_for_target": orders_for_target}
        exec(source, module)
        made: Callable[[], Strategy] = module[name]
        return made

    return load


def test_a_module_that_counts_its_instances_is_no_cheat() -> None:
    """Each run has a module of its own, so each has the first instance."""
    assert judged(loaded(NUMBER, "Numbered")).status == "clean"


HONEST: dict[str, Callable[[], Strategy]] = {
    "learns": Learns,
    "seeded": lambda: Diced(4),
    "recursive": lambda: Uses(recursive),
    "its prefix": lambda: Uses(recursive, newest=False),
    "by fft": lambda: Uses(by_fft),
    "new functions": lambda: NewFunctions(recursive),
    "trains": Trains,
    "no absent bars": lambda: Uses(no_absent_bars),
    **{one.__name__: one for one in WITHOUT_ARGUMENTS},
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_strategy_is_never_accused(name: str) -> None:
    verdict = judged(lambda: HONEST[name])
    assert verdict.status == "clean", verdict.sentence()
    assert verdict.coverage == 1.0 and "over the whole history" in verdict.sentence()
    # Each decision of the history is a cut, in the window and outside.
    assert verdict.cuts == len(range(WINDOW.start % 2 + 122, BARS - 1, 2))
    assert verdict.with_orders > 0 or name == "Flat"
    if name not in ("learns", "seeded", *(one.__name__ for one in WITHOUT_ARGUMENTS)):
        return  # indicators are a strategy's, and a team has none
    whole = checked(HONEST[name])
    assert whole.status == "clean" and whole.cuts == SHORT.decisions, whole.sentence()
    assert whole.with_orders > 0 or "which proves little" in whole.sentence()


def test_what_needs_more_history_than_there_is_fails_there_and_is_clean() -> None:
    def needs(view: MarketView, symbol: str) -> float:
        return float(view.bar(symbol, view.index - 500).close[0] > view.last_close(symbol))

    verdict = judged(lambda: lambda: Follows(needs))
    assert verdict.status == "clean" and 0.0 < verdict.coverage < 1.0
    assert "it fails in" in verdict.sentence() and "% of the history" in verdict.sentence()


def test_little_time_is_spread_over_the_whole_history() -> None:
    now = itertools.count()
    verdict = judged(lambda: lambda: Follows(lambda view, symbol: 0.3), seconds=6.0, clock=lambda: float(next(now)))
    assert verdict.status == "clean" and 0.3 < verdict.coverage < 0.9
    market = rich_market(BARS)
    assert verdict.first < market.view(250).now and verdict.last >= market.view(WINDOW.stop - 2).now
    assert judged(lambda: lambda: Follows(next_move), seconds=0.0).status == "look_ahead"


def test_the_verdict_is_json_and_repeats() -> None:
    one, same = (judged(lambda: lambda: Uses(shifted)) for _ in range(2))
    assert one == same and json.loads(json.dumps(one.to_dict()))["status"] == "look_ahead"


def test_the_altered_market_becomes_the_real_one() -> None:
    """Every field, in steps of any length: what is not revealed would accuse the honest."""
    market = rich_market(BARS)
    future = AlteredFuture(market, 300, np.random.default_rng(1), {})
    for index in (300, 301, 302, 380, 640, BARS - 1):
        behind = market_behind(future.view(index))
        shown = Market(**{one.name: getattr(behind, one.name) for one in fields(Market)})
        assert truncated(shown, index).content_hash == truncated(market, index).content_hash
        assert index == BARS - 1 or shown.content_hash != market.content_hash
        mine, its = (view.bars("AAAUSDT", 9, "1d") for view in (future.view(index), market.view(index)))
        assert mine.close.tobytes() == its.close.tobytes() and mine.open_time.tolist() == its.open_time.tolist()


# The parts

A = Order("A", 1.0)


@pytest.mark.parametrize(
    ("expected", "found", "difference"),
    [
        ([], [], None),
        ([A], [Order("A", 1.0)], None),
        ([Order("A", float("nan"))], [Order("A", float("nan"))], None),
        ([Order("A", np.float64(1.0))], [A], None),
        ([A], [Order("A", 1.5)], ("A", "quantity", "1.0", "1.5")),
        ([A], [Order("A", 1.0 + 1e-15)], ("A", "quantity", "1.0", repr(1.0 + 1e-15))),
        ([A, Order("B", 1.0)], [A, Order("B", 1.0, stop=2.0)], ("B", "stop", "None", "2.0")),
        ([A], [Order("B", 1.0)], ("A", "symbol", "'A'", "'B'")),
        ([A], [], ("A", "order", repr(A), "no order")),
        ([], [A], ("A", "order", "no order", repr(A))),
        ([A], ["A"], ("A", "order", repr(A), "'A'")),
    ],
)
def test_the_first_difference(expected: list[Any], found: list[Any], difference: tuple[str, ...] | None) -> None:
    assert first_difference(expected, found) == difference


def test_rounding_may_be_tolerated() -> None:
    assert first_difference([A], [Order("A", 1.0 + 1e-12)], 1e-9) is None
    assert first_difference([A], [Order("A", 1.0 + 1e-6)], 1e-9) is not None


@given(
    decided=st.dictionaries(st.integers(0, 500), st.sampled_from([(), (A,)]), min_size=1),
    times=st.integers(2, 40),
)
def test_the_times_are_spread_and_prefer_orders(decided: dict[int, Any], times: int) -> None:
    chosen = choose_bars(decided, times)
    assert chosen == sorted(set(chosen)) and set(chosen) <= set(decided)
    assert len(chosen) == min(times, len(decided))
    assert min(decided) in chosen and max(decided) in chosen
    ordered = [bar for bar in decided if decided[bar]]
    assert sum(bar in chosen for bar in ordered) >= min(len(ordered), times - 2)
