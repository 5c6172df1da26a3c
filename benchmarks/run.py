"""Runs the benchmarks, prints them as a table and writes `benchmarks/results/latest.json`.

`python -m benchmarks.run [NAME]`. `bench_simulator_batch.py` holds the benchmark `simulator.batch`, `bench_engine.py`
all of `engine`; its `run()` returns the results, which are written with the machine, the day and the commit. NAME keeps
one or a group; the other results stay in the file as they were. A module with `BY_NAME_ONLY = True` takes long and runs
only when it is named.

Limits such as 3 s or 500 decisions/s were set on one machine, and say nothing about a program on another: one of half
the speed misses them all. So a limit is stretched by `pace()`: what a fixed piece of work takes here, in relation to
what it took there. The work is what the program's own time goes into: Python's interpreter, and numpy on small arrays.
A row's ratio is to the stretched limit.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TypedDict

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "latest.json"
TREND_MARKET = HERE / "trend_market.toml"  # settings of some benchmarks
# Seconds of processor time of `_interpreter` and `_arrays` on the machine that the limits are stated for: two cores of
# an AMD EPYC, Python 3.11.7, numpy 2.4.6.
REFERENCE = {"interpreter": 0.0204, "arrays": 0.0139}
ROUNDS = 15


class Result(TypedDict):
    """One measurement. `ratio` is `value` in relation to `against`, as `target` is; None where there is no peer."""

    name: str
    value: float
    unit: str
    against: str
    ratio: float | None
    target: float | str  # of the ratio; a number is the least that will do
    met: bool


def benchmarks(folder: Path = HERE) -> dict[str, str]:
    """Modules in `folder` by the name of their benchmark."""
    modules = sorted(path.stem for path in folder.glob("bench_*.py"))
    return {module.removeprefix("bench_").replace("_", ".", 1): module for module in modules}


def within(name: str, group: str) -> bool:
    """Whether `name` is `group` or belongs to it, as `engine.decode` belongs to `engine`. Everything belongs to ''."""
    return not group or f"{name}.".startswith(f"{group}.")


def machine() -> str:
    """The processor and how many cores there are."""
    name = platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}"


def commit() -> str:
    """The commit that is measured, with "+" behind it where files differ from it; empty outside a repository."""
    described = subprocess.run(
        ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"],
        cwd=HERE,
        capture_output=True,
        text=True,
    )
    return described.stdout.strip()


def write(results: Sequence[Result], path: Path = RESULTS) -> None:
    """Put results into the file in place of those with the same name."""
    before = json.loads(path.read_text()) if path.exists() else []
    where = {"machine": machine(), "date": f"{datetime.now(UTC):%Y-%m-%d}", "commit": commit()}
    new = [{**result, **where} for result in results]
    names = {result["name"] for result in new}
    kept = [result for result in before if result["name"] not in names]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(sorted(kept + new, key=lambda result: result["name"]), indent=2) + "\n")


def table(results: Sequence[Result]) -> Group:
    """The results for people: a line of figures each, and below it their unit and what they are measured against."""
    widest = max((len(result["name"]) for result in results), default=0)
    lines: list[RenderableType] = [
        Text(f"Benchmarks ({machine()})", style="bold"),
        Text(f"{'':<{widest}} {'value':>9} {'ratio':>6}  {'target':<14} met", style="dim"),
    ]
    for result in results:
        ratio = "" if result["ratio"] is None else f"{result['ratio']:.3g}"
        figures = f"{result['name']:<{widest}} {result['value']:>9,.4g} {ratio:>6}  {result['target']!s:<14} "
        met = ("yes", "green") if result["met"] else ("no", "red")
        lines += [
            Text.assemble(figures, met),
            Padding(Text(f"{result['unit']}; {result['against']}", "dim"), (0, 0, 0, 4)),
        ]
    return Group(*lines)


@cache
def pace() -> float:
    """How many times as long as on the machine of the limits the work takes here: the geometric mean of its parts,
    each at its fastest."""
    ratios = [min(_seconds(work) for _ in range(ROUNDS)) / REFERENCE[name] for name, work in _WORK.items()]
    return float(np.exp(np.mean(np.log(ratios))))


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _interpreter() -> int:
    """Calls, dicts, lists and texts."""
    words: dict[str, list[int]] = {}
    for number in range(60_000):
        words.setdefault(f"w{number * 7919 % 4093}", []).append(number)
    return sum(len(numbers) for word, numbers in sorted(words.items()) if not word.endswith("0"))


def _arrays() -> float:
    """Functions, sums and orders of arrays that fit into a cache; nothing that more threads would make faster."""
    values, total = np.linspace(0.0, 1.0, 2_000), 0.0
    for _ in range(300):
        values = np.tanh(values[::-1] + 0.1)
        total += float(np.sort(values).cumsum()[-1])
    return total


_WORK: dict[str, Callable[[], object]] = {"interpreter": _interpreter, "arrays": _arrays}


def at_most(name: str, value: float, unit: str, limit: float, said: str = "") -> Result:
    """A row whose `value`, a time, must be no more than `limit` of the same unit, stretched by the machine's pace.
    `said` stands behind the limit. The first word of `unit` is that of the limit."""
    most = limit * pace()
    return Result(
        name=name, value=value, unit=unit, against=_words(limit, unit.split()[0].rstrip(","), said),
        ratio=value / most, target="<= 1.0", met=value <= most,
    )  # fmt: skip


def at_least(name: str, value: float, unit: str, least: float, said: str = "") -> Result:
    """The same of a rate, which must be no less than `least` divided by the pace."""
    enough = least / pace()
    return Result(
        name=name, value=value, unit=unit, against=_words(least, unit.split()[0], said), ratio=value / enough,
        target=1.0, met=value >= enough,
    )  # fmt: skip


def _words(limit: float, unit: str, said: str) -> str:
    stated = f"{limit:g} {unit} at pace 1; this machine's is {pace():.2f}"
    return f"{stated}; {said}" if said else stated


def main(arguments: Sequence[str]) -> int:
    """Run what the arguments name; exit code 2 if there is no such benchmark."""
    console = Console()
    wanted = arguments[0] if arguments else ""
    chosen = {name: module for name, module in benchmarks().items() if within(name, wanted) or within(wanted, name)}
    if not chosen:
        print(f"no benchmark '{wanted}'; there are {', '.join(benchmarks())}", file=sys.stderr)
        return 2
    results: list[Result] = []
    for name, module in chosen.items():
        benchmark = importlib.import_module(f"benchmarks.{module}")
        if getattr(benchmark, "BY_NAME_ONLY", False) and not wanted:
            console.print(f"left out, since it takes long: make bench ONLY={name}")
            continue
        with console.status(name):
            results += benchmark.run()
    results = [result for result in results if within(result["name"], wanted)]
    if wanted and not results:
        print(f"no row '{wanted}' in {', '.join(chosen)}", file=sys.stderr)
        return 2
    write(results)
    console.print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
