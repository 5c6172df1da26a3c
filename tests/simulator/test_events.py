"""News and funding are read in the shapes that they were recorded in, and never early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simulator.errors import DataError
from simulator.events import read_funding, read_news

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
