from functools import cache

import numpy as np
import pytest

from simulator.backtest.from_signals import run_signals
from simulator.backtest.run import Window, run_backtest
from simulator.market.market import Market
from simulator.strategies import (
    BollingerReversion,
    DonchianBreakout,
    EmaCross,
    MacdCross,
    RsiReversion,
    SmaCross,
)
from simulator.strategies.signal_arrays import long_flat_targets
from simulator.strategies.signals import LongFlat
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate

START = 300


@cache
def market() -> Market:
    return generate(SyntheticConfig(bars=900, seed=9, symbols=("AAAUSDT", "BBBUSDT")))


@pytest.mark.parametrize("every", [1, 6])
@pytest.mark.parametrize(
    "strategy",
    [
        SmaCross(7, 40), EmaCross(9, 30), MacdCross(6, 20, 5), DonchianBreakout(30, 11), RsiReversion(9, 35, 65),
        BollingerReversion(15, 1.5),
    ],
)  # fmt: skip
def test_the_signals_at_once_are_those_of_the_strategy(strategy: LongFlat, every: int) -> None:
    """The fills are at the same bars; the curves differ by what the price moved between the close and the next open."""
    window = Window(START, len(market()) - 1, every)
    played = run_backtest(market(), strategy, window)
    targets = long_flat_targets(strategy, market(), START, every)
    assert targets is not None and np.isnan(targets[:START]).all()
    at_once = run_signals(market(), targets)
    fills = {(fill.bar, fill.symbol) for fill in at_once.fills}
    expected = {(fill.bar, fill.symbol) for fill in played.fills}
    assert len(expected) > 4 and len(fills ^ expected) <= 2  # averages over the whole history differ by rounding
    assert at_once.equity[-1] == pytest.approx(played.equity[-1], rel=0.03)


def test_symbols_that_lack_bars_are_left_to_the_strategy_itself() -> None:
    whole = market()
    close = whole.close.copy()
    close[500, 0] = np.nan
    holed = Market(
        whole.symbols, whole.timeframe, whole.open_time, whole.open, whole.high, whole.low, close, whole.volume,
        whole.half_spread,
    )  # fmt: skip
    assert long_flat_targets(SmaCross(7, 40), holed, START, 1) is None
