"""How long a newcomer waits: `demo` with the shipped preset and `demo --config quick`, by the clock, and their memory.

The machine must be quiet and have two cores for it. The first start in a fresh checkout compiles half a minute longer;
the quick one is run first, and takes that on itself. `python -m benchmarks.bench_demo funding` runs the demo
from a teacher that reads funding alone and prints what its decisions are worth, as the choice of the preset needs it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.pace import within
from benchmarks.run import HERE, Result

BY_NAME_ONLY = True
SECONDS = {"quick": 60.0, "demo": 360.0}
MEGABYTES = 2_500.0


def run() -> list[Result]:
    """The rows `demo.quick` and `demo.demo`, seconds, and `demo.memory` of the larger."""
    results = []
    for preset, limit in SECONDS.items():
        seconds, facts = timed(preset)
        results.append(within(f"demo.{preset}", seconds, "s", limit))
    memory = facts["peak_memory_mb"]  # of the demo, which is the last
    results.append(
        Result(
            name="demo.memory", value=memory, unit="MB", against=f"{MEGABYTES:g} MB", ratio=memory / MEGABYTES,
            target="<= 1.0", met=memory <= MEGABYTES,
        )
    )  # fmt: skip
    return results


def timed(preset: str, *overrides: str) -> tuple[float, dict[str, Any]]:
    """Seconds of a demo of its own, and the facts of its report."""
    with tempfile.TemporaryDirectory() as folder:
        settings = [part for one in overrides for part in ("--set", one)]
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "backend.cli", "demo", "--config", preset, *settings],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(HERE.parent)},
            check=True,
        )
        seconds = time.perf_counter() - began
        facts = json.loads((Path(folder) / "runs" / "demo" / "report.json").read_text(encoding="utf-8"))
    return seconds, facts


if __name__ == "__main__":
    taken, found = timed("demo", f"nano.teacher={sys.argv[1]}")
    print(f"{taken:.0f} s")
    print(json.dumps(found["held_out_value"], indent=1))
