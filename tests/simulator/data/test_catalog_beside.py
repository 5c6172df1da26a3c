"""Bars beside a market: the same symbols and time in another timeframe, whatever the folder has of them."""

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
from simulator.data.venue import write_rules
from simulator.errors import DataError
from simulator.exchange.rules import SymbolRules
from simulator.market.market import Market
from simulator.market.timeframes import BAR_COLUMNS, TIMEFRAMES
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate

SYMBOLS = ("A", "B")
FINE = generate(SyntheticConfig(bars=480, seed=5, symbols=SYMBOLS, timeframe="15m"))


def write(market: Market, folder: Path, symbol: str, keep: Any = slice(None)) -> None:
    column = market.column(symbol)
    columns: dict[str, Any] = {"timestamp": market.open_time[keep]}
    columns |= {name: getattr(market, name)[keep, column] for name in BAR_COLUMNS}
    pq.write_table(pa.table(columns), folder / f"{symbol}-{market.timeframe}.parquet")


@pytest.mark.parametrize("timeframe", ["15m", "30m", "1h"])
def test_bars_are_those_of_the_file_or_made_of_finer_ones(timeframe: str, tmp_path: Path) -> None:
    for symbol in SYMBOLS:
        write(FINE, tmp_path, symbol)
    found = Catalog(tmp_path).beside(FINE.resample("1h"), timeframe)
    wanted = FINE.resample(timeframe)
    np.testing.assert_array_equal(found.open_time, wanted.open_time)
    for name in BAR_COLUMNS:
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    assert (found.symbols, found.timeframe, found.funding, found.news) == (SYMBOLS, timeframe, {}, ())


def test_they_are_only_of_the_time_of_the_market(tmp_path: Path) -> None:
    write(FINE, tmp_path, "A")
    hours = FINE.resample("1h").select(["A"])
    later = Market(
        hours.symbols, hours.timeframe, hours.open_time[30:60],
        **{name: getattr(hours, name)[30:60] for name in BAR_COLUMNS},
    )  # fmt: skip
    found = Catalog(tmp_path).beside(later, "15m")
    np.testing.assert_array_equal(found.close, FINE.close[120:240, :1])


@settings(max_examples=25, deadline=None)
@given(st.sets(st.integers(0, len(FINE) - 1), max_size=60), st.booleans())
def test_what_is_absent_stays_absent(tmp_path_factory: pytest.TempPathFactory, holes: set[int], other: bool) -> None:
    folder = tmp_path_factory.mktemp("bars")
    kept = np.setdiff1d(np.arange(len(FINE)), sorted(holes))
    write(FINE, folder, "A", kept)
    if other:
        write(FINE.resample("1h"), folder, "B")  # too coarse to be of use
    found = Catalog(folder).beside(FINE.resample("1h"), "15m")
    assert set(np.flatnonzero(~found.present[:, 0])) == holes
    assert not found.present[:, 1].any()


@pytest.mark.parametrize(
    ("timeframe", "message"),
    [
        ("1d", "1h bars do not consist of 1d bars"),
        ("5m", "no 5m bars of A, B between"),
        ("7h", "unknown timeframe '7h'"),
    ],
)
def test_what_cannot_be_made_is_refused(timeframe: str, message: str, tmp_path: Path) -> None:
    write(FINE, tmp_path, "A")
    with pytest.raises(DataError) as caught:
        Catalog(tmp_path).beside(FINE.resample("1h"), timeframe)
    assert message in str(caught.value)


def test_a_file_that_ends_before_the_market_begins_is_no_help(tmp_path: Path) -> None:
    write(FINE, tmp_path, "A")
    gone = TIMEFRAMES["1d"] * 400
    hours = FINE.resample("1h").select(["A"])
    later = Market(
        hours.symbols, hours.timeframe, hours.open_time + gone,
        **{name: getattr(hours, name) for name in BAR_COLUMNS},
    )  # fmt: skip
    with pytest.raises(DataError, match="no 15m bars of A between"):
        Catalog(tmp_path).beside(later, "15m")


def test_bars_that_cannot_be_are_refused(tmp_path: Path) -> None:
    write(FINE, tmp_path, "A", np.arange(len(FINE))[::-1])
    with pytest.raises(DataError, match="fix the file"):
        Catalog(tmp_path).beside(FINE.resample("1h"), "15m")


@pytest.mark.parametrize(("content", "trouble"), [("{", "not a readable JSON"), ('{"A": {"lot": 1}}', "is missing")])
def test_rules_that_cannot_be_read_are_a_finding(content: str, trouble: str, tmp_path: Path) -> None:
    write(FINE, tmp_path, "A")
    write_rules(tmp_path / "rules.json", {"A": SymbolRules(lot=0.1)})
    assert not [issue for issue in Catalog(tmp_path).check() if issue.fatal]
    (tmp_path / "rules.json").write_text(content)
    [issue] = [issue for issue in Catalog(tmp_path).check() if issue.fatal]
    assert issue.file.endswith("rules.json") and trouble in issue.detail
