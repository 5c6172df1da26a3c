"""What the command line costs before it works: processor time of whole processes, the median of three.

Three refusals stand for all of them: a word that is no command, a data folder that does not exist, and a setting that
does not exist; the row is the worst. The backtest is that of a strategy on the shipped data, 90 days of four coins,
with its report; its first run, which compiles, is not counted. Neither are the first ones of the others: modules are
compiled into a folder of the benchmark's own, whatever the environment says of that, as on a machine where the program
was installed.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.run import HERE, Result, at_most

ROUNDS = 3
DATA = HERE.parent / "data" / "synthetic"
REFUSALS = (
    ["backtes"],
    ["backtest", "--data", "no/such/folder"],
    ["backtest", "--data", str(DATA), "--set", "no.such=1"],
)
BACKTEST = ["backtest", "--team", "ema_cross", "--data", str(DATA)]


def run() -> list[Result]:
    """The rows `cli.help`, `cli.refusal`, `cli.runs` and `cli.backtest`: seconds, against what each may take."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        _seconds(BACKTEST, 0, place)  # compiles, and leaves a run to list
        for arguments, code in [(["--help"], 0), (["runs"], 0), *((refused, 2) for refused in REFUSALS)]:
            _seconds(arguments, code, place)
        seconds = {
            "help": _median(["--help"], 0, place),
            "refusal": max(_median(refused, 2, place) for refused in REFUSALS),
            "runs": _median(["runs"], 0, place),
            "backtest": _median(BACKTEST, 0, place),
        }
    limits = {"help": 0.7, "refusal": 0.7, "runs": 0.7, "backtest": 3.0}
    return [at_most(f"cli.{name}", seconds[name], "s of processor", limit) for name, limit in limits.items()]


def _median(arguments: list[str], code: int, folder: Path) -> float:
    return statistics.median(_seconds(arguments, code, folder) for _ in range(ROUNDS))


def _seconds(arguments: list[str], code: int, folder: Path) -> float:
    """Processor time of the command and its children; raises where it does not end with `code`."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.run(
        [sys.executable, "-m", "backend.cli", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    if process.returncode != code:
        raise RuntimeError(f"cli.start: {' '.join(arguments)} ended with {process.returncode}: {process.stderr[-500:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
