"""What it costs to score one decision: four orders on 16 scenarios of 18 bars, as training does for every rollout."""

from __future__ import annotations

import statistics
import time

from benchmarks.pace import within
from benchmarks.run import Result
from simulator.backtest.run import BacktestRun, Window
from simulator.backtest.scenarios import simulate_scenarios
from simulator.exchange.orders import Order
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from simulator.synthetic.truth import truth_of

ROUNDS = 200
PATHS, BARS, BAR = 16, 18, 500
LIMIT_MS = 1.0


def run() -> list[Result]:
    """The row `simulator.scenarios`: median milliseconds of a simulation, against its limit."""
    market = generate(SyntheticConfig(bars=600, seed=1))
    paths = truth_of(market).scenarios(market, BAR, PATHS, BARS, seed=1)
    account = BacktestRun(market, Window(BAR, BAR + 1)).account()
    first, second, *_ = market.symbols
    orders = [Order(first, 5.0, delay=bars) for bars in range(3)] + [Order(second, -5.0)]
    simulate_scenarios(paths, account, orders, market.symbols)  # compiles
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        simulate_scenarios(paths, account, orders, market.symbols)
        times.append(1e3 * (time.perf_counter() - began))
    return [within("simulator.scenarios", statistics.median(times), "ms", LIMIT_MS)]
