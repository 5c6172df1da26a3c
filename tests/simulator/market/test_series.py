"""Series and order books: what is sound comes back from a file as it was, what is not is refused by its record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import DataError
from simulator.market.series import (
    BOOK_COLUMNS,
    DataSeries,
    OrderBooks,
    read_books,
    read_series,
    series_file,
    series_in,
    write_books,
    write_series,
)

HOUR = 3_600_000
START = 1_700_006_400_000  # 2023-11-15 00:00
NAN = float("nan")


def series_of(rows: int, seed: int = 0) -> DataSeries:
    rng = np.random.default_rng(seed)
    known_at = START + np.cumsum(rng.integers(1, 5 * HOUR, rows))
    return DataSeries(
        known_at, {name: rng.normal(0, 10.0 ** rng.integers(-6, 24), rows) for name in ("flow", "addresses")}
    )


def books_of(rows: int, levels: int = 4, seed: int = 0) -> OrderBooks:
    """Sound books, of which the deeper levels may be absent, on either side the best too."""
    rng = np.random.default_rng(seed)
    middle = 100 * np.exp(np.cumsum(rng.normal(0, 0.01, (rows, 1)), axis=0))
    away = np.cumsum(rng.uniform(0.01, 0.1, (rows, levels)), axis=1)
    sides = []
    for price in (middle - away, middle + away):
        absent = np.arange(levels) >= rng.integers(0, levels + 1, (rows, 1))
        size = rng.choice([0.0, 1.5, 200.0], (rows, levels))
        sides += [np.where(absent, NAN, price), np.where(absent, NAN, size)]
    return OrderBooks(START + np.cumsum(rng.integers(1, HOUR, rows)), *sides)


def content(one: DataSeries | OrderBooks) -> bytes:
    return b"".join(one.content())


@settings(deadline=None, max_examples=30)
@given(rows=st.integers(0, 20), levels=st.integers(1, 5), seed=st.integers(0, 999))
def test_what_is_written_comes_back_bit_by_bit(
    tmp_path_factory: pytest.TempPathFactory, rows: int, levels: int, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("beside")
    series, books = series_of(rows, seed), books_of(rows, levels, seed)
    write_series(folder / series_file("onchain/BTC-x"), series)
    write_books(folder / "A-book.parquet", books)
    assert list(series_in(folder)) == ["onchain/BTC-x"]
    assert content(read_series(series_in(folder)["onchain/BTC-x"])) == content(series)
    assert content(read_books(folder / "A-book.parquet")) == content(books)


@settings(deadline=None, max_examples=40)
@given(rows=st.integers(1, 20), seed=st.integers(0, 999), offset=st.integers(-HOUR, 30 * HOUR))
def test_until_keeps_exactly_what_is_known_by_then(rows: int, seed: int, offset: int) -> None:
    for one in (series_of(rows, seed), books_of(rows, 3, seed)):
        time = one.known_at if isinstance(one, DataSeries) else one.time
        for moment in (START + offset, int(time[rows // 2])):
            kept = one.until(moment)
            assert len(kept) == sum(int(each) <= moment for each in time)
    series = series_of(rows, seed)
    series.until(int(series.known_at[-1])).columns["flow"][:] = 7.0
    assert not (series.columns["flow"] == 7.0).any(), "a part is a copy"


def test_content_differs_with_any_value_and_not_with_the_order_of_columns() -> None:
    series, books = series_of(5), books_of(5, 3, seed=2)
    turned = DataSeries(series.known_at, dict(reversed(series.columns.items())))
    assert content(turned) == content(series)
    seen = {content(series)}
    for name in series.columns:
        columns = {key: values.copy() for key, values in series.columns.items()}
        columns[name][-1] += 1.0
        seen.add(content(DataSeries(series.known_at, columns)))
    seen.add(content(DataSeries(series.known_at + 1, series.columns)))
    seen.add(
        content(DataSeries(series.known_at, {"other": series.columns["flow"], "addresses": series.columns["flow"]}))
    )
    assert len(seen) == 5
    arrays = {name: getattr(books, name).copy() for name in BOOK_COLUMNS}
    arrays["ask_size"][np.isfinite(arrays["ask_size"])] += 1.0
    assert content(OrderBooks(books.time, **arrays)) != content(books)


def sound_series() -> dict[str, Any]:
    return {"known_at": START + HOUR * np.arange(5), "flow": np.arange(5.0), "count": np.arange(5)}


def change(name: str, values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda columns: columns.__setitem__(name, values)


def remove(*names: str) -> Callable[[dict[str, Any]], None]:
    def spoil(columns: dict[str, Any]) -> None:
        for name in names:
            del columns[name]

    return spoil


BAD_SERIES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "no time": (remove("known_at"), "column known_at is missing"),
    "no number": (remove("flow", "count"), "no column of numbers"),
    "out of order": (
        change("known_at", START + HOUR * np.array([0, 1, 3, 2, 4])), r"record 3 \(2023-11-15 02:00\): it is not later",
    ),
    "doubled": (change("known_at", START + HOUR * np.array([0, 1, 1, 1, 4])), r"record 2 .*one of each time \(1 more"),
    "missing value": (change("flow", [0.0, None, 2.0, 3.0, None]), r"record 1 \(2023-11-15 01:00\): flow is missing"),
    "not a number": (change("flow", [0.0, 1.0, 2.0, 3.0, NAN]), r"record 4 \(2023-11-15 04:00\): flow is missing"),
    "infinite": (change("flow", [0.0, 1.0, np.inf, 3.0, 4.0]), "record 2 .*flow is missing or not finite"),
    "text": (change("flow", list("abcde")), "flow is string; it must be a number"),
    "seconds": (change("known_at", START // 1000 + np.arange(5)), "not milliseconds"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_SERIES)
def test_a_bad_series_is_refused_by_its_record(tmp_path: Path, case: str) -> None:
    spoil, message = BAD_SERIES[case]
    columns = sound_series()
    path = tmp_path / "series-onchain-A.parquet"
    pq.write_table(pa.table(columns), path)
    assert len(read_series(path)) == 5
    spoil(columns)
    pq.write_table(pa.table(columns), path)
    with pytest.raises(DataError, match=message) as caught:
        read_series(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def sound_book() -> dict[str, Any]:
    """Three snapshots of two levels; the second one has no second bid."""
    return {
        "time": START + HOUR * np.arange(3),
        "bid_price_1": [99.0, 98.0, 97.0], "bid_size_1": [1.0, 2.0, 0.0],
        "ask_price_1": [101.0, 100.0, 99.0], "ask_size_1": [1.0, 1.0, 1.0],
        "bid_price_2": [98.0, None, 96.0], "bid_size_2": [5.0, None, 5.0],
        "ask_price_2": [102.0, 101.0, 100.0], "ask_size_2": [5.0, 5.0, 5.0],
    }  # fmt: skip


BAD_BOOKS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "crossed": (change("bid_price_1", [99.0, 98.0, 99.5]), r"record 2 \(2023-11-15 02:00\): the best bid is not below"),
    "locked": (change("ask_price_1", [99.0, 100.0, 99.0]), "record 0 .*crossed book"),
    "negative size": (change("ask_size_2", [5.0, -5.0, 5.0]), r"record 1 \(2023-11-15 01:00\): a ask size is negative"),
    "price of zero": (change("bid_price_2", [98.0, None, 0.0]), "record 2 .*bid price is not a number above 0"),
    "infinite size": (change("bid_size_1", [1.0, np.inf, 1.0]), "record 1 .*negative or infinite"),
    "price without size": (change("bid_size_2", [None, None, 5.0]), "record 0 .*a price without a size"),
    "size without price": (change("bid_size_2", [5.0, 5.0, 5.0]), "record 1 .*a size without a price"),
    "behind an absent level": (
        lambda columns: columns.update(ask_price_1=[101.0, None, 99.0], ask_size_1=[1.0, None, 1.0]),
        "record 1 .*behind an absent one",
    ),
    "bids in disorder": (change("bid_price_2", [98.0, None, 97.5]), "record 2 .*bids must fall"),
    "asks of one price": (change("ask_price_2", [102.0, 100.0, 100.0]), "record 1 .*asks must rise"),
    "out of order": (change("time", START - HOUR * np.arange(3)), "record 1 .*not later than the record before"),
    "half a level": (remove("ask_size_2"), "column ask_size_2 is missing"),
    "no level": (remove("bid_price_1"), "column bid_price_1 is missing"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_BOOKS)
def test_a_bad_book_is_refused_by_its_record(tmp_path: Path, case: str) -> None:
    spoil, message = BAD_BOOKS[case]
    columns = sound_book()
    path = tmp_path / "A-book.parquet"
    pq.write_table(pa.table(columns), path)
    assert np.isnan(read_books(path).bid_price[1]).tolist() == [False, True]
    spoil(columns)
    pq.write_table(pa.table(columns), path)
    with pytest.raises(DataError, match=message) as caught:
        read_books(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match=r"flow has shape \(2,\), expected \(3,\)"):
        DataSeries(START + np.arange(3), {"flow": np.zeros(2)})
    with pytest.raises(DataError, match="ask_size has shape"):
        OrderBooks(START + np.arange(2), np.ones((2, 3)), np.ones((2, 3)), np.ones((2, 3)), np.ones((2, 2)))
    with pytest.raises(DataError, match="not a name of a series"):
        series_file("../BTC")
