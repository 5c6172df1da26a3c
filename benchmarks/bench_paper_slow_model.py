"""A model that thinks for longer than a bar, on 1-minute bars in real time: late decisions are late in the books too.

`CRYPTOSENTINEL_SMOLLM2=FOLDER python -m benchmarks.run paper.slow_model`. SmolLM2 decides on the CPU on the bars of a
mock exchange, at every close that it can, and its thinking time is charged. It is the model as it was published, and a
manager without sub-agents: so it says a valid decision at once, and now and then one that trades, which is what a fill
that is late takes. `CRYPTOSENTINEL_SMOLLM2_TEAM` names a team that was fine-tuned on it instead (`cryptosentinel sft
--config smollm2`). The table shows each decision; the rows hold what must be so.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from backend.paper.journal import entries_of, history_from_json
from backend.paper.sessions import PaperRequest, paper_parity, paper_status, run_paper
from backend.paper.switch import set_stop
from backend.runs.requests import Observer, RunStart
from backend.store.records import JournalRecord
from backend.store.store import Store
from benchmarks.run import Result
from simulator.live.clock import SimulatedClock
from simulator.live.exchange_feed.exchange_feed import ExchangeFeed
from simulator.live.mock_exchange.host import serving_exchange
from simulator.market.growing import part_of
from simulator.market.market import Market
from simulator.market.timeframes import MINUTE_MS, SECOND_MS
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate

BY_NAME_ONLY = True
MODEL, TEAM = "CRYPTOSENTINEL_SMOLLM2", "CRYPTOSENTINEL_SMOLLM2_TEAM"
RUN, SEED, HISTORY, HOURS, DECISIONS = "paper-slow", 7, 200, 3, 5
COINS = ("BTCUSDT", "ETHUSDT", "SOLUSDT")  # decided on one after the other


@dataclass(frozen=True)
class TimedDecision:
    """A decision in the books: the bar at whose close it was due, that close (ms), how long after it its orders were
    sent (ms, the largest), how many orders it has, and of each fill the bar and how late its order was (ms). `early`
    are fills in a bar that was over when the order was sent."""

    bar: int
    close: int
    late: int
    orders: int
    filled: tuple[tuple[int, int], ...]
    early: int


def timed_decisions(entries: Sequence[JournalRecord]) -> list[TimedDecision]:
    """What the journal says of each decision and its fills.

    A fill that an order stands behind belongs to the newest order for its symbol: a newer one replaces those that wait.
    """
    history = history_from_json(entries[0].document["history"])
    interval, first = history.interval, int(history.open_time[0])
    sent: dict[str, list[tuple[int, int, bool]]] = {}  # by symbol: bar, late, whether it is of a decision
    decided: list[tuple[int, int, int]] = []  # bar, late, orders
    for entry in entries[1:]:
        requests = [] if entry.document.get("dropped") else entry.document.get("requests", [])
        orders = [(str(one["symbol"]), int(late)) for one, late in requests if one["kind_of_record"] == "Order"]
        decides = entry.kind == "decision"
        bar = int(entry.document["bar"] if decides else entry.document.get("bar_index", 0))
        for symbol, late in orders:
            sent.setdefault(symbol, []).append((bar, late, decides))
        if decides:
            thought = max(int(one["thinking_ms"]) for one in entry.document["decisions"])
            decided.append((bar, max([thought, *(late for _, late in orders)]), len(orders)))
    filled: dict[int, list[tuple[int, int]]] = {}
    early: dict[int, int] = {}
    for entry in entries:
        for fill in entry.document["happened"]["ledger"] if entry.kind == "bar" else ():
            if fill["kind_of_record"] != "Fill" or fill["reason"] != "order":
                continue
            at = int(fill["bar"])
            bar, late, decides = [one for one in sent[fill["symbol"]] if one[0] < at][-1]
            if decides:
                filled.setdefault(bar, []).append((at, late))
                early[bar] = early.get(bar, 0) + ((at + 1) * interval <= (bar + 1) * interval + late)
    return [
        TimedDecision(bar, first + (bar + 1) * interval, late, count, tuple(filled.get(bar, ())), early.get(bar, 0))
        for bar, late, count in decided
    ]


def lively_minutes(bars: int, symbols: tuple[str, ...]) -> Market:
    """Spot bars of a minute that move as bars of four hours do: what moves less is not worth its costs, and nobody
    trades."""
    market = generate(SyntheticConfig(bars=bars, seed=3, symbols=symbols, edge=True))
    market = part_of(market, 0, len(market), dict.fromkeys(symbols, "spot"))
    times = int(market.open_time[0]) + MINUTE_MS * np.arange(bars, dtype=np.int64)
    return replace(market, timeframe="1m", open_time=times, funding={})


class _AfterDecisions(Observer):
    """Stops a session that has made `decisions` decisions."""

    def __init__(self, store: Store, decisions: int) -> None:
        self._store, self._decisions = store, decisions
        self._folder = Path()

    def started(self, start: RunStart) -> None:
        """See `Observer`."""
        self._folder = start.folder

    def progress(self, phase: str, done: int, total: int) -> None:
        """See `Observer`."""
        if paper_status(RUN, self._store)[1].decisions >= self._decisions:
            set_stop(self._folder)


def run() -> list[Result]:
    """Seconds that decisions were late, those that were missed, and fills before their order can have arrived."""
    model = os.environ.get(MODEL)
    if not model:
        raise SystemExit(f"{MODEL} names the folder of the model")
    market = lively_minutes(HISTORY + 60 * HOURS, COINS)
    clock = SimulatedClock(int(market.open_time[HISTORY]) + SECOND_MS, 1.0)
    trained = os.environ.get(TEAM, "")
    prompted = (f"engine.model={model}", "engine.constrained=true", "team.roles=")
    with tempfile.TemporaryDirectory() as folder, Store.open("mem://") as store:
        with serving_exchange(market, clock) as exchange:
            request = PaperRequest(
                team=trained or "model", exchange="binance", url=exchange.url, timeframe="1m",
                symbols=tuple(f"{coin.removesuffix('USDT')}/USDT" for coin in COINS), decide_every=1, session=RUN,
                seed=SEED,
                overrides=(
                    f"paper.history_bars={HISTORY - 5}", "paper.decision_timeout=3600", "costs.thinking_time=measured",
                    f"training.base_model={model}", *(() if trained else prompted),
                ),
            )  # fmt: skip
            run_paper(
                request, store, Path(folder), _AfterDecisions(store, DECISIONS),
                lambda settings: ExchangeFeed(settings, clock),
            )  # fmt: skip
        entries = entries_of(store, RUN)
        parity = paper_parity(RUN, store)
    decisions = timed_decisions(entries)
    for one in decisions:
        fills = ", ".join(f"{late / 1e3:.1f} s: bar + {bar - one.bar}" for bar, late in one.filled) or "none"
        print(f"close of bar {one.bar}: {one.late / 1e3:.1f} s, {one.orders} orders; fills: {fills}")
    missed = sum(bool(entry.document.get("missed")) for entry in entries)
    size = f"{len(decisions)} decisions, {sum(one.orders for one in decisions)} orders"
    filled, early = sum(len(one.filled) for one in decisions), sum(one.early for one in decisions)
    late = [one.late for one in decisions]

    def row(name: str, value: float, unit: str, met: bool) -> Result:
        return Result(name=f"paper.slow_model.{name}", value=value, unit=unit, against="", ratio=None, target="none",
                      met=met)  # fmt: skip

    return [
        row("late", max(late) / 1e3, f"s after the close at most, {min(late) / 1e3:.1f} at least, {size}", True),
        row("later", sum(one >= MINUTE_MS for one in late), "decisions that were later than a bar", True),
        row("missed", missed, "closes at which the model still thought", True),
        row("fills", filled, "fills of these orders", filled > 0),
        row("early", early, "fills before their order can have arrived", early == 0),
        row("parity", len(parity.differences), "differences from the backtest", not parity.differences),
    ]
