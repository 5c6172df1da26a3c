"""Runs the benchmarks, prints them as a table and writes `benchmarks/results/latest.json`.

`python -m benchmarks.run [NAME]`. A benchmark is a module: `simulator.batch` is `bench_simulator_batch.py`, and its
`run()` returns its results. NAME keeps the benchmarks whose name begins with it; the results of the others stay in the
file as they were.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "latest.json"


class Result(TypedDict):
    """One measurement. `ratio` is `value` in relation to `against`, as `target` is; None where there is no peer."""

    name: str
    value: float
    unit: str
    against: str
    ratio: float | None
    target: str
    met: bool


def benchmarks(folder: Path = HERE) -> dict[str, str]:
    """Modules in `folder` by the name of their benchmark."""
    return {path.stem.removeprefix("bench_").replace("_", ".", 1): path.stem for path in sorted(folder.glob("bench_*.py"))}


def machine() -> str:
    """The processor and how many cores there are."""
    name = platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}"


def write(results: Sequence[Result], path: Path = RESULTS) -> None:
    """Put results into the file in place of those with the same name."""
    before = json.loads(path.read_text()) if path.exists() else []
    new = [{**result, "machine": machine()} for result in results]
    names = {result["name"] for result in new}
    kept = [result for result in before if result["name"] not in names]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(sorted(kept + new, key=lambda result: result["name"]), indent=2) + "\n")


def table(results: Sequence[Result]) -> Table:
    """The results for people."""
    shown = Table(title=f"Benchmarks ({machine()})")
    for heading in ("benchmark", "value", "unit", "against", "ratio", "target", "met"):
        shown.add_column(heading, justify="right" if heading in ("value", "ratio") else "left")
    for result in results:
        ratio = "" if result["ratio"] is None else f"{result['ratio']:.3g}"
        met = "[green]yes[/]" if result["met"] else "[red]no[/]"
        shown.add_row(
            result["name"], f"{result['value']:,.4g}", result["unit"], result["against"], ratio, result["target"], met
        )
    return shown


def main(arguments: Sequence[str]) -> int:
    """Run what the arguments name; exit code 2 if there is no such benchmark."""
    console = Console()
    wanted = arguments[0] if arguments else ""
    chosen = {
        name: module for name, module in benchmarks().items() if f"{name}.".startswith(f"{wanted}." if wanted else "")
    }
    if not chosen:
        print(f"no benchmark '{wanted}'; there are {', '.join(benchmarks())}", file=sys.stderr)
        return 2
    results: list[Result] = []
    for name, module in chosen.items():
        with console.status(name):
            results += importlib.import_module(f"benchmarks.{module}").run()
    write(results)
    console.print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
