"""Speed of a backtest from arrays of signals: 525,600 one-minute bars, one thread.

The rule of `benchmarks.sma_cross`, all in at the next open with the fee inside. Two rows: against
`Portfolio.from_signals` of vectorbt 1.2.0, and against the least that such a backtest can be, a numba loop that knows
only "all in" and "flat" with a fee: no lots, spread, margin, funding, orders, checks of its input or records of single
fills. Runs alternate between the three and their medians are compared.

Inside the clock, on every side: from arrays of signals that are known at the close of their bar to the equity at every
close and the trades.

* Ours: `run_signals` (its checks, the shift to the next open, the kernel with every rule it knows) with its equity, and
  the log of its fills as an array, from which `SignalRun.fills` makes objects outside the clock.
* vectorbt: the shift of both signals to the next bar, `from_signals`, `value()` and `trades.records`, an array too.
* The loop: equity, and an array of round trips.

Outside: loading, the averages and their crosses, compiling. All three end with the same equity to the cent, and with as
many fills, or the benchmark stops.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from benchmarks.run import Result
from benchmarks.sma_cross import CASH, FEE, REPETITIONS, Peer, market_of, signals_of, year
from simulator.arrays import FloatArray
from simulator.backtest.from_signals import run_signals
from simulator.exchange.costs import Costs
from simulator.kernel import layout as at
from simulator.market.market import Market

PEER_TARGET, FLOOR_TARGET = 1.0, 0.1

PEER = """
import json, sys, time, warnings
import numpy as np, vectorbt
warnings.simplefilter("ignore")
given = json.loads(sys.stdin.readline())
data = np.load(given["path"])
first, close, up, down = (data[name] for name in ("open", "close", "up", "down"))
for line in sys.stdin:
    start = time.perf_counter()
    entries, exits = np.zeros(len(up), bool), np.zeros(len(down), bool)
    entries[1:], exits[1:] = up[:-1], down[:-1]
    portfolio = vectorbt.Portfolio.from_signals(
        close, entries, exits, price=first, fees=given["fee"], init_cash=given["cash"], freq="1min")
    equity, trades = portfolio.value(), portfolio.trades.records
    seconds = time.perf_counter() - start
    told = {"seconds": seconds, "fills": len(portfolio.orders.records), "equity": float(equity.iloc[-1])}
    print(json.dumps(told), flush=True)
"""


def run() -> list[Result]:
    """The rows `simulator.signals.peer` and `simulator.signals.floor`; values are bars per second of ours."""
    market = market_of(year())
    signals = signals_of(market.close[:, 0])
    first, close = market.open[:, 0].copy(), market.close[:, 0].copy()
    seconds: dict[str, list[float]] = {"ours": [], "peer": [], "floor": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bars.npz"
        np.savez(path, open=first, close=close, up=signals == 1.0, down=signals == 0.0)
        with Peer("simulator.signals", PEER, {"path": str(path), "cash": CASH, "fee": FEE}) as peer:
            for repetition in range(REPETITIONS + 1):
                once = {"ours": _ours(market, signals), "peer": peer.once(), "floor": _loop(signals, first, close)}
                _agree(once)
                if repetition > 0:  # the first run warms up
                    for name, told in once.items():
                        seconds[name].append(told["seconds"])
    speed = {name: len(market) / statistics.median(values) for name, values in seconds.items()}
    against = {"peer": ("vectorbt 1.2.0", PEER_TARGET), "floor": ("all in or flat, in numba", FLOOR_TARGET)}
    return [
        Result(
            name=f"simulator.signals.{name}", value=speed["ours"], unit="bars/s",
            against=f"{what}: {speed[name]:,.3g}", ratio=speed["ours"] / speed[name], target=target,
            met=speed["ours"] / speed[name] >= target,
        )
        for name, (what, target) in against.items()
    ]  # fmt: skip


def _agree(once: dict[str, dict[str, float]]) -> None:
    """Raise where the three did not do the same."""
    for name, told in once.items():
        if told["fills"] != once["ours"]["fills"] or abs(told["equity"] - once["ours"]["equity"]) >= 0.005:
            raise RuntimeError(f"simulator.signals: ours and {name} disagree: {once}; they must agree to be timed.")


def _ours(market: Market, signals: FloatArray) -> dict[str, float]:
    start = time.perf_counter()
    result = run_signals(market, signals, CASH, Costs(taker_fee=FEE))
    seconds = time.perf_counter() - start
    fills = int(np.count_nonzero(result.events[:, at.KIND] <= at.FILL_LIQUIDATION))
    return {"seconds": seconds, "fills": fills, "equity": float(result.equity[-1])}


def _loop(signals: FloatArray, first: FloatArray, close: FloatArray) -> dict[str, float]:
    start = time.perf_counter()
    equity, trades, held = _floor(signals, first, close, CASH, FEE)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "fills": 2 * len(trades) + (held > 0.0), "equity": float(equity[-1])}


@njit(error_model="numpy")
def _floor(signals: FloatArray, first: FloatArray, close: FloatArray, cash: float, fee: float) -> Any:
    """Equity (n,), round trips (m, 7: bars, quantity, prices, fees and profit) and what is held at the end."""
    bars = len(close)
    equity, trades = np.empty(bars), np.empty((bars // 2 + 1, 7))
    equity[0] = cash
    count, held, paid, entered = 0, 0.0, 0.0, 0
    for bar in range(1, bars):
        if signals[bar - 1] == 1.0 and held == 0.0:
            paid, entered = first[bar], bar
            held, cash = cash / (paid * (1.0 + fee)), 0.0
        elif signals[bar - 1] == 0.0 and held > 0.0:
            price = first[bar]
            row = trades[count]
            row[0], row[1], row[2], row[3], row[4] = entered, bar, held, paid, price
            row[5] = fee * held * (paid + price)
            row[6] = held * (price - paid) - row[5]
            count += 1
            held, cash = 0.0, held * price * (1.0 - fee)
        equity[bar] = cash + held * close[bar]
    return equity, trades[:count].copy(), held
