"""The catalog reads what is there, says what is missing, and refuses what cannot be used."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.data.archive import SAMPLE_BARS, SAMPLE_MARKETS, SAMPLE_SEED, write_market, write_sample
from simulator.data.catalog import Catalog
from simulator.data.venue import write_rules
from simulator.errors import DataError
from simulator.exchange.rules import SymbolRules
from simulator.market.events import read_news
from simulator.market.gaps import gap_summary
from simulator.market.market import Market
from simulator.market.timeframes import BAR_COLUMNS, format_time, parse_time
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from simulator.synthetic.truth import truth_of

ROOT = Path(__file__).resolve().parents[3]
HOUR = 3_600_000
START = 1_700_006_400_000  # 2023-11-15 00:00
Columns = dict[str, Any]


def hourly(bars: int = 48, seed: int = 0) -> Columns:
    """Columns of a sound file of hourly bars."""
    rng = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(rng.normal(0, 0.01, bars)))
    open_ = np.concatenate([[100.0], close[:-1]])
    return {
        "timestamp": START + HOUR * np.arange(bars, dtype=np.int64),
        "open": open_,
        "high": np.maximum(open_, close) * 1.01,
        "low": np.minimum(open_, close) * 0.99,
        "close": close,
        "volume": rng.uniform(1, 2, bars),
    }


def write(path: Path, columns: Columns) -> None:
    pq.write_table(pa.table(columns), path)


def without(columns: Columns, rows: list[int]) -> Columns:
    return {name: np.delete(values, rows) for name, values in columns.items()}


def shared(part: str) -> Path:
    """A folder of the recorded data, which is not part of the project; skips where it is absent."""
    base = Path(os.environ.get("CRYPTOSENTINEL_SHARED", ROOT.parent / "shared"))
    folder = base / "market-data" / part
    if not folder.is_dir():
        pytest.skip(f"no recorded market data at {folder} (set CRYPTOSENTINEL_SHARED to the folder that holds it)")
    return folder


# Reading


def test_bars_come_back_as_they_are_in_the_file(tmp_path: Path) -> None:
    columns = hourly()
    write(tmp_path / "A-1h.parquet", columns)
    market = Catalog(tmp_path).load(["A"], "1h", half_spread_bps=3.0)
    for name in ("open", "high", "low", "close", "volume"):
        np.testing.assert_array_equal(getattr(market, name)[:, 0], columns[name])
    assert (market.half_spread == 3e-4).all()
    assert market.truth is None and market.news == () and market.funding == {}


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_times_may_be_timestamps_of_any_unit(tmp_path: Path, unit: str, zone: str | None) -> None:
    columns = hourly(3)
    write(tmp_path / "A-1h.parquet", columns)
    times = pa.array(columns["timestamp"]).cast(pa.timestamp("ms")).cast(pa.timestamp(unit, zone))
    write(tmp_path / "B-1h.parquet", columns | {"timestamp": times})
    market = Catalog(tmp_path).load()
    assert market.symbols == ("A", "B")
    assert market.present.all() and (market.close[:, 0] == market.close[:, 1]).all()


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_the_grid_spans_all_symbols_and_absent_bars_stay_absent(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("catalog")
    kept: dict[str, list[int]] = {}
    for symbol in ("A", "B", "C"):
        kept[symbol] = sorted(data.draw(st.sets(st.integers(0, 29), min_size=1), label=symbol))
        full = hourly(30, seed=ord(symbol))
        write(folder / f"{symbol}-1h.parquet", {name: values[kept[symbol]] for name, values in full.items()})
    market = Catalog(folder).load()
    first, last = min(map(min, kept.values())), max(map(max, kept.values()))
    assert list(market.open_time) == [START + HOUR * hour for hour in range(first, last + 1)]
    words = gap_summary(market)
    told = dict(part.split(": ", 1) for part in words.split("; ")) if words != "no gaps" else {}
    for column, symbol in enumerate(market.symbols):
        rows = [hour - first for hour in kept[symbol]]
        assert np.flatnonzero(market.present[:, column]).tolist() == rows
        for name in BAR_COLUMNS:
            assert np.isnan(np.delete(getattr(market, name)[:, column], rows)).all()
        np.testing.assert_array_equal(market.close[rows, column], hourly(30, seed=ord(symbol))["close"][kept[symbol]])
        found = told.get(symbol, "")
        lengths = [step - 1 for step in np.diff(rows).tolist() if step > 1]
        assert (f"{sum(lengths)} bars absent in {len(lengths)} gaps" in found) is bool(lengths)
        if lengths:
            begin = START + HOUR * (kept[symbol][int(np.diff(rows).argmax())] + 1)
            assert f"(longest {max(lengths)} from {format_time(begin)})" in found
        ends = {"first": rows[0], "last": len(market) - 1 - rows[-1]}
        assert all((f"{word} {bars}" in found) is (bars > 0) for word, bars in ends.items())


def test_a_coarser_timeframe_is_made_of_the_coarsest_finer_file(tmp_path: Path) -> None:
    write(tmp_path / "A-1h.parquet", without(hourly(52), [5, 9]))
    catalog = Catalog(tmp_path)
    made, asked = catalog.load(["A"], "4h"), catalog.load(["A"], "1h", resample="4h")
    by_hand = catalog.load(["A"], "1h").resample("4h")
    assert made.timeframe == "4h" and len(made) == 13
    assert made.content_hash == asked.content_hash == by_hand.content_hash
    assert gap_summary(made) == "A: 2 bars built from an incomplete set of finer bars"
    # A finer file beside it changes nothing: of those that fit, the coarsest is taken.
    half = hourly(8)
    half["timestamp"] = START + HOUR // 2 * np.arange(8)
    write(tmp_path / "A-30m.parquet", half)
    assert catalog.load(["A"], "4h").content_hash == made.content_hash


def test_the_window_is_half_open_and_keeps_what_was_known_before(tmp_path: Path) -> None:
    market = generate(SyntheticConfig(bars=120, seed=2))
    write_market(market, tmp_path / "m")
    start, end = parse_time("2020-01-05"), parse_time("2020-01-10")
    part = Catalog(tmp_path / "m").load(timeframe="4h", start=start, end=end)
    assert (int(part.open_time[0]), int(part.open_time[-1])) == (start, end - part.interval)
    offset = 4 * 6
    for index in (0, 7, len(part) - 1):
        here, there = part.view(index), market.view(index + offset)
        assert here.news("AAAUSDT", 99) == there.news("AAAUSDT", 99)
        assert here.funding("AAAUSDT", 99) == there.funding("AAAUSDT", 99)
    assert max(item.known_at for item in part.news) <= end < max(item.known_at for item in market.news)
    assert max(event.time for event in part.funding["AAAUSDT"]) == end
    np.testing.assert_array_equal(truth_of(part).drift, truth_of(market).drift[offset : offset + len(part)])


def test_listing_says_what_each_file_holds(tmp_path: Path) -> None:
    write(tmp_path / "B_2-1h.parquet", without(hourly(10), [3, 4]))
    write(tmp_path / "A-X-4h.parquet", without(hourly(9), [1, 2, 3, 5, 6, 7]))
    (tmp_path / "notes.txt").write_text("not data")
    listed = [(one.symbol, one.timeframe, one.bars, one.absent) for one in Catalog(tmp_path).series()]
    assert listed == [("A-X", "4h", 3, 0), ("B_2", "1h", 8, 2)]


# Writing


@pytest.mark.parametrize("edge", [True, False])
def test_a_written_market_comes_back_whole(tmp_path: Path, edge: bool) -> None:
    market = generate(SyntheticConfig(bars=150, seed=9, edge=edge))
    write_market(market, tmp_path)
    back = Catalog(tmp_path).load(market.symbols, "4h")
    assert back.content_hash == market.content_hash
    assert truth_of(back).config == truth_of(market).config
    ours, theirs = (truth_of(m).scenarios(m, 100, 3, 5, 1) for m in (market, back))
    np.testing.assert_array_equal(ours.close, theirs.close)
    np.testing.assert_array_equal(ours.funding_rate, theirs.funding_rate)
    some = Catalog(tmp_path).load(["CCCUSDT"], "4h")
    np.testing.assert_array_equal(truth_of(some).vol, truth_of(market).vol[:, [2]])
    assert Catalog(tmp_path).load(timeframe="1d").truth is None, "the hidden state lives on the finer grid"
    assert Catalog(tmp_path).check() == []


def test_gaps_and_partial_bars_survive_writing(tmp_path: Path) -> None:
    write(tmp_path / "A-1h.parquet", without(hourly(48), [2, *range(8, 12)]))
    market = Catalog(tmp_path).load(["A"], "4h")
    write_market(market, tmp_path / "m")
    back = Catalog(tmp_path / "m").load(["A"], "4h")
    assert back.content_hash == market.content_hash
    assert gap_summary(back) == gap_summary(market)
    assert "1 bars absent in 1 gaps" in gap_summary(back) and "1 bars built from" in gap_summary(back)


def test_the_sample_is_byte_equal_for_a_seed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert [folder.name for folder in write_sample(tmp_path / name, seed=4)] == ["synthetic", "no_edge"]
    write_sample(tmp_path / "two", seed=4)  # over the sample that is there
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert len(files) == 22
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file


@pytest.mark.parametrize("name", SAMPLE_MARKETS)
def test_the_shipped_sample_is_what_its_command_makes(name: str) -> None:
    catalog = Catalog(ROOT / "data" / name)
    shipped = catalog.load(timeframe="4h")
    made = generate(SyntheticConfig(bars=SAMPLE_BARS, seed=SAMPLE_SEED, edge=SAMPLE_MARKETS[name]))
    for column in BAR_COLUMNS:
        np.testing.assert_allclose(getattr(shipped, column), getattr(made, column), rtol=1e-9)
    assert [item.text for item in shipped.news] == [item.text for item in made.news]
    assert catalog.check() == []


def test_writing_never_mixes_with_foreign_files(tmp_path: Path) -> None:
    write(tmp_path / "A-1h.parquet", hourly())
    with pytest.raises(DataError, match="choose an empty folder"):
        write_market(generate(SyntheticConfig(bars=9, seed=1)), tmp_path)


def test_a_written_list_of_files_cannot_reach_outside(tmp_path: Path) -> None:
    outside = tmp_path / "precious.parquet"
    write(outside, hourly(2))
    market = generate(SyntheticConfig(bars=9, seed=1))
    write_market(market, tmp_path / "m")
    manifest = json.loads((tmp_path / "m" / "market.json").read_text())
    manifest["files"].append("../precious.parquet")
    (tmp_path / "m" / "market.json").write_text(json.dumps(manifest))
    write_market(market, tmp_path / "m")
    assert outside.exists()
    for name in ("../A", "series-A"):
        with pytest.raises(DataError, match="cannot name a file"):
            write_market(generate(SyntheticConfig(bars=9, seed=1, symbols=(name,))), tmp_path / "n")


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="cannot be written"):
        write_market(generate(SyntheticConfig(bars=9, seed=1)), tmp_path / "file" / "m")


# Bad input: every case is one clear DataError


def changed(**changes: Callable[[np.ndarray[Any, Any]], Any]) -> Callable[[Path], None]:
    """Write A-1h.parquet with some columns changed."""

    def make(folder: Path) -> None:
        columns = hourly()
        for name, change in changes.items():
            columns[name] = change(columns[name].copy())
        write(folder / "A-1h.parquet", columns)

    return make


def put(row: int, value: float) -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    def change(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        values[row] = value
        return values

    return change


def sound(folder: Path) -> None:
    write(folder / "A-1h.parquet", hourly())


def raw(name: str, content: bytes) -> Callable[[Path], None]:
    """A sound A-1h.parquet, and then a file of these bytes."""

    def make(folder: Path) -> None:
        sound(folder)
        (folder / name).write_bytes(content)

    return make


def file_of(columns: Columns) -> Callable[[Path], None]:
    return lambda folder: write(folder / "A-1h.parquet", columns)


def truncated(folder: Path) -> None:
    sound(folder)
    path = folder / "A-1h.parquet"
    path.write_bytes(path.read_bytes()[:-200])


def in_a_folder(folder: Path) -> None:
    for name in ("perp", "spot"):  # a single one would be taken
        (folder / name).mkdir()
        sound(folder / name)


BAD: dict[str, tuple[Callable[[Path], None], Columns, str]] = {
    "empty folder": (lambda folder: None, {}, "holds no bars; files are named like"),
    "data one folder deeper": (in_a_folder, {}, "did you mean its folder perp or spot"),
    "file of no bars": (file_of(without(hourly(1), [0])), {}, "holds no bars"),
    "corrupt": (raw("A-1h.parquet", b"not parquet at all"), {}, "not a readable Parquet file"),
    "empty file": (raw("A-1h.parquet", b""), {}, "not a readable Parquet file"),
    "truncated": (truncated, {}, "not a readable Parquet file"),
    "column missing": (
        file_of({name: values for name, values in hourly().items() if name != "low"}), {}, "column low is missing",
    ),
    "prices as text": (changed(close=lambda v: [str(x) for x in v]), {}, "close is .*; it must be a number"),
    "times as text": (changed(timestamp=lambda v: [str(x) for x in v]), {}, "it must be a timestamp"),
    "times in seconds": (changed(timestamp=lambda v: v // 1000), {}, "not milliseconds"),
    "time missing": (changed(timestamp=lambda v: [None, *v[1:].tolist()]), {}, "1 rows have no timestamp"),
    "unsorted": (changed(timestamp=lambda v: v[::-1].copy()), {}, "followed by an earlier one"),
    "duplicated": (changed(timestamp=put(7, START + 6 * HOUR)), {}, "2 bars share their time"),
    "misaligned": (changed(timestamp=lambda v: v + 60_000), {}, "whole interval"),
    "not a number": (changed(close=put(9, np.nan)), {}, "missing or not finite, the first at 2023-11-15 09:00"),
    "infinite": (changed(high=put(9, np.inf)), {}, "missing or not finite"),
    "high below the close": (changed(high=put(4, 1.0)), {}, "1 bars are impossible"),
    "low above the open": (changed(low=put(4, 1e9)), {}, "impossible"),
    "price of zero": (changed(low=put(4, 0.0)), {}, "impossible"),
    "negative volume": (changed(volume=put(4, -1.0)), {}, "impossible"),
    "half spread of a whole price": (file_of(hourly(2) | {"half_spread": [0.1, 1.0]}), {}, "impossible"),
    "unknown symbol": (sound, {"symbols": ["B"]}, "no symbol 'B'; there are A"),
    "no symbols": (sound, {"symbols": []}, "no symbols are asked for"),
    "a symbol twice": (sound, {"symbols": ["A", "A"]}, "twice"),
    "path in a symbol": (sound, {"symbols": ["../A"]}, "is not a symbol"),
    "absolute path as a symbol": (sound, {"symbols": ["/etc/passwd"]}, "is not a symbol"),
    "empty symbol": (sound, {"symbols": [""]}, "is not a symbol"),
    "unknown timeframe": (sound, {"timeframe": "7h"}, "unknown timeframe '7h'"),
    "finer than there is": (sound, {"timeframe": "5m"}, "has no bars of 5m; it has 1h"),
    "resampled to finer": (sound, {"resample": "5m"}, "5m bars cannot be made of 1h bars"),
    "resampled from what is not there": (sound, {"timeframe": "4h", "resample": "1d"}, "has no bars of 4h"),
    "window too short": (sound, {"min_bars": 49}, "holds 48 bars of 1h, at least 49 are needed"),
    "window before the data": (sound, {"end": START}, "holds 0 bars"),
    "window after the data": (sound, {"start": START + 48 * HOUR}, "there is data from 2023-11-15 00:00"),
    "window upside down": (sound, {"start": START + 9 * HOUR, "end": START}, "holds 0 bars"),
    "too few for one coarse bar": (file_of(hourly(5)), {"resample": "1d"}, "one complete"),
    "negative spread": (sound, {"half_spread_bps": -1.0}, "half_spread_bps"),
    "no folder of funding": (sound, {"funding_dir": "nowhere"}, "no such folder of funding"),
    "no file of news": (sound, {"news_path": "nowhere.parquet"}, "no such file"),
    "corrupt funding": (raw("A-funding.parquet", b"x"), {}, "A-funding.parquet: not a readable"),
    "corrupt series": (raw("series-onchain-A.parquet", b"x"), {}, "series-onchain-A.parquet: not a readable"),
    "corrupt news": (raw("news.parquet", b"x"), {}, "news.parquet: not a readable"),
    "corrupt recipe": (raw("market.json", b"{"), {}, "not the list of a market"),
    "foreign recipe": (raw("market.json", b"{}"), {}, "not the list of a market"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_error(tmp_path: Path, case: str) -> None:
    make, arguments, message = BAD[case]
    make(tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        Catalog(tmp_path).load(**arguments)
    assert "\n" not in str(caught.value)
    if not arguments and case not in ("corrupt recipe", "foreign recipe", "empty folder", "data one folder deeper"):
        fatal = [issue for issue in Catalog(tmp_path).check() if issue.fatal]
        assert len(fatal) == 1, "a check lists what loading stops at"


def test_a_missing_folder_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        Catalog(tmp_path / "nowhere")


def test_a_check_lists_every_finding(tmp_path: Path) -> None:
    columns = without(hourly(), [5])
    columns["volume"][3] = 0
    columns["high"][9] = 1.0
    write(tmp_path / "A-1h.parquet", columns)
    (tmp_path / "B-1h.parquet").write_bytes(b"x")
    found = {(Path(issue.file).name, issue.kind, issue.count, issue.fatal) for issue in Catalog(tmp_path).check()}
    assert found == {
        ("A-1h.parquet", "zero_volume", 1, False),
        ("A-1h.parquet", "impossible", 1, True),
        ("A-1h.parquet", "gap", 1, False),
        ("B-1h.parquet", "unreadable", 1, True),
    }
    assert {Path(issue.file).name for issue in Catalog(tmp_path).check(symbols=["B"])} == {"B-1h.parquet"}
    assert Catalog(tmp_path).check(timeframe="4h") == []


# Notes about bars that are possible and unlikely


def notes(folder: Path, columns: Columns) -> dict[str, tuple[int, str]]:
    """What a check of a file of these bars finds, by kind: the count and the words. All of it can be loaded."""
    write(folder / "A-1h.parquet", columns)
    found = Catalog(folder).check()
    assert not any(issue.fatal for issue in found) and len(found) == len({issue.kind for issue in found})
    Catalog(folder).load()
    return {issue.kind: (issue.count, issue.detail) for issue in found}


@settings(deadline=None, max_examples=40)
@given(bars=st.integers(4, 200), row=st.integers(0, 199), up=st.booleans(), seed=st.integers(0, 99))
def test_one_flash_wick_is_found_wherever_it_is(
    tmp_path_factory: pytest.TempPathFactory, bars: int, row: int, up: bool, seed: int
) -> None:
    folder, row = tmp_path_factory.mktemp("wick"), row % bars
    assert notes(folder, hourly(bars, seed)) == {}
    columns = hourly(bars, seed)
    columns["high" if up else "low"][row] *= 2.0 if up else 0.5
    when = format_time(int(columns["timestamp"][row]))
    found = notes(folder, columns)
    output = f"the furthest at {when} (high {columns['high'][row]:g}, low {columns['low'][row]:g})"
    words = f"1 bars have a wick far beyond the ranges of the bars around them, the first at {when}, {output}"
    assert found == ({"flash_wick": (1, words)} if bars >= 9 else {}), "too few bars say nothing of what is usual"


def test_a_volatile_spell_is_not_a_row_of_flash_wicks(tmp_path: Path) -> None:
    columns = hourly(300)
    rng = np.random.default_rng(0)
    columns["high"][100:200] *= np.exp(np.abs(rng.normal(0, 0.2, 100)))
    columns["low"][100:200] /= np.exp(np.abs(rng.normal(0, 0.2, 100)))
    assert notes(tmp_path, columns).get("flash_wick", (0, ""))[0] < 5


@settings(deadline=None, max_examples=40)
@given(start=st.integers(1, 60), length=st.integers(1, 20))
def test_equal_bars_in_a_row_are_reported_from_three_on(
    tmp_path_factory: pytest.TempPathFactory, start: int, length: int
) -> None:
    columns = hourly(90)
    for name in BAR_COLUMNS[:5]:
        columns[name][start : start + length] = columns[name][start]
    found = notes(tmp_path_factory.mktemp("stale"), columns)
    first = format_time(int(columns["timestamp"][start]))
    words = f"{length} bars repeat each other in 1 runs of equal bars, the first at {first}"
    assert found.get("stale") == ((length, words) if length >= 3 else None)


def test_a_check_notices_that_a_synthetic_market_was_edited(tmp_path: Path) -> None:
    write_market(generate(SyntheticConfig(bars=40, seed=1)), tmp_path)
    path = tmp_path / "BBBUSDT-4h.parquet"
    table = pq.read_table(path).to_pydict()
    table["volume"][7] += 1.0
    write(path, table)
    assert [issue.kind for issue in Catalog(tmp_path).check()] == ["changed"]


# Bars beside a market: the same symbols and time in another timeframe, whatever the folder has of them

SYMBOLS = ("A", "B")
FINE = generate(SyntheticConfig(bars=480, seed=5, symbols=SYMBOLS, timeframe="15m"))


def write_bars_of(market: Market, folder: Path, symbol: str, keep: Any = slice(None)) -> None:
    columns: Columns = {"timestamp": market.open_time[keep]}
    columns |= {name: getattr(market, name)[keep, market.column(symbol)] for name in BAR_COLUMNS}
    write(folder / f"{symbol}-{market.timeframe}.parquet", columns)


@pytest.mark.parametrize("timeframe", ["15m", "30m", "1h"])
def test_bars_beside_are_those_of_the_file_or_made_of_finer_ones(timeframe: str, tmp_path: Path) -> None:
    for symbol in SYMBOLS:
        write_bars_of(FINE, tmp_path, symbol)
    found = Catalog(tmp_path).beside(FINE.resample("1h"), timeframe)
    wanted = FINE.resample(timeframe)
    np.testing.assert_array_equal(found.open_time, wanted.open_time)
    for name in BAR_COLUMNS:
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    assert (found.symbols, found.timeframe, found.funding, found.news) == (SYMBOLS, timeframe, {}, ())


def hours_of(rows: slice, later: int = 0) -> Market:
    hours = FINE.resample("1h").select(["A"])
    arrays: dict[str, Any] = {name: getattr(hours, name)[rows] for name in BAR_COLUMNS}
    return Market(hours.symbols, hours.timeframe, hours.open_time[rows] + later, **arrays)


@settings(max_examples=25, deadline=None)
@given(st.sets(st.integers(0, len(FINE) - 1), max_size=60), st.booleans())
def test_bars_beside_are_of_the_time_of_the_market_and_what_is_absent_stays_absent(
    tmp_path_factory: pytest.TempPathFactory, holes: set[int], other: bool
) -> None:
    folder = tmp_path_factory.mktemp("bars")
    write_bars_of(FINE, folder, "A", np.setdiff1d(np.arange(len(FINE)), sorted(holes)))
    if other:
        write_bars_of(FINE.resample("1h"), folder, "B")  # too coarse to be of use
    found = Catalog(folder).beside(FINE.resample("1h"), "15m")
    assert set(np.flatnonzero(~found.present[:, 0])) == holes
    assert not found.present[:, 1].any()
    later = Catalog(folder).beside(hours_of(slice(30, 60)), "15m")
    np.testing.assert_array_equal(later.close, found.close[120:240, :1])


@pytest.mark.parametrize(
    ("market", "timeframe", "message"),
    [
        (FINE.resample("1h"), "1d", "1h bars do not consist of 1d bars"),
        (FINE.resample("1h"), "5m", "no 5m bars of A, B between"),
        (FINE.resample("1h"), "7h", "unknown timeframe '7h'"),
        (hours_of(slice(None), 400 * 24 * HOUR), "15m", "no 15m bars of A between"),
    ],
)
def test_what_cannot_be_made_beside_is_refused(market: Market, timeframe: str, message: str, tmp_path: Path) -> None:
    write_bars_of(FINE, tmp_path, "A")
    with pytest.raises(DataError, match=message):
        Catalog(tmp_path).beside(market, timeframe)
    write_bars_of(FINE, tmp_path, "A", np.arange(len(FINE))[::-1])
    with pytest.raises(DataError, match="fix the file"):
        Catalog(tmp_path).beside(FINE.resample("1h"), "15m")


@pytest.mark.parametrize(("content", "trouble"), [("{", "not a readable JSON"), ('{"A": {"lot": 1}}', "is missing")])
def test_rules_that_cannot_be_read_are_a_finding(content: str, trouble: str, tmp_path: Path) -> None:
    write_bars_of(FINE, tmp_path, "A")
    write_rules(tmp_path / "rules.json", {"A": SymbolRules(lot=0.1)})
    assert not [issue for issue in Catalog(tmp_path).check() if issue.fatal]
    (tmp_path / "rules.json").write_text(content)
    [issue] = [issue for issue in Catalog(tmp_path).check() if issue.fatal]
    assert issue.file.endswith("rules.json") and trouble in issue.detail


# The recorded data


def assert_equal_bars(made: Market, stored: Market) -> int:
    """Bars that are complete in `made` equal the stored ones; returns how many were compared."""
    whole = made.present[:, 0] if made.partial is None else made.present[:, 0] & ~made.partial[:, 0]
    _, here, there = np.intersect1d(made.open_time[whole], stored.open_time, return_indices=True)
    for name in ("open", "high", "low", "close"):
        np.testing.assert_array_equal(getattr(made, name)[whole][here], getattr(stored, name)[there])
    np.testing.assert_allclose(made.volume[whole][here], stored.volume[there], rtol=1e-9)
    return len(here)


@pytest.mark.parametrize("symbol", ["BTCUSDT", "ETHUSDT"])
def test_recorded_hours_make_the_recorded_days(symbol: str) -> None:
    catalog = Catalog(shared("binance"))
    stored = catalog.load([symbol], "1d")
    hours = catalog.load([symbol], "1h", start=int(stored.open_time[0]))
    for made in (hours.resample("1d"), hours.resample("4h").resample("1d")):
        assert assert_equal_bars(made, stored) > 1450
    halves = catalog.load([symbol], "30m", resample="1h")
    assert assert_equal_bars(halves, hours) > 35_000


def test_recorded_gaps_are_reported_as_documented() -> None:
    catalog = Catalog(shared("binance"))
    market = catalog.load(["BTCUSDT", "SOLUSDT"], "1h")
    btc, sol = gap_summary(market).split("; ")
    assert btc.startswith("BTCUSDT: 128 bars absent in 28 gaps (longest 33 from ") and "not traded" not in btc
    assert sol.startswith("SOLUSDT: 20 bars absent in 10 gaps") and "not traded in the first " in sol
    listed = {(one.symbol, one.timeframe): one for one in catalog.series()}
    assert listed["BTCUSDT", "1h"].absent == 128
    assert not [issue for issue in catalog.check(["BTCUSDT", "ETHUSDT"]) if issue.fatal]


def test_recorded_funding_and_news_load_and_stay_behind_the_clock() -> None:
    market = Catalog(shared("binance")).load(
        ["BTCUSDT", "AVAXUSDT"],
        "4h",
        start=parse_time("2022-06-01"),
        end=parse_time("2023-06-01"),
        funding_dir=shared("funding/binance-usdm"),
        news_path=shared("news"),
    )
    assert "AVAXUSDT" not in market.funding, "there is no file for it"
    assert len(market.view(len(market) - 1).funding("BTCUSDT", 3 * 365)) == 3 * 365
    now = market.view(900).now
    for item in market.view(900).news("BTCUSDT", 500):
        assert item.time < item.known_at <= now and item.symbol in (None, "BTCUSDT") and item.text
    assert all(item.known_at - item.time >= 8 * HOUR for item in market.news)


def test_recorded_headlines_of_midnight_are_dates_and_those_of_other_coins_are_not_shown() -> None:
    news = read_news(shared("news") / "cryptonews-2021-2022.parquet", ("BTCUSDT",))
    midnight = [item for item in news if item.time % (24 * HOUR) == 0]
    assert len(midnight) > 90 and {item.known_at - item.time for item in midnight} == {32 * HOUR}
    assert {item.known_at - item.time for item in news if item.time % (24 * HOUR)} == {8 * HOUR}
    assert len(news) < 5_500, "ethereum and other coins have more than two thousand rows of 7,494"
