"""How fast the demo's team learns: `make bench ONLY=demo.speedrun`, half an hour of two idle cores.

On each of the five held-out seeds of the preset (`seeds.confirm`: of market, warm start and training) a process of its
own does what `demo` does up to the end of the training, and keeps the weights after every step with the seconds since
that process was started: imports, market and warm start count. Afterwards the newest team at each of the three times
decides in held-out states with its likeliest answers. A row is the median over the
seeds of its share of the achievable value: what the best decision given all evidence is worth above holding, both as
outcome scores. A team that is not there yet has a share of 0, that of holding.

`python -m benchmarks.bench_demo_speedrun SEED FOLDER` trains one seed. What is trained lies in `runs/speedrun`, and is
not trained again.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from backend.builders.market import load_market
from backend.builders.teams import load_team
from backend.config.load import load_config
from backend.config.schema import Config
from backend.evaluation.evaluate import TRAINED
from backend.evaluation.held_out_value import HOLDING, allowed_above_holding, row_of, values_in
from backend.models.manifest import TeamManifest, write_manifest
from backend.policies.adapters import save_versions
from backend.processes import started
from backend.store.store import Store
from backend.training.in_process import helper_gradients, local_learners, local_trainer
from backend.training.rl_job import processes_for, training_parts
from backend.training.start import begin
from backend.training.trainer import Progress
from benchmarks.run import HERE, Result

BY_NAME_ONLY = True
SEEDS = (9401, 9402, 9403, 9404, 9405)  # of markets and trainings that nothing is tuned on
LIMITS = {90.0: 0.7, 150.0: 0.8, 300.0: 0.9}  # seconds, and the share to be reached by then
FOLDER = HERE.parent / "runs" / "speedrun"
TIMES = "seconds.json"  # by step, when its weights were there
_BEGAN = "SPEEDRUN_BEGAN"  # the environment's variable: the clock at which the process was started


def run() -> list[Result]:
    """The rows `demo.speedrun.SECONDS`."""
    found = {seed: shares_of(seed, FOLDER / str(seed)) for seed in SEEDS}
    return [row(str(round(limit)), target, [found[seed][limit] for seed in SEEDS]) for limit, target in LIMITS.items()]


def row(name: str, target: float, shares: list[float]) -> Result:
    """The median share of the seeds beside the one to be reached, in percent."""
    median = statistics.median(shares)
    listed = ", ".join(f"{100 * share:.0f}" for share in shares)
    return Result(
        name=f"demo.speedrun.{name}",
        value=100 * median,
        unit="% of the achievable value",
        against=f"{100 * target:g} % after {name} s of wall time; seeds {listed}",
        ratio=median / target,
        target=1.0,
        met=median >= target,
    )


def config_of(seed: int) -> Config:
    """The preset on a market, a warm start and a training of the seed."""
    return load_config("demo", [f"market.seed={seed}", f"training.seed={seed}"])


def shares_of(seed: int, folder: Path) -> dict[float, float]:
    """By limit, the share of the achievable value that the newest team at that time reaches."""
    if not (folder / TIMES).is_file():
        subprocess.run(
            [sys.executable, "-m", "benchmarks.bench_demo_speedrun", str(seed), str(folder)],
            cwd=HERE.parent,
            env={**os.environ, _BEGAN: str(time.time())},
            check=True,
        )
    ready = {int(step): float(at) for step, at in json.loads((folder / TIMES).read_text(encoding="utf-8")).items()}
    config = config_of(seed)
    market = load_market(config.market, config.costs)
    steps = {limit: newest(ready, limit) for limit in LIMITS}
    share: dict[int | None, float] = {None: 0.0}
    for step in {step for step in steps.values() if step is not None}:
        write_manifest(folder, TeamManifest.of(config, base="nano", adapters=f"adapters/{step}"))
        team = load_team(str(folder), config.team).at_temperature(0.0).renamed(TRAINED)
        queries, values = values_in(config, market, [team], lambda *progress: None)
        trained, holding = (float(row_of(values[name])["outcome"] or 0.0) for name in (TRAINED, HOLDING))
        share[step] = (trained - holding) / allowed_above_holding(config, queries)
    return {limit: share[step] for limit, step in steps.items()}


def newest(ready: Mapping[int, float], limit: float) -> int | None:
    """The last step whose weights were there within `limit` seconds; None where none were."""
    return max((step for step, seconds in ready.items() if seconds <= limit), default=None)


def train(seed: int, folder: Path) -> None:
    """Train the team of a seed in `folder`, with the weights of every step in `adapters/STEP`."""
    began = float(os.environ.get(_BEGAN) or time.time())
    config, ready = config_of(seed), dict[int, float]()
    market = load_market(config.market, config.costs)
    with started(processes_for(config)) as workers, Store.open(folder / "store") as store:
        base = begin(config, market, folder, lambda *progress: None, workers)
        parts = training_parts(config, market, store, "speedrun", folder, base, folder, workers)
        gradients = helper_gradients(parts)
        trainer = local_trainer(parts, local_learners(parts, gradients), gradients)

        def keep(progress: Progress) -> None:
            save_versions(parts.policies, folder / "adapters" / str(progress.step), "speedrun", progress.step)
            ready[progress.step] = time.time() - began

        trainer.run(keep)
        parts.recorder.close()
    (folder / TIMES).write_text(json.dumps(ready), encoding="utf-8")


if __name__ == "__main__":
    train(int(sys.argv[1]), Path(sys.argv[2]))
