"""Runs the program as the shell would, within the test's own process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from backend.cli import main as cli
from backend.cli.console import console


class Result:
    """What a command printed, with the spaces of wrapped lines made one, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = " ".join(out.split())
        self.err = " ".join(err.split())


Run = Callable[..., Result]


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """run("backtest", "--data", ...) runs the program in `folder`, where it also finds modules of its own."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    # The console may have taken its width from another terminal when it was first imported.
    monkeypatch.setattr(console, "_width", 250)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "250")

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["cryptosentinel", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
            sys.exit(0)
        printed = capsys.readouterr()
        code = ended.value.code
        return Result(0 if code is None else int(code), printed.out, printed.err)

    return run
