"""What a view tells is what was known then, in coarser bars too: neither more nor other."""

from __future__ import annotations

from dataclasses import astuple, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.data.archive import write_market
from simulator.data.catalog import Catalog
from simulator.errors import DataError
from simulator.market.events import FundingEvent, NewsItem
from simulator.market.market import Bars, Market, MarketView
from simulator.market.series import DataSeries
from simulator.market.timeframes import BAR_COLUMNS, WEEK_MS, parse_time
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.examples import tried
from tests.lookahead_scenes import other_future
from tests.markets import cut_off

BARS = 100
COARSE = ("2h", "4h", "8h", "12h", "1d")


@cache
def market() -> Market:
    """Hourly bars with holes from 03:00 on, so that the first coarse bars are partial, and series beside."""
    full = generate(
        SyntheticConfig(bars=BARS + 3, seed=5, symbols=("AAAUSDT", "BBBUSDT"), timeframe="1h", news_days=0.5)
    )
    rng = np.random.default_rng(1)
    absent = rng.random((BARS, 2)) < 0.3
    absent[40:46] = True
    absent[-1] = False  # a written market ends with its last bar
    arrays: dict[str, Any] = {name: np.where(absent, np.nan, getattr(full, name)[3:]) for name in BAR_COLUMNS}
    open_time = full.open_time[3:]
    start, stop = int(open_time[0]), int(open_time[-1]) + full.interval
    series = {
        # On the hour, so that some records are known exactly at a clock.
        "onchain/AAA": DataSeries(start + full.interval * np.arange(1, BARS, 3), {"flow": rng.normal(0, 1, 33)}),
        "sentiment/late": DataSeries(np.array([stop - 1]), {"value": np.array([1.0])}),
        "sentiment/early": DataSeries(np.array([start - 5, start + 7]), {"value": np.array([1.0, 2.0])}),
    }
    return replace(full, open_time=open_time, **arrays, series=series, truth=None)


def in_bytes(bars: Bars) -> list[bytes]:
    return [np.asarray(value).tobytes() for value in astuple(bars)]


def shown_by(view: MarketView) -> list[object]:
    """All that the methods of a view tell."""
    heard: list[object] = [view.symbols, view.timeframe, view.interval, view.now, view.series_names]
    for name in ("onchain/AAA", "sentiment/early"):
        for count in (1, 4, 1000):
            heard.append(b"".join(view.series(name, count).content()))
    for symbol in view.symbols:
        heard.append(repr(view.last_close(symbol)))
        for count in (0, 1, 7, 1000):
            heard += [view.funding(symbol, count), view.news(symbol, count), view.news(symbol, count, 86_400_000)]
            heard.append(in_bytes(view.bars(symbol, count)))
        heard += [in_bytes(view.bar(symbol, index)) for index in range(view.index + 1)]
        heard += [in_bytes(view.bars(symbol, count, frame)) for frame in COARSE for count in (0, 1, 3, 1000)]
    return heard


@tried(150)
@given(index=st.integers(0, BARS - 1), seed=st.integers(0, 2**32 - 1))
def test_nothing_that_becomes_known_later_changes_what_a_view_shows(index: int, seed: int) -> None:
    seen = shown_by(market().view(index))
    assert other_future(market(), index, seed).content_hash != market().content_hash
    assert shown_by(other_future(market(), index, seed).view(index)) == seen
    assert shown_by(cut_off(market(), index).view(index)) == seen


@settings(deadline=None)
@given(index=st.integers(0, BARS - 1), frame=st.sampled_from(COARSE), count=st.integers(0, 12))
def test_coarser_bars_are_those_of_the_market_resampled_up_to_now(index: int, frame: str, count: int) -> None:
    for symbol in market().symbols:
        seen = market().view(index).bars(symbol, count, frame)
        try:
            coarse = cut_off(market(), index).resample(frame)
        except DataError:  # not one bar is complete yet
            assert len(seen) == 0
            continue
        assert in_bytes(seen) == in_bytes(coarse.view(len(coarse) - 1).bars(symbol, count))


def test_a_week_is_there_from_its_end_on_which_is_a_monday() -> None:
    hours = generate(SyntheticConfig(bars=500, seed=5, symbols=("AAAUSDT",), timeframe="1h"))  # from a Wednesday on
    opens = [parse_time(day) for day in ("2019-12-30", "2020-01-06", "2020-01-13")]
    for index in range(500):
        view = hours.view(index)
        assert view.bars("AAAUSDT", 9, "1w").open_time.tolist() == [one for one in opens if one + WEEK_MS <= view.now]


def test_known_at_the_clock_is_seen_and_a_millisecond_later_is_not() -> None:
    now = market().view(10).now
    times, values = np.array([now - 1, now, now + 1]), np.array([1.0, 2.0, 3.0])
    other = replace(
        market(),
        series={"a/b": DataSeries(times, {"x": values}), "a/c": DataSeries(times[2:], {"x": values[2:]})},
        news=tuple(NewsItem(now, int(known), None, str(known)) for known in times),
        funding={"AAAUSDT": tuple(FundingEvent(int(time), 0.1) for time in times)},
    )
    view = other.view(10)
    assert [item.known_at for item in view.news("AAAUSDT", 9)] == [now - 1, now]
    assert [event.time for event in view.funding("AAAUSDT", 9)] == [now - 1, now]
    assert view.series_names == ("a/b",)
    assert view.series("a/b", 9).columns["x"].tolist() == [1.0, 2.0]
    assert view.series("a/b", 1).columns["x"].tolist() == [2.0]
    assert len(view.series("a/b", 0)) == len(view.series("a/c", 9)) == 0
    with pytest.raises(DataError, match="no series 'a/d'; there are a/b, a/c"):
        view.series("a/d", 1)


def test_writing_into_what_a_view_shows_does_not_change_history() -> None:
    seen, view = shown_by(market().view(60)), market().view(60)
    for frame in ("1h", "4h"):
        view.bars("AAAUSDT", 3, frame).close[:] = -1.0
    view.series("onchain/AAA", 3).columns["flow"][:] = -1.0
    assert shown_by(market().view(60)) == seen


def test_series_are_part_of_the_hash_and_of_selecting_and_resampling() -> None:
    bare = replace(market(), series={})
    one = replace(bare, series={"onchain/AAA": market().series["onchain/AAA"]})
    known = one.series["onchain/AAA"].known_at
    renamed = replace(bare, series={"onchain/BBB": market().series["onchain/AAA"]})
    late = replace(bare, series={"onchain/AAA": replace(one.series["onchain/AAA"], known_at=known + 1)})
    assert len({each.content_hash for each in (bare, one, renamed, late, market())}) == 5
    assert market().select(["BBBUSDT"]).series == market().resample("4h").series == market().series
    with pytest.raises(DataError, match="'onchain' is not a name of a series"):
        replace(market(), series={"onchain": market().series["onchain/AAA"]})


def test_a_written_market_comes_back_with_its_series(tmp_path: Path) -> None:
    write_market(market(), tmp_path)
    catalog = Catalog(tmp_path)
    back = catalog.load(timeframe="1h")
    # What is known only after the last close, no view can show: it is not loaded.
    assert back.content_hash == cut_off(market(), BARS - 1).content_hash
    assert shown_by(back.view(BARS - 1)) == shown_by(market().view(BARS - 1))
    assert not [issue for issue in catalog.check() if issue.fatal]
    early = catalog.load(timeframe="1h", end=int(market().open_time[20]))
    assert shown_by(early.view(19)) == shown_by(market().view(19))
    (tmp_path / "series-onchain-AAA.parquet").write_bytes(b"x")
    assert [Path(issue.file).name for issue in catalog.check() if issue.fatal] == ["series-onchain-AAA.parquet"]
    with pytest.raises(DataError, match="not a readable Parquet file"):
        catalog.load(timeframe="1h")
