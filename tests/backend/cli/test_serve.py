"""The commands that serve a store and move runs: what they say, and how they fail."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from backend.cli.console import console
from backend.cli.runs import runs_app
from backend.cli.serve import serve_app
from backend.config.load import load_config
from backend.store import RunRecord, ServiceRecord, Store, StoreError
from tests.backend.store.gateways import GatewayProcess, free_port

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


def test_help_says_what_there_is() -> None:
    assert "store" in invoke(serve_app, "--help")
    told = invoke(serve_app, "store", "--help")
    assert all(word in told for word in ("--path", "--host", "--port", "8765", "CRYPTOSENTINEL_STORE_USER"))


@pytest.mark.parametrize("arguments", [("--port", "99999"), ("--port", "-1"), ("--port", "x")])
def test_a_port_that_cannot_be_is_refused(arguments: tuple[str, str]) -> None:
    assert "Invalid value for '--port'" in invoke(serve_app, "store", *arguments)


def test_it_serves_until_ctrl_c_and_says_so(tmp_path: Path) -> None:
    port = free_port()
    secret = {"CRYPTOSENTINEL_STORE_USER": "trader", "CRYPTOSENTINEL_STORE_PASSWORD": "hidden-word"}
    with GatewayProcess(tmp_path / "s", port, **secret) as running:
        assert running.first_line == (
            f"store {tmp_path / 's'}: listening on ws://127.0.0.1:{port} with CRYPTOSENTINEL_STORE_USER; your programs "
            "here name the folder"
        )
        with pytest.raises(StoreError, match="sign in before any other request"):
            Store.open(running.url)
        code, said = running.stop(signal.SIGINT)
        assert code == 0 and "stopped, everything is written" in said
        assert "hidden-word" not in running.first_line + said


def test_status_needs_no_port_while_another_process_holds_the_store(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with GatewayProcess(folder, free_port()):
        with Store.open(folder) as store:
            store.add_run(replace(RUN, status="running", config={"config": load_config("quick").to_dict()}))
            store.report_service(ServiceRecord(RUN.run, "rollout-0", "rollout", None, "v", "1", "working", 3, 1))
            said = invoke(serve_app, "status", "--store", folder)
        assert "run train-1, running: at step 3" in said and "rollout-0" in said
        assert "has processes" in invoke(serve_app, "status", "--store", tmp_path / "other")


def test_mistakes_are_told_before_anything_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot use this folder"):
        invoke(serve_app, "store", "--path", tmp_path / "file", "--port", 0)
    with pytest.raises(StoreError, match=r"--host 0.0.0.0 can be reached from other machines"):
        invoke(serve_app, "store", "--path", tmp_path / "s", "--host", "0.0.0.0", "--port", 0)
    monkeypatch.setenv("CRYPTOSENTINEL_STORE_USER", "u")
    with pytest.raises(StoreError, match="go together: set both or neither"):
        invoke(serve_app, "store", "--path", tmp_path / "s", "--port", 0)


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
            assert store.runs() == [RUN]
    with pytest.raises(StoreError, match="no run 'q'"):
        invoke(app, "--store", "a", "export", "q", "g.gz")
    assert not Path("g.gz").exists()
