"""The same history in another order: what must stay, what must not, and nothing of what comes later in what is past."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.checks.perturbation import with_shuffled_days, with_shuffled_news
from simulator.errors import DataError
from simulator.market.market import Market
from simulator.market.timeframes import BAR_COLUMNS
from tests.stored_runs import small_market

START, STOP = 180, 340


def holed() -> Market:
    """The small market with a bar that the exchange never made."""
    market = small_market()
    columns = {name: getattr(market, name).copy() for name in BAR_COLUMNS}
    for name in BAR_COLUMNS:
        columns[name][200, 0] = np.nan
    return replace(market, **columns)


@settings(max_examples=15, deadline=None)
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
