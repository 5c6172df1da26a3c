"""The page of paper sessions by Streamlit's test client: what it shows, and a kill switch that waits for nobody."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

import backend.paper.overview
import ui.access
from backend.cli.main import app as program
from backend.jobs import queue as jobs_queue
from backend.jobs.queue import JobQueue
from backend.paper.journal import Journal
from backend.paper.overview import last_report
from backend.paper.sessions import run_paper
from backend.paper.switch import KILL_FILE, STOP_FILE, running
from backend.runs.requests import PaperRequest
from backend.store.store import Store
from tests.ui.page_client import address, field, open_page, words
from ui.parts.ready import rows_of

ROOT = Path(__file__).resolve().parents[2]
SESSION = "paper-shown"
EVIL = "<script>alert(1)</script> ![x](https://evil.example/x) :red[no]"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a session that is over."""
    folder = tmp_path_factory.mktemp("page")
    request = PaperRequest(
        session=SESSION, data=ROOT / "data" / "synthetic", timeframe="4h", start="2021-06-10",
        end="2021-06-13", decide_every=2, symbols=("AAAUSDT",),
        overrides=("paper.history_bars=130", "costs.thinking_time=20"),
    )  # fmt: skip
    with Store.open(folder / "store") as store:
        run_paper(request, store, folder / "runs")
    return folder


def test_the_table_of_runs_has_the_session_and_leads_to_it(here: Path) -> None:
    with Store.open(here / "store") as store:
        rows = {row.run: row for row in rows_of(store, store.runs())[0]}
    assert rows[SESSION].total_return is not None and " decisions, " in rows[SESSION].verdict
    page = AppTest.from_file(str(ROOT / "ui" / "app.py"), default_timeout=30)
    page.query_params["run"] = SESSION
    page.run()
    assert not page.exception and not page.error
    [link] = page.get("page_link")
    assert link.proto.query_string == f"session={SESSION}"


@pytest.fixture
def here(made: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(made)
    monkeypatch.setenv("CRYPTOSENTINEL_STORE", str(made / "store"))
    monkeypatch.setattr(ui.access, "_READ_SECONDS", 60.0)  # a busy machine decides nothing here
    yield made
    for name in (KILL_FILE, STOP_FILE):
        (made / "runs" / SESSION / name).unlink(missing_ok=True)


def page() -> AppTest:
    return open_page("views/paper.py")


def test_the_demonstration_is_started_as_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CRYPTOSENTINEL_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(jobs_queue, "start_detached", lambda *given: None)
    app = page()
    assert not app.exception and "There are no paper sessions yet" in words(app)
    field(app.button, "Play the demonstration").click().run()
    assert not app.exception and not app.error and "waits for its turn" in words(app)
    [job] = JobQueue(tmp_path / "runs").jobs()
    assert address(app, "job") == [job.name]
    assert job.request.command == ("paper", "demo", f"--store={tmp_path / 'store'}", "--runs=runs")


def test_a_session_whose_process_is_gone_can_be_resumed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_queue, "start_detached", lambda *given: None)
    app = page()
    offered = {"Stop it", "Freeze now", "Resume"} & {button.label for button in app.button}
    assert not offered, "a session that is finished has nothing to stop, and nothing to resume"
    with Store.open(here / "store") as store:
        store.finish_run(SESSION, "interrupted", "stopped by the user")
    app.run()
    assert not app.button(key=f"resume {SESSION}").disabled
    (here / "runs" / SESSION / KILL_FILE).write_text("freeze")
    app.run()
    assert app.button(key=f"resume {SESSION}").disabled, "a kill switch is not taken back by the way"
    app.checkbox(key=f"release {SESSION}").check().run()
    app.button(key=f"resume {SESSION}").click().run()
    assert not app.exception
    [job] = JobQueue(here / "runs").jobs()
    shutil.rmtree(here / "runs" / "jobs")
    with Store.open(here / "store") as store:
        store.finish_run(SESSION, "finished", "finished")
    assert job.request.command[:2] == ("paper", "resume") and job.request.command[-3:] == ("--release", "--", SESSION)


def test_entry_price_profit_and_trades_are_shown(here: Path) -> None:
    with Store.open(here / "store") as store:
        found = backend.paper.overview.overview(store, SESSION, here / "runs", 0.0)
        entries = store.journal_between(SESSION, 0, 10_000)
    ledger = [one for entry in entries if entry.kind == "bar" for one in entry.document["happened"]["ledger"]]
    fills = [one for one in ledger if one["kind_of_record"] == "Fill"]
    assert len(fills) == found.outcome.fills > 0 and list(found.trades) == fills[::-1][:50]
    held = 0.0
    cost = 0.0
    for one in fills:  # the average price of what is open, from the fills alone
        grows = held == 0.0 or held * one["quantity"] > 0
        cost = cost + one["quantity"] * one["price"] if grows else cost * (held + one["quantity"]) / held
        held += one["quantity"]
        cost = 0.0 if abs(held) < 1e-9 else cost
    app = page()
    trades = next(table.value for table in app.dataframe if "because of" in table.value)
    assert list(trades["price"]) == [one["price"] for one in found.trades]
    if abs(held) > 1e-9:
        [position] = found.positions
        assert position.entry == pytest.approx(cost / held)
        assert position.profit == pytest.approx(position.quantity * (position.price - position.entry))
        table = next(table.value for table in app.dataframe if "profit" in table.value)
        assert list(table["entry"]) == [position.entry] and list(table["profit"]) == [position.profit]
    assert held == pytest.approx(found.outcome.positions.get("AAAUSDT", 0.0)) and held


def test_a_session_is_shown_as_it_stands(here: Path) -> None:
    with Store.open(here / "store") as store:
        count = len(store.journal_between(SESSION, 0, 10_000))
        Journal(store, SESSION, count).write("notice", 1, {"kind": "stale", "detail": EVIL})
    app = page()
    assert not app.exception and not app.error
    assert [tile.label for tile in app.metric] == ["Equity", "Bars", "Decisions", "Held", "Guard"]
    with Store.open(here / "store") as store:
        found = backend.paper.overview.overview(store, SESSION, here / "runs", 0.0)
    assert app.metric[0].value == f"{found.outcome.equity:,.2f}" and app.metric[4].value == "open"
    assert len(found.curve) == found.outcome.bars and found.curve[-1][1] == pytest.approx(found.outcome.equity)
    assert [(one.event, one.what) for one in found.events][-2:] == [("notice", "stale"), ("alert", "stale_data")]
    assert len(app.get("plotly_chart")) == 1 and len(found.decisions) == found.outcome.decisions
    assert any("DeepTraderManager" in message.name for message in app.chat_message), "its newest decision"
    assert "No report was made yet" in words(app) and "traded by scripted" in words(app)
    assert EVIL not in "\n".join(element.value for kind in (app.markdown, app.caption) for element in kind)


def test_a_report_is_kept_for_the_page(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["paper", "report", SESSION, "--store", str(here / "store"), "--runs", str(here / "runs")]
    with pytest.raises(SystemExit) as ended:
        program(command)
    assert ended.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    with Store.open(here / "store") as store:
        kept = last_report(store, SESSION)
    assert kept is not None and kept.differences == 0
    assert all(" ".join(sentence.split()) in printed for sentence in kept.parity)
    assert any("the backtest of the recorded inputs does the same" in element.value for element in page().success)


@pytest.mark.parametrize("how", ["freeze", "stop"])
def test_a_switch_is_the_file_that_the_command_writes(here: Path, how: str) -> None:
    folder = here / "runs" / SESSION
    with running(folder):
        switched(folder, how)


def switched(folder: Path, how: str) -> None:
    app = page()
    assert "decides nothing more" in words(app) and "Nothing is decided any more" not in words(app)
    assert not (folder / KILL_FILE).exists() and not (folder / STOP_FILE).exists(), "nothing happens by looking"
    app.button(key=f"{how} {SESSION}").click().run()
    assert not app.exception
    if how == "stop":
        assert (folder / STOP_FILE).exists() and not (folder / KILL_FILE).exists()
    else:
        assert (folder / KILL_FILE).read_text() == how
        assert any("The kill switch is set" in element.value for element in app.error)


def test_the_kill_switch_waits_for_no_store(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that does not answer: the page is there, says so, and its switch works."""
    release = threading.Event()
    monkeypatch.setattr(ui.access, "_READ_SECONDS", 0.1)

    def stuck(*_: Any) -> Any:
        release.wait(60.0)

    monkeypatch.setattr(backend.paper.overview, "overview", stuck)
    try:
        with running(here / "runs" / SESSION):
            app = page()
            assert not app.exception and "The store is busy" in words(app)
            app.button(key=f"flatten {SESSION}").click().run()
        assert (here / "runs" / SESSION / KILL_FILE).read_text() == "flatten"
    finally:
        release.set()
