"""The pages by Streamlit's own test client: what is stored is shown, a backtest starts, mistakes are explained."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from backend.errors import FOLDER_GONE
from backend.jobs.files import STATE, Job, JobState, write_part
from backend.jobs.queue import JobQueue
from backend.store.records import RunRecord
from backend.store.store import Store
from tests.stored_runs import add_backtest_run, add_demo_run, episode
from tests.ui.conftest import LIVES
from tests.ui.page_client import APP, address, field, look_at, open_page, open_part, words

PAGES = ("runs", "new_backtest", "training", "data", "experiments", "paper", "jobs")
EVIL = "<script>alert(1)</script> ![x](https://evil.example/x) :red[no] $x$"


def test_an_empty_store_says_what_to_do(here: Path) -> None:
    app = open_page()
    assert not app.exception
    assert "There are no runs yet" in words(app)


def test_a_working_folder_that_was_removed_is_a_sentence(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = here / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    app = AppTest.from_file(str(APP), default_timeout=30).run()
    gone.rmdir()
    try:
        app.run()
    finally:
        monkeypatch.chdir(here)
    assert not app.exception and FOLDER_GONE in app.error[0].value


def test_a_backtest_is_listed_and_opened(here: Path) -> None:
    with Store.open(here / "store") as store:
        add_backtest_run(store, "backtest-1")
        add_demo_run(store, "demo-1")
    app = open_page()
    assert list(app.dataframe[0].value["run"]) == ["demo-1", "backtest-1"]
    assert list(app.dataframe[0].value["status"]) == ["finished", "finished"]
    app.multiselect(key="open").set_value(["backtest-1"]).run()
    assert not app.exception and not app.error
    assert f"Scripted team made {100 * episode().result.metrics['total_return']:+.2f} %" in words(app)
    assert len(app.get("plotly_chart")) == 3  # equity, drawdown, exposure: what is open
    open_part(app, "Numbers")
    [numbers] = [table.value for table in app.dataframe if "Turnover" in table.value]
    assert list(numbers["Who"]) == ["Scripted team", "Flat", "Hold"]
    assert numbers["Return"][0] == pytest.approx(100 * episode().result.metrics["total_return"])
    open_part(app, "Trades")
    [trades] = [table.value for table in app.dataframe if "Closed by" in table.value]
    assert list(trades["Profit"]) == [trade.pnl for trade in episode().result.trades]


def test_the_table_says_what_came_of_each_run(here: Path) -> None:
    with Store.open(here / "store") as store:
        add_backtest_run(store, "backtest-1")
        add_demo_run(store, "demo-1")
        store.add_run(RunRecord("broken", "backtest", 1, "hash", 1, {"teams": ["scripted"], "config": 5}))
    app = open_page()
    assert not app.exception and not app.error
    table = app.dataframe[0].value.set_index("run")
    made = episode().result.metrics
    assert table["return"]["backtest-1"] == pytest.approx(100 * made["total_return"])
    assert table["teams"]["backtest-1"] == "Scripted team"
    assert table["a decision"]["demo-1"] > 0.0 and pd.isna(table["a decision"]["backtest-1"])
    assert pd.isna(table["return"]["demo-1"]), "a few windows say less than what a decision earns"
    assert table["verdict"]["demo-1"].startswith("Training worked")
    assert table["status"]["broken"] == "interrupted" and pd.isna(table["return"]["broken"])


@pytest.mark.parametrize("page", PAGES)
def test_to_open_a_page_leaves_its_address_alone(here: Path, queue: JobQueue, page: str) -> None:
    """An address that a page writes by itself is a step of the history, for which Back must be pressed once more."""
    with Store.open(here / "store") as store:
        add_backtest_run(store, "one")
        add_demo_run(store, "demo-1")
    queue.submit(("data", "list"))
    (here / "runs" / "paper-1").mkdir(parents=True)
    (here / "runs" / "paper-1" / "metrics.prom").touch()
    app = open_page(f"views/{page}.py")
    assert not app.exception and not app.query_params


def test_the_address_names_the_runs_and_several_are_compared(here: Path) -> None:
    with Store.open(here / "store") as store:
        for name in ("one", "two", "three"):
            add_backtest_run(store, name)
    app = AppTest.from_file(str(APP), default_timeout=30)
    app.query_params["run"] = ["one", "two", "nothing"]
    app.run()
    assert not app.exception and "asks for a run that is not here: nothing" in words(app).replace("\\", "")
    assert sorted(app.multiselect(key="open").value) == ["one", "two"]
    [results] = [table.value for table in app.dataframe if "Turnover" in table.value]
    assert list(results["Who"]) == ["one: Scripted team", "two: Scripted team"]
    assert "they do not differ" in words(app) and len(app.get("plotly_chart")) == 2  # differences, and the accounts
    assert any("95 % interval" in table.value for table in app.dataframe)
    app.multiselect(key="open").set_value(["three"]).run()
    assert address(app, "run") == ["three"] and "Scripted team made" in words(app)
    app.switch_page("views/jobs.py").run()
    app.switch_page("views/runs.py").run()
    assert app.multiselect(key="open").value == ["three"], "what was open when the page was left"
    app.multiselect(key="open").set_value([]).run()
    assert not app.exception and "Tick a run" in words(app)


def test_a_decision_is_a_conversation(here: Path) -> None:
    with Store.open(here / "store") as store:
        add_backtest_run(store, "b")
    app = open_part(open_page(), "Decisions")
    titles = [message.name for message in app.chat_message]
    assert titles[:2] == ["Situation", "DeepTraderManager"] and titles[-1] == "What it earned"
    assert "MarketAnalyst, where is AAAUSDT going?" in words(app)
    assert not app.code
    app.toggle(key="exact ").set_value(True).run()
    assert any("consult_market_analyst" in block.value for block in app.code)
    decisions = app.selectbox(key="decision ")
    active = len(decisions.options)
    app.toggle(key="active ").set_value(False).run()
    assert active < len(app.selectbox(key="decision ").options) == len(episode().decisions)
    app.selectbox(key="decision ").select_index(3).run()
    assert not app.exception


def test_a_training_run_shows_its_curves_and_tables(here: Path) -> None:
    with Store.open(here / "store") as store:
        add_demo_run(store, "demo-1")
    app = open_page()
    assert not app.exception and not app.error
    said = words(app)
    assert "Training worked" in said
    assert len(app.get("plotly_chart")) == 2  # what a decision earns, and the difference
    [held_out] = (table.value for table in app.dataframe if "Return" in table.value and "Sharpe" in table.value)
    assert held_out["Return"][list(held_out["Who"]).index("Trained team")] == pytest.approx(2.1)
    look_at(app, "How it learned")
    for text in ("Reward", "Expert score", "Validation", "Calls in a decision"):
        assert f"**{text}**" in words(app)
    assert len(app.get("plotly_chart")) == 5


def test_a_training_is_watched_while_it_runs(here: Path) -> None:
    with Store.open(here / "store") as store:
        store.add_run(RunRecord("train-1", "train", 1, "hash", 1_700_000_000_000, {"config": {}}))
        app = open_page()
        assert not app.exception and "no step of it is done yet" in words(app)
        for step in range(1, 30):
            store.add_metrics("train-1", step, {"manager/reward/mean": 0.5, "manager/valid": 0.2, "manager/calls": 1.0,
                                                "manager/entropy": 1.0 if step < 9 else 1e-6,
                                                "manager/degenerate_share": 1.0})  # fmt: skip
        app.run()
        assert not app.exception and "Step 29 is done" in words(app)
        shown = {"How it learned": ("Reward", "Format"), "What the optimizer saw": ("Entropy", "Zero-spread groups")}
        for part, titles in shown.items():
            look_at(app, part)
            assert all(f"**{title}**" in words(app) for title in titles)
            assert len(app.get("plotly_chart")) == 2
        look_at(app, "Findings")
        assert any("steps" in one.label or "step" in one.label for one in app.expander), "what the doctor finds"
        store.finish_run("train-1", "finished")
        app.run()
        assert not app.exception and "Step 29 is done" not in words(app)


def test_a_run_that_was_interrupted_can_be_opened(here: Path) -> None:
    with Store.open(here / "store") as store:
        store.add_run(RunRecord("r", "demo", 1, "hash", 1_700_000_000_000, {}))
    app = open_page()
    assert not app.exception
    assert "This run is interrupted" in words(app)
    assert "not available" in words(app)


def test_a_store_that_cannot_be_opened_is_explained_and_can_be_tried_again(here: Path) -> None:
    (here / "store").write_text("no folder")
    app = open_page()
    assert "cannot use this folder" in app.error[0].value
    assert not app.exception
    (here / "store").unlink()
    app.button[0].click().run()
    assert not app.error
    assert "There are no runs yet" in words(app)


@pytest.mark.parametrize("page", PAGES)
def test_no_page_breaks_where_the_store_is_dead(here: Path, page: str) -> None:
    """Also one whose parts all read the store."""
    (here / "store").write_text("no folder")
    app = open_page(f"views/{page}.py")
    assert not app.exception
    errors = [error.value for error in app.error]
    assert all("cannot use this folder" in error for error in errors)
    assert len([button for button in app.button if button.label == "Try again"]) == len(errors)


class _WithoutItsExtra(ModuleType):
    """A module of ours whose import meets a package that is not installed."""

    def __getattr__(self, name: str) -> None:
        raise ModuleNotFoundError("No module named 'ccxt'", name="ccxt")


def test_a_page_whose_extra_is_not_installed_says_what_to_install(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = "backend.paper.overview"
    monkeypatch.setitem(sys.modules, needed, _WithoutItsExtra(needed))
    app = open_page("views/paper.py")
    assert not app.exception
    [error] = [error.value.replace("\\", "") for error in app.error]
    assert error == "this needs ccxt, which is not installed: pip install 'cryptosentinel[paper]'"


def test_a_store_that_others_use_is_shown(here: Path) -> None:
    with Store.open(here / "store") as store:
        add_backtest_run(store, "backtest-9")
        app = open_page()
        assert not app.error and not app.exception
        assert "backtest-9" in [str(one) for one in app.multiselect(key="open").options]


def finish(job: Job, here: Path) -> str:
    """The job as it is when it has made a run."""
    with Store.open(here / "store") as store:
        run = add_backtest_run(store, "backtest-9")
    write_part(job.path / STATE, JobState(1, 5, run, "backtest", 60, 60, "", 0, 9))
    return run


def test_a_backtest_is_found_again_from_anywhere_and_opens_its_result(here: Path, queue: JobQueue) -> None:
    app = open_page("views/new_backtest.py")
    field(app.button, "Run").click().run()
    [job] = queue.jobs()
    other_tab = open_page("views/new_backtest.py")
    field(other_tab.button, job.name).click().run()
    assert "waits for its turn" in words(other_tab), "who comes back, or opens a second tab, finds it"
    write_part(job.path / STATE, JobState(LIVES, 5, "", "backtest", 30, 60))
    app.run()
    assert "runs" in words(app)
    finish(job, here)
    app.run()
    assert not app.exception and not app.error
    assert "Stored as run backtest-9" in words(app).replace("\\", "") and "Scripted team made" in words(app)
    open_part(app, "Decisions")
    app.toggle(key="active ").set_value(False).run()
    assert "Scripted team made" in words(app), "the result stays when something in it is clicked"
    field(app.button, "Close").click().run()
    assert "Scripted team made" not in words(app) and "job" not in app.query_params


def test_a_job_is_cancelled_and_one_that_failed_says_why(here: Path, queue: JobQueue) -> None:
    app = open_page("views/new_backtest.py")
    field(app.button, "Run").click().run()
    field(app.button, "Cancel").click().run()
    assert not app.exception and "was cancelled" in words(app)
    failed = queue.submit(("backtest", "--team", EVIL))
    (failed.path / "log").write_text(f"error: {EVIL}\n")
    write_part(failed.path / STATE, JobState(exit_code=2, finished_at=9))
    app = open_page("views/jobs.py")
    assert not app.exception
    assert list(app.dataframe[0].value["state"]) == ["failed", "cancelled"]
    assert "<script>" not in app.error[0].value.replace("\\<", "") and "alert" in app.error[0].value
    assert any(EVIL in block.value for block in app.code), "the log is shown as text"


@pytest.mark.parametrize("page", ["views/jobs.py", "views/new_backtest.py"])
@pytest.mark.parametrize("name", ["../../etc", "<script>"])
def test_nonsense_in_the_address_is_a_sentence_and_a_way_on(queue: JobQueue, page: str, name: str) -> None:
    queue.submit(("data", "list"))
    app = AppTest.from_file(str(APP), default_timeout=30).run()
    app.query_params["job"] = name
    app.switch_page(page).run()
    app.query_params["job"] = name
    app.run()
    assert not app.exception and "asks for a job that is not here" in words(app)
    assert address(app, "job") != [name]
