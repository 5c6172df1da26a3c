"""What commands take on a store of 200,000 conversations, each in a process of its own. Long: it makes the store first.

`python -m benchmarks.bench_store_large FOLDER [NAME ...]` measures on a copy of a store that is there already, as
`bench_store_open.make_store` made it, and writes the results; with names only those.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from backend.store.folder_swap import size_of
from benchmarks.bench_store_open import MOST_MEGABYTES, MOST_SECONDS, TOKENS, make_store, memory_row, open_once
from benchmarks.pace import within
from benchmarks.run import Result, table, write

BY_NAME_ONLY = True
TRAJECTORIES = 200_000
OPENINGS = 5  # cold, and as many warm
COPY_MEGABYTES = 600.0
RUN, DELETED = "train-1", "train-0"
REPORT = """
import sys
from pathlib import Path
from backend.reporting.report import write_report
from backend.store import Store
with Store.open(sys.argv[1], reads_only=True) as store:
    write_report(store, sys.argv[2], Path(sys.argv[3]))
"""
# What is measured by name: arguments of the program, most seconds, most megabytes.
COMMANDS: dict[str, tuple[tuple[str, ...], float, float]] = {
    "list": (("runs", "--store", "{store}"), 5.0, MOST_MEGABYTES),
    "show": (("runs", "--store", "{store}", "show", RUN), 5.0, MOST_MEGABYTES),
    "check": (("store", "check", "--store", "{store}"), 300.0, COPY_MEGABYTES),
    "delete": (("runs", "--store", "{store}", "delete", DELETED, "--yes"), 60.0, COPY_MEGABYTES),
    "backup": (("store", "backup", "{beside}", "--store", "{store}"), 600.0, COPY_MEGABYTES),
    "compact": (("store", "compact", "--store", "{store}"), 600.0, COPY_MEGABYTES),
}
NAMES = ("open", "list", "show", "report", "check", "delete", "backup", "compact")


def run() -> list[Result]:
    """The rows `store.large.*`."""
    with tempfile.TemporaryDirectory() as scratch:
        made = make_store(Path(scratch) / "s", TRAJECTORIES)
        return measure(Path(scratch) / "s", NAMES, f"{made:,} conversations of {TOKENS} tokens")


def measure(store: Path, names: Sequence[str], size: str) -> list[Result]:
    """The named rows, in this order, of the store in a folder; it is changed."""
    results: list[Result] = []
    for name in names:
        if name == "open":
            results += _openings(store, size)
            continue
        before = size_of(store / "db")
        most_seconds, most_megabytes = (5.0, 300.0) if name == "report" else COMMANDS[name][1:]
        seconds, megabytes = _command(name, store)
        what = f"{size}, {before / 1e6:,.0f} MB on the disk"
        if name in ("delete", "compact"):
            what += f", {size_of(store / 'db') / 1e6:,.0f} MB after it"
        results.append(within(f"store.large.{name}.seconds", seconds, f"s, {what}", most_seconds))
        results.append(memory_row(f"store.large.{name}.memory", megabytes, most_megabytes, what))
    return results


def _openings(store: Path, size: str) -> list[Result]:
    """The slowest of several openings whose files are not in the machine's memory, and of as many that follow."""
    results = []
    for state in ("cold", "warm"):
        runs = []
        for _ in range(OPENINGS):
            if state == "cold":
                _forget(store)
            runs.append(open_once(store))
        what = f"{size}, the slowest of {OPENINGS}, {state}"
        memory, seconds = max(one[0] for one in runs), max(one[1] for one in runs)
        results.append(within(f"store.large.open.{state}.seconds", seconds, f"s, {what}", MOST_SECONDS))
        results.append(memory_row(f"store.large.open.{state}.memory", memory, MOST_MEGABYTES, what))
    return results


def _forget(store: Path) -> None:
    """Let the machine drop what it keeps of files in memory."""
    for path in store.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def _command(name: str, store: Path) -> tuple[float, float]:
    """Seconds and megabytes at most of a command and of what it begins. Raises RuntimeError if it fails."""
    root = Path(__file__).parents[1]
    beside = store.with_name("beside")
    shutil.rmtree(beside, ignore_errors=True)
    if name == "report":
        arguments = ["-c", REPORT, str(store), RUN, str(beside)]
    else:
        given = [one.format(store=store, beside=beside) for one in COMMANDS[name][0]]
        arguments = ["-m", "backend.cli", *given]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    began, most = time.perf_counter(), 0.0
    with tempfile.TemporaryFile() as said:
        to_file = [(os.POSIX_SPAWN_DUP2, said.fileno(), 1), (os.POSIX_SPAWN_DUP2, said.fileno(), 2)]
        process = os.posix_spawn(sys.executable, [sys.executable, *arguments], environment, file_actions=to_file)
        while True:
            most = max(most, _megabytes(process))
            ended, code = os.waitpid(process, os.WNOHANG)
            if ended:
                break
            time.sleep(0.005)
        seconds = time.perf_counter() - began
        if code:
            said.seek(0)
            raise RuntimeError(f"{name} failed: {said.read()[-2_000:].decode(errors='replace')}")
    return seconds, most


def _megabytes(process: int) -> float:
    """The memory at most of a process so far, with that of the processes that it has begun."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
        begun = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except (ProcessLookupError, FileNotFoundError):
        return 0.0
    found = re.search(r"VmHWM:\s+(\d+)", status)
    return (int(found[1]) / 1024 if found else 0.0) + sum(_megabytes(int(child)) for child in begun)


if __name__ == "__main__":
    from rich.console import Console

    with tempfile.TemporaryDirectory(dir=Path(sys.argv[1]).parent) as beside_it:
        copy = shutil.copytree(sys.argv[1], Path(beside_it) / "s")
        measured = measure(copy, sys.argv[2:] or NAMES, f"200,192 conversations of {TOKENS} tokens")
    write(measured)
    Console(width=240).print(table(measured))
