"""Markets with another future, and runs in them: every kind of peeking is found, and nothing in what is honest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.arrays import FloatArray
from simulator.backtest.run import Strategy, Window, orders_for_target
from simulator.checks.perturbation import TREATED, begun_at, perturbed, truncated
from simulator.checks.recursion import choose_bars
from simulator.checks.verdict import LookaheadVerdict, drive_strategies, first_difference, verdict_of_drive
from simulator.errors import DataError
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Order
from simulator.market.market import Bars, Market, MarketView
from simulator.market.price_paths import PrivateSigns
from simulator.market.timeframes import BAR_COLUMNS
from simulator.synthetic.truth import truth_of
from tests.examples import tried
from tests.lookahead_scenes import BARS, WITHOUT_ARGUMENTS, Follows, Signal, market_behind, rich_market

WINDOW = Window(130, BARS - 1, 2)


def checked(make: Callable[[], Strategy], seed: int = 1) -> LookaheadVerdict:
    """As a team is checked: by whole runs."""
    return verdict_of_drive(drive_strategies(make), rich_market(), WINDOW, {}, seed)


# The other markets


def test_every_field_of_a_market_is_treated() -> None:
    assert {one.name for one in fields(Market)} == TREATED


@tried(25)
@given(index=st.integers(0, BARS - 1), seed=st.integers(0, 2**32))
def test_the_markets_agree_in_what_was_known_and_in_nothing_else(index: int, seed: int) -> None:
    market = rich_market()
    cut, other = truncated(market, index), perturbed(market, index, np.random.default_rng(seed))
    now = market.view(index).now
    assert len(cut) == index + 1 and len(other) == BARS
    for name in BAR_COLUMNS:
        assert getattr(cut, name).tobytes() == getattr(market, name)[: index + 1].tobytes()
        mine, its = getattr(market, name)[index + 1 :], getattr(other, name)[index + 1 :]
        assert not (mine == its).any()
    known_times: list[Iterable[int]] = [
        [one.time for events in cut.funding.values() for one in events],
        [item.known_at for item in cut.news],
        *(one.known_at.tolist() for one in cut.series.values()),
    ]
    assert all(time <= now for times in known_times for time in times)
    # The hash is over everything that a view can show, so these are equal up to the close of `index`.
    assert truncated(other, index).content_hash == cut.content_hash
    assert other.content_hash != market.content_hash
    assert cut.truth is None and other.truth is None
    assert cut.partial is not None and other.partial is not None and market.partial is not None
    assert (cut.partial == market.partial[: index + 1]).all() and (other.partial[: index + 1] == cut.partial).all()
    assert perturbed(market, index, np.random.default_rng(seed)).content_hash == other.content_hash


@pytest.mark.parametrize("index", [0, 150, BARS - 3])
def test_the_other_future_is_another_one_in_every_field(index: int) -> None:
    market = rich_market()
    now = market.view(index).now
    other = perturbed(market, index, np.random.default_rng(1))
    for symbol, events in market.funding.items():
        pairs = list(zip(events, other.funding[symbol], strict=True))
        assert all((mine == its) == (mine.time <= now) for mine, its in pairs)
    later = [item for item in other.news if item.known_at > now]
    assert later and not set(later) & set(market.news) and any(item.time <= now for item in later)
    series, its_series = market.series["onchain/fees"], other.series["onchain/fees"]
    assert ((series.columns["value"] == its_series.columns["value"]) == (series.known_at <= now)).all()


@pytest.mark.parametrize("index", [0, 150, BARS - 1])
def test_what_each_role_alone_knows_is_another_after_the_cut(index: int) -> None:
    shown = np.random.default_rng(2).random((2, BARS, 2)) < 0.5
    market = replace(rich_market(), signs=PrivateSigns(*shown))
    other = perturbed(market, index, np.random.default_rng(1))
    for name, mine in zip(("crowded", "confirmed"), shown, strict=True):
        same = getattr(other.signs, name) == mine
        assert same[: index + 1].all() and not same[index + 1 :].any()
        assert (getattr(truncated(market, index).signs, name) == mine[: index + 1]).all()
        assert (getattr(begun_at(market, index).signs, name) == mine[index:]).all()
    assert truncated(other, index).content_hash == truncated(market, index).content_hash


@tried(15)
@given(index=st.integers(0, BARS - 2), seed=st.integers(0, 2**32))
def test_the_other_bars_are_bars(index: int, seed: int) -> None:
    other = perturbed(rich_market(), index, np.random.default_rng(seed))
    there = other.present[index + 1 :]
    part = {name: getattr(other, name)[index + 1 :] for name in BAR_COLUMNS}
    assert all((np.isnan(values) == ~there).all() for values in part.values())
    body = np.stack([part["open"], part["close"]])
    assert (part["high"] >= body.max(axis=0))[there].all() and (part["low"] <= body.min(axis=0))[there].all()
    assert (part["low"] > 0.0)[there].all() and (part["volume"] > 0.0)[there].all()
    assert ((part["half_spread"] > 0.0) & (part["half_spread"] <= 0.5))[there].all()


def test_a_symbol_that_is_listed_later_and_a_market_of_bars_alone_are_perturbed_too() -> None:
    market = rich_market()
    arrays: dict[str, Any] = {name: getattr(market, name).copy() for name in BAR_COLUMNS}
    for values in arrays.values():
        values[:200, 1] = np.nan
    plain = replace(market, **arrays, funding={}, news=(), series={}, partial=None)
    other = perturbed(plain, 150, np.random.default_rng(0))
    assert other.present[151:, 1].mean() > 0.8 and not other.present[:151, 1].any()
    assert truncated(plain, 150).partial is None


@pytest.mark.parametrize("index", [-1, BARS])
def test_a_bar_outside_is_refused(index: int) -> None:
    for alter in (truncated, begun_at, lambda m, i: perturbed(m, i, np.random.default_rng(0))):
        with pytest.raises(DataError, match=f"bar {index} is outside"):
            alter(rich_market(), index)


# Peeking is found


def peeks() -> dict[str, Signal]:
    """Ways to know the future of a market that one has got hold of. Those that index past its end check it first, as a
    cheat that is to run until the last bar has to."""

    def next_close(view: MarketView, symbol: str) -> float:
        market = market_behind(view)
        column = market.column(symbol)
        return float(
            np.sign(market.close[min(view.index + 1, len(market) - 1), column] - market.close[view.index, column])
        )

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

    def centred(view: MarketView, symbol: str) -> float:
        market = market_behind(view)
        close = np.nan_to_num(market.close[:, market.column(symbol)], nan=100.0)
        smooth = np.convolve(close, np.full(9, 1.0 / 9.0), mode="same")
        return 10.0 * float(smooth[view.index] / close[view.index] - 1.0)

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

    return {
        "next_close": next_close, "next_open": next_open, "past_the_end": past_the_end, "by_event_time": by_event_time,
        "next_headline": next_headline, "next_funding": next_funding, "next_series": next_series,
        "centred": centred, "whole_deviation": whole_deviation, "holes_ahead": holes_ahead,
        "spread_ahead": spread_ahead, "behind_the_door": behind_the_door,
    }  # fmt: skip


@pytest.mark.parametrize("name", list(peeks()))
@pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning", "ignore:Mean of empty:RuntimeWarning")
def test_a_peek_is_found_at_its_decision(name: str) -> None:
    verdict = checked(lambda: Follows(peeks()[name]))
    assert verdict.status == "look_ahead", verdict.sentence()
    [finding] = verdict.findings
    assert finding.kind in ("order", "failure") and WINDOW.start <= finding.cut < WINDOW.stop
    assert finding.time == finding.after == rich_market().view(finding.cut).now


def test_the_first_order_that_differs_is_shown() -> None:
    class NextOpen:
        name = "next_open"

        def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
            opens = np.append(market_behind(view).open[:, 0], np.nan)
            return [Order("BBBUSDT", 1.0), Order("AAAUSDT", float(opens[view.index + 1]))]

    market, [finding] = rich_market(), checked(NextOpen).findings
    assert finding.cut == WINDOW.start and finding.what == "AAAUSDT quantity"
    assert finding.expected == repr(float(market.open[finding.cut + 1, 0])) != finding.found
    assert f"AAAUSDT quantity: {finding.expected} became {finding.found}" in finding.sentence()


def test_the_hidden_truth_is_no_way_either() -> None:
    def regime(view: MarketView, symbol: str) -> float:
        return float(truth_of(market_behind(view)).regime[view.index, 0])

    [finding] = checked(lambda: Follows(regime)).findings
    assert (finding.kind, finding.cut) == ("failure", WINDOW.start) and "its hidden state is not known" in finding.found


class Precomputed:
    """Takes an average of the closes, of the bar and those `ahead` of it, that is made once for the whole history."""

    name = "precomputed"

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
        orders: list[Order] = []
        for symbol in view.symbols:
            average = float(view.computed(symbol, average_of_20, self.ahead)[-1])
            wanted = 5.0 * (view.last_close(symbol) / average - 1.0)
            orders += orders_for_target(view, account, symbol, float(np.clip(wanted, -0.5, 0.5)))
        return orders


def average_of_20(bars: Bars, ahead: float) -> FloatArray:
    close = np.nan_to_num(bars.close, nan=100.0)
    sums = np.concatenate([[0.0], np.cumsum(close)])
    stop = np.minimum(np.arange(len(close)) + 1 + int(ahead), len(close))
    begin = np.maximum(stop - 20, 0)
    average: FloatArray = (sums[stop] - sums[begin]) / (stop - begin)
    return average


@pytest.mark.parametrize(("ahead", "clean"), [(0, True), (1, False), (5, False)])
def test_precomputing_is_allowed_and_knowing_is_not(ahead: int, clean: bool) -> None:
    assert (checked(lambda: Precomputed(ahead)).status == "clean") is clean


# Honest ones pass


@pytest.mark.parametrize("strategy", WITHOUT_ARGUMENTS)
def test_the_baselines_are_honest(strategy: type[Any]) -> None:
    verdict = checked(lambda: strategy())
    assert verdict.status == "clean", verdict.sentence()
    assert verdict.cuts == WINDOW.decisions and verdict.first == rich_market().view(WINDOW.start).now
    assert verdict.with_orders > 0 or "which proves little" in verdict.sentence()


class Diced:
    """Draws its exposures from a generator that it keeps."""

    name = "diced"

    def __init__(self, seed: int | None) -> None:
        self.rng = np.random.default_rng(seed)

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
        return orders_for_target(view, account, "AAAUSDT", float(self.rng.uniform(-1.0, 1.0)), 0.05, 0.1)


def test_what_keeps_state_and_draws_with_a_seed_is_compared_and_what_cannot_be_repeated_is_reported_so() -> None:
    seeded, unseeded = checked(lambda: Diced(4)), checked(lambda: Diced(None))
    assert seeded.status == "clean" and seeded.with_orders > 8
    assert unseeded.status == "not_repeatable" and "fix its seeds" in unseeded.sentence()


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
