"""Two teams on one feed, of which one trades: the shadow sees the same bars and disturbs nobody."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backend.paper.records.stored
from backend.builders.loaded_team import LoadedTeam
from backend.paper import switch
from backend.paper.bar_source import SourceEnd
from backend.paper.journal import bar_from_json, entries_of
from backend.paper.monitor import LOG
from backend.paper.review.comparison import LEAST_COMPARED, compared_teams, paper_comparison
from backend.paper.review.decision_figures import figures_of_session
from backend.paper.sessions import (
    PaperOutcome,
    PaperRequest,
    paper_parity,
    paper_status,
    resume_paper,
    run_paper,
)
from backend.paper.shadow.shadow_run import ShadowRun, SharedBars
from backend.paper.switch import set_kill, set_stop
from backend.runs.requests import Observer
from backend.store.store import Store
from cryptosentinel.llm.engine import Completion, Request
from simulator.errors import UserError
from simulator.live.bar_assembly import LiveBar
from simulator.live.clock import SimulatedClock
from tests.backend.paper import paper_scenes as scene
from tests.backend.paper.live_scenes import AfterBars

ROOT = Path(__file__).resolve().parents[3]
SESSION, SHADOW = "paper-two", "paper-two-shadow"
SETTINGS = ("paper.history_bars=130", "paper.snapshot_bars=50", "costs.thinking_time=20")


def begin(store: Store, folder: Path, observer: Observer | None = None, **given: Any) -> PaperOutcome:
    """A session of four days with a shadow."""
    request = PaperRequest(
        session=SESSION, shadow="scripted", data=ROOT / "data" / "synthetic", timeframe="4h", start="2021-06-10",
        end="2021-06-14", decide_every=1, symbols=("AAAUSDT",), overrides=SETTINGS,
    )  # fmt: skip
    return run_paper(replace(request, **given), store, folder, observer or Observer())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Path]]:
    folder = tmp_path_factory.mktemp("session")
    with Store.open("mem://") as store:
        assert begin(store, folder).why == "finished"
        yield store, folder


def books(store: Store, run: str) -> list[Any]:
    return scene.books(entries_of(store, run))


def test_the_same_team_as_a_shadow_does_the_same(undisturbed: tuple[Store, Path]) -> None:
    store, folder = undisturbed
    assert books(store, SESSION) == books(store, SHADOW)
    record, outcome = paper_status(SHADOW, store, folder)
    assert (record.status, record.config["shadow_of"]) == ("finished", SESSION) and outcome.decisions > 20
    assert paper_parity(SHADOW, store).differences == ()
    found = paper_comparison(SESSION, store)
    assert (found.gain, found.low, found.high, found.agreed) == (0.0, 0.0, 0.0, 1.0)
    assert "no difference can be told" in found.sentence() and not found.better


def test_a_session_with_a_shadow_trades_as_one_without(undisturbed: tuple[Store, Path], tmp_path: Path) -> None:
    with Store.open("mem://") as alone:
        begin(alone, tmp_path, shadow="")
        assert books(alone, SESSION) == books(undisturbed[0], SESSION)
        assert [record.run for record in alone.runs()] == [SESSION]
        with pytest.raises(UserError, match="has no shadow"):
            paper_comparison(SESSION, alone)


def test_both_go_on_after_a_stop(undisturbed: tuple[Store, Path], tmp_path: Path) -> None:
    with Store.open("mem://") as store:
        assert begin(store, tmp_path, AfterBars(9, set_stop)).why == "stopped"
        assert {store.run(one).status for one in (SESSION, SHADOW)} == {"interrupted"}
        with pytest.raises(UserError, match="is the shadow of session paper-two and goes on with it"):
            resume_paper(SHADOW, store, tmp_path)
        assert resume_paper(SESSION, store, tmp_path).why == "finished"
        assert books(store, SESSION) == books(undisturbed[0], SESSION) == books(store, SHADOW)


def test_the_kill_switch_of_both_is_one_alert(tmp_path: Path) -> None:
    """Both obey it; whoever is called at night is called once."""
    with Store.open("mem://") as store:
        outcome = begin(store, tmp_path, AfterBars(9, partial(set_kill, how="flatten")))
        assert outcome.why == "flatten"
        for run in (SESSION, SHADOW):
            assert [one.document["what"] for one in entries_of(store, run) if one.kind == "control"] == ["flatten"]
    logs = (tmp_path / SESSION / LOG, tmp_path / SESSION / "shadow" / LOG)
    # Others, such as one of late thinking, come by the load of the machine.
    alerts = [
        [line["session"] for line in map(json.loads, log.open()) if line["event"] == "alert" and line["what"] == "kill"]
        for log in logs
    ]
    assert alerts == [[SESSION], []]


def test_a_kill_switch_that_was_set_after_the_last_look_is_obeyed_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shadow looks at its own times: it may have looked just before, and its bars end with the session."""
    monkeypatch.setattr(switch, "_LOOK_SECONDS", 1e9)
    with Store.open("mem://") as store:
        outcome = begin(store, tmp_path, AfterBars(9, partial(set_kill, how="flatten")))
        assert outcome.why == "flatten"
        for run in (SESSION, SHADOW):
            assert [one.document["what"] for one in entries_of(store, run) if one.kind == "control"] == ["flatten"]


class Killed(Observer):
    """Stands for a kill after some bars."""

    def progress(self, what: str, done: int, total: int) -> None:
        """See `Observer`."""
        if done == 7:
            raise scene.StruckError


@pytest.mark.slow
def test_a_shadow_that_lags_behind_at_a_kill_gets_its_bars_from_the_journal(
    undisturbed: tuple[Store, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shadow never began before the kill: all bars so far come from the trading session's journal."""
    with Store.open("mem://") as store:
        monkeypatch.setattr(ShadowRun, "start", lambda _: None)
        monkeypatch.setattr(ShadowRun, "close", lambda *_: False)
        with pytest.raises(scene.StruckError):
            begin(store, tmp_path, Killed())
        monkeypatch.undo()
        assert len(entries_of(store, SHADOW)) == 1
        resume_paper(SESSION, store, tmp_path)
        bars = {
            run: [bar_from_json(one.document["bar"]) for one in entries_of(store, run) if one.kind == "bar"]
            for run in (SESSION, SHADOW)
        }
        assert bars[SESSION] == bars[SHADOW] and len(bars[SHADOW]) > 20
        _, outcome = paper_status(SHADOW, store, tmp_path)
        assert outcome.missed >= 6, "it did not decide at closes that were over when it got them"
        assert paper_parity(SHADOW, store).differences == ()


@pytest.mark.parametrize("hangs", [True, False])
def test_a_shadow_that_hangs_or_fails_holds_up_nobody(
    undisturbed: tuple[Store, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """Its engine fails at the tenth request, or hangs until the decision is cut off."""
    loaded = backend.paper.records.stored.subject_of
    never = threading.Event()

    class Broken:
        name = "broken"

        def __init__(self, team: LoadedTeam) -> None:
            self._engine, self._left = team.engine, 10

        def generate(self, requests: Sequence[Request]) -> list[Completion]:
            self._left -= 1
            if self._left < 0:
                if not hangs:
                    raise RuntimeError("the model broke")
                never.wait(20.0)
            return self._engine.generate(requests)

        def policy_version(self, role: str) -> str:
            return self._engine.policy_version(role)

    def team(name: str, config: Any) -> LoadedTeam:
        made = loaded(name.removeprefix("broken "), config)
        assert isinstance(made, LoadedTeam)
        return replace(made, engine=Broken(made)) if name.startswith("broken ") else made

    monkeypatch.setattr(backend.paper.records.stored, "subject_of", team)
    with Store.open("mem://") as store:
        settings = (*SETTINGS, "paper.decision_timeout=1")
        assert begin(store, tmp_path, shadow="broken scripted", overrides=settings).why == "finished"
        never.set()
        assert books(store, SESSION) == books(undisturbed[0], SESSION)
        record = store.run(SHADOW)
        if hangs:
            assert record.status == "finished"
            cut = [one.document["cut_off"] for one in entries_of(store, SHADOW) if one.kind == "decision"]
            assert sum(map(bool, cut)) > 10, "no answer within a second, and the next decisions at once"
        else:
            assert (record.status, record.message) == ("failed", "RuntimeError: the model broke")
            assert paper_comparison(SESSION, store).missing


def test_a_shadow_that_loses_money_is_told_apart(undisturbed: tuple[Store, Path]) -> None:
    mine = figures_of_session(entries_of(undisturbed[0], SESSION))
    noise = np.random.default_rng(3).normal(0.0, 1e-4, len(mine))
    worse = [replace(one, returned=one.returned - 0.001 + more) for one, more in zip(mine, noise, strict=True)]
    found = compared_teams("ours", "theirs", mine, worse, 5)
    assert found.high < 0.0 and "the shadow earns less" in found.sentence()
    found = compared_teams("ours", "theirs", worse, mine, 5)
    assert found.better and "the shadow earns more" in found.sentence()
    assert found.low < found.gain < found.high and found.gain == pytest.approx(0.001, rel=0.1)
    few = compared_teams("ours", "theirs", mine[: LEAST_COMPARED - 3], worse, 5)
    assert "3 more decisions are missing" in few.sentence() and not few.better


@pytest.mark.parametrize("how", ["over", "paused"])
def test_bars_that_wait_are_taken_before_an_end_and_not_before_a_pause(how: SourceEnd) -> None:
    bars = [LiveBar(n, n, {}, {}, ()) for n in range(3)]
    clock = SimulatedClock(0, 60.0)
    shared = SharedBars(lambda: clock, bars[:2])
    shared.put(bars[2])
    shared.settle(lambda: True)  # this clock does not jump: nobody waits
    shared.end(how)
    taken = [shared.next_bar(lambda: False) for _ in range(4)]
    assert taken == ([*bars, None] if how == "over" else [None] * 4) and shared.ended == how


def test_a_session_is_not_named_after_a_path(tmp_path: Path) -> None:
    with Store.open("mem://") as store:
        for name in ("../elsewhere", "a/b", "-x", "a b", "x" * 65):
            with pytest.raises(UserError, match="cannot name a session"):
                begin(store, tmp_path, session=name)
        assert not list(tmp_path.iterdir()) and not store.runs()
