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


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"headline": ["a"]}, "not a file of news"),
        ({"timestamp": [START], "title": [" "]}, "1 rows have no text"),
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


def test_funding_of_a_symbol_without_bars_is_reported(tmp_path: Path) -> None:
    bars_file(tmp_path / "A-1h.parquet", [0, 1])
    write(tmp_path / "B-funding.parquet", {"timestamp": [START, START + HOUR], "funding_rate": [0.1, 0.1]})
    assert [str(issue).partition(": ")[2] for issue in Catalog(tmp_path).check()] == [
        "2 of 2 settlements fall where there is no bar, the first at 2023-11-15 00:00"
    ]
