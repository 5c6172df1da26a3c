"""The commands that move runs: what they print, and how they fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from backend.cli.console import console
from backend.cli.runs import runs_app
from backend.store.errors import StoreError
from backend.store.records import RunRecord
from backend.store.store import Store

RUN = RunRecord("train-1", "train", 1, "hash", 1_000, {}, "finished", 2_000)


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_width", 250)
    monkeypatch.setenv("COLUMNS", "250")
    for name in ("CRYPTOSENTINEL_STORE_USER", "CRYPTOSENTINEL_STORE_PASSWORD"):
        monkeypatch.delenv(name, raising=False)


def invoke(app: typer.Typer, *arguments: object) -> str:
    """What a command prints. Raises what it raises."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return " ".join(result.output.split())


def test_a_run_goes_from_one_store_to_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Store.open("a") as store:
        store.add_run(RUN)
        store.add_metrics(RUN.run, 0, {"loss": 0.5})
    app = runs_app
    assert "wrote 2 records of run train-1 to f.gz" in invoke(app, "--store", "a", "export", RUN.run, "f.gz")
    assert "wrote 2 records of run train-1 to b" in invoke(app, "import", "f.gz", "--store", "b")
    assert "b has this very run train-1 already" in invoke(app, "--store", "a", "import", "f.gz", "--store", "b")
    assert "wrote 2 records of run train-1 to runs/store" in invoke(app, "import", "f.gz")
    for name in ("b", "runs/store"):
        with Store.open(name) as store:
            assert store.runs() == [replace(RUN, imported=True)]
    with pytest.raises(StoreError, match="no run 'q'"):
        invoke(app, "--store", "a", "export", "q", "g.gz")
    assert not Path("g.gz").exists()
