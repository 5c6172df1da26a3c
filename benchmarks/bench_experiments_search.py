"""How long a search takes: 1,000 parameter sets of `ema_cross` on a year of 1-hour bars, a decision at each.

Inside the clock: the whole use case with the ledger, the probability of overfitting and the last part; not the making
of the market.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from backend.experiments.search import SearchRequest, search_parameters
from benchmarks.pace import within
from benchmarks.run import Result
from simulator.data.archive import write_market
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate

SETS, BARS, MOST_SECONDS = 1_000, 365 * 24, 30.0


def run() -> list[Result]:
    """The row `experiments.search`; its ratio is to the limit of 30 seconds."""
    with tempfile.TemporaryDirectory() as folder:
        market = generate(SyntheticConfig(bars=BARS + 200, seed=1, symbols=("AAAUSDT",), timeframe="1h"))
        write_market(market, Path(folder) / "bars")
        request = SearchRequest(
            strategy="ema_cross", trials=SETS, data=Path(folder) / "bars", timeframe="1h", decide_every=1,
            start="2000-01-01",
        )  # fmt: skip
        start = time.perf_counter()
        search_parameters(request, Path(folder) / "store")
        seconds = time.perf_counter() - start
    return [within("experiments.search", seconds, "s", MOST_SECONDS, f"{SETS:,} sets on {BARS:,} bars")]
