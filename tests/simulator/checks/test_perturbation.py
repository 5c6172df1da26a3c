"""Markets with another future or another order: what was known stays, all else is another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.checks.perturbation import (
    TREATED,
    AlteredFuture,
    drop_before,
    perturbed,
    truncated,
    with_shuffled_days,
    with_shuffled_news,
)
from simulator.errors import DataError
from simulator.market.market import Market
from simulator.market.price_paths import PrivateSigns
from simulator.market.timeframes import BAR_COLUMNS
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.examples import tried
from tests.lookahead_scenes import BARS, rich_market
from tests.stored_runs import small_market

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
        assert (getattr(drop_before(market, index).signs, name) == mine[index:]).all()
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
    for alter in (truncated, drop_before, lambda m, i: perturbed(m, i, np.random.default_rng(0))):
        with pytest.raises(DataError, match=f"bar {index} is outside"):
            alter(rich_market(), index)


# The same history in another order

START, STOP = 180, 340


def holed() -> Market:
    """The small market with a bar that the exchange never made."""
    market = small_market()
    columns = {name: getattr(market, name).copy() for name in BAR_COLUMNS}
    for name in BAR_COLUMNS:
        columns[name][200, 0] = np.nan
    return replace(market, **columns)


@tried(15)
@given(seed=st.integers(0, 1_000), with_hole=st.booleans())
def test_the_days_of_a_window_change_places_and_nothing_else(seed: int, with_hole: bool) -> None:
    market = holed() if with_hole else small_market()
    other = with_shuffled_days(market, START, STOP, seed)
    known = slice(0, START + 1)
    for name in BAR_COLUMNS:
        assert np.array_equal(getattr(other, name)[known], getattr(market, name)[known], equal_nan=True)
    assert len(other) == STOP + 1
    # Up to rounding the whole window's change is the same, and so are its changes from bar to bar, as a set.
    assert np.allclose(other.close[START + 6 * 26], market.close[START + 6 * 26])
    with np.errstate(invalid="ignore"):
        shape, former = other.high / other.low, market.high[: STOP + 1] / market.low[: STOP + 1]
    assert np.allclose(np.sort(shape, axis=0), np.sort(former, axis=0), equal_nan=True)
    end = int(market.open_time[STOP]) + market.interval
    assert sorted(item.text for item in other.news) == sorted(item.text for item in market.news if item.known_at <= end)
    for symbol, events in market.funding.items():
        assert sorted(one.rate for one in other.funding[symbol]) == sorted(
            one.rate for one in events if one.time <= end
        )
        assert [one for one in other.funding[symbol] if one.time <= int(market.open_time[START])] == [
            one for one in events if one.time <= int(market.open_time[START])
        ]


def test_a_headline_goes_with_its_day() -> None:
    market = small_market()
    other = with_shuffled_days(market, START, STOP, 5)
    begin = int(market.open_time[START]) + market.interval

    def bars_after(one: Market) -> set[tuple[str, float]]:
        """Each headline of the window with the volume of the bar in which it came out."""
        found = set()
        for item in one.news:
            bar = int(np.searchsorted(one.open_time, item.known_at, side="left")) - 1
            if begin < item.known_at and bar <= STOP:
                found.add((item.text, float(one.volume[bar, 0])))
        return found

    end = int(market.open_time[STOP]) + market.interval
    assert bars_after(other) == bars_after(replace(market, news=tuple(n for n in market.news if n.known_at <= end)))


def test_shuffled_headlines_keep_their_times_and_coins() -> None:
    market = small_market()
    other = with_shuffled_news(market, 3)
    assert [(one.known_at, one.symbol) for one in other.news] == [(one.known_at, one.symbol) for one in market.news]
    assert sorted(one.text for one in other.news) == sorted(one.text for one in market.news)
    assert [one.text for one in other.news] != [one.text for one in market.news]


def test_what_cannot_be_reordered_is_said() -> None:
    with pytest.raises(DataError, match="too few"):
        with_shuffled_days(small_market(), START, START + 12, 1)
    with pytest.raises(DataError, match="cannot be shuffled"):
        with_shuffled_news(replace(small_market(), news=()), 1)


def test_what_each_role_alone_can_read_becomes_real_as_time_passes() -> None:
    """It did not, and every team in such a market was accused of look-ahead."""
    real = generate(SyntheticConfig(300, 3, kind="private"))
    assert real.signs is not None
    future = AlteredFuture(real, 100, np.random.default_rng(1), {})
    for now in (100, 101, 150, 299):
        future.view(now)
        assert future.signs is not None
        for name in ("crowded", "confirmed"):
            shown, its = getattr(future.signs, name), getattr(real.signs, name)
            assert (shown[: now + 1] == its[: now + 1]).all() and (shown[now + 1 :] != its[now + 1 :]).all()
        assert (future.close[: now + 1] == real.close[: now + 1]).all()
