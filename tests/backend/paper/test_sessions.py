"""A paper session has the books of a backtest, whatever happens to it and to its feed."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import pytest

from backend.builders.market import limits_of
from backend.builders.strategies import named_strategy
from backend.paper.journal import EntryKind, Journal, entries_of
from backend.paper.parity import Parity, check_parity
from backend.paper.switch import KILL_FILE, set_kill
from backend.store.errors import StoreError
from backend.store.store import Store
from simulator.errors import UserError
from tests.backend.paper import paper_scenes as scene
from tests.command_line import program

ROOT = Path(__file__).resolve().parents[3]
LIMITS = limits_of(scene.settings().guard)


# A team, and a strategy of one's own that remembers what it saw.
WHO = ("", "tests.backend.paper.own_strategy:Alternating")


def parity(store: Store, strategy: str = "") -> Parity:
    subject = named_strategy(strategy) if strategy else scene.named_team()
    return check_parity(entries_of(store, scene.RUN), subject, scene.ACCOUNT, LIMITS, scene.SEED)


@pytest.fixture(scope="module", params=WHO, ids=("team", "strategy"))
def undisturbed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, list[object], int]:
    """Who traded, the books of a session that nothing happened to, and how often it wrote."""
    with Store.open("mem://") as store:
        outcome = scene.begin(store, tmp_path_factory.mktemp("session"), strategy=request.param)
        assert outcome.why == "finished" and outcome.bars == scene.STOP - scene.START and outcome.fills > 3
        assert parity(store, request.param).differences == ()
        entries = entries_of(store, scene.RUN)
        return request.param, scene.books(entries), len(entries)


def test_the_scene_has_what_can_go_wrong(tmp_path: Path, store: Store) -> None:
    """Partial fills, gaps, candles that are late, double and contradictory: and the backtest of the recorded inputs
    does the same, decision by decision and fill by fill."""
    outcome = scene.begin(store, tmp_path)
    entries = entries_of(store, scene.RUN)
    notices = Counter(entry.document["kind"] for entry in entries if entry.kind == "notice")
    assert {"duplicate", "conflicting", "late"} <= set(notices)
    fills = [
        one for entry in entries if entry.kind == "bar" for one in entry.document["happened"]["ledger"]
        if one["kind_of_record"] == "Fill"
    ]  # fmt: skip
    assert max(Counter(one["order"] for one in fills).values()) > 1, "no order was filled in parts"
    found = parity(store)
    assert found.differences == ()
    assert (found.fills, found.bars) == (outcome.fills, outcome.bars) and found.decisions > 4


def test_parity_sees_a_fill_and_a_decision_that_differ(tmp_path: Path, store: Store) -> None:
    scene.begin(store, tmp_path)
    entries = entries_of(store, scene.RUN)
    decision = next(entry for entry in entries if entry.kind == "decision" and entry.document["decisions"][0]["orders"])
    decision.document["decisions"][0]["orders"] = []
    bar = next(entry for entry in entries if entry.kind == "bar" and entry.document["happened"]["ledger"])
    bar.document["happened"]["ledger"][0]["price"] *= 1.01
    found = check_parity(entries, scene.named_team(), scene.ACCOUNT, LIMITS, scene.SEED)
    assert len(found.differences) >= 2
    assert any("orders" in one for one in found.differences) and any("fill 0" in one for one in found.differences)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_killed_at_any_write_the_books_are_those_of_the_undisturbed_session(
    undisturbed: tuple[str, list[object], int], tmp_path: Path, before: bool, every: bool
) -> None:
    """No order twice and none forgotten: the account, the decisions and the guard are equal at every close."""
    strategy, expected, writes = undisturbed
    for at in range(1, writes) if every else range(2, writes, writes // 2):
        with Store.open("mem://") as store:
            folder = tmp_path / str(at)
            with pytest.raises(scene.StruckError):
                scene.begin(store, folder, strike_at=at, before=before, strategy=strategy)
            scene.go_on(store, folder, strategy=strategy)
            assert scene.books(entries_of(store, scene.RUN)) == expected, f"struck at write {at}"


@pytest.mark.parametrize(
    "words", [("--team", "paper_traded.py:Alternating"), ("--team", "./paper_traded.py:Alternating")]
)
def test_a_strategy_of_ones_own_is_traded_by_the_commands_as_in_its_backtest(
    words: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = program(tmp_path, monkeypatch, capsys)
    (tmp_path / "paper_traded.py").write_text((Path(__file__).parent / "own_strategy.py").read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "paper_traded", raising=False)
    days = ("--data", str(ROOT / "data" / "synthetic"), "--timeframe", "4h", "--start", "2021-06-10")
    run = command("paper", "run", "--session", "paper-own", *words, *days, "--end", "2021-06-14")
    assert run.code == 0 and " 0 missed" in run.out, run.err
    report = command("paper", "report", "paper-own")
    assert report.code == 0 and ": 0 differences" in " ".join(report.out.split()), report.err


def test_a_strategy_that_decides_something_else_is_not_resumed(tmp_path: Path, store: Store) -> None:
    with pytest.raises(scene.StruckError):
        scene.begin(store, tmp_path, strike_at=30, strategy=WHO[1])
    with pytest.raises(UserError, match="decides something else than it did at bar"):
        scene.go_on(store, tmp_path, strategy="hold")


def test_a_strategy_that_hangs_is_cut_off_and_changes_nothing(tmp_path: Path, store: Store) -> None:
    hanging = WHO[1].replace("Alternating", "Hanging")
    outcome = scene.begin(store, tmp_path, strategy=hanging, config=scene.settings(decision_timeout=0.2))
    assert outcome.why == "finished" and outcome.fills > 0
    decisions = [entry.document for entry in entries_of(store, scene.RUN) if entry.kind == "decision"]
    assert "no answer within 0.2 s" in [one["cut_off"] for one in decisions]
    assert parity(store, hanging).differences == ()


@pytest.mark.parametrize(
    ("name", "words"), [("Failing", "Failing failed: ZeroDivisionError"), ("Wordy", "decide gave 'b' among its orders")]
)
def test_a_strategy_that_fails_ends_its_session_with_the_reason(tmp_path: Path, name: str, words: str) -> None:
    with Store.open("mem://") as store, pytest.raises(UserError, match=words):
        scene.begin(store, tmp_path, strategy=WHO[1].replace("Alternating", name))


def test_a_journal_that_was_changed_is_not_gone_on_with(tmp_path: Path, store: Store) -> None:
    with pytest.raises(scene.StruckError):
        scene.begin(store, tmp_path, strike_at=12)
    changed = next(
        entry for entry in entries_of(store, scene.RUN) if entry.kind == "bar" and entry.document["happened"]["ledger"]
    )
    changed.document["happened"]["ledger"][0]["quantity"] *= 2.0
    store.put(changed)
    with pytest.raises(StoreError, match="something else"):
        scene.go_on(store, tmp_path)


def test_a_model_that_hangs_is_cut_off_and_changes_nothing(tmp_path: Path, store: Store) -> None:
    """The decision is no change, the session goes on, and parity plays the cut-off as it was."""
    hang = threading.Event()
    engine = scene.HangingEngine(scene.named_team().engine, 6, hang.wait)
    outcome = scene.begin(store, tmp_path, engine=engine, config=scene.settings(decision_timeout=0.2))
    hang.set()
    assert outcome.why == "finished"
    decisions = [entry.document for entry in entries_of(store, scene.RUN) if entry.kind == "decision"]
    cut = [one for one in decisions if one["cut_off"]]
    assert cut and "no answer within 0.2 s" in cut[0]["cut_off"]
    assert all("earlier decision" in one["cut_off"] for one in cut[1:])
    assert not any(one["orders"] for one in cut[1]["decisions"])
    found = parity(store)
    assert found.differences == () and found.inputs["cut off"] == len(cut)


@pytest.mark.parametrize("how", ["flatten", "freeze"])
def test_the_kill_switch_acts_while_a_model_thinks(
    tmp_path: Path, how: Literal["flatten", "freeze"], store: Store
) -> None:
    """What the switch orders is in the journal within a second of the file, although the model never answers."""
    hang, asked = threading.Event(), threading.Event()

    def hangs() -> None:
        asked.set()
        hang.wait()

    engine = scene.HangingEngine(scene.named_team().engine, 40, hangs)
    moments: list[float] = []

    def kill() -> None:
        asked.wait()
        set_kill(tmp_path, how)
        moments.append(time.monotonic())

    threading.Thread(target=kill, daemon=True).start()
    outcome = scene.begin(store, tmp_path, engine=engine, config=scene.settings(decision_timeout=600))
    ended = time.monotonic()
    hang.set()
    assert outcome.why == how
    entries = entries_of(store, scene.RUN)
    control = next(entry for entry in entries if entry.kind == "control")
    assert control.document["what"] == how
    dropped = [entry for entry in entries if entry.kind == "decision" and entry.document["dropped"]]
    # The books come first; what the cut-off decision said is written when it matters no more.
    assert len(dropped) == 1 and dropped[0].ordinal == control.ordinal + 1
    assert sum(entry.kind == "decision" for entry in entries[control.ordinal :]) == 1
    if how == "flatten":
        assert outcome.positions == dict.fromkeys(scene.SYMBOLS, 0.0)
    else:
        assert ended - moments[0] < 60.0  # by far less; a timing decides nothing here
    assert parity(store).differences == ()
    (tmp_path / KILL_FILE).unlink()
    assert scene.go_on(store, tmp_path, released=True).why == "finished"
    assert parity(store).differences == ()


def killed_after_its_order(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch, how: Literal["flatten", "freeze"]
) -> None:
    """A session whose switch is set while a model hangs, and whose program ends when the switch's order is written."""
    hang = threading.Event()

    def hangs() -> None:
        set_kill(folder, how)
        hang.wait()

    def write(journal: scene.StruckJournal, kind: EntryKind, time_: int, document: dict[str, Any]) -> None:
        Journal.write(journal, kind, time_, document)
        if kind == "control":
            raise scene.StruckError

    engine = scene.HangingEngine(scene.named_team().engine, 40, hangs)
    with monkeypatch.context() as patched:
        patched.setattr(scene.StruckJournal, "write", write)
        with pytest.raises(scene.StruckError):
            scene.begin(store, folder, engine=engine, config=scene.settings(decision_timeout=600))
    hang.set()
    assert entries_of(store, scene.RUN)[-1].document["what"] == how
    (folder / KILL_FILE).unlink()


@pytest.mark.parametrize("how", ["flatten", "freeze"])
def test_a_crash_between_the_kill_switch_and_the_decision_that_it_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Literal["flatten", "freeze"], store: Store
) -> None:
    """The order of the switch stands, and the backtest of the recorded inputs gives it in the same place."""
    killed_after_its_order(store, tmp_path, monkeypatch, how)
    assert scene.go_on(store, tmp_path, released=True).why == "finished"
    assert parity(store).differences == ()


def test_a_kill_switch_whose_file_is_lost_still_closes_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    """The file was removed by hand, not released: nothing is decided at the close whose decision was cut off."""
    killed_after_its_order(store, tmp_path, monkeypatch, "flatten")
    outcome = scene.go_on(store, tmp_path)
    assert outcome.positions == dict.fromkeys(scene.SYMBOLS, 0.0)
    missed = [entry for entry in entries_of(store, scene.RUN) if entry.document.get("missed")]
    assert missed[0].document["missed"] == "the kill switch was set"
    assert parity(store).differences == ()
