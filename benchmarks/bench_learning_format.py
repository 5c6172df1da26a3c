"""Stage 1 alone, from answers that are mostly invalid: `make bench ONLY=learning.format` (E1 of docs/experiments.md).

A small nano that imitated too briefly to speak the format (80 steps) is trained by stage 1 with K = 8, on five seeds of
market, warm start and training. Stage 1 pays the manager for the format, a sub-agent for the format and its expert
score. What is reported of each role is the mean reward of its calls on windows not seen before, in the first step and
over the last ten, and the rise between them with Student's interval over the seeds. The manager's is its share of valid
answers: that is what stage 1 pays it, also in a step that it sits out since 95 % are valid, for which no reward is on
record. `learning.format.plateau` is the rise from the ten steps before those to the last ten, the mean of the roles.

It takes some seven minutes of one core, goes on where it was interrupted (`runs/learning_format/`) and runs only when
it is named.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch

from backend.runs.requests import TrainRequest
from backend.runs.train import train_team
from backend.statistics.seed_grid import grid_interval
from benchmarks.run import TREND_MARKET, Result
from cryptosentinel.agents.registry import MANAGER, ROLES
from simulator.arrays import FloatArray
from simulator.errors import RunFailed

BY_NAME_ONLY = True
SEEDS = (71, 72, 73, 74, 75)  # nothing was tuned on them
STEPS, LAST = 40, 10
FOLDER = Path("runs/learning_format")
SETTINGS = (
    "market.bars=2400", "market.coins=2", "nano.hidden_size=64", "nano.layers=2", "nano.decisions=800",
    "nano.steps=80", "nano.batch_tokens=1024", "nano.learning_rate=6e-3", "training.queries_per_step=8",
    "training.rollouts_per_query=8", f"training.stage1_steps={STEPS + 1}", f"training.stage1_max_steps={STEPS + 1}",
    "training.stage2_steps=0", f"training.validation_every={STEPS + 1}", "training.validation_queries=8",
    "training.shards=1",
)  # fmt: skip


def run() -> list[Result]:
    """The rows `learning.format.*`."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context) as pool:
        rewards = np.array(list(pool.map(rewards_of, SEEDS)))  # (seeds, roles, steps)
    first, last = rewards[..., 0], rewards[..., -LAST:].mean(axis=2)
    rows = [_row(f"learning.format.{role}", first[:, place], last[:, place]) for place, role in enumerate(ROLES)]
    before = rewards[..., -2 * LAST : -LAST].mean(axis=2)
    plateau = _row("learning.format.plateau", before.mean(axis=1), last.mean(axis=1))
    return [*rows, {**plateau, "target": "reported", "met": True}]


def _row(name: str, before: FloatArray, after: FloatArray) -> Result:
    """The rise of a reward, (seeds,) each."""
    rise = grid_interval((after - before)[:, None], nested=False)
    return Result(
        name=name,
        value=rise.mean,
        unit="of the reward",
        against=f"from {before.mean():.3f} to {after.mean():.3f}, {len(before)} seeds; 95 % interval of the rise "
        f"{rise.low:+.3f} to {rise.high:+.3f}; by seed " + ", ".join(f"{one:+.3f}" for one in after - before),
        ratio=None,
        target="interval > 0",
        met=rise.low > 0.0,
    )


def rewards_of(seed: int) -> list[list[float]]:
    """The mean reward of each role in each step, (roles, steps)."""
    torch.set_num_threads(1)
    lines = _metrics(FOLDER / f"seed-{seed}", seed)
    return [[_paid(lines[step], role) for step in range(1, STEPS + 1)] for role in ROLES]


def _paid(line: Mapping[str, float | None], role: str) -> float:
    name = f"{role}/valid" if role == MANAGER.key else f"{role}/reward/mean"
    value = line.get(name)
    if value is None:
        raise RuntimeError(f"step {line['step']} has no {name}: the role had no call to be paid for")
    return value


def _metrics(folder: Path, seed: int) -> dict[int, dict[str, float | None]]:
    """The metrics of the training of a seed by step; it is made, or goes on, if it has not ended."""
    runs = folder / "runs"
    lines = _lines(runs)
    if STEPS not in lines:
        seeds = [f"{section}.seed={seed}" for section in ("market", "training", "nano")]
        begun = sorted(path.name for path in runs.glob("train-*"))
        new = TrainRequest(config=str(TREND_MARKET), overrides=(*SETTINGS, *seeds))
        try:
            train_team(TrainRequest(resume=begun[-1]) if begun else new, store=folder / "store", runs=runs)
        except RunFailed as shut:  # the gate of the stage, in the step after those that count
            print(f"seed {seed}: {shut}", file=sys.stderr)
        lines = _lines(runs)
    return lines


def _lines(runs: Path) -> dict[int, dict[str, float | None]]:
    """The metrics of the newest run in a folder, by step."""
    files = sorted(runs.glob("train-*/metrics.jsonl"))
    lines = [json.loads(line) for line in files[-1].read_text().splitlines()] if files else []
    return {int(line["step"]): line for line in lines}
