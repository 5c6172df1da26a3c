"""What the store costs a training: its share of a step of the nano team, in the folder of a run, all writes included.

The team is a small nano after a short warm start, so that its conversations are those of a training; the step has the
demo's number of windows and rollouts. A smaller model makes the step shorter and the share larger.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from backend.builders.market import load_market
from backend.config.load import load_config
from backend.config.schema import Config
from backend.store.records import RunRecord
from backend.store.store import Store
from backend.training.components import TrainingParts
from backend.training.in_process import local_learners, local_trainer
from backend.training.rl_job import training_parts
from backend.training.start import begin
from backend.training.trainer import Progress
from benchmarks.run import Result

STEPS = 5
LIMIT = 0.04
SETTINGS = (
    "training.queries_per_step=16", "training.rollouts_per_query=8", "training.stage1_steps=0",
    "training.stage1_max_steps=0", f"training.stage2_steps={STEPS + 1}", "training.validation_every=1000",
    "training.validation_queries=4", "training.scenario_paths=16",
)  # fmt: skip


class _Timed:
    """A store that adds up the time spent in it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return found(*arguments, **named)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


def run() -> list[Result]:
    """The row `store.share`; the value is the median share over the steps after the first."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        shares = _shares()
    finally:
        torch.set_num_threads(threads)
    share = statistics.median(shares)
    return [
        {
            "name": "store.share",
            "value": share,
            "unit": "of a step",
            "against": "a training step of a small nano team, 16 windows x 8 rollouts, one thread",
            "ratio": share,
            "target": f"<= {LIMIT}",
            "met": share <= LIMIT,
        }
    ]


def _shares() -> list[float]:
    shares: list[float] = []
    with tempfile.TemporaryDirectory() as scratch, Store.open(Path(scratch) / "store") as store:
        timed: Any = _Timed(store)
        last = time.perf_counter()

        def stepped(progress: Progress) -> None:
            nonlocal last
            now = time.perf_counter()
            if progress.step > 1:  # the first step warms up, and had a validation before it
                shares.append(timed.seconds / (now - last))
            last, timed.seconds = now, 0.0

        train(load_config("quick", SETTINGS), store, timed, Path(scratch) / "run", stepped).recorder.close()
    return shares


def train(
    config: Config, store: Store, recorded: Any, folder: Path, stepped: Callable[[Progress], None] | None = None
) -> TrainingParts:
    """Train from the warm start on in `folder`, in stage 2, with all records going to `recorded`, which is `store` or
    stands before it; the caller closes the recorder."""
    market = load_market(config.market, config.costs)
    silent: Callable[[str, int, int], None] = lambda what, done, total: None  # noqa: E731  # a callback of no interest
    folder.mkdir()
    store.add_run(RunRecord("bench", "train", 1, market.content_hash, 1, {}))
    base = begin(config, market, folder, silent)
    parts = training_parts(config, market, recorded, "bench", folder, base, folder)
    trainer = local_trainer(parts, local_learners(parts))
    trainer.state.stage = 2
    trainer.run(stepped)
    return parts
