"""The SMA cross of `tests/kat/engines`: exact decimal reference, fill by fill."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simulator.backtest import Window, run_backtest
from simulator.costs import Costs
from simulator.market import Market, MarketView
from simulator.orders import Order
from simulator.records import AccountView
from simulator.strategies import SmaCross

HERE = Path(__file__).parents[1] / "kat" / "engines"
CASES = json.loads((HERE / "reference.json").read_text())["cases"]


class AllIn:
    """The signal of `SmaCross` with orders for twice what the account holds; the leverage cap cuts them to fit."""

    name = "all_in"

    def __init__(self) -> None:
        self.rule = SmaCross(20, 100)

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
        signal, held = self.rule.signal(view, "X"), account.positions["X"]
        if signal > 0 and held == 0.0:
            return [Order("X", 2.0 * account.equity / account.mark["X"])]
        if signal < 0 and held > 0.0:
            return [Order("X", -held)]
        return []


@pytest.fixture(scope="module")
def market() -> Market:
    frame = pd.read_csv(HERE / "first5000.csv")
    first, high, low, close, volume = (
        frame[[name]].to_numpy(dtype=np.float64) for name in ("open", "high", "low", "close", "volume")
    )
    open_time = frame["timestamp_ms"].to_numpy(dtype=np.int64)
    return Market(("X",), "1m", open_time, first, high, low, close, volume, np.zeros_like(close))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"fee {case['fee']} {case['sizing']}")
def test_sma_cross_matches_the_reference(case: dict[str, Any], market: Market) -> None:
    fee = float(case["fee"])
    cap = 1.0 / (1.0 - fee) if case["sizing"] == "fee_on_top" else 1.0
    result = run_backtest(market, AllIn(), Window(0, len(market) - 1), 100_000.0, Costs(fee), cap)

    assert len(result.fills) == case["fills"]
    assert sum(fill.quantity > 0.0 for fill in result.fills) == case["buys"]
    # The reference prints 8 decimals of money and 12 of quantity.
    assert result.equity[-1] == pytest.approx(float(case["final_equity"]), abs=1e-6)
    assert result.costs["fees"] == pytest.approx(float(case["total_fees"]), abs=1e-6)
    held = sum(fill.quantity for fill in result.fills)
    assert held == pytest.approx(float(case["final_qty"]), abs=1e-9)
    traded = sum(abs(fill.quantity) * fill.price for fill in result.fills)
    assert traded == pytest.approx(float(case["turnover"]), abs=1e-5)
    for fill, (bar, side, price, quantity, paid, _) in zip(
        result.fills, case["first_fills_bar_side_price_qty_fee_cash"], strict=False
    ):
        assert fill.bar == bar
        assert fill.price == float(price)
        assert fill.quantity == pytest.approx(float(quantity) * (1 if side == "buy" else -1), abs=1e-11)
        assert fill.fee == pytest.approx(float(paid), abs=1e-7)
