"""Speed of a Python strategy that is called at every bar: 525,600 one-minute bars, one thread, against backtesting.py.

The rule of `benchmarks.sma_cross`, all in at the next open with the fee inside, lots of 1e-8. Inside the clock, on
both sides: one whole run, from an account with cash to the equity at every close, the trades and their statistics.
Outside: loading the bars, the averages, and compiling. Each side's strategy looks its two averages up at every bar
through its engine's own interface and submits its orders there. Fills and final equity are equal to the cent, or the
benchmark stops.

The rows `.verdict` are what the look-ahead verdict of such a strategy costs, beside the backtest that it ends: two
years of hourly bars of two coins, a decision at every bar of the last 90 days; for the window alone, and for the whole
history.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.run import Result
from benchmarks.sma_cross import CASH, FAST, FEE, REPETITIONS, SLOW, Peer, market_of, mean_of, year
from simulator.arrays import FloatArray
from simulator.backtest.run import Window, run_backtest
from simulator.checks.verdict import LookaheadCheck, RecordedStrategy
from simulator.exchange.costs import Costs
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Target
from simulator.exchange.rules import SymbolRules
from simulator.exchange.venue import Venue
from simulator.market.market import Bars, Market, MarketView
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate

TARGET = 3.0
LOT = 1e-8
VERDICT_BARS, VERDICT_DAYS = 2 * 8_760, 90
VERDICT_TARGETS = {"window": 25.0, "history": 120.0}  # times the backtest

PEER = """
import json, sys, time, warnings
import numpy as np, pandas as pd
from backtesting import Strategy
from backtesting.lib import FractionalBacktest
warnings.simplefilter("ignore")
given = json.loads(sys.stdin.readline())
data = np.load(given["path"])
frame = pd.DataFrame({name: data[name] for name in ("Open", "High", "Low", "Close", "Volume")},
                     index=pd.to_datetime(data["time"], unit="ms"))
class Cross(Strategy):
    def init(self):
        self.fast, self.slow = (self.I(lambda values: values.copy(), data[name]) for name in ("fast", "slow"))
        self.gap = np.nan
    def next(self):
        before, self.gap = self.gap, self.fast[-1] - self.slow[-1]
        if before <= 0.0 < self.gap:
            self.buy()
        elif before >= 0.0 > self.gap and self.position:
            self.position.close()
test = FractionalBacktest(frame, Cross, fractional_unit=given["lot"], cash=given["cash"], commission=given["fee"])
for line in sys.stdin:
    start = time.perf_counter()
    result = test.run()
    seconds = time.perf_counter() - start
    closed, equity = len(result["_trades"]), float(result["_equity_curve"]["Equity"].iloc[-1])
    held = len(result["_strategy"].trades)
    print(json.dumps({"seconds": seconds, "fills": 2 * closed + held, "equity": equity}), flush=True)
"""


def averages(bars: Bars, length: float) -> FloatArray:
    """The indicator, for `MarketView.computed`."""
    return mean_of(bars.close, int(length))


class Cross:
    """The rule as a strategy: it acts when the gap between the averages changes its sign."""

    name = "cross"

    def __init__(self) -> None:
        self.gap = math.nan

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Target]:
        gap = view.latest("X", averages, FAST) - view.latest("X", averages, SLOW)
        before, self.gap = self.gap, gap
        if before <= 0.0 < gap:
            return [Target("X", 1.0)]
        if before >= 0.0 > gap:
            return [Target("X", 0.0)]
        return ()


class Crosses:
    """Long while the fast average is above the slow one."""

    name = "crosses"

    def __init__(self) -> None:
        self.up = dict.fromkeys(("A", "B"), False)

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Target]:
        changed = []
        for symbol in view.symbols:
            up = view.latest(symbol, averages, FAST) > view.latest(symbol, averages, SLOW)
            if up != self.up[symbol]:
                self.up[symbol] = up
                changed.append(Target(symbol, 0.5 * up))
        return changed


def run() -> list[Result]:
    """The row `simulator.callback`, of bars per second of ours, and `.verdict.window` and `.history`, of seconds."""
    return [_callback(), *_verdict()]


def _callback() -> Result:
    bars = year()
    market = market_of(bars)
    columns = ("Open", "High", "Low", "Close")
    seconds: dict[str, list[float]] = {"ours": [], "peer": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bars.npz"
        close = market.close[:, 0]
        arrays: dict[str, Any] = {name: bars["cents"][:, column] / 100.0 for column, name in enumerate(columns)}
        arrays |= {"fast": mean_of(close, FAST), "slow": mean_of(close, SLOW)}
        np.savez(path, time=bars["ts_ms"], Volume=market.volume[:, 0], **arrays)
        instructions = {"path": str(path), "cash": CASH, "fee": FEE, "lot": LOT}
        with Peer("simulator.callback", PEER, instructions) as peer:
            for repetition in range(REPETITIONS + 1):
                taken, fills, equity = _ours(market)
                told = peer.once()
                if fills != told["fills"] or abs(equity - told["equity"]) >= 0.005:
                    raise RuntimeError(
                        f"simulator.callback: ours has {fills} fills and {equity:.4f} at the end, backtesting.py "
                        f"{told['fills']:.0f} and {told['equity']:.4f}; they must agree before they are timed."
                    )
                if repetition > 0:  # the first run warms up
                    seconds["ours"].append(taken)
                    seconds["peer"].append(told["seconds"])
    ours, theirs = (len(market) / statistics.median(seconds[name]) for name in ("ours", "peer"))
    return Result(
        name="simulator.callback", value=ours, unit="bars/s", against=f"backtesting.py 0.6.6: {theirs:,.3g}",
        ratio=ours / theirs, target=TARGET, met=ours / theirs >= TARGET,
    )  # fmt: skip


def _ours(market: Market) -> tuple[float, int, float]:
    """Seconds of a run, its fills and its final equity."""
    venue, window = Venue(rules={"X": SymbolRules(lot=LOT)}), Window(0, len(market) - 1)
    start = time.perf_counter()
    result = run_backtest(market, Cross(), window, CASH, Costs(taker_fee=FEE), venue=venue)
    taken = time.perf_counter() - start
    return taken, len(result.fills), float(result.equity[-1])


def _verdict() -> list[Result]:
    market = generate(SyntheticConfig(bars=VERDICT_BARS, seed=3, symbols=("A", "B"), timeframe="1h"))
    window = Window(VERDICT_BARS - 1 - 24 * VERDICT_DAYS, VERDICT_BARS - 1)
    rows = []
    for number in range(2):  # the first time warms up
        own, recorded = market.without_indicators(), RecordedStrategy(Crosses())
        start = time.perf_counter()
        run_backtest(own, recorded, window)
        backtest = time.perf_counter() - start
        for name, seconds in (("window", -1.0), ("history", float("inf"))):
            check = LookaheadCheck(lambda: Crosses, own, window, recorded.decided, {}, first=121, seconds=seconds)
            start = time.perf_counter()
            verdict = check.verdict()
            taken = time.perf_counter() - start
            if verdict.status != "clean":
                raise RuntimeError(f"simulator.callback.verdict: {verdict.sentence()}")
            ratio = taken / backtest
            if number:
                rows.append(
                    Result(
                        name=f"simulator.callback.verdict.{name}", value=taken, unit="s",
                        against=f"the backtest itself: {backtest:.3g}, {verdict.cuts} cuts", ratio=ratio,
                        target=f"<= {VERDICT_TARGETS[name]:g}", met=ratio <= VERDICT_TARGETS[name],
                    )
                )  # fmt: skip
    return rows
