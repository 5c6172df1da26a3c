"""A stored backtest played again with something changed, and a decision that is replayed."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from backend.jobs import queue as jobs_queue
from backend.jobs.files import STATE, JobState, write_part
from backend.jobs.queue import JobQueue
from backend.runs import sample_run
from backend.runs.backtest import backtest_teams
from backend.runs.requests import BacktestRequest
from backend.runs.sample_run import SAMPLE_RUN
from backend.runs.stored_setup import stored_setup
from backend.store.store import Store
from simulator.data.archive import write_market
from tests.stored_runs import small_market
from tests.ui.page_client import APP, address, asked_of, field, open_page, open_part, words

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with bars and a store with one backtest of a team and a variant of it; the run's id."""
    folder = tmp_path_factory.mktemp("page")
    write_market(small_market(), folder / "data" / "synthetic")
    request = BacktestRequest(
        data=folder / "data" / "synthetic", start="2020-02-01", end="2020-02-08", baselines=("hold",),
        variants=("no_veto",),
    )  # fmt: skip
    return folder, backtest_teams(request, folder / "store", folder / "runs").run


@pytest.fixture
def queue(played: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> JobQueue:
    """The jobs of the page, of which none is started. Its folder holds the backtest."""
    folder, _ = played
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(folder / "data")
    monkeypatch.setenv("CRYPTOSENTINEL_STORE", str(folder / "store"))
    monkeypatch.setattr(jobs_queue, "start_detached", lambda *given: None)
    return JobQueue(tmp_path / "runs")


def test_a_run_is_played_again_with_variants_and_other_teams(queue: JobQueue, played: tuple[Path, str]) -> None:
    """The second who asks for the same gets the job that waits already; the result shows the differences."""
    for _ in range(2):
        app = open_page(run=played[1])
        field(app.checkbox, "Without Trader").check()
        field(app.checkbox, "Unmasked").check()
        field(app.multiselect, "Teams and strategies").set_value(["scripted", "ema_cross"])
        field(app.button, "Play again").click().run()
        assert not app.exception and not app.error
        [job] = queue.jobs()
        request = asked_of(job)
        assert (request.like, request.teams) == (played[1], ("scripted", "ema_cross"))
        assert request.variants == ("without:trader", "unmasked")
        assert "waits for its turn" in words(app)
    write_part(job.path / STATE, JobState(1, 5, played[1], "backtest", 60, 60, "", 0, 9))
    app = open_part(open_page("views/new_backtest.py", job=job.name), "Against one another")
    assert not app.error
    [table] = [one.value for one in app.dataframe if "Over the first" in one.value]
    assert list(table["Who"]) == ["Scripted team, verdicts do not bind"]
    assert "Final wealth over that of" in words(app)


def test_nothing_to_compare_is_refused(queue: JobQueue, played: tuple[Path, str]) -> None:
    app = open_page(run=played[1])
    field(app.button, "Play again").click().run()
    assert "nothing to compare" in app.error[0].value and not queue.jobs()


def test_a_decision_is_replayed_beside_what_happened(queue: JobQueue) -> None:
    app = open_part(open_page(), "Decisions")
    assert not app.error
    answer = field(app.text_area, "Instead")
    assert '"up"' in answer.value
    answer.set_value("nonsense")
    field(app.button, "Replay").click().run()
    assert not app.exception and "not JSON" in app.error[0].value
    field(app.text_area, "Instead").set_value('{"up": 0.02, "flat": 0.03, "down": 0.95}')
    field(app.button, "Replay").click().run()
    assert not app.exception and not app.error
    said = words(app)
    assert "The orders" in said and "requests were answered again" in said
    assert "now: on" in said and "down 95 %" in said


def test_the_address_names_the_decision(queue: JobQueue) -> None:
    app = AppTest.from_file(str(APP), default_timeout=30)
    app.query_params["decision"] = "3"
    app.run()
    assert not app.exception
    assert app.selectbox(key="decision ").value == 3 and address(app, "decision") == ["3"]
    app.query_params["decision"] = "4000"
    app.run()
    assert not app.exception and "asks for a decision that is not here" in words(app)


def test_an_empty_store_offers_the_run_that_comes_with_the_program(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CRYPTOSENTINEL_STORE", str(tmp_path / "empty"))
    monkeypatch.setattr(sample_run, "sample_data", lambda: ROOT / "data" / "synthetic")
    with Store.open(tmp_path / "empty"):
        pass
    app = open_page()
    field(app.button, "comes with the program").click().run()
    assert not app.exception and not app.error
    assert app.multiselect(key="open").value == [SAMPLE_RUN]
    assert "Scripted team made" in words(app)
    with Store.open(tmp_path / "empty") as store:
        run = store.run(SAMPLE_RUN)
        assert run.status == "finished" and not run.imported
        assert stored_setup(store, SAMPLE_RUN).teams == ("scripted", "ema_cross")
    assert (ROOT / "data" / "synthetic" / "sample-run.jsonl.gz").stat().st_size < 1_000_000
