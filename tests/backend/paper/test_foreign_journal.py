"""A session in a store of somebody else: whatever its record or an entry of its journal says, who looks at it or goes
on with it gets an answer or one message."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from backend.cli.main import app
from backend.paper.journal import entry_problem
from backend.store.errors import StoreError
from backend.store.records import JournalRecord, RunRecord
from backend.store.store import Store
from simulator.data.archive import write_market
from tests.backend.test_malformed import _replaced
from tests.command_line import Run
from tests.small_world import small_market

Session = tuple[Path, RunRecord, list[JournalRecord]]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """A folder with data, and a session of a day on it: its record and its journal."""
    folder = tmp_path_factory.mktemp("session")
    with pytest.MonkeyPatch.context() as patch:
        write_market(small_market(), folder / "data")
        patch.chdir(folder)
        days = ["--data", "data", "--start", "2020-03-01", "--end", "2020-03-02", "--set", "paper.speed=0"]
        ended = CliRunner().invoke(app, ["paper", "run", *days])
        assert ended.exit_code == 0, ended.output
    with Store.open(folder / "runs" / "store") as store:
        [run] = [one for one in store.runs() if one.kind == "paper"]
        return folder, run, store.journal(run.run)


def _changed(document: dict[str, object], rng: random.Random) -> dict[str, object]:
    """A document with one thing wrong, of those that a store can hold."""
    while True:
        try:
            changed = json.loads(_replaced(json.dumps(document).encode(), rng))
            json.dumps(changed, allow_nan=False)
        except (ValueError, RecursionError):
            continue
        if isinstance(changed, dict):
            return changed


def _store(folder: Path, run: RunRecord, entries: list[JournalRecord]) -> bool:
    """A store with a session that was interrupted; False where the store does not take what it says."""
    with Store.open(folder) as store:
        try:
            store.resume_run(replace(run, status="interrupted", finished_at=None))
            for entry in entries:
                store.put(entry)
        except StoreError:
            return False
    return True


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 120), marks=pytest.mark.slow)])
@pytest.mark.parametrize("where", ["record", "journal"])
def test_whatever_a_session_says_is_an_answer_or_one_message(
    where: str, seeds: range, session: Session, command: Run, tmp_path: Path
) -> None:
    folder, run, journal = session
    shutil.copytree(folder / "data", tmp_path / "data")
    going_on = [one for one in journal if one.kind != "end"]
    for seed in seeds:
        rng, record, entries = random.Random(f"{where} {seed}"), run, [*going_on]
        if where == "record":
            record = replace(run, config=_changed(run.config, rng))
        else:
            place = rng.randrange(len(entries))
            entries[place] = replace(entries[place], document=_changed(entries[place].document, rng))
        if _store(tmp_path / "runs" / "store", record, entries):
            for words in (("paper", "status"), ("paper", "report"), ("runs", "show"), ("paper", "resume")):
                result = command(*words, run.run)
                assert result.code in (0, 1, 2) and "Traceback" not in result.err, (seed, words, result.err)
        shutil.rmtree(tmp_path / "runs")


@pytest.mark.parametrize(
    "changed", [{"funding": [["another", 1_583_020_800_000, 0.1]]}, {"half_spread": {}}], ids=("funding", "spread")
)
def test_a_bar_that_does_not_fit_its_session_is_refused(
    changed: dict[str, object], session: Session, command: Run, tmp_path: Path
) -> None:
    folder, run, journal = session
    shutil.copytree(folder / "data", tmp_path / "data")
    entries = [one for one in journal if one.kind != "end"]
    place = next(number for number, one in enumerate(entries) if one.kind == "bar")
    document = entries[place].document
    entries[place] = replace(entries[place], document={**document, "bar": {**document["bar"], **changed}})
    assert _store(tmp_path / "runs" / "store", run, entries)
    for words in (("paper", "report"), ("paper", "resume")):
        result = command(*words, run.run)
        assert result.code == 2 and "restore a backup" in result.err, result.err


def test_the_session_itself_is_gone_on_with(session: Session, command: Run, tmp_path: Path) -> None:
    folder, run, journal = session
    shutil.copytree(folder / "data", tmp_path / "data")
    assert all(entry_problem(one.kind, one.document) == "" for one in journal)
    assert _store(tmp_path / "runs" / "store", run, [one for one in journal if one.kind != "end"])
    resumed = command("paper", "resume", run.run)
    assert resumed.code == 0, resumed.err
    assert command("paper", "report", run.run).code == 0
