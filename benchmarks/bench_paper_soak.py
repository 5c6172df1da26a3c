"""A month of 1-minute bars on paper, over a bad network, killed again and again; beside it the same month undisturbed.

`python -m benchmarks.bench_paper_soak [DAYS [KILLS [DAYS KILLS]]]`. Each part runs in a process of its own, and the
kills are SIGKILL at random moments. The faults of a moment depend on the seed and the moment only, so the session that
is killed and the one that is not see the same, but for what a kill itself changes; those bars are counted.

The month has whole bars. Some days more, with kills closer together, have the trades and the books inside the bars as a
feed of an exchange does; the second two numbers are theirs.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import random
import re
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from backend.builders.loaded_team import scripted_team
from backend.builders.market import Account, limits_of
from backend.config.load import config_from_dict
from backend.config.schema import Config
from backend.paper.journal import Journal, entries_in_portions, entries_of, history_to_json
from backend.paper.parity import check_parity
from backend.paper.records.stored import newest_entries
from backend.paper.sessions import SessionParts, play_session
from backend.paper.snapshots import shortening
from backend.runs.requests import Observer, RunStart
from backend.store import Store
from backend.store.records import JournalRecord, RunRecord
from benchmarks.run import Result, table
from simulator.exchange.costs import Costs
from simulator.exchange.venue import Venue
from simulator.live.bar_assembly import LiveBar
from simulator.live.broker import SimulatedBroker
from simulator.live.recorded_feed import RecordedFeed
from simulator.market.growing import part_of
from simulator.market.market import Market
from simulator.market.timeframes import MINUTE_MS, inside_timeframe
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.mock_binance.faults import BAD_NETWORK
from tests.mock_binance.faulty_feed import FaultyFeed
from tests.mock_binance.traded_feed import TradedFeed

BY_NAME_ONLY = True

DAYS, KILLS, HISTORY = 30, 200, 500
TRADED_DAYS, TRADED_KILLS = 5, 100
RUN, SEED = "paper-soak", 7


@dataclass(frozen=True)
class Scene:
    """What a soak plays: whether its bars have trades and books inside, after how many bars it decides, its costs, and
    what else differs from the settings as they are."""

    trades: bool
    decide_every: int
    costs: Costs
    settings: Mapping[str, Mapping[str, float]]

    @property
    def account(self) -> Account:
        """That of the session."""
        return Account(10_000.0, self.costs, 1.0, Venue())


MONTH = Scene(False, 60, Costs(latency_ms=250), {})
# Orders come when a third of the bar is over, and are larger than what is traded then: they wait for the seconds that
# follow, and pay for the levels of the book.
WITH_TRADES = Scene(True, 15, Costs(impact=1.0, participation=0.2, latency_ms=250), {"costs": {"thinking_time": 20.0}})


@dataclass(frozen=True)
class Soak:
    """What a soak came to. `unequal` are bars whose inputs were the undisturbed session's and whose books were not, up
    to the first bar with other inputs; `other_inputs` are bars with other inputs. `slope` is the growth of memory in
    bytes a bar of the undisturbed process after its first tenth, with the error of its 95 % interval."""

    bars: int
    decisions: int
    fills: int
    kills: int
    bars_equal: int
    unequal: int
    other_inputs: int
    same_end: bool
    differences: tuple[str, ...]
    broken: tuple[str, ...]
    traded: float
    slope: float
    slope_error: float
    seconds: float


class _Progress(Observer):
    """Puts the number of bars into memory that the parent reads, and notes the memory of the process."""

    def __init__(self, shared: mmap.mmap, memory: list[tuple[int, int]]) -> None:
        self._shared, self._memory = shared, memory

    def started(self, start: RunStart) -> None:
        """Nothing."""

    def progress(self, phase: str, done: int, total: int) -> None:
        """Bars so far."""
        self._shared[:8] = struct.pack("q", done)
        if done % 100 == 0:
            found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
            self._memory.append((done, 1024 * int(found[1]) if found else 0))


def run(
    days: float = DAYS, kills: int = KILLS, traded_days: float = TRADED_DAYS, traded_kills: int = TRADED_KILLS
) -> list[Result]:
    """Both soaks as rows; one of no days is left out."""
    rows: list[Result] = []
    for name, scene, length, struck in (
        ("paper.soak", MONTH, days, kills),
        ("paper.soak.trades", WITH_TRADES, traded_days, traded_kills),
    ):
        if length:
            with tempfile.TemporaryDirectory() as folder:
                rows += _rows(name, soak(Path(folder), round(length * 1440), struck, scene))
    return rows


def _rows(soak_name: str, made: Soak) -> list[Result]:
    size = f"{made.bars} bars of 1m, {made.decisions} decisions, {made.fills} fills, {made.kills} SIGKILLs"
    if made.traded:
        size += f", trades in {made.traded:.0%} of the bars"
    flat = abs(made.slope) <= made.slope_error or made.slope < 0.0

    def row(name: str, value: float, unit: str, against: str, met: bool) -> Result:
        return Result(
            name=f"{soak_name}.{name}", value=value, unit=unit, against=against, ratio=None, target="none", met=met
        )

    for line in (*made.differences[:5], *made.broken[:5]):
        print(line)
    rows = [
        row("parity", len(made.differences), f"differences, {size}", "the backtest", not made.differences),
        row("unequal", made.unequal, "bars with other books", "the undisturbed session", made.unequal == 0),
        row("inputs", made.other_inputs, "bars with other inputs", "the undisturbed session", True),
        row("invariants", len(made.broken), "broken", "the simulator", not made.broken),
        row("time", made.seconds, "s in all", "1200 s", made.seconds <= 1200.0),
    ]
    if not math.isinf(made.slope_error):
        rows.append(row("memory", made.slope, f"bytes a bar, +- {made.slope_error:.1f}", "0", flat))
    return rows


def soak(folder: Path, bars: int, kills: int, scene: Scene = MONTH) -> Soak:
    """Trade `bars` bars twice, once with `kills` kills, and compare."""
    begun = time.monotonic()
    market = _market(bars)
    _warm(market, scene)
    shared, beside = mmap.mmap(-1, 8), mmap.mmap(-1, 8)
    undisturbed, disturbed = folder / "undisturbed", folder / "disturbed"
    other = _child(lambda: _session(market, undisturbed, beside, scene))
    draw = random.Random(SEED)
    places = sorted(draw.sample(range(1, bars - 1), kills))
    killed = 0
    for place in places:
        child = _child(lambda: _session(market, disturbed, shared, scene))
        while struct.unpack("q", shared[:8])[0] < place and not _over(child):
            time.sleep(0.0005)
        time.sleep(draw.uniform(0.0, 0.02))
        if _over(child):
            break
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        killed += 1
    _finished(_child(lambda: _session(market, disturbed, shared, scene)))
    _finished(other)
    _finished(_child(lambda: _judge(folder, scene)))
    found = json.loads((folder / "found.json").read_text())
    slope, error = slope_of(json.loads((undisturbed / "memory.json").read_text()))
    return Soak(
        **{**found, "differences": tuple(found["differences"]), "broken": tuple(found["broken"])}, kills=killed,
        slope=slope, slope_error=error, seconds=time.monotonic() - begun,
    )  # fmt: skip


def slope_of(points: list[tuple[int, int]]) -> tuple[float, float]:
    """Bytes a bar and half of the 95 % interval, of the points after the first tenth. Memory has steps and so its
    errors hang together: the interval is that of means of ten stretches."""
    kept = np.array(points[len(points) // 10 :], float)
    stretches = [part.mean(axis=0) for part in np.array_split(kept, 10) if len(part)]
    if len(stretches) < 4:
        return 0.0, math.inf
    bars, memory = np.array(stretches).T
    centred = bars - bars.mean()
    slope = float((centred * memory).sum() / (centred**2).sum())
    rest = memory - memory.mean() - slope * centred
    return slope, 2.31 * math.sqrt(float((rest**2).sum()) / (len(bars) - 2) / float((centred**2).sum()))


def books(entry: JournalRecord) -> tuple[Any, Any]:
    """What went into a bar, and what came out."""
    data = entry.document
    return data["bar"], (data["happened"], data["account"], data.get("requests"))


def _market(bars: int) -> Market:
    made = generate(
        SyntheticConfig(bars=bars + HISTORY, seed=3, symbols=("AAAUSDT", "BBBUSDT"), timeframe="1m", edge=True)
    )
    return part_of(made, 0, len(made), {"AAAUSDT": "perpetual", "BBBUSDT": "spot"})


def _config(scene: Scene) -> Config:
    return config_from_dict(dict(scene.settings), "the soak")


def _warm(market: Market, scene: Scene) -> None:
    """Compile the kernel before the first fork."""
    history, account = part_of(market, 0, HISTORY, market.kinds), scene.account
    inside = inside_timeframe(market.timeframe) if scene.trades else ""
    broker = SimulatedBroker(history, account.cash, account.costs, account.max_leverage, account.venue, inside)
    broker.extend(LiveBar(broker.close, broker.close + MINUTE_MS, {}, {}, ()))


def _session(market: Market, folder: Path, shared: mmap.mmap, scene: Scene) -> None:
    """Begin the session in `folder`, or go on with it, to its end."""
    folder.mkdir(parents=True, exist_ok=True)
    config, account = _config(scene), scene.account
    history = part_of(market, 0, HISTORY, market.kinds)
    begins = int(history.open_time[-1]) + MINUTE_MS
    start = {
        "history": history_to_json(history), "decide_every": scene.decide_every, "cash": account.cash,
        "last": int(market.open_time[-1]), "keeps": shortening(500, HISTORY, market.timeframe).to_json(),
        "inside": inside_timeframe(market.timeframe) if scene.trades else "",
    }  # fmt: skip
    memory: list[tuple[int, int]] = []
    with Store.open(str(folder / "store")) as store:
        if not any(record.run == RUN for record in store.runs()):
            store.add_run(RunRecord(RUN, "paper", SEED, "soak", 0, {}))
        if not store.journal_between(RUN, 0, 1):
            Journal(store, RUN).write("start", begins, start)
        snapshot, tail = newest_entries(store, RUN)
        written = tail[-1].ordinal + 1 if tail else snapshot.after + 1 if snapshot else 1
        if tail and tail[-1].kind == "end":
            return
        inner = TradedFeed if scene.trades else RecordedFeed
        feed = FaultyFeed(inner(market, account.venue, begins), BAD_NETWORK)
        parts = SessionParts(
            store, store.run(RUN), folder, config, scripted_team(config.team), account, feed,
            Journal(store, RUN, written), _Progress(shared, memory),
        )  # fmt: skip
        play_session(parts, tail, start, False, snapshot)
    (folder / "memory.json").write_text(json.dumps(memory))


def _judge(folder: Path, scene: Scene) -> None:
    """Compare the two sessions, and the disturbed one with the backtest."""
    config = _config(scene)
    with Store.open(str(folder / "undisturbed" / "store")) as store:
        expected = [books(entry) for entry in entries_in_portions(store, RUN) if entry.kind == "bar"]
    with Store.open(str(folder / "disturbed" / "store")) as store:
        entries = entries_of(store, RUN)
        came = [books(entry) for entry in entries if entry.kind == "bar"]
        team = scripted_team(config.team)
        parity = check_parity(entries, team.team, team.engine, scene.account, limits_of(config.guard), SEED)
    other = [place for place, (one, its) in enumerate(zip(came, expected, strict=True)) if one[0] != its[0]]
    until = other[0] if other else len(came)
    equal = sum(one[1] == its[1] for one, its in zip(came, expected, strict=True))
    unequal = sum(one[1] != its[1] for one, its in zip(came[:until], expected[:until], strict=True))
    heard = sum(len(bar.get("inside", {})) for bar, _ in came)
    there = sum(len(bar["candles"]) for bar, _ in came)
    found = {
        "traded": heard / there,
        "bars": len(came), "decisions": parity.decisions, "fills": parity.fills, "bars_equal": equal,
        "unequal": unequal, "other_inputs": len(other), "same_end": came[-1][1] == expected[-1][1],
        "differences": parity.differences, "broken": broken_invariants(entries),
    }  # fmt: skip
    (folder / "found.json").write_text(json.dumps(found))


def broken_invariants(entries: list[JournalRecord]) -> list[str]:
    """Closes at which the books do not add up: equity is cash and what is held at its price, quantities are sums of
    fills, cash is the starting cash and what every fill and payment took."""
    broken, cash = [], float(entries[0].document["cash"])
    held: dict[str, float] = {}
    price: dict[str, float] = {}
    for entry in entries:
        if entry.kind != "bar":
            continue
        price |= {symbol: values[3] for symbol, values in entry.document["bar"]["candles"].items()}
        for one in entry.document["happened"]["ledger"]:
            if one["kind_of_record"] == "Fill":
                held[one["symbol"]] = held.get(one["symbol"], 0.0) + one["quantity"]
                cash -= one["quantity"] * one["price"] + one["fee"]
            else:
                cash -= one["amount"]
        account = entry.document["account"]
        worth = account["cash"] + sum(quantity * price[symbol] for symbol, quantity in account["positions"].items())
        right = math.isclose(account["equity"], worth, rel_tol=1e-9)
        right &= math.isclose(account["cash"], cash, rel_tol=1e-9, abs_tol=1e-6)
        right &= all(abs(quantity - held.get(symbol, 0.0)) < 1e-9 for symbol, quantity in account["positions"].items())
        if not right:
            broken.append(f"bar {entry.document['bar_index']}: {account}, by its records cash {cash} and {held}")
    return broken


def _child(work: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException:  # noqa: BLE001  # it ends here, whatever it was
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _over(child: int) -> bool:
    """Whether a child has ended; it is not reaped."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _finished(child: int) -> None:
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"a process of the soak ended with status {status}")


if __name__ == "__main__":
    given = [float(one) for one in sys.argv[1:]]
    asked = [*given, *(DAYS, KILLS, TRADED_DAYS, TRADED_KILLS)[len(given) :]]
    Console().print(table(run(asked[0], int(asked[1]), asked[2], int(asked[3]))))
