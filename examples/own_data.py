"""Bars of one's own, from pandas into a backtest: here a random walk stands for what a database or a file would give.

python own_data.py
"""

from __future__ import annotations

import numpy as np
import pandas as pd

import cryptosentinel as cs


def load(seed: int = 1, bars: int = 900) -> pd.DataFrame:
    """Bars of four hours, indexed by their open times (UTC)."""
    moves = np.random.default_rng(seed).normal(0.0, 0.01, (bars, 6)).cumsum(axis=0)
    path = 30_000.0 * np.exp(moves[:, 0])
    steps = np.column_stack([np.r_[30_000.0, path[:-1]], path])
    return pd.DataFrame(
        {
            "open": steps[:, 0],
            "high": steps.max(axis=1) * 1.002,
            "low": steps.min(axis=1) * 0.998,
            "close": steps[:, 1],
            "volume": 1_000.0,
        },
        index=pd.date_range("2024-01-01", periods=bars, freq="4h", tz="UTC"),
    )


def main() -> None:
    """Backtest two strategies on these bars and print what they made of it."""
    market = cs.Market.from_frame(load(), "BTCUSDT")
    result = cs.backtest("ema_cross,donchian_breakout", data=market, baselines="hold")
    print(result.frame()[["total_return", "sharpe", "max_drawdown", "trades"]].round(3))
    print(result.report())


if __name__ == "__main__":
    main()
