"""A market of pandas tables: what it holds, and what is refused."""

import numpy as np
import pandas as pd
import pytest

from simulator.errors import DataError
from simulator.market.market import Market


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
        (pd.concat([bars(), bars()]), "is there twice"),
        (bars(Low=200.0), "inside its own range"),
        (bars(count=1), "a single bar has no timeframe"),
        (pd.concat([bars(), bars("2024-01-03 01:30", 1)]), "no regular grid"),
    ],
)
def test_what_is_no_table_of_bars_is_refused(table: pd.DataFrame, said: str) -> None:
    with pytest.raises(DataError, match=said):
        Market.from_frame(table, "A")
