"""Reading past the clock raises; selecting and resampling keep what they should."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import DataError, LookAheadError
from simulator.market.events import FundingEvent
from simulator.market.market import Market
from simulator.market.timeframes import BAR_COLUMNS, format_time, interval_of, parse_time
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from simulator.synthetic.truth import truth_of
from tests.markets import without_bars

NEW_YEAR = parse_time("2020-01-01")  # a Wednesday

BARS = 60


@cache
def market_with_gaps() -> Market:
    market = generate(SyntheticConfig(bars=BARS, seed=3, symbols=("AAAUSDT", "BBBUSDT"), news_days=0.5))
    absent = np.random.default_rng(0).random((BARS, 2)) < 0.2
    return replace(without_bars(market, absent), truth=None)


@settings(deadline=None)
@given(index=st.integers(0, BARS - 1), ahead=st.integers(1, BARS + 5))
def test_reading_past_the_clock_raises(index: int, ahead: int) -> None:
    view = market_with_gaps().view(index)
    with pytest.raises(LookAheadError):
        view.bar("AAAUSDT", index + ahead)
    with pytest.raises(LookAheadError):
        view.bar("AAAUSDT", -ahead)


def test_news_of_other_symbols_and_old_news_are_left_out() -> None:
    market = market_with_gaps()
    view = market.view(BARS - 1)
    every = [item for item in market.news if item.known_at <= view.now]
    own = [item for item in every if item.symbol == "BBBUSDT"]
    assert list(view.news("BBBUSDT", 1000)) == own
    assert list(view.news("BBBUSDT", 2)) == own[-2:]
    recent = [item for item in own if view.now - item.known_at <= 2 * 86_400_000]
    assert list(view.news("BBBUSDT", 1000, 2 * 86_400_000)) == recent
    assert 0 < len(recent) < len(own)


def test_bars_of_whole_numbers_are_the_same_market() -> None:
    """As floats, for which alone the kernel is compiled."""
    close = np.array([[10], [12], [11]])
    whole = {"open": close, "high": close + 1, "low": close - 1, "close": close, "volume": close, "half_spread": close}
    markets = []
    for kind in (np.int64, np.float32, np.float64):
        arrays: dict[str, Any] = {name: array.astype(kind) for name, array in whole.items()}
        markets.append(Market(("AAAUSDT",), "1h", NEW_YEAR + 3_600_000 * np.arange(3), **arrays))
    assert {getattr(market, name).dtype for market in markets for name in BAR_COLUMNS} == {np.dtype(np.float64)}
    assert len({market.content_hash for market in markets}) == 1


def test_last_close_is_that_of_the_newest_present_bar() -> None:
    market = market_with_gaps()
    for index in range(BARS):
        known = market.close[: index + 1, 0]
        known = known[~np.isnan(known)]
        seen = market.view(index).last_close("AAAUSDT")
        assert seen == known[-1] if len(known) else np.isnan(seen)


@pytest.mark.parametrize("name", BAR_COLUMNS)
def test_the_hash_changes_with_any_single_value(name: str) -> None:
    market = market_with_gaps()
    values = getattr(market, name).copy()
    values[-1, -1] = 12.5
    changes: dict[str, Any] = {name: values}
    assert replace(market, **changes).content_hash != market.content_hash


def test_selecting_narrows_everything_in_the_order_asked_for() -> None:
    market = generate(SyntheticConfig(bars=80, seed=1))
    narrow = market.select(["CCCUSDT", "AAAUSDT"])
    assert narrow.symbols == ("CCCUSDT", "AAAUSDT")
    np.testing.assert_array_equal(narrow.close, market.close[:, [2, 0]])
    assert set(narrow.funding) == {"CCCUSDT", "AAAUSDT"}
    assert {item.symbol for item in narrow.news} == {"CCCUSDT", "AAAUSDT"}
    np.testing.assert_array_equal(truth_of(narrow).drift, truth_of(market).drift[:, [2, 0]])
    np.testing.assert_array_equal(truth_of(narrow).vol, truth_of(market).vol[:, [2, 0]])


@pytest.mark.parametrize(
    ("symbols", "message"),
    [([], "no symbols"), (["ZZZ"], "no symbol 'ZZZ'"), (["AAAUSDT", "AAAUSDT"], "distinct")],
)
def test_selecting_what_is_not_there_is_an_error(symbols: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        market_with_gaps().select(symbols)


def one_symbol(close: list[float], start: int = 0, timeframe: str = "1h") -> Market:
    """Bars with simple shapes: open = close - 1 (but above 0), high = close + 2, low = half the close."""
    interval = interval_of(timeframe)
    values = np.array(close)[:, None]
    time = start + interval * np.arange(len(close), dtype=np.int64)
    columns = (values - 1, values + 2, values / 2, values, values * 10, values / 1e4)
    return Market(("A",), timeframe, time, *columns)


def begins_bar(time: int, timeframe: str) -> bool:
    """By the calendar: whether a bar opens at `time` (ms)."""
    moment = datetime.fromtimestamp(time / 1000, UTC)
    at_midnight = moment.time() == datetime.min.time()
    if timeframe == "1w":
        return at_midnight and moment.isoweekday() == 1
    hours = 24 if timeframe == "1d" else int(timeframe[:-1])
    return moment.minute == moment.second == 0 and moment.hour % hours == 0


@settings(deadline=None)
@given(
    close=st.lists(st.one_of(st.just(float("nan")), st.floats(2, 1000)), min_size=1, max_size=60),
    lead=st.integers(0, 30),
    frames=st.sampled_from(
        [("1h", "2h"), ("1h", "4h"), ("2h", "8h"), ("1h", "12h"), ("4h", "1d"), ("12h", "1w"), ("1d", "1w")]
    ),
)
def test_a_coarse_bar_is_made_of_the_finer_bars_that_exist(
    close: list[float], lead: int, frames: tuple[str, str]
) -> None:
    fine, target = frames
    step = interval_of(fine)
    parts = interval_of(target) // step
    market = one_symbol(close, start=NEW_YEAR + lead * step, timeframe=fine)
    opens = [time for time in market.open_time.tolist() if begins_bar(time, target)]
    # A bar whose first parts lie before the history is partial.
    first = next(
        time for time in (NEW_YEAR + (lead - back) * step for back in range(parts)) if begins_bar(time, target)
    )
    expected = [time for time in sorted({first, *opens}) if time + parts * step <= market.open_time[-1] + step]
    if not expected:
        with pytest.raises(DataError, match="no complete bar"):
            market.resample(target)
        return
    coarse = market.resample(target)
    assert coarse.partial is not None and coarse.open_time.tolist() == expected
    for row, time in enumerate(expected):
        inside = (market.open_time >= time) & (market.open_time < time + parts * step) & market.present[:, 0]
        assert coarse.partial[row, 0] == (0 < inside.sum() < parts)
        if not inside.any():
            assert all(np.isnan(getattr(coarse, name)[row, 0]) for name in BAR_COLUMNS)
            continue
        assert coarse.open[row, 0] == market.open[inside, 0][0]
        assert coarse.high[row, 0] == market.high[inside, 0].max()
        assert coarse.low[row, 0] == market.low[inside, 0].min()
        assert coarse.close[row, 0] == market.close[inside, 0][-1]
        assert coarse.volume[row, 0] == pytest.approx(market.volume[inside, 0].sum())
        assert coarse.half_spread[row, 0] == pytest.approx(market.half_spread[inside, 0].mean())


def test_resampling_twice_keeps_bars_partial() -> None:
    close = [5.0] * 48
    close[3] = float("nan")
    direct = one_symbol(close).resample("1d")
    twice = one_symbol(close).resample("4h").resample("1d")
    assert direct.partial is not None and twice.partial is not None
    assert direct.partial[:, 0].tolist() == twice.partial[:, 0].tolist() == [True, False]


def test_a_timeframe_that_does_not_divide_is_refused() -> None:
    with pytest.raises(DataError, match="cannot be made of"):
        one_symbol([5.0] * 8, timeframe="4h").resample("1h")
    with pytest.raises(DataError, match="unknown timeframe '7h'"):
        one_symbol([5.0] * 8).resample("7h")


def test_malformed_markets_are_refused() -> None:
    market = market_with_gaps()
    with pytest.raises(DataError, match="shape"):
        replace(market, close=market.close[:-1])
    with pytest.raises(DataError, match="not regular"):
        replace(market, open_time=np.delete(np.append(market.open_time, 9), 3))
    with pytest.raises(DataError, match="order of known_at"):
        replace(market, news=market.news[::-1])
    with pytest.raises(DataError, match="funding of AAAUSDT"):
        replace(market, funding={"AAAUSDT": (FundingEvent(5, 0.1), FundingEvent(5, 0.1))})
    with pytest.raises(DataError, match="outside"):
        market.view(BARS)


def test_times_are_read_as_utc() -> None:
    assert parse_time("2020-01-01") == 1_577_836_800_000
    assert parse_time("2020-01-01T02:00+02:00") == 1_577_836_800_000
    assert format_time(parse_time("2024-02-29T13:45")) == "2024-02-29 13:45"
    with pytest.raises(DataError, match="not a date"):
        parse_time("yesterday")
