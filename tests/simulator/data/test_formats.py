"""Bars as other programs write them come out as the same bars; what is wrong with a file is said with its line."""

from __future__ import annotations

import gzip
import io
import json
import os
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from backend.cli.data import data_app
from simulator.data.catalog import Catalog
from simulator.data.formats import FileOptions, columns_of
from simulator.data.importing import ImportReport, import_tree
from simulator.data.text import contents_of
from simulator.errors import DataError, UserError
from simulator.market.timeframes import TIMEFRAMES, interval_of, next_bar_start, parse_time

START = parse_time("2024-01-01")  # a Monday
HOUR = 3_600_000
KLINES = (
    "open_time,open,high,low,close,volume,close_time,quote_volume,count,taker_buy_volume,taker_buy_quote_volume,ignore"
)
MAPPING = columns_of("time=Wann,open=Auf,high=Hoch,low=Tief,close=Zu,volume=Menge")


def bars(count: int = 48, timeframe: str = "1h", seed: int = 0, start: int = START) -> pd.DataFrame:
    """Rising bars with two decimals, as text keeps them exactly."""
    close = np.round(40_000 * np.exp(np.cumsum(np.random.default_rng(seed).normal(0, 0.01, count))), 2)
    open_ = np.concatenate([[40_000.0], close[:-1]])
    table = {"open": open_, "high": np.maximum(open_, close) + 0.25, "low": np.minimum(open_, close) - 0.25}
    time = start + interval_of(timeframe) * np.arange(count, dtype=np.int64)
    return pd.DataFrame({"time": time, **table, "close": close, "volume": np.arange(count) + 0.5})


def rows_of(table: pd.DataFrame) -> list[Any]:
    return list(table.itertuples())


def klines(table: pd.DataFrame, timeframe: str = "1h", unit: int = 1, heading: bool = False) -> str:
    """As Binance Vision writes them; `unit` 1000: microseconds."""
    length = interval_of(timeframe)
    rows = [
        f"{row.time * unit},{row.open},{row.high},{row.low},{row.close},{row.volume},{(row.time + length) * unit - 1},"
        "1.0,5,0.5,0.5,0"
        for row in rows_of(table)
    ]
    return "\n".join([KLINES] * heading + rows) + "\n"


def downloaded(table: pd.DataFrame) -> str:
    """As CryptoDataDownload writes them: newest first, older rows in seconds, newer ones in milliseconds."""
    lines = [
        "https://www.CryptoDataDownload.com",
        "unix,date,symbol,open,high,low,close,Volume USDT,Volume BTC,tradecount",
    ]
    middle = table.time.median()
    for row in rows_of(table[::-1]):
        unix = row.time if row.time > middle else f"{row.time // 1000}.0"
        date = pd.Timestamp(row.time, unit="ms")
        lines.append(f"{unix},{date},BTC/USDT,{row.open},{row.high},{row.low},{row.close},9e9,{row.volume},7")
    return "\r\n".join(lines) + "\r\n"


def zipped(path: Path, **members: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(f"{name}.csv", text)


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")
    return path


def dated(table: pd.DataFrame) -> pd.DataFrame:
    date = pd.to_datetime(table["time"], unit="ms", utc=True)
    return pd.concat([date.rename("date"), table.drop(columns="time")], axis=1)


def feather(path: Path, table: pd.DataFrame) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    dated(table).to_feather(path)


def stored(folder: Path, name: str = "BTCUSDT-1h.parquet") -> pd.DataFrame:
    found = pd.read_parquet(folder / name)
    time = found["timestamp"].to_numpy("datetime64[ms]").astype(np.int64)
    return pd.concat([pd.Series(time, name="time"), found.drop(columns="timestamp")], axis=1)


def outcomes(report: ImportReport) -> dict[str, str]:
    return {str(one.path): one.outcome for one in report.sources}


def details(report: ImportReport) -> str:
    return "\n".join(one.detail for one in report.sources)


def binance_plain(root: Path, table: pd.DataFrame) -> FileOptions:
    put(root / "binance/BTCUSDT-1h-2024-01.csv", klines(table))
    return FileOptions()


def binance_tree(root: Path, table: pd.DataFrame) -> FileOptions:
    """Months in milliseconds, the days after them in microseconds, which share a row; one has headings."""
    folder, half = root / "data/spot", len(table) // 2
    zipped(folder / "monthly/klines/BTCUSDT/1h/BTCUSDT-1h-2024-01.zip", a=klines(table[: half + 1]))
    zipped(
        folder / "daily/klines/BTCUSDT/1h/BTCUSDT-1h-2024-02-01.zip", b=klines(table[half:], unit=1000, heading=True)
    )
    return FileOptions()


def crypto_data_download(root: Path, table: pd.DataFrame) -> FileOptions:
    put(root / "any/Binance_BTCUSDT_1h.csv", downloaded(table))
    return FileOptions()


def freqtrade_feather(root: Path, table: pd.DataFrame) -> FileOptions:
    feather(root / "binance/BTC_USDT-1h.feather", table)
    return FileOptions()


def freqtrade_json(root: Path, table: pd.DataFrame) -> FileOptions:
    put(root / "binance/BTC_USDT-1h.json", json.dumps(table.to_numpy().tolist()))
    return FileOptions()


def freqtrade_packed(root: Path, table: pd.DataFrame) -> FileOptions:
    (root / "binance").mkdir(parents=True)
    (root / "binance/BTC_USDT-1h.json.gz").write_bytes(gzip.compress(json.dumps(table.to_numpy().tolist()).encode()))
    return FileOptions()


def freqtrade_parquet(root: Path, table: pd.DataFrame) -> FileOptions:
    (root / "binance").mkdir(parents=True)
    dated(table).to_parquet(root / "binance/BTC_USDT-1h.parquet")
    return FileOptions()


def own_parquet(root: Path, table: pd.DataFrame) -> FileOptions:
    (root / "binance").mkdir(parents=True)
    dated(table).rename(columns={"date": "timestamp"}).to_parquet(root / "binance/BTCUSDT-1h.parquet")
    return FileOptions()


def mapped(root: Path, table: pd.DataFrame) -> FileOptions:
    """Local times of Berlin, semicolons, decimal commas, other columns between."""
    local = pd.to_datetime(table.time, unit="ms", utc=True).dt.tz_convert("Europe/Berlin").dt.strftime("%d.%m.%Y %H:%M")
    numbers = {name: table[old].astype(str).str.replace(".", ",") for old, name in zip(
        ("close", "volume", "open", "high", "low"), ("Zu", "Menge", "Auf", "Hoch", "Tief"), strict=True)}  # fmt: skip
    pd.DataFrame({"Nr": range(len(table)), "Wann": local, **numbers}).to_csv(root / "mine.csv", sep=";", index=False)
    return FileOptions(MAPPING, "BTCUSDT", "1h", "binance", ",", "%d.%m.%Y %H:%M", "Europe/Berlin")


def by_number(root: Path, table: pd.DataFrame) -> FileOptions:
    table.to_csv(root / "mine.csv", index=False, header=False)
    return FileOptions(columns_of("time=1,open=2,high=3,low=4,close=5,volume=6"), "BTCUSDT", "1h", "binance")


def plain(root: Path, table: pd.DataFrame) -> FileOptions:
    dated(table).to_csv(root / "kraken-BTCUSDT-1h.csv", index=False)
    return FileOptions(venue="binance")


def kraken(root: Path, table: pd.DataFrame) -> FileOptions:
    """No headings, seconds, and a number of trades behind."""
    table.assign(time=table.time // 1000, trades=7).to_csv(root / "XBTUSD_60.csv", index=False, header=False)
    return FileOptions(symbol="BTCUSDT", venue="binance")


def trading_view(root: Path, table: pd.DataFrame) -> FileOptions:
    """Local times with their offset, and an indicator beside the volume."""
    local = pd.to_datetime(table.time, unit="ms", utc=True).dt.tz_convert("Europe/Berlin")
    lines = [f"{time.isoformat()},{r.open},{r.high},{r.low},{r.close},{r.volume},9e9"
             for time, r in zip(local, rows_of(table), strict=True)]  # fmt: skip
    put(root / "BINANCE_BTCUSDT, 60.csv", "\n".join(["time,open,high,low,close,Volume,Volume MA", *lines, ""]))
    return FileOptions()


def kaggle(root: Path, table: pd.DataFrame) -> FileOptions:
    """Two volumes, and a row of NaN for each bar without a trade."""
    time = pd.DataFrame({"time": START + 3_600_000 * np.arange(48)})
    every = time.merge(table, how="left")
    every["Volume_(Currency)"], every["Weighted_Price"] = every.volume * 40_000, every.close
    every["time"] //= 1000
    every.columns = ["Timestamp", "Open", "High", "Low", "Close", "Volume_(BTC)", *every.columns[6:]]
    every.to_csv(root / "bitstamp.csv", index=False, na_rep="NaN")
    return FileOptions(symbol="BTCUSDT", venue="binance")


def german_excel(root: Path, table: pd.DataFrame) -> FileOptions:
    """Semicolons, 40.123,25, German headings and dates in two columns, in Windows' own encoding."""
    local = pd.to_datetime(table.time, unit="ms", utc=True).dt.tz_convert("Europe/Berlin")
    rows = ["sep=;", "Datum;Uhrzeit;Eröffnung;Hoch;Tief;Schluss;Volumen"]
    for time, row in zip(local, rows_of(table), strict=True):
        values = (f"{value:,.2f}" for value in row[2:])
        swapped = (text.replace(",", "_").replace(".", ",").replace("_", ".") for text in values)
        rows.append(";".join([time.strftime("%d.%m.%Y;%H:%M:%S"), *swapped]))
    (root / "kurse.csv").write_bytes("\r\n".join(rows).encode("cp1252"))
    return FileOptions(symbol="BTCUSDT", venue="binance", time_zone="Europe/Berlin")


def thousands(root: Path, table: pd.DataFrame) -> FileOptions:
    """Quoted numbers with thousands separators."""
    dated(table).map(lambda one: f"{one:,.2f}" if isinstance(one, float) else one).to_csv(
        root / "btcusdt.csv", index=False
    )
    return FileOptions(venue="binance")


def meta_trader(root: Path, table: pd.DataFrame) -> FileOptions:
    """Date and time in two columns with tabs, and headings in brackets."""
    time = pd.to_datetime(table.time, unit="ms")
    heads = ["<DATE>", "<TIME>", "<OPEN>", "<HIGH>", "<LOW>", "<CLOSE>", "<TICKVOL>", "<SPREAD>"]
    both = [time.dt.strftime("%Y.%m.%d"), time.dt.strftime("%H:%M:%S"), *(table[name] for name in list(table)[1:])]
    pd.concat([*both, pd.Series(3, table.index)], axis=1).to_csv(
        root / "BTCUSDT_H1_.csv", sep="\t", index=False, header=heads
    )
    return FileOptions(symbol="BTCUSDT", venue="binance", time_zone="UTC")


WRITERS = (
    kraken, trading_view, kaggle, german_excel, thousands, meta_trader,
    binance_plain, binance_tree, crypto_data_download, freqtrade_feather, freqtrade_json, freqtrade_packed,
    freqtrade_parquet, own_parquet, mapped, by_number, plain,
)  # fmt: skip


@pytest.mark.parametrize("write", WRITERS, ids=lambda one: one.__name__)
def test_every_format_gives_the_bars_that_were_written(
    write: Callable[[Path, pd.DataFrame], FileOptions], tmp_path: Path
) -> None:
    """With a gap of three bars, which stay absent and are counted."""
    (tmp_path / "in").mkdir()
    table = bars().drop(index=[7, 8, 9]).reset_index(drop=True)
    report = import_tree(tmp_path / "in", tmp_path / "out", options=write(tmp_path / "in", table))
    assert set(outcomes(report).values()) == {"taken"}, details(report)
    pd.testing.assert_frame_equal(stored(tmp_path / "out/binance"), table, check_dtype=False)
    assert len(report.series) == 1 and "3 bars are absent in 1 gaps" in report.series[0]
    market = Catalog(tmp_path / "out/binance").load()
    assert market.kinds == {"BTCUSDT": "spot"} and np.isnan(market.close[7:10, 0]).all()


@settings(deadline=None, max_examples=25)
@given(cuts=st.lists(st.integers(1, 39), max_size=4, unique=True), shared=st.integers(0, 3), late=st.booleans())
def test_pieces_that_overlap_give_the_whole(
    cuts: list[int], shared: int, late: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root, table = tmp_path_factory.mktemp("pieces"), bars(40)
    edges = [0, *sorted(cuts), 40]
    for number, (low, high) in enumerate(pairwise(edges)):
        part = klines(
            table[max(0, low - shared) : high], unit=1000 if late and number % 2 else 1, heading=number % 2 == 0
        )
        zipped(root / f"in/spot/daily/BTCUSDT-1h-2024-01-{number + 1:02}.zip", a=part)
    report = import_tree(root / "in", root / "out")
    assert set(outcomes(report).values()) == {"taken"}, details(report)
    pd.testing.assert_frame_equal(stored(root / "out/binance"), table, check_dtype=False)


def test_perpetuals_come_with_funding_and_mark_prices(tmp_path: Path) -> None:
    """Of Binance Vision and of freqtrade, beside spot bars of the same symbol: each in a catalog of its own."""
    table, vision = bars(), tmp_path / "in/vision/data"
    rates = "calc_time,funding_interval_hours,last_funding_rate\n" + "".join(
        f"{START + n * 28_800_000 + 3},8,0.000{n}\n" for n in range(6)
    )
    for folder in ("klines", "markPriceKlines"):
        zipped(vision / f"futures/um/monthly/{folder}/BTCUSDT/1h/BTCUSDT-1h-2024-01.zip", a=klines(table, heading=True))
    zipped(vision / "futures/um/monthly/fundingRate/BTCUSDT/BTCUSDT-fundingRate-2024-01.zip", a=rates)
    zipped(vision / "futures/um/monthly/premiumIndexKlines/BTCUSDT/1h/BTCUSDT-1h-2024-01.zip", a=klines(table))
    zipped(vision / "futures/cm/monthly/klines/BTCUSD_PERP/1h/BTCUSD_PERP-1h-2024-01.zip", a=klines(table))
    feather(tmp_path / "in/ft/okx/BTC_USDT-1h.feather", table)
    for series in ("futures", "mark"):
        feather(tmp_path / f"in/ft/okx/futures/BTC_USDT_USDT-1h-{series}.feather", table)
    funding = bars(6, "8h").assign(open=1e-4, high=0.0, low=0.0, close=0.0, volume=0.0)
    feather(tmp_path / "in/ft/okx/futures/BTC_USDT_USDT-1h-funding_rate.feather", funding)
    feather(tmp_path / "in/ft/okx/futures/BTC_USD_BTC-1h-futures.feather", table)
    report = import_tree(tmp_path / "in", tmp_path / "out")
    said = outcomes(report)
    assert {path: outcome for path, outcome in said.items() if outcome != "taken"} == {
        "vision/data/futures/um/monthly/premiumIndexKlines/BTCUSDT/1h/BTCUSDT-1h-2024-01.zip": "unknown",
        "vision/data/futures/cm/monthly/klines/BTCUSD_PERP/1h/BTCUSD_PERP-1h-2024-01.zip": "refused",
        "ft/okx/futures/BTC_USD_BTC-1h-futures.feather": "refused",
    }
    assert [path.name for path in report.catalogs] == ["binance-usdm", "okx", "okx-futures"]
    for venue in ("binance-usdm", "okx-futures"):
        market = Catalog(tmp_path / "out" / venue).load()
        assert market.kinds == {"BTCUSDT": "perpetual"} and len(market.funding["BTCUSDT"]) == 6
        pd.testing.assert_frame_equal(stored(tmp_path / "out" / venue / "mark"), table, check_dtype=False)
    assert Catalog(tmp_path / "out/okx").load().kinds == {"BTCUSDT": "spot"}


def test_the_hour_that_is_there_twice_is_told_by_the_order(tmp_path: Path) -> None:
    table = bars(start=parse_time("2023-10-28T12:00"))
    mapped(tmp_path, table)
    options = FileOptions(MAPPING, "BTCUSDT", "1h", "mine", ",", "%d.%m.%Y %H:%M", "Europe/Berlin")
    import_tree(tmp_path / "mine.csv", tmp_path / "out", options=options)
    pd.testing.assert_frame_equal(stored(tmp_path / "out/mine"), table, check_dtype=False)


def test_old_files_of_crypto_data_download_have_only_dates(tmp_path: Path) -> None:
    table = bars()
    date = pd.to_datetime(table.time, unit="ms").dt.strftime("%Y-%m-%d %I-%p")
    old = table.drop(columns=["time", "volume"])
    old.insert(0, "Date", date)
    old.insert(1, "Symbol", "BTCUSD")
    old["Volume BTC"], old["Volume USD"] = table.volume, 9e9
    text = "https://www.CryptoDataDownload.com\n" + old[::-1].to_csv(index=False)
    report = import_tree(put(tmp_path / "in/Gemini_BTCUSD_1h.csv", text), tmp_path / "out")
    assert [path.name for path in report.catalogs] == ["gemini"], details(report)
    pd.testing.assert_frame_equal(stored(tmp_path / "out/gemini", "BTCUSD-1h.parquet"), table, check_dtype=False)


def text_of(table: pd.DataFrame, **changes: Any) -> str:
    """A plain CSV in which the cell `name_row` is another."""
    table = table.astype(object)
    for place, value in changes.items():
        name, row = place.rsplit("_", 1)
        table.loc[int(row), name] = value
    return table.to_csv(index=False)


HOURS = bars(6)
ISO = HOURS.assign(time=[f"2024-01-01 {hour:02}:00" for hour in range(6)])
BROKEN = {
    "not a number": (text_of(HOURS, close_2="n/a"), "line 4: 'n/a' in close is not a number"),
    "decimal comma": (text_of(HOURS, close_2="1,5"), "line 4: '1,5' in close.*--decimal ,"),
    "negative price": (text_of(HOURS, low_1=-3), "line 3: the first of 1 rows that are impossible .*low -3"),
    "disorder": (text_of(HOURS, low_1=5e5), "line 3: the first of 1 rows that are impossible"),
    "negative volume": (text_of(HOURS, volume_5=-1), "line 7: the first of 1 rows that are impossible .*volume -1"),
    "not finite": (text_of(HOURS, close_0="nan"), "line 2: the first of 1 rows that have a value that is missing"),
    "no time": (text_of(HOURS, time_3=20240101), "line 5: the time 20240101 is not a number of seconds"),
    "twice": (text_of(HOURS, time_3=START + 2 * 3_600_000), "line 5: differs from line 4, which is also of .*02:00"),
    "unsorted": (text_of(HOURS, time_3=START - 3_600_000), "line 5: 2023-12-31 23:00 comes after .* sort it by time"),
    "off the grid": (text_of(HOURS, time_3=START + 10_800_001), "line 5: .* do not open on .*--time-zone"),
    "no zone": (text_of(ISO), "line 2: the time '2024-01-01 00:00' names no zone.*--time-zone UTC"),
    "other bars": (text_of(bars(6, "4h")), "the bars are 240 minutes apart, and those of 1h 60: give --timeframe"),
    "cut off": (text_of(HOURS)[:-25], "line 7: has [1-5] cells"),
    "no row": (text_of(HOURS[:0]), "holds no row"),
    "html": ("<html>\n<p>,not found</p>\n</html>\n", "no known format|no table"),
    "unknown": (text_of(HOURS.rename(columns={"close": "x"})), "no known format; it has time.*--columns time=Date"),
    "two symbols": (
        text_of(HOURS.assign(symbol=["A", "B"] * 3)), "holds 2 symbols, A and B among them; give each a file",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_with_a_text_is_said_with_its_line(name: str, tmp_path: Path) -> None:
    text, message = BROKEN[name]
    report = import_tree(put(tmp_path / "in/BTCUSDT-1h.csv", text), tmp_path / "out")
    assert not report.catalogs and len(report.sources) == 1
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(report.sources[0].detail)
    assert "\n" not in report.sources[0].detail and not (tmp_path / "out").exists()


def test_a_file_that_contradicts_another_is_refused_and_named(tmp_path: Path) -> None:
    table = bars()
    other = table[40:].assign(close=lambda one: one.close + 0.1)
    put(tmp_path / "in/x/BTCUSDT-1h-2024-01.csv", klines(table))
    put(tmp_path / "in/x/BTCUSDT-1h-2024-02.csv", klines(other))
    report = import_tree(tmp_path / "in", tmp_path / "out")
    assert list(outcomes(report).values()) == ["taken", "refused"]
    assert "x/BTCUSDT-1h-2024-01.csv line 41 has" in report.sources[1].detail
    assert report.sources[1].detail.startswith("line 1 has close")
    pd.testing.assert_frame_equal(stored(tmp_path / "out/x"), table, check_dtype=False)


def test_damaged_archives_and_bombs_are_refused(tmp_path: Path) -> None:
    good = tmp_path / "in/x/BTCUSDT-1h-2024-01.zip"
    zipped(good, a=klines(bars()))
    data = good.read_bytes()
    (good.parent / "BTCUSDT-1h-2024-02.zip").write_bytes(data[: len(data) // 2])
    middle = len(data) // 3
    (good.parent / "BTCUSDT-1h-2024-03.zip").write_bytes(data[:middle] + bytes(40) + data[middle + 40 :])
    (good.parent / "BTC_USDT-1h.json.gz").write_bytes(gzip.compress(b"[[1,2,3,4,5,6]]")[:-6])
    (good.parent / "BTC_USDT-1h.feather").write_bytes(b"ARROW1\0\0 and nothing of it")
    report = import_tree(tmp_path / "in", tmp_path / "out")
    usable = [path for path, outcome in outcomes(report).items() if outcome != "refused"]
    assert usable == ["x/BTCUSDT-1h-2024-01.zip"]
    assert details(report).count("download it again") == 4
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.csv", bytes(5_000_000))
    for name, packed in (("a.zip", stream.getvalue()), ("a.csv.gz", gzip.compress(bytes(5_000_000)))):
        (tmp_path / name).write_bytes(packed)
        with pytest.raises(DataError, match="divide it by symbol or time"):
            list(contents_of(tmp_path / name, most=1_000_000))


def test_what_names_do_not_say_is_asked_for(tmp_path: Path) -> None:
    source = put(tmp_path / "in/prices.csv", text_of(HOURS))
    asked = import_tree(source, tmp_path / "out")
    assert "its symbol is not known" in details(asked) and "--symbol BTCUSDT" in details(asked)
    odd = put(tmp_path / "in/odd.csv", text_of(HOURS.assign(time=HOURS.time + 60_000 * HOURS.index)))
    assert "its timeframe is not known; its rows are 61 minutes apart" in details(
        import_tree(odd, tmp_path / "out", options=FileOptions(symbol="BTCUSDT"))
    )
    taken = import_tree(source, tmp_path / "out", options=FileOptions(symbol="ETHUSDT", timeframe="1h", venue="mine"))
    assert [path.name for path in taken.catalogs] == ["mine"]
    month = import_tree(put(tmp_path / "in/x/BTCUSDT-1mo-2024-01.csv", klines(HOURS)), tmp_path / "out")
    assert "bars of 1mo are not used here" in details(month)


@pytest.mark.parametrize("timeframe", TIMEFRAMES)
@pytest.mark.parametrize("named", [True, False])
def test_every_timeframe_is_known_by_its_name_or_by_its_rows(timeframe: str, named: bool, tmp_path: Path) -> None:
    begin = next_bar_start(START, interval_of(timeframe))
    source = put(
        tmp_path / f"in/BTCUSDT{f'-{timeframe}' * named}.csv", klines(bars(9, timeframe, start=begin), timeframe)
    )
    report = import_tree(source, tmp_path / "out")
    assert outcomes(report) == {source.name: "taken"}, details(report)
    market = Catalog(tmp_path / "out/in").load(timeframe=timeframe)
    assert len(market) == 9 and int(market.open_time[0]) == begin
    assert named or f"bars of {timeframe}, by the distance of its rows" in details(report)


AMBIGUOUS = {
    "1,500": "line 2: '1,500' in open.*give --decimal , or --decimal .",  # 1.5 or 1500
    "1,5": "",
    "1.500,25": "",
    "1,500.25": "",
    "1,500,000": "",
    "1,50,00": "line 2: '1,50,00' in open is not a number",
    "1'500": "line 2: .* in open is not a number",
}


@pytest.mark.parametrize("cell", AMBIGUOUS)
def test_a_comma_is_a_decimal_point_or_parts_thousands_and_never_a_guess(cell: str, tmp_path: Path) -> None:
    rows = [f"{START + HOUR * n};{cell};{cell};{cell};{cell};7" for n in range(3)]
    source = put(tmp_path / "in/BTCUSDT-1h.csv", "\n".join(["time;open;high;low;close;volume", *rows]))
    report = import_tree(source, tmp_path / "out")
    if AMBIGUOUS[cell]:
        with pytest.raises(AssertionError, match=AMBIGUOUS[cell]):
            raise AssertionError(details(report))
    else:
        values = {"1,5": 1.5, "1.500,25": 1500.25, "1,500.25": 1500.25, "1,500,000": 1_500_000.0}
        assert stored(tmp_path / "out/in")["open"].tolist() == [values[cell]] * 3
    for decimal, value in ((",", 1.5), (".", 1500.0)) if cell == "1,500" else ():
        import_tree(source, tmp_path / decimal, options=FileOptions(decimal=decimal))
        assert stored(tmp_path / decimal / "in")["open"].tolist() == [value] * 3


def test_days_without_a_time_of_day_are_days_of_utc(tmp_path: Path) -> None:
    """Yahoo's own table, with a row of null, and any other."""
    table = bars(20, "1d")
    rows = table.assign(time=pd.to_datetime(table.time, unit="ms").dt.strftime("%Y-%m-%d"), adj=table.close)
    heads = ["Date", "Open", "High", "Low", "Close", "Volume", "Adj Close"]
    for name, text in (("BTC-USD", rows.to_csv(index=False, header=heads)),
                       ("ETH-USD", rows.drop(columns="adj").to_csv(index=False, header=heads[:6]))):  # fmt: skip
        lines = text.splitlines()
        lines[4] = lines[4][:10] + "," * (lines[4].count(","))
        report = import_tree(put(tmp_path / f"in/{name}.csv", "\n".join(lines)), tmp_path / "out")
        assert "1 rows without a value left out" in details(report)
        assert ("Yahoo" in details(report)) is (name == "BTC-USD")
        kept = stored(tmp_path / "out/in", f"{name.replace('-', '')}-1d.parquet")
        expected = table.drop(index=3).reset_index(drop=True)
        pd.testing.assert_frame_equal(kept, expected, check_dtype=False)


@pytest.mark.parametrize(
    ("given_options", "message"),
    [
        ({"columns": {"time": "a"}}, "open, high, low, close, volume is missing"),
        ({"columns": {**MAPPING, "wick": "b"}}, "'wick' is none of them"),
        ({"decimal": ";"}, "--decimal ';'"),
        ({"time_zone": "Mars/Base"}, "--time-zone 'Mars/Base': no such zone"),
        ({"venue": "../up"}, "--venue"),
        ({"symbol": "a/b"}, "--symbol 'a/b'"),
    ],
)
def test_options_that_cannot_be_met(given_options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        FileOptions(**given_options)


def test_the_command_takes_a_mapping_and_says_what_it_made(tmp_path: Path) -> None:
    mapped(tmp_path, bars(start=parse_time("2024-06-01")))
    command = ["import", str(tmp_path / "mine.csv"), "--out", str(tmp_path / "out"), "--symbol", "BTCUSDT"]
    command += ["--timeframe", "1h", "--venue", "mine", "--decimal", ",", "--instrument", "spot"]
    command += ["--columns", ",".join(f"{name}={heading}" for name, heading in MAPPING.items())]
    unsaid = CliRunner().invoke(data_app, command)
    assert (unsaid.exit_code != 0 and "say the form with --time-format" in unsaid.output) or "zone" in unsaid.output
    done = CliRunner().invoke(data_app, [*command, "--time-format", "%d.%m.%Y %H:%M", "--time-zone", "Europe/Berlin"])
    assert done.exit_code == 0, done.output
    assert "made      mine/BTCUSDT-1h.parquet: 48 rows from 2024-06-01 00:00" in done.output


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_days_of_yahoo_have_three_lines_of_headings(tmp_path: Path, ending: str) -> None:
    table = bars(60, "1d")
    days = pd.to_datetime(table["time"], unit="ms")
    lines = ["Price,Close,High,Low,Open,Volume", "Ticker" + ",BTC-USD" * 5, "Date,,,,,"]
    lines += [
        f"{day:%Y-%m-%d},{row.close},{row.high},{row.low},{row.open},{row.volume}"
        for day, row in zip(days, rows_of(table), strict=True)
    ]
    report = import_tree(put(tmp_path / "in/BTC-USD.csv", ending.join([*lines, ""])), tmp_path / "out")
    assert outcomes(report) == {"BTC-USD.csv": "taken"} and "volume as Yahoo counts it" in details(report)
    kept = stored(tmp_path / "out/in", "BTCUSD-1d.parquet")
    assert len(kept) == 60 and kept["close"].tolist() == table["close"].tolist()
    lines[5] = lines[5].replace(",", ",x", 1)
    wrong = import_tree(put(tmp_path / "wrong/BTC-USD.csv", "\n".join(lines)), tmp_path / "none")
    assert "line 6: " in details(wrong)
    lines[1] = "Ticker,BTC-USD,ETH-USD,BTC-USD,BTC-USD,BTC-USD"
    two = import_tree(put(tmp_path / "two/BTC-USD.csv", "\n".join(lines)), tmp_path / "none")
    assert "line 2: holds 2 tickers, BTC-USD and ETH-USD among them" in details(two)


@pytest.mark.parametrize(
    ("name", "file", "rows", "volume"),
    [("two-volumes/prices.csv", "BTCUSDT-1h.parquet", 2, 5.0), ("yfinance/BTC-USD.csv", "BTCUSD-1d.parquet", 60, 1e6)],
)
def test_files_of_public_reports(name: str, file: str, rows: int, volume: float, tmp_path: Path) -> None:
    cases = Path(os.environ.get("CRYPTOSENTINEL_SHARED", Path(__file__).resolve().parents[4] / "shared")) / "cases"
    if not cases.is_dir():
        pytest.skip(f"no recorded cases at {cases} (set CRYPTOSENTINEL_SHARED to the folder that holds them)")
    options = FileOptions(symbol="BTCUSDT", timeframe="1h") if rows == 2 else FileOptions()
    report = import_tree(cases / "data" / name, tmp_path, options=options)
    assert set(outcomes(report).values()) == {"taken"}, details(report)
    kept = stored(report.catalogs[0], file)
    assert len(kept) == rows and kept["volume"][0] == volume
