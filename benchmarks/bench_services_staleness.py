"""What older weights bring by the clock: seconds a step of `train --launch processes` whose rollouts use the weights of
1 or 2 steps before, against none.

With `training.staleness` = 0 the rollouts of a step wait for all trainers, and the trainers for the
rollouts. With 1 or 2 both go on side by side. Here that is one process that rolls out, and one for each of the four
roles that learns, of one thread each: a machine with two cores can gain what the other core does not do meanwhile. All
three do the same number of steps of equal size; what they learn differs. A step's time is from one line of
`metrics.jsonl` to the next, the median of all after the third.

What the age costs in learning is an experiment: `experiments/staleness.toml`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from backend.builders.market import load_market
from backend.config.load import load_config
from backend.training.start import begin
from benchmarks.run import Result

BY_NAME_ONLY = True  # three trainings
STEPS = 16
AGES = (0, 1, 2)
FIRST = 3  # steps that warm up: with an age of 2 the first three are rolled out at once
LOOK = 0.02  # seconds between two looks at the file
SETTINGS = (
    "training.queries_per_step=64", "training.rollouts_per_query=8", "training.shards=2", "training.stage1_steps=0",
    "training.stage1_max_steps=0", f"training.stage2_steps={STEPS}", "training.validation_every=1000",
    "training.validation_queries=2", "training.scenario_paths=16", "nano.steps=80", "nano.decisions=100",
)  # fmt: skip


def run() -> list[Result]:
    """The rows `services.staleness.1` and `.2`."""
    with tempfile.TemporaryDirectory() as scratch:
        config = load_config("quick", SETTINGS)
        base = begin(config, load_market(config.market, config.costs), Path(scratch), lambda *_: None)
        settings = [*SETTINGS, f"training.base_model={base}"]
        seconds = {age: _seconds(Path(scratch) / f"age-{age}", age, settings) for age in AGES}
    return [
        {
            "name": f"services.staleness.{age}",
            "value": seconds[age],
            "unit": "s/step",
            "against": f"rollouts with the newest weights, {seconds[0]:.2f} s/step: same machine, 5 processes",
            "ratio": seconds[age] / seconds[0],
            "target": "<= 1.00",
            "met": seconds[age] <= seconds[0],
        }
        for age in AGES[1:]
    ]


def _seconds(folder: Path, age: int, settings: list[str]) -> float:
    """Median time of a step of a training with this age."""
    folder.mkdir()
    command = [sys.executable, "-m", "backend.cli", "train", "--config", "quick", "--launch", "processes"]
    command += ["--runs", str(folder / "runs"), "--store", str(folder / "store")]
    for one in (*settings, f"training.staleness={age}"):
        command += ["--set", one]
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    log = folder / "log"
    times: list[float] = []
    with log.open("wb") as output:
        child = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | one_thread)
        try:
            while child.poll() is None:
                lines = sum(path.read_bytes().count(b"\n") for path in (folder / "runs").glob("*/metrics.jsonl"))
                times += [time.perf_counter()] * (lines - len(times))
                time.sleep(LOOK)
        finally:
            child.terminate()
            child.wait(60)
    if child.returncode or len(times) < STEPS:
        raise RuntimeError(f"a training ended with code {child.returncode}: {log.read_text()[-2000:]}")
    return statistics.median(later - before for before, later in list(pairwise(times))[FIRST:])
