"""Series: what is sound comes back from a file as it was, what is not is refused by its record."""

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
    DataSeries,
    read_series,
    series_columns,
    series_file,
    series_in,
)
from simulator.tables import write_table

HOUR = 3_600_000
START = 1_700_006_400_000  # 2023-11-15 00:00
NAN = float("nan")


def series_of(rows: int, seed: int = 0) -> DataSeries:
    rng = np.random.default_rng(seed)
    known_at = START + np.cumsum(rng.integers(1, 5 * HOUR, rows))
    return DataSeries(
        known_at, {name: rng.normal(0, 10.0 ** rng.integers(-6, 24), rows) for name in ("flow", "addresses")}
    )


def content(one: DataSeries) -> bytes:
    return b"".join(one.content())


@settings(deadline=None, max_examples=30)
@given(rows=st.integers(0, 20), seed=st.integers(0, 999))
def test_what_is_written_comes_back_bit_by_bit(tmp_path_factory: pytest.TempPathFactory, rows: int, seed: int) -> None:
    folder = tmp_path_factory.mktemp("beside")
    series = series_of(rows, seed)
    write_table(folder / series_file("onchain/BTC-x"), series_columns(series))
    assert list(series_in(folder)) == ["onchain/BTC-x"]
    assert content(read_series(series_in(folder)["onchain/BTC-x"])) == content(series)


@settings(deadline=None, max_examples=40)
@given(rows=st.integers(1, 20), seed=st.integers(0, 999), offset=st.integers(-HOUR, 30 * HOUR))
def test_until_keeps_exactly_what_is_known_by_then(rows: int, seed: int, offset: int) -> None:
    series = series_of(rows, seed)
    for moment in (START + offset, int(series.known_at[rows // 2])):
        assert len(series.until(moment)) == sum(int(each) <= moment for each in series.known_at)
    series.until(int(series.known_at[-1])).columns["flow"][:] = 7.0
    assert not (series.columns["flow"] == 7.0).any(), "a part is a copy"


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


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match=r"flow has shape \(2,\), expected \(3,\)"):
        DataSeries(START + np.arange(3), {"flow": np.zeros(2)})
    with pytest.raises(DataError, match="not a name of a series"):
        series_file("../BTC")
