"""News and funding are read in the shapes that they were recorded in, and never early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.data.catalog import Catalog
from simulator.errors import DataError
from simulator.market.events import read_funding, read_news
from simulator.market.timeframes import format_time

HOUR = 3_600_000
START = 1_700_006_400_000  # 2023-11-15 00:00
Columns = dict[str, Any]


def write(path: Path, columns: Columns) -> None:
    pq.write_table(pa.table(columns), path)


def news_file(path: Path, columns: Columns) -> None:
    if "timestamp" in columns:
        columns = columns | {"timestamp": pa.array(columns["timestamp"], pa.int64()).cast(pa.timestamp("ms", "UTC"))}
    write(path, columns)


def test_recorded_news_are_read_late_rather_than_early(tmp_path: Path) -> None:
    noon = START + 12 * HOUR
    files: dict[str, Columns] = {
        "a": {"timestamp": [noon, noon + 1], "title": ["said", "  "], "text": ["x", "body  text"]},
        "b": {"timestamp": [START], "asset": ["BTC"], "text": ["day only"]},
        "c": {"timestamp": [noon], "file_date": ["2023-11-15"], "asset": ["ETH"], "title": ["dated"]},
        "d": {"timestamp": [START, noon], "text": ["date", "time"], "time_is_date_only": [True, False]},
    }
    for name, columns in files.items():
        news_file(tmp_path / f"{name}.parquet", columns)
    found = {item.text: item for item in read_news(tmp_path, ("BTCUSDT", "SOLUSDT"))}
    assert "dated" not in found, "it is about a coin that is not in the market"
    assert found["day only"].symbol == "BTCUSDT" and found["said"].symbol is None
    known = {text: (item.known_at - START) // HOUR for text, item in found.items()}
    assert known == {"said": 20, "body text": 20, "day only": 32, "date": 32, "time": 20}
    eth = read_news(tmp_path / "c.parquet", ("ETHUSDT",))
    assert [(item.known_at - START) // HOUR for item in eth] == [32]
    quick = read_news(tmp_path / "a.parquet", ("BTCUSDT",), delay=HOUR)
    assert (quick[0].known_at - noon) == HOUR


def known_of(path: Path, rows: list[tuple[int, str]], zone: str, seconds: bool) -> dict[str, list[int]]:
    """When each text of a file with these rows is known."""
    unit = pa.timestamp("s" if seconds else "ms", zone or None)
    times = pa.array([time for time, _ in rows], pa.int64())
    wall = pa.array([time // 1000 for time, _ in rows], pa.int64()) if seconds else times
    write(path, {"timestamp": wall.cast(unit), "title": [text for _, text in rows]})
    known: dict[str, list[int]] = {}
    for item in read_news(path, ("BTCUSDT",)):
        known.setdefault(item.text, []).append(item.known_at)
    return known


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 400), st.sampled_from([0, 0, 0, 5, 7, 8, 12, 16, 23]), st.sampled_from([0, 0, 1, 59])),
        min_size=1,
        max_size=12,
    ),
    zone=st.sampled_from(["", "UTC", "America/New_York", "Europe/London", "Asia/Tokyo"]),
    seconds=st.booleans(),
    data=st.data(),
)
def test_when_a_headline_is_known_depends_on_its_own_row_alone(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[int, int, int]],
    zone: str,
    seconds: bool,
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("news")
    said = [
        (START + (24 * day + hour) * HOUR + minute * 60_000, f"row {number}")
        for number, (day, hour, minute) in enumerate(rows)
    ]
    whole = known_of(folder / "whole.parquet", said, zone, seconds)
    some = data.draw(st.lists(st.sampled_from(said), min_size=1, max_size=9))  # rows go, come twice, change places
    for text, moments in known_of(folder / "some.parquet", some, zone, seconds).items():
        assert set(moments) == set(whole[text])
    for time, text in said:
        [moment] = whole[text]
        assert moment >= time + 8 * HOUR
        if time % (24 * HOUR) == 0:
            assert moment >= time + 32 * HOUR


def test_midnight_is_a_day_without_a_time_also_where_the_clock_stands_elsewhere(tmp_path: Path) -> None:
    # 00:00 in New York is 05:00 UTC in winter and 04:00 in summer; the day is over at 08:00 UTC of the next.
    summer = 1_686_801_600_000  # 2023-06-15 04:00
    rows = [(START + 5 * HOUR, "winter"), (START + 4 * HOUR, "winter's evening"), (summer, "summer")]
    known = known_of(tmp_path / "a.parquet", rows, "America/New_York", True)
    assert known["winter"] == [START + 32 * HOUR] and known["winter's evening"] == [START + 12 * HOUR]
    assert known["summer"] == [summer + 28 * HOUR]
    columns = {"timestamp": [START] * 3, "title": ["date", "time", "unsaid"], "time_is_date_only": [True, False, None]}
    news_file(tmp_path / "b.parquet", columns)
    hours = [(item.known_at - START) // HOUR for item in read_news(tmp_path / "b.parquet", ())]
    assert sorted(hours) == [8, 32, 32], "a row that says that its time is a time is believed"


TAGGED = [
    # column, tag, text, who is told in a market of BTC and SOL (USDT)
    ("asset", "BTC", "a", ["BTCUSDT"]),
    ("asset", "bitcoin", "a", ["BTCUSDT"]),
    ("asset", "DOGE", "a", []),
    ("asset", "NOBODYKNOWS", "a", []),
    ("asset", None, "a", [None]),
    ("asset", "", "a", [None]),
    ("tickers", ["DOGE", "SOL"], "a", ["SOLUSDT"]),
    ("tickers", ["DOGE", "PEPE"], "a", []),
    ("tickers", [], "a", [None]),
    ("currencies", "$BTC, SOL", "a", ["BTCUSDT", "SOLUSDT"]),
    ("subject", "bitcoin", "a", ["BTCUSDT"]),
    ("subject", "ethereum", "a", []),
    ("subject", "defi", "a", [None]),
    ("subject", "altcoin", "Solana falls, Bitcoin too", ["SOLUSDT"]),
    ("subject", "altcoin", "SOL falls", ["SOLUSDT"]),
    ("subject", "altcoin", "Shiba Inu falls, solace comes", []),
]


@pytest.mark.parametrize(("column", "tag", "text", "told"), TAGGED)
def test_what_is_tagged_with_other_coins_is_not_the_markets_news(
    tmp_path: Path, column: str, tag: object, text: str, told: list[str | None]
) -> None:
    kind = pa.list_(pa.string()) if isinstance(tag, list) else pa.string()
    columns = {"timestamp": [START + HOUR], "title": [text], column: pa.array([tag], kind)}
    news_file(tmp_path / "news.parquet", columns)
    assert [item.symbol for item in read_news(tmp_path / "news.parquet", ("BTCUSDT", "SOLUSDT"))] == told


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"headline": ["a"]}, "not a file of news"),
        ({"timestamp": [START], "title": [" "]}, "1 rows have no text"),
        ({"timestamp": [START], "title": ["a"], "time_is_date_only": ["False"]}, "it must be true or false"),
        ({"timestamp": [START], "title": ["a"], "file_date": ["soon"]}, "file_date is not a date"),
        ({"time": [START], "known_at": [START - 1], "symbol": ["A"], "text": ["a"]}, "known before they happened"),
        ({"time": [START], "known_at": [None], "symbol": ["A"], "text": ["a"]}, "no known_at"),
    ],
)
def test_unusable_news_are_refused(tmp_path: Path, columns: Columns, message: str) -> None:
    news_file(tmp_path / "news.parquet", columns)
    with pytest.raises(DataError, match=message):
        read_news(tmp_path / "news.parquet", ("A",))


@pytest.mark.parametrize(
    ("time", "rate", "message"),
    [
        ([START + 1, START], [0.1, 0.1], "not in order"),
        ([START, START], [0.1, 0.1], "not in order"),
        ([START], [None], "missing or not a fraction"),
        ([START], [1.5], "missing or not a fraction"),
        ([START // 1000], [0.1], "not milliseconds"),
    ],
)
def test_unusable_funding_is_refused(tmp_path: Path, time: list[int], rate: list[float], message: str) -> None:
    write(tmp_path / "A-funding.parquet", {"timestamp": time, "funding_rate": pa.array(rate, pa.float64())})
    with pytest.raises(DataError, match=message):
        read_funding(tmp_path / "A-funding.parquet")


def bars_file(path: Path, hours: list[int]) -> None:
    """Bars at these hours from `START` on."""
    price = {name: np.full(len(hours), 9.0) for name in ("open", "high", "low", "close")}
    write(
        path, {"timestamp": START + HOUR * np.array(hours, np.int64), **price, "volume": np.arange(1.0, len(hours) + 1)}
    )


@settings(deadline=None, max_examples=40)
@given(kept=st.sets(st.integers(0, 29), min_size=1), hours=st.sets(st.integers(-5, 35), min_size=1))
def test_settlements_without_a_bar_at_their_time_are_reported(
    tmp_path_factory: pytest.TempPathFactory, kept: set[int], hours: set[int]
) -> None:
    folder = tmp_path_factory.mktemp("funding")
    bars_file(folder / "A-1h.parquet", sorted(kept))
    due = START + HOUR * np.array(sorted(hours), np.int64)
    write(folder / "A-funding.parquet", {"timestamp": due, "funding_rate": np.full(len(due), 1e-4)})
    # A bar holds the settlements from its open to its close.
    bare = [hour for hour in sorted(hours) if hour not in kept and hour - 1 not in kept]
    found = [issue for issue in Catalog(folder).check() if issue.kind == "funding_without_bars"]
    assert [issue.count for issue in found] == ([len(bare)] if bare else [])
    if bare:
        assert not found[0].fatal
        assert found[0].detail.endswith(f"the first at {format_time(START + HOUR * bare[0])}")
