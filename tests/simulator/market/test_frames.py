"""A market of pandas tables: what it holds, and what is refused."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from backend.config.schema import Config
from simulator.backtest.run import Window, run_backtest
from simulator.data.catalog import Catalog
from simulator.errors import DataError
from simulator.market.market import Market
from simulator.strategies import SmaCross


def bars(start: str = "2024-01-01", count: int = 6, **columns: object) -> pd.DataFrame:
    index = pd.date_range(start, periods=count, freq="4h")
    close = 100.0 + np.arange(count)
    table = {"Open": close, "High": close + 1, "Low": close - 1, "Close": close, "Volume": 10.0} | columns
    return pd.DataFrame(table, index=index)


def test_tables_of_several_symbols_are_put_on_one_grid() -> None:
    market = Market.from_frame({"A": bars(), "B": bars("2024-01-01 08:00", 2)}, half_spread_bps=2.0)
    assert (market.symbols, market.timeframe, len(market)) == (("A", "B"), "4h", 6)
    assert market.present[:, 1].tolist() == [False, False, True, True, False, False]
    assert market.open_time[0] == 1_704_067_200_000 and market.close[5, 0] == 105.0
    assert np.nanmax(market.half_spread) == 2e-4


def test_a_zone_is_turned_to_utc_and_the_order_does_not_matter() -> None:
    plain = bars()
    east = plain.tz_localize("UTC").tz_convert("Asia/Tokyo")[::-1]
    assert Market.from_frame(east, "A").content_hash == Market.from_frame(plain, "A").content_hash


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (bars().reset_index(), "the index must be open times"),
        (bars().drop(columns="High"), "column high is missing"),
        (bars().drop(columns="Volume"), "column volume is missing"),
        (pd.concat([bars(), bars()]), "A: 12 bars share their time with another, the first at 2024-01-01 00:00 UTC"),
        (bars(Low=200.0), "A: 6 bars are impossible .* the first at 2024-01-01 00:00 UTC"),
        (bars(Volume=-1.0), "A: 6 bars are impossible"),
        (bars(High=np.inf), "A: 6 bars have a value that is missing or not finite"),
        (bars(count=1), "a single bar has no timeframe"),
        (bars(Close="dear"), "A: a column of bars holds what is not a number"),
        (bars(Close=np.nan, Open=np.nan, High=np.nan, Low=np.nan, Volume=np.nan), "A: the table holds no bars"),
        (bars("1990-01-01"), "A: a bar opens at 1990-01-01 00:00 UTC; times from 2000 to 2100"),
        (bars().set_axis([pd.NaT, *bars().index[1:]]), "A: row 0 has no open time"),
        (bars("2024-01-01 00:07"), "A: 6 bars do not open on a whole interval, the first at 2024-01-01 00:07 UTC"),
        (pd.concat([bars(), bars("2024-01-03 01:30", 1)]), "A: 1 bars do not .* the first at 2024-01-03 01:30 UTC"),
        (pd.concat([bars(), bars("2024-01-03 01:00", 1)]), "A: 1 bars do not .* the first at 2024-01-03 01:00 UTC"),
    ],
)
def test_what_is_no_table_of_bars_is_refused(table: pd.DataFrame, said: str) -> None:
    with pytest.raises(DataError, match=said):
        Market.from_frame(table, "A")


@pytest.mark.parametrize("column", ["Open", "High", "Low", "Close", "Volume"])
def test_a_row_that_is_nan_in_part_is_refused_with_its_time_and_one_of_nan_alone_is_an_absent_bar(column: str) -> None:
    table = bars()
    table.loc["2024-01-01 08:00", column] = np.nan
    with pytest.raises(DataError, match=f"A: the bar of 2024-01-01 08:00:00 has no {column.lower()}: give all five"):
        Market.from_frame(table, "A")
    table.loc["2024-01-01 08:00"] = np.nan
    market = Market.from_frame(table, "A")
    assert market.present[:, 0].tolist() == [True, True, False, True, True, True]
    assert np.isnan(market.half_spread[2, 0])


def test_a_table_and_the_same_bars_in_a_folder_cost_the_same(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    close = 100.0 * np.exp(np.cumsum(random.normal(0.0, 0.01, 300)))
    opens = np.concatenate([[100.0], close[:-1]])
    columns = {"open": opens, "high": np.maximum(opens, close), "low": np.minimum(opens, close), "close": close}
    index = pd.date_range("2024-01-01", periods=300, freq="1h", name="timestamp")
    table = pd.DataFrame(columns | {"volume": 10.0}, index=index)
    table.reset_index().to_parquet(tmp_path / "A-1h.parquet")
    tables, files = Market.from_frame(table, "A"), Catalog(tmp_path).load(["A"], "1h")
    assert np.array_equal(tables.half_spread, files.half_spread)
    results = [run_backtest(one, SmaCross(3, 9), Window(20, 299)) for one in (tables, files)]
    assert results[0].equity.tobytes() == results[1].equity.tobytes() and results[0].fills
    assert Config().costs.half_spread_bps / 1e4 == tables.half_spread[0, 0]
