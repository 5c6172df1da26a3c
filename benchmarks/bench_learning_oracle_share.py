"""What M-GRPO teaches the team where the truth is known, over several seeds: `make bench ONLY=learning.oracle_share`.

On the synthetic market of the preset `demo`, each seed has a market, a warm start and a training of its own. A trained
team is measured on its market's held-out windows beside the oracle, who knows the hidden regimes but not the noise.
What is reported is the share of the oracle's earnings above flat (which earns nothing) that the team reaches: the sum
of its returns over all windows of all seeds by the sum of the oracle's. The interval is a bootstrap in two levels: of
seeds, and of windows within each, since the windows of one seed share a market and a training.

It takes a while, goes on where it was interrupted (`runs/learning/`) and runs only when it is named.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from backend.builders.loaded_team import LoadedTeam, scripted_team
from backend.builders.market import account_of, limits_of, load_market, split
from backend.builders.teams import load_team
from backend.config.load import config_from_dict, load_config
from backend.config.schema import Config
from backend.evaluation.compare import baselines, play_windows, split_windows
from backend.store.run_record import recorded_run
from backend.store.store import Store
from backend.training.rl_job import run_rl
from backend.training.sft_job import run_sft
from backend.training.start import begin
from benchmarks.run import Result
from cryptosentinel.agents.registry import ROLES
from simulator.market.market import Market

BY_NAME_ONLY = True  # it takes too long for `make bench`
SEEDS = (1, 2, 3, 4, 5)
EVERYBODY = "everybody"
AFTER_SFT = "after_sft"  # everybody learns, and begins as `sft` leaves the warm start
TARGET = 0.6
SAMPLES = 10_000
FOLDER = Path("runs/learning")
Returns = dict[str, list[float]]


def run() -> list[Result]:
    """The rows `learning.oracle_share` (sampled as in training) and `learning.oracle_share.greedy`."""
    [everybody] = cells([EVERYBODY])
    return [
        share_row("learning.oracle_share", everybody, "trained"),
        share_row("learning.oracle_share.greedy", everybody, "trained, greedy"),
    ]


def cells(variants: Sequence[str]) -> list[list[dict[str, Any]]]:
    """What was measured of each seed, for each variant: EVERYBODY, AFTER_SFT, or the one role that learns. As many at
    once as there are cores."""
    pairs = [(seed, variant) for variant in variants for seed in SEEDS]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(make_base, SEEDS))
        found = list(pool.map(measured, *zip(*pairs, strict=True)))
    return [found[first : first + len(SEEDS)] for first in range(0, len(found), len(SEEDS))]


def config_of(seed: int, variant: str) -> Config:
    """The configuration of a cell; who does not learn is frozen."""
    changed = [f"{section}.seed={seed}" for section in ("market", "training", "nano")]
    changed.append("training.stage2_steps=60")  # the demo has less time
    if variant == AFTER_SFT:
        changed.append("training.stage1_steps=0")  # the format is there
        changed.append("training.scenario_source=beliefs")  # else the luck of the windows takes away what was imitated
        changed += ["sft.score_states=32", "sft.score_samples=2"]  # its windows are measured instead
    elif variant != EVERYBODY:
        frozen = ",".join(role for role in ROLES if role != variant)
        changed.append(f"training.freeze={frozen}")
    return load_config("demo", changed)


def make_base(seed: int) -> Path:
    """The warm start of a seed, made unless it is there."""
    config = config_of(seed, EVERYBODY)
    folder = FOLDER / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    return begin(config, load_market(config.market, config.costs), folder, _silent)


def measured(seed: int, variant: str) -> dict[str, Any]:
    """Train and measure a cell; read from its file where an equal configuration was measured before."""
    config = config_of(seed, variant)
    folder = FOLDER / f"seed-{seed}" / variant
    kept = folder / "measured.json"
    if kept.is_file():
        document: dict[str, Any] = json.loads(kept.read_text())
        if config_from_dict(document["config"]) == config:
            return document
        raise RuntimeError(f"{kept} is of another configuration: move {FOLDER} away")
    began = time.monotonic()
    market = load_market(config.market, config.costs)
    based = _over(config, base_model=str(make_base(seed).resolve()))
    if variant == AFTER_SFT:
        run_sft(based, market, ["scripted"], folder / "sft", _silent)
        based = _over(config, start_from=str((folder / "sft").resolve()))
    folder.mkdir(parents=True, exist_ok=True)
    name = f"learning-{seed}-{variant}"
    with (
        Store.open(str(folder / "store")) as store,
        recorded_run(store, name, "train", seed, market.content_hash, based),
    ):
        state = run_rl(based, market, store, name, folder, _silent, lambda _: None).state
        learnt_from = sum(len(store.rollouts(name, step)) for step in range(state.best_step or 0))
    document = {
        "config": config.to_dict(),
        "returns": _returns(based, market, folder, warm=variant in (EVERYBODY, AFTER_SFT)),
        "steps": state.step,
        "best_step": state.best_step,
        "rollouts": learnt_from,  # of the team, that the chosen version has learnt from
        "seconds": time.monotonic() - began,
    }
    partial = kept.with_suffix(".tmp")
    partial.write_text(json.dumps(document, indent=1))
    partial.replace(kept)
    print(f"{name}: {document['steps']} steps, {document['seconds']:.0f} s", flush=True)
    return document


def _over(config: Config, **training: str) -> Config:
    """The configuration with other settings of its training."""
    return config.model_copy(update={"training": config.training.model_copy(update=training)})


def share_interval(mine: npt.NDArray[np.float64], theirs: npt.NDArray[np.float64]) -> tuple[float, float, float]:
    """Sum of `mine` by the sum of `theirs`, both (seeds, windows), with a 95 % percentile interval of a bootstrap that
    draws seeds with replacement and then windows within each (Davison and Hinkley 1997, section 3.8)."""
    rng = np.random.default_rng(0)
    seeds, windows = mine.shape
    drawn = rng.integers(seeds, size=(SAMPLES, seeds, 1)), rng.integers(windows, size=(SAMPLES, seeds, windows))
    shares = mine[drawn].sum((1, 2)) / theirs[drawn].sum((1, 2))
    low, high = np.quantile(shares, [0.025, 0.975])
    return float(mine.sum() / theirs.sum()), float(low), float(high)


def _returns(config: Config, market: Market, folder: Path, warm: bool) -> Returns:
    """Returns of the held-out windows by row: the trained team, sampled and greedy, and the oracle; with `warm` also
    the team that the training began with, likewise, and the scripted team that nano's language comes from."""
    evaluation, account = config.evaluation, account_of(config, market)
    held_out = split(market, config.market, config.team.horizon_bars).held_out
    windows = split_windows(
        *held_out, evaluation.windows, evaluation.decisions_per_window, config.team.decide_every or 1
    )
    trained = load_team(str(folder), config.team)
    teams: list[LoadedTeam] = [trained.renamed("trained"), trained.at_temperature(0.0).renamed("trained, greedy")]
    if warm:
        begun = load_team(str(folder), config.team, trained=False)
        teams += [begun.renamed("warm_started"), begun.at_temperature(0.0).renamed("warm_started, greedy")]
        teams.append(scripted_team(config.team))
    played = {
        one.name: [
            episode.result
            for episode in play_windows(
                one, market, windows, account, limits_of(config.guard), evaluation.seed, _silent
            )
        ]
        for one in teams
    }
    played |= baselines(("oracle",), market, windows, account, played["trained"], evaluation.seed)
    return {name: [one.metrics["total_return"] for one in runs] for name, runs in played.items()}


def rows_of(documents: Sequence[dict[str, Any]], name: str) -> npt.NDArray[np.float64]:
    """Returns of the row `name`, (seeds, windows)."""
    return np.array([document["returns"][name] for document in documents])


def gains(documents: Sequence[dict[str, Any]], everybody: Sequence[dict[str, Any]]) -> npt.NDArray[np.float64]:
    """Returns above the warm start's, (seeds, windows)."""
    return rows_of(documents, "trained") - rows_of(everybody, "warm_started")


def share_row(name: str, documents: Sequence[dict[str, Any]], row: str) -> Result:
    """The row `name` of a benchmark: the share of `row` of the cells."""
    oracle = rows_of(documents, "oracle")
    share, low, high = share_interval(rows_of(documents, row), oracle)
    alike = row.replace("trained", "warm_started")  # sampled or greedy, as `row` is
    begun, taught = (share_interval(rows_of(documents, one), oracle)[0] for one in (alike, "scripted"))
    each = ", ".join(f"{one:.0%}" for one in rows_of(documents, row).sum(1) / oracle.sum(1))
    rollouts = ", ".join(str(document["rollouts"]) for document in documents)
    minutes = sum(document["seconds"] for document in documents) / 60 / len(documents)
    return Result(
        name=name,
        value=100 * share,
        unit="% of the oracle's earnings",
        against=f"oracle, {100 * oracle.mean():+.2f} % a window of {oracle.shape[1]}; 95 % interval {low:.0%} to "
        f"{high:.0%}, seeds {each}; begun with {begun:.0%}, decided alike, scripted team {taught:.0%}; "
        f"{rollouts} rollouts, {minutes:.0f} minutes a seed",
        ratio=share,
        target=TARGET,
        met=share >= TARGET,
    )


def _silent(what: str, done: int, total: int) -> None:
    """Progress of many cells side by side is a line for each that is done."""
