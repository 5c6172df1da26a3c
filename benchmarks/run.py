"""Runs the benchmarks, prints them as a table and writes `benchmarks/results/latest.json`.

`python -m benchmarks.run [NAME]`. `bench_simulator_batch.py` holds the benchmark `simulator.batch`, `bench_engine.py`
all of `engine`; its `run()` returns the results, which are written with the machine, the day and the commit. NAME keeps
one or a group; the other results stay in the file as they were. A module with `BY_NAME_ONLY = True` takes long and runs
only when it is named.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "latest.json"
TREND_MARKET = HERE / "trend_market.toml"  # settings of some benchmarks


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
