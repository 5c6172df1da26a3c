"""Runs commands that are killed, interrupted or left without disk space at the n-th change they make to their files.

One process imports the program once and makes a child of itself for every command, so that a command costs what it does
and not the import of torch. In a child an audit hook counts the changes that Python makes below the folder the command
runs in: files opened for writing, names that are made, moved and removed, or some of these. A full disk is a limit of
0 bytes for any write to a file from then on, and holds for libraries that are not written in Python as well.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Never, Self

ROOT = Path(__file__).parents[1]
# "twice" is a second interrupt at whatever the command does next after the first.
Fault = Literal["kill", "full", "interrupt", "twice"]
_NAMES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.truncate")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (negative: the signal that killed it), what it printed, the changes it made.

    A killed command has no changes, since nobody is left to count them.
    """

    code: int
    said: str
    changes: int | None


class Killable:
    """The process that runs commands. Variables of `environment` are set in addition to this process's own."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        paths = {"PYTHONPATH": str(ROOT), "COLUMNS": "250", "TERM": "xterm", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.killable"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **paths, **(environment or {})},
        )  # fmt: skip

    def __call__(
        self,
        folder: Path,
        *arguments: object,
        fault: Fault = "kill",
        at: int = 0,
        after: float = 0.0,
        of: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> Ended:
        """Run a command in `folder`, with the fault at its change number `at`; 0: never. After `after` seconds it is
        interrupted, where the fault is an interrupt, and killed otherwise; 0: never.

        `of` is a part of the names whose changes count, or an audit event of Python that counts in their stead.
        """
        request = {
            "folder": str(folder), "arguments": [os.fsdecode(str(one)) for one in arguments], "fault": fault, "at": at,
            "after": after, "of": of, "environment": dict(environment or {}),
        }  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return Ended(**json.loads(self._process.stdout.readline()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _serve() -> None:
    _load()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            _run(request, writing)
        os.close(writing)
        struck = signal.SIGINT if request["fault"] == "interrupt" else signal.SIGKILL
        ended = _followed(child, reading, request["after"], struck)
        sys.stdout.write(json.dumps(ended) + "\n")
        sys.stdout.flush()


def _load() -> None:
    """Whatever takes long to import; nothing of it may start a thread that a child would miss."""
    import torch

    torch.set_num_threads(1)
    import ccxt  # noqa: F401
    import transformers  # noqa: F401

    import backend.cli.main
    import backend.reporting.report
    import backend.runs.backtest
    import backend.runs.check
    import backend.runs.evaluation
    import backend.runs.store_check
    import backend.runs.train  # noqa: F401
    import simulator.data.download  # noqa: F401


def _followed(child: int, reading: int, after: float, struck: signal.Signals) -> dict[str, Any]:
    """Wait for a child's end, and send it a signal when its time is up."""
    said, until = b"", time.monotonic() + after if after else None
    while True:
        left = None if until is None else max(0.0, until - time.monotonic())
        if not select.select([reading], [], [], left)[0]:
            os.kill(child, struck)
            until = None
            continue
        piece = os.read(reading, 65536)
        if not piece:
            break
        said += piece
    os.close(reading)
    _, status = os.waitpid(child, 0)
    text, _, changes = said.decode(errors="replace").partition("\0")
    code = os.waitstatus_to_exitcode(status)
    return {"code": code, "said": " ".join(text.split()), "changes": int(changes) if changes else None}


def _run(request: dict[str, Any], writing: int) -> Never:
    os.chdir(request["folder"])
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # it is looked for anew
    signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs in the background ignores it
    sys.stdin = open(os.devnull)  # noqa: SIM115
    for number in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDONLY) if not number else writing, number)
    top, at, of, fault = os.path.realpath(request["folder"]) + os.sep, request["at"], request["of"], request["fault"]
    changes, again = 0, False

    def counts(event: str, values: tuple[Any, ...]) -> bool:
        if event == of:
            return True
        if event == "open":
            if not (isinstance(values[2], int) and values[2] & _WRITES):
                return False
        elif event not in _NAMES:
            return False
        name = os.path.abspath(os.fsdecode(values[0])) if isinstance(values[0], str | bytes) and values[0] else ""
        return name.startswith(top) and of in name

    def watch(event: str, values: tuple[Any, ...]) -> None:
        nonlocal changes, again
        if again:
            again = False
            _strike("interrupt")
        if counts(event, values):
            changes += 1
            if changes == at:
                again = fault == "twice"
                _strike(fault)

    sys.addaudithook(watch)
    from backend.cli.main import program

    sys.argv = ["cryptosentinel", *request["arguments"]]
    code: object = 0

    def finish(given: int | None = None) -> Never:
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(writing, f"\0{changes}".encode())
        exit_now(given if given is not None else code if isinstance(code, int) else 0 if code is None else 1)

    # A signalled program ends itself, before it comes back here.
    exit_now = os._exit
    vars(os)["_exit"] = finish
    try:
        program()
    except SystemExit as ending:
        code = ending.code
    atexit._run_exitfuncs()
    finish()


def _strike(fault: Fault) -> None:
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    elif threading.current_thread() is threading.main_thread():
        signal.raise_signal(signal.SIGINT)
    else:  # as from a terminal: to the process, whose main thread takes it
        os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    _serve()
