"""What it costs a write that its bytes are noted beside the database before it is acknowledged.

Processor time of the whole process is compared, the engine's threads included: the same writes to two stores in turn,
of which one notes nothing.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

from backend.store import DecisionRecord, Store
from backend.store.integrity.acknowledged import Acknowledged
from benchmarks.bench_store_write import write_step
from benchmarks.run import Result

ROUNDS = 60
SMALL_WRITES = 40  # of a round, each a request of its own
STEPS = 8
LIMIT = 1.10


def run() -> list[Result]:
    """The rows `store.integrity.small`, a decision of 200 bytes alone, and `store.integrity.step`, what a training step
    writes: seconds of processor time, and that in relation to those without a note."""
    with tempfile.TemporaryDirectory() as folder:
        with patch.object(Acknowledged, "note", _nothing):
            plain = Store.open(Path(folder, "plain"))
        with plain, Store.open(Path(folder, "noted")) as noted:
            return [
                _row("store.integrity.small", "s a write", SMALL_WRITES, _compared(noted, plain, _small, ROUNDS)),
                _row("store.integrity.step", "s a training step", 1, _compared(noted, plain, write_step, STEPS)),
            ]


def _nothing(acknowledged: Acknowledged, *_: bytes) -> None:
    """Instead of a note."""


def _small(store: Store, turn: int) -> float:
    for number in range(SMALL_WRITES):
        store.add_decisions([DecisionRecord("run", "backtest", turn, number, {"text": "x" * 200})])
    return 0.0


def _compared(
    noted: Store, plain: Store, write: Callable[[Store, int], float], rounds: int
) -> tuple[float, float, float]:
    """Median processor seconds of a round on each of the two, and the median of their ratios in one turn: what else the
    machine does changes from turn to turn."""
    seconds: dict[Store, list[float]] = {noted: [], plain: []}
    for turn in range(rounds):
        for store in (noted, plain) if turn % 2 else (plain, noted):
            began = time.process_time()
            write(store, turn)
            seconds[store].append(time.process_time() - began)
    ratios = [one / other for one, other in zip(seconds[noted], seconds[plain], strict=True)]
    return statistics.median(seconds[noted]), statistics.median(seconds[plain]), statistics.median(ratios)


def _row(name: str, unit: str, writes: int, compared: tuple[float, float, float]) -> Result:
    noted, plain, ratio = compared
    return {
        "name": name,
        "value": noted / writes,
        "unit": f"{unit}, processor time",
        "against": f"{plain / writes:.3g} s without a note",
        "ratio": ratio,
        "target": f"<= {LIMIT:.2f}",
        "met": ratio <= LIMIT,
    }
