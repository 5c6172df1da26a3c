"""Two limits of size, on one thread.

`simulator.scale.orders`: two years of hourly bars of 15 symbols, 20 orders resting on each, through an `Exchange`
that is stepped a day at a time and given a new order for each that has filled. `simulator.scale.memory`: peak memory
of a process that reads a year of minute bars from Parquet, and runs signals and a strategy that is called at every bar;
nothing has to be compiled in it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.run import Result, at_most
from benchmarks.sma_cross import ONE_THREAD, ROOT, market_of, year
from simulator.data.archive import write_market
from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.orders import Order
from simulator.market.market import Market

REPETITIONS = 5
BARS, SYMBOLS, RESTING = 17_520, 15, 20
MOST_SECONDS = 10.0
MOST_MEGABYTES = 500.0

CHILD = """
import sys
import numpy as np
from simulator.backtest.run import Window, run_backtest
from simulator.data.catalog import Catalog
from simulator.backtest.from_signals import run_signals
from simulator.strategies import Hold
market = Catalog(sys.argv[1]).load(None, "1m")
run_signals(market, np.where(np.arange(len(market)) % 200 < 100, 1.0, 0.0))
run_backtest(market, Hold(), Window(0, len(market) - 1))
# Not ru_maxrss, which begins with the peak of the process that started this one.
print(next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def run() -> list[Result]:
    """The rows `simulator.scale.orders` in seconds and `simulator.scale.memory` in MB, each against its limit."""
    seconds = statistics.median(_orders(seed) for seed in range(REPETITIONS))
    megabytes = _memory()
    return [
        at_most("simulator.scale.orders", seconds, "s", MOST_SECONDS),
        Result(
            name="simulator.scale.memory", value=megabytes, unit="MB", against=f"{MOST_MEGABYTES:g} MB",
            ratio=megabytes / MOST_MEGABYTES, target="<= 1.0", met=megabytes <= MOST_MEGABYTES,
        ),
    ]  # fmt: skip


def _orders(seed: int) -> float:
    rng = np.random.default_rng(seed)
    symbols = tuple(f"C{number:02d}" for number in range(SYMBOLS))
    close = 100.0 * np.exp(np.cumsum(rng.normal(0.0, 0.006, (BARS, SYMBOLS)), axis=0))
    first = np.concatenate([close[:1], close[:-1]])
    high, low = np.maximum(first, close) * 1.002, np.minimum(first, close) * 0.998
    times = np.arange(BARS, dtype=np.int64) * 3_600_000
    flat = np.ones_like(close)
    market = Market(symbols, "1h", times, first, high, low, close, flat * 1e6, flat * 1e-4)
    exchange = Exchange(market, 0, 1e6, Costs(impact=1.0, participation=0.1), 5.0)
    start = time.perf_counter()
    while exchange.index < exchange.stop:
        account = exchange.account()
        waiting = dict.fromkeys(symbols, 0)
        for order in account.pending:
            waiting[order.symbol] += 1
        for symbol in symbols:
            for number in range(waiting[symbol], RESTING):
                side = 1.0 if number % 2 else -1.0
                price = account.mark[symbol] * (1.0 - side * float(rng.uniform(0.01, 0.5)))
                exchange.submit(Order(symbol, side * 10.0, kind="limit", limit=price))
        exchange.step(24)
    return time.perf_counter() - start


def _memory() -> float:
    """Of the second of two processes: the first one may have to compile."""
    with tempfile.TemporaryDirectory() as folder:
        write_market(market_of(year()), Path(folder))
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, "-c", CHILD, folder], cwd=ROOT, env=os.environ | ONE_THREAD, check=True,
                capture_output=True, text=True,
            )  # fmt: skip
    return float(done.stdout)
