"""Tokens of long conversations through the gateway: a role's step of 50 MB, as files and, the former way, as rows.

A process serves the store, this one writes a step and reads it as a role's trainer does, and a third one asks for a
small record all the time: its longest wait while the step is read is what others lose by it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from backend.store.folder_swap import DATABASE_FOLDER, size_of
from backend.store.records import RunRecord, TrajectoryRecord
from backend.store.store import Store
from benchmarks.pace import within
from benchmarks.run import Result

TOKENS, CONVERSATIONS = 4_000, 1_400  # of 9 bytes a token: 50.4 MB
READS = 5  # the median of them counts, of the stalls the longest
MOST_SECONDS, MOST_STALL = 1.0, 0.05
_ACCOUNT = {"CRYPTOSENTINEL_STORE_USER": "bench", "CRYPTOSENTINEL_STORE_PASSWORD": "of a reader of tensors"}
_OTHER = """
import sys, time
from backend.store.store import Store
with Store.open(sys.argv[1]) as store:
    print("ready", flush=True)
    while True:
        began = time.monotonic()
        store.metrics("bench")
        print(began, time.monotonic() - began, flush=True)
        time.sleep(0.002)
"""


@dataclass(frozen=True)
class _Way:
    """What one way of storing a step costs: seconds and bytes a conversation, seconds of a reading, and of another
    client's longest wait meanwhile and when nobody reads."""

    write: float
    size: float
    read: float
    stall: float
    undisturbed: float


def run() -> list[Result]:
    """The rows `store.tensors`, the seconds of a reading, and `store.tensors.stall`."""
    files, rows = _measured(0), _measured(None)
    return [
        within(
            "store.tensors",
            files.read,
            "s",
            MOST_SECONDS,
            f"as rows {rows.read:.2f} s; to write a conversation of {TOKENS} tokens: {1e3 * files.write:.2f} ms, as "
            f"rows {1e3 * rows.write:.2f} ms; in the database {files.size:.0f} bytes, as rows {rows.size:.0f}",
        ),
        within(
            "store.tensors.stall",
            1e3 * files.stall,
            "ms",
            1e3 * MOST_STALL,
            f"as rows {1e3 * rows.stall:.0f} ms; while nobody reads {1e3 * files.undisturbed:.0f} ms",
        ),
    ]


def _measured(shard: int | None) -> _Way:
    with tempfile.TemporaryDirectory() as scratch, _signed_in(), _served(Path(scratch)) as address:
        with Store.open(address) as store:
            store.add_run(RunRecord("bench", "train", 1, "none", 1, {}))
            records = _conversations()
            began = time.monotonic()
            store.add_trajectories(records, shard)
            write = time.monotonic() - began
            with _other(address, Path(scratch) / "waits") as waits:
                time.sleep(1.0)
                quiet = max(seconds for _, seconds in waits())
                reads, spans = [], []
                for _ in range(READS):
                    began = time.monotonic()
                    there = store.conversation_tokens("bench", 0, "trader")
                    spans.append((began, time.monotonic()))
                    reads.append(spans[-1][1] - began)
                    if len(there) != CONVERSATIONS or not np.array_equal(there[-1][1].ids, records[-1].ids):
                        raise AssertionError("what was read is not what was written")
                time.sleep(0.2)
                stall = max(
                    (
                        seconds
                        for at, seconds in waits()
                        if any(at < stop and at + seconds > start for start, stop in spans)
                    ),
                    default=0.0,
                )
        size = size_of(Path(scratch) / "store" / DATABASE_FOLDER)
    return _Way(write / CONVERSATIONS, size / CONVERSATIONS, float(np.median(reads)), stall, quiet)


def _conversations() -> list[TrajectoryRecord]:
    rng = np.random.default_rng(1)
    mask = tuple(number % 2 == 1 for number in range(TOKENS))
    logps = tuple(np.where(mask, -rng.random(TOKENS, np.float32), 0.0).tolist())
    ids = (tuple(rng.integers(0, 2**31, TOKENS).tolist()) for _ in range(CONVERSATIONS))
    return [
        TrajectoryRecord("bench", 0, number // 8, number % 8, "trader", 0, "v", tokens, mask, logps)
        for number, tokens in enumerate(ids)
    ]


@contextmanager
def _signed_in() -> Iterator[None]:
    """The account in the environment for a block."""
    former = {name: os.environ.get(name) for name in _ACCOUNT}
    os.environ.update(_ACCOUNT)
    try:
        yield
    finally:
        for name, value in former.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _other(address: str, log: Path) -> Iterator[Callable[[], list[tuple[float, float]]]]:
    """Another client for a block; what it gets returns when each of its requests began, on the machine's monotonic
    clock, and how long it waited for the answer."""
    with log.open("w") as output:
        client = subprocess.Popen([sys.executable, "-c", _OTHER, address], stdout=output)

    def waits() -> list[tuple[float, float]]:
        lines = [line.split() for line in log.read_text().splitlines()[1:-1]]  # the last one may be half written
        return [(float(began), float(seconds)) for began, seconds in lines]

    try:
        while "ready" not in log.read_text() and client.poll() is None:
            time.sleep(0.05)
        yield waits
    finally:
        client.terminate()
        client.wait()


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """The address of a store in `folder`, served by a process of its own for a block."""
    command = [sys.executable, "-m", "backend.cli", "serve", "store", "--path", str(folder / "store"), "--port", "0"]
    gateway = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert gateway.stdout is not None
        yield next(word.rstrip(",;") for word in gateway.stdout.readline().split() if word.startswith("ws://"))
    finally:
        gateway.terminate()
        gateway.wait()
