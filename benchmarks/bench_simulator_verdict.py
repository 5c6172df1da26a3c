"""What the look-ahead verdict of a user's strategy costs, beside the backtest that it ends: two years of hourly bars of
two coins, a decision at every bar of the last 90 days, one thread.

The strategy looks two averages up and submits a target where they cross. Inside the clock: `LookaheadCheck.verdict`,
and `run_backtest` for comparison. Two rows: the window alone, and the whole history.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.bench_simulator_callback import averages
from benchmarks.run import Result
from benchmarks.sma_cross import FAST, SLOW
from simulator.backtest.run import Window, run_backtest
from simulator.checks.verdict import LookaheadCheck, RecordedStrategy
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Target
from simulator.market.market import MarketView
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate

BARS, DAYS = 2 * 8_760, 90
TARGETS = {"window": 25.0, "history": 120.0}  # times the backtest


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
    """The rows `simulator.verdict.window` and `simulator.verdict.history`; the values are seconds."""
    market = generate(SyntheticConfig(bars=BARS, seed=3, symbols=("A", "B"), timeframe="1h"))
    window = Window(BARS - 1 - 24 * DAYS, BARS - 1)
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
                raise RuntimeError(f"simulator.verdict: {verdict.sentence()}")
            ratio = taken / backtest
            if number:
                rows.append(
                    Result(
                        name=f"simulator.verdict.{name}", value=taken, unit="s",
                        against=f"the backtest itself: {backtest:.3g}, {verdict.cuts} cuts", ratio=ratio,
                        target=f"<= {TARGETS[name]:g}", met=ratio <= TARGETS[name],
                    )
                )  # fmt: skip
    return rows
