"""Processes that use a store and are killed at any moment, started quickly: each is forked off one that opens none."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from backend.store import DecisionRecord, RunRecord, Store, StoreError, holding
from backend.store.integrity.acknowledged import Acknowledged
from backend.store.maintenance.compaction import compact_store
from tests.backend.store.gateways import environment

Say = Callable[..., None]


class KillableUsers:
    """`use` runs one function of `_USES` in a new process and returns what that said, one document a line. After
    `seconds` it is killed by the kernel, whatever it is at; the last document then is `{"killed": true}`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.backend.store.killable"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
        )

    def use(self, what: str, folder: Path, seconds: float = 0.0, **arguments: Any) -> list[dict[str, Any]]:
        assert self._process.stdin is not None and self._process.stdout is not None
        command = {"what": what, "folder": str(folder), "seconds": seconds, "arguments": arguments}
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        said: list[dict[str, Any]] = []
        for line in self._process.stdout:
            document = json.loads(line)
            if "ended" in document:
                return said if document["ended"] == 0 else [*said, {"killed": True}]
            said.append(document)
        raise AssertionError("the process of which the users are forked off is gone")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


def contents(run: str, size: int) -> str:
    return random.Random(run).randbytes(size // 2).hex()


def _write(say: Say, folder: str, runs: list[str], size: int, die: bool = False, full: bool = False) -> None:
    """With `full` the disk takes no more than half of what is written last, and reads go on."""
    with Store.open(folder) as store:
        for run in runs:
            store.add_decisions([DecisionRecord(run, "b", 0, 5, {"k": contents(run, size), "size": size})])
            store.add_run(RunRecord(run, "backtest", 1, "h", 7, {}, status="finished"))
            say(acknowledged=run)
        if full:
            _write_on_a_full_disk(store, Path(folder))
        if die:
            os.kill(os.getpid(), signal.SIGKILL)


def _write_on_a_full_disk(store: Store, folder: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    log = next((folder / "db" / "wal").iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size + 700, resource.RLIM_INFINITY))
    try:
        store.add_decisions([DecisionRecord("refused", "b", 0, 5, {"k": contents("refused", 4_000), "size": 4_000})])
    except StoreError as error:
        assert "is the disk full?" in str(error), error
        store.runs()
    else:
        raise AssertionError("the disk was not full")


def _make(say: Say, folder: str) -> None:
    """Killed once the engine has begun a new database, before anything is acknowledged."""

    class Killing(Acknowledged):
        def begin(self) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

    vars(holding)["Acknowledged"] = Killing
    Store.open(folder)


def _delete(say: Say, folder: str, runs: list[str]) -> None:
    with Store.open(folder) as store:
        for run in runs:
            say(deleting=run)
            store.delete_run(run)


def _compact(say: Say, folder: str) -> None:
    compact_store(Path(folder), lambda what, done, total: None)


def _look(say: Say, folder: str) -> None:
    with Store.open(folder) as store:
        for record in store.runs():
            decisions = [decision.document for decision in store.decisions(record.run)]
            whole = len(decisions) == 1 and decisions[0]["k"] == contents(record.run, decisions[0]["size"])
            say(run=record.run, whole=whole, status=record.status)


_USES: dict[str, Callable[..., None]] = {
    "make": _make,
    "write": _write,
    "delete": _delete,
    "compact": _compact,
    "look": _look,
}


def _main() -> None:
    for line in sys.stdin.buffer:
        command = json.loads(line)
        process = os.fork()
        if process == 0:
            _child(command)
        _, status = os.waitpid(process, 0)
        _say(ended=status)


def _child(command: dict[str, Any]) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    if command["seconds"]:
        signal.setitimer(signal.ITIMER_REAL, command["seconds"])  # nobody handles it: the kernel ends the process
    try:
        _USES[command["what"]](_say, command["folder"], **command["arguments"])
    except StoreError as error:
        _say(refused=str(error))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the test reads it
        _say(failed=f"{type(error).__name__}: {error}")
    os._exit(0)


def _say(**document: Any) -> None:
    os.write(1, json.dumps(document).encode() + b"\n")


if __name__ == "__main__":
    _main()
