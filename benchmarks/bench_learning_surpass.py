"""Whether a team learns more than its teacher knows, where each role sees what no other does:
`make bench ONLY=learning.surpass`.

The preset `demo` with twice its steps and validations as the seeds were run with, on the markets of its
`SEEDS`, which nothing else trains on. Each seed has a market, a warm start and a training of its own. Everybody
decides once in each of the held-out states with the likeliest answer, and is scored over common scenarios
(`held_out_value`). Rows: the trained team less its teacher, less that teacher without its lots (`scripted`), less the
warm start, and less leaving positions as they are; the ratio is the share of what the evidence allows above leaving
them. Intervals are Student's over the means of the seeds.
`twin` is the same training on the twin without edge of the first seed's market, less leaving positions as they are:
there is nothing to know there, so it must not be above 0. Its interval is over stretches of its history.

A process a seed, as many at a time as there are cores. What was measured is kept in `runs/learning/surpass/`, with a
list of the configurations that these seeds were run with: a headline is worth what it says only where there is one. It
goes on where it was interrupted, also in the middle of a training, and runs only when it is named.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backend.builders.market import load_market
from backend.builders.teams import load_team
from backend.config.load import load_config
from backend.config.schema import SCRIPTED, Config
from backend.evaluation.held_out_value import (
    HOLDING,
    TEACHER,
    TRAINED_GREEDY,
    WARM_STARTED_GREEDY,
    greedy_teams,
    held_out_value,
)
from backend.statistics.mean_interval import student_quantile
from backend.store.run_record import recorded_run
from backend.store.store import Store
from backend.training.rl_job import run_rl
from backend.training.rollout.collect import rollout_settings
from backend.training.rollout.expected_value import evidence_values
from benchmarks.bench_learning_private import held_out_states
from benchmarks.run import Result
from simulator.files import write_whole

BY_NAME_ONLY = True  # a warm start and a training for each seed
FOLDER = Path("runs/learning/surpass")
RUNS = "configurations.json"  # that the seeds were run with
EVIDENCE_STATES = 200
SEEDS = (9201, 9202, 9203, 9204, 9205)  # held out: nothing is tuned on their markets
TARGET = 0.15  # of what the evidence allows, above the teacher
AGAINST = {TEACHER: "teacher", SCRIPTED: "scripted", WARM_STARTED_GREEDY: "warm_started", HOLDING: "holding"}


def run() -> list[Result]:
    """The rows `learning.surpass.AGAINST` and `learning.surpass.twin`."""
    times = count_configuration(FOLDER, config_of(SEEDS[0]))
    configs = {f"seed-{seed}": config_of(seed) for seed in SEEDS} | {
        f"twin-{SEEDS[0]}": config_of(SEEDS[0], edge=False)
    }
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=spawned, initializer=_one_thread) as pool:
        *documents, twin = pool.map(measured, configs.values(), [FOLDER / name for name in configs])
    return [*(surpass_row(name, documents, times) for name in AGAINST), twin_row(twin)]


def config_of(seed: int, edge: bool = True) -> Config:
    """The preset's configuration of a seed of the headline, which it may be trained on here; without `edge` that of
    the market's twin."""
    own = [f"{section}.seed={seed}" for section in ("market", "training")]
    settings = [
        "training.stage2_steps=84",  # with 28 some teams still learned
        "training.shards=1",  # each seed has a process of its own
        # As the seeds were run with, where the preset is shorter by now.
        "training.micro_batch_tokens=8192",
        "training.validation_every=14",
        "training.validation_queries=64",
        "evaluation.decisions_per_window=12",
    ]
    return load_config("demo", [*own, *settings, f"market.edge={str(edge).lower()}"])


def count_configuration(folder: Path, config: Config) -> int:
    """Note that the headline's seeds are run with this configuration; with how many different ones they have been."""
    path = folder / RUNS
    folder.mkdir(parents=True, exist_ok=True)
    known: list[dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else []
    if config.to_dict() not in known:
        known.append(config.to_dict())
        write_whole(path, json.dumps(known) + "\n")
    return len(known)


def measured(config: Config, folder: Path) -> dict[str, Any]:
    """Train and measure a seed in a folder of its own; read from its file where this configuration was measured
    before. A training that was cut off goes on from its last step."""
    kept = folder / "measured.json"
    if kept.is_file():
        document: dict[str, Any] = json.loads(kept.read_text())
        if document["config"] == config.to_dict():
            return document
        raise RuntimeError(f"{kept} is of another configuration: move {folder} away")
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    market = load_market(config.market, config.costs)
    name = f"learning-surpass-{folder.name}"
    with (
        Store.open(str(folder / "store")) as store,
        recorded_run(store, name, "train", config.training.seed, market.content_hash, config),
    ):
        state = run_rl(config, market, store, name, folder, _silent, lambda _: None).state
    trained = load_team(str(folder), config.team, base=config.training.base_model)
    begun = load_team(str(folder), config.team, trained=False, base=config.training.base_model)
    value = held_out_value(config, market, greedy_teams(config, trained, begun), _silent)
    settings = rollout_settings(config, 1)
    allowed = [one.all - one.hold for one in evidence_values(held_out_states(config, EVIDENCE_STATES), settings)]
    document = {
        "config": config.to_dict(),
        "value": value,
        "allowed": float(np.mean(allowed)),
        "best_step": state.best_step,
        "steps": state.step,
        "seconds": time.monotonic() - began,
    }
    write_whole(kept, json.dumps(document, indent=1) + "\n")
    print(f"{name}: {state.step} steps, {document['seconds']:.0f} s", flush=True)
    return document


def surpass_row(name: str, documents: Sequence[dict[str, Any]], times: int) -> Result:
    """The trained team less the row `name` of the held-out values, over the seeds."""
    gains = [float(_difference(document, name)["outcome"]) for document in documents]
    mean, low, high = student_interval(gains)
    allowed = float(np.mean([document["allowed"] for document in documents]))
    trained = [document["value"]["rows"][TRAINED_GREEDY] for document in documents]
    questions = np.mean([row["questions"] for row in trained])
    now, later = (np.mean([row[key] or 0.0 for row in trained]) for key in ("traded_now", "traded_later"))
    share = mean / allowed
    return Result(
        name=f"learning.surpass.{AGAINST[name]}",
        value=1000.0 * mean,
        unit="thousandths of the outcome a decision, trained less this, both with their likeliest answers",
        against=f"{name}; 95 % interval {1000 * low:+.1f} to {1000 * high:+.1f}, seeds "
        + ", ".join(f"{1000 * gain:+.1f}" for gain in gains)
        + f"; the evidence allows {1000 * allowed:.1f} above holding; {questions:.1f} questions a decision; it trades "
        f"in {now:.0%} where Trader would send at once, in {later:.0%} where it would wait; configurations that these "
        f"seeds were run with here: {times}",
        ratio=share,
        target=TARGET,
        met=low > 0.0 and share >= TARGET,
    )


def twin_row(document: dict[str, Any]) -> Result:
    """What the team that was trained on a market without edge earns there above leaving positions as they are."""
    difference = _difference(document, HOLDING)
    low, high = difference["outcome_ci95"]
    trained = document["value"]["rows"][TRAINED_GREEDY]
    return Result(
        name="learning.surpass.twin",
        value=1000.0 * difference["outcome"],
        unit="thousandths of the outcome a decision",
        against=f"holding, on the twin without edge; 95 % interval {1000 * low:+.1f} to {1000 * high:+.1f}; it trades "
        f"in {trained['traded']:.0%} of the states",
        ratio=None,
        target="not above 0",
        met=low <= 0.0,
    )


def student_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of independent values, two or more, with Student's 95 % interval."""
    row = np.asarray(values)
    half = student_quantile(len(row) - 1, 0.95) * float(row.std(ddof=1)) / math.sqrt(len(row))
    return float(row.mean()), float(row.mean()) - half, float(row.mean()) + half


def _difference(document: dict[str, Any], name: str) -> dict[str, Any]:
    [difference] = [row for row in document["value"]["differences"] if row["against"] == name]
    return dict(difference)


def _one_thread() -> None:
    """Each process has a core to itself."""
    torch.set_num_threads(1)


def _silent(what: str, done: int, total: int) -> None:
    """Progress of many seeds side by side is a line for each that is done."""
