"""`cryptosentinel ui`: its address, its token, and how it ends before it is there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backend.cli import main as cli
from backend.cli.serve import TOKEN_VARIABLE
from backend.config.plugins import own_modules_refused
from backend.errors import FOLDER_GONE
from tests.ui.browsing import ROOT, free_port

SECRET = "of-the-environment-1"


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """The token of each page that is begun, and whether it refuses the user's modules; none is served."""
    import ui.server

    tokens: list[tuple[str, bool]] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CRYPTOSENTINEL_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("CRYPTOSENTINEL_REFUSE_OWN_MODULES", "")

    def serve(host: str, port: int, token: str, ready: object) -> None:
        assert callable(ready)
        ready()
        tokens.append((token, own_modules_refused()))

    monkeypatch.setattr(ui.server, "serve", serve)
    return tokens


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["cryptosentinel", "ui", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
        sys.exit(0)
    return int(ended.value.code or 0)


def test_the_address_has_a_new_token_each_time(
    begun: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert run(monkeypatch) == 0
    (first, refused), (second, _) = begun
    assert first != second and len(first) >= 32 and refused, "a page imports nothing of the user's by default"
    assert f"http://localhost:8501/?token={first}" in capsys.readouterr().out


def test_a_token_of_the_environment_is_used_and_not_printed(
    begun: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, SECRET)
    assert run(monkeypatch, "--host", "::1", "--allow-plugins") == 0
    assert begun == [(SECRET, False)] and TOKEN_VARIABLE not in os.environ
    said = capsys.readouterr().out
    assert SECRET not in said and f"http://[::1]:8501/?token=${TOKEN_VARIABLE}" in said
    assert run(monkeypatch, "--no-token") == 0 and begun[-1] == ("", True)
    for weak in ("short", "with a space in it and more", "äöüäöüäöüäöüäöüäöü"):
        monkeypatch.setenv(TOKEN_VARIABLE, weak)
        assert run(monkeypatch) == 2 and weak not in capsys.readouterr().err
    assert len(begun) == 2


@contextmanager
def program(*arguments: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-m", "backend.cli", *arguments], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_early_signal_ends_it_in_one_sentence(tmp_path: Path, number: signal.Signals) -> None:
    """It comes while libraries are imported."""
    with program("ui", "--port", str(free_port()), folder=tmp_path) as process:
        assert process.stdout is not None
        assert any("gets ready" in line for line in process.stdout), "it ended by itself"
        process.send_signal(number)
        _, said = process.communicate(timeout=120)
        assert (process.returncode, said.strip()) == (128 + number, "error: stopped")


@pytest.mark.parametrize("command", [("ui",), ("runs",), ("jobs", "list")])
def test_a_removed_folder_is_named_in_one_sentence(tmp_path: Path, command: tuple[str, ...]) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    words = [sys.executable, *PROGRAM, *command]
    code = f"import os; os.rmdir({str(gone)!r}); os.execv({sys.executable!r}, {words!r})"
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=gone, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr.strip().splitlines() == [f"error: {FOLDER_GONE}"]


PROGRAM = ("-c", "from backend.cli.main import program; program()")
