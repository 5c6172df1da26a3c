"""The attack suite, second part: what is done again from a stored run, and the files beside a store's database.

A run that this user did not make is replayed, played again, saved as a file, resumed as a paper session; its
configuration and its other fields name a module that would be imported, a program, a server, and files elsewhere.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from backend.config.load import load_config, presets
from backend.config.schema import Config
from backend.paper.sessions import paper_parity
from backend.reporting.run_summary import settings_file
from backend.store.records import RunRecord
from backend.store.store import Store
from simulator.data.archive import write_market
from simulator.errors import UserError
from tests.command_line import Run, program
from tests.hostile import Canary, canary, hostile_config
from tests.small_world import small_market

RUN = "train-20240101-000000-000"
MODULE = "canary_module"  # in the folder from which the user works; whoever imports it is noticed
NAMED = f"{MODULE}:ROLE"


@pytest.fixture
def bird(tmp_path: Path) -> Iterator[Canary]:
    with canary(tmp_path / "outside") as watching:
        yield watching


@pytest.fixture
def command(tmp_path: Path, bird: Canary, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    here = tmp_path / "here"
    here.mkdir()
    (here / f"{MODULE}.py").write_text(f"open({str(bird.folder / 'was-run')!r}, 'w').close()\n")
    return program(here, monkeypatch, capsys)


def test_a_file_saved_of_an_imported_run_comes_with_a_warning() -> None:
    run = RunRecord(RUN, "train", 1, "", 1_700_000_000_000, {"config": hostile_config("engine.python")})
    own, nothing = settings_file(run)
    text, warning = settings_file(replace(run, imported=True))
    assert nothing == "" and text == own and "first read what they run" in warning


@pytest.fixture
def foreign(command: Run, bird: Canary, tmp_path: Path) -> str:
    """A backtest out of a file whose record somebody has rewritten."""
    here = tmp_path / "here"
    write_market(small_market(), tmp_path / "data")
    result = command(
        "backtest", "--data", tmp_path / "data", "--start", "2020-03-01", "--end", "2020-03-03", "--baselines", "none"
    )
    assert result.code == 0, result.err
    with Store.open(here / "runs" / "store") as store:
        [run] = store.runs()
        run.config["config"]["engine"] |= {"kind": "vllm", "python": str(bird.program), "url": ""}
        run.config["config"]["plugins"]["roles"] = [NAMED]
        run.config["sources"] = {"scripted": {"team": NAMED, "variant": ""}}
        store.set_document(run)
    assert command("runs", "export", run.run, here / "theirs.gz").code == 0
    shutil.rmtree(here / "runs")
    assert command("runs", "import", here / "theirs.gz").code == 0
    return run.run


def test_nothing_is_done_again_of_an_imported_run(foreign: str, command: Run, bird: Canary) -> None:
    for arguments in (
        ("backtest", "--like", foreign),
        ("backtest", "--like", foreign, "--team", "scripted", "--baselines", "none"),
        ("runs", "replay", foreign, "--decision", "1"),
        ("runs", "replay", foreign, "--decision", "1", "--team", "scripted", "--rules"),
        ("runs", "show", foreign),
    ):
        result = command(*arguments)
        assert "Traceback" not in result.err, (arguments, result.err)
        again = arguments[1] != "show"
        assert result.code == 2 * again and ("was imported" in result.err) == again, (arguments, result.err)
    bird.assert_untouched()
    assert MODULE not in sys.modules


# -- paper sessions --------------------------------------------------------------------------------------------------


def test_an_imported_paper_session_is_not_played_again(command: Run, bird: Canary, tmp_path: Path) -> None:
    document = {"config": Config().to_dict(), "team": NAMED}
    session = RunRecord(
        "paper-20240101-000000-000", "paper", 1, "", 1_700_000_000_000, document, "interrupted", imported=True
    )
    with Store.open(tmp_path / "here" / "runs" / "store") as store:
        store.add_run(session)
    folder = tmp_path / "here" / "runs" / "store"
    with pytest.raises(UserError, match="was imported"):
        paper_parity(session.run, folder)
    bird.assert_untouched()
    assert MODULE not in sys.modules


# -- files beside the database ---------------------------------------------------------------------------------------

# What somebody else writes into the manifest of a backup.
MANIFESTS = (
    "7", "[]", "null", "{", '{"files": 7}', '{"files": {"a": 7}}', '{"files": {}}',
    '{"files": {"../../precious": "0"}}', '{"files": {"/dev/zero": "0"}}', '{"files": {"\\u001b[2J": "0"}}',
    '{"files": {"LOCK": null}}', "[" * 100_000,
    '{"a":' * 50_000 + "1" + "}" * 50_000, "9" * 6_000, "NaN", "\x1b[2J", "",
)  # fmt: skip


def _backup(command: Run, tmp_path: Path) -> Path:
    """A backup of a store with one run, as somebody hands it on."""
    here = tmp_path / "here"
    with Store.open(here / "theirs") as store:
        store.add_run(RunRecord(RUN, "train", 1, "", 1, {"config": {}}, "finished"))
    result = command("store", "backup", here / "backup", "--store", here / "theirs")
    assert result.code == 0, result.err
    return here / "backup"


@pytest.mark.parametrize("text", MANIFESTS, ids=lambda text: repr(text[:40]))
def test_a_manifest_of_somebody_else_is_refused_in_one_message(text: str, command: Run, tmp_path: Path) -> None:
    backup = _backup(command, tmp_path)
    (tmp_path / "precious").write_text("mine")
    (backup / "db" / "closed.json").write_text(text)
    for arguments in (("runs",), ("store", "check"), ("runs", "delete", RUN, "--yes")):
        result = command(*arguments, "--store", backup)
        assert result.code == 2, (arguments, result.out)
        assert "Traceback" not in result.err and "\x1b" not in result.err, arguments
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize("name", ["demo", "demo.toml", "configs/demo.toml", "presets/demo.toml"])
def test_a_preset_beside_an_artefact_is_not_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = load_config("demo")
    monkeypatch.chdir(tmp_path)
    theirs = tmp_path / name
    theirs.parent.mkdir(exist_ok=True)
    theirs.write_text('[engine]\nkind = "vllm"\npython = "helper"\n')
    assert load_config("demo") == ours and "demo" in presets()
