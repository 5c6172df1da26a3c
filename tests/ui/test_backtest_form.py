"""The form of a backtest: what it begins with, what it hands to the queue, and what it refuses."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from backend.config.load import load_config
from backend.config.schema import Config
from backend.jobs import process
from backend.jobs.queue import JobQueue
from backend.runs.backtest import settings_for
from backend.runs.requests import BacktestRequest
from simulator.data.venue import write_rules
from simulator.exchange.rules import SymbolRules
from tests.ui.page_client import address, asked_of, field, open_page, words


def test_a_backtest_is_handed_over_as_the_form_says(here: Path, queue: JobQueue) -> None:
    (here / "runs" / "mine").mkdir(parents=True)
    (here / "runs" / "mine" / "team.json").write_text("{}")
    app = open_page("views/new_backtest.py")
    app.multiselect[0].set_value(["BBBUSDT"])
    app.multiselect[1].set_value(["runs/mine", "hold"])
    field(app.number_input, "Seed").set_value(5)
    field(app.number_input, "Taker fee").set_value(7.5)
    field(app.multiselect, "Compare with").set_value(["hold", "ema_cross"])
    field(app.text_area, "Other settings").set_value("team.portfolio=true\n")
    field(app.button, "Run").click().run()
    assert not app.exception and not app.error
    [job] = queue.jobs()
    request = asked_of(job)
    settings = load_config(None, request.overrides)
    assert (settings.costs.taker_fee, settings.evaluation.baselines) == (0.00075, ("hold", "ema_cross"))
    assert settings.team.portfolio
    assert request == BacktestRequest(
        data="data/synthetic", symbols=("BBBUSDT",), timeframe="4h", teams=("runs/mine", "hold"),
        start="2020-01-22", end="2020-03-01", seed=5, overrides=request.overrides,
    )  # fmt: skip
    assert len(request.overrides) == 3, "what is not touched is left to the preset"
    assert f"--store={here / 'store'}" in job.request.command
    assert address(app, "job") == [job.name] and "waits for its turn" in words(app)


def test_bars_engine_and_limits_of_the_form_reach_the_job(here: Path, queue: JobQueue) -> None:
    app = open_page("views/new_backtest.py")
    app.multiselect[1].set_value(["scripted", "model"])
    field(app.text_area, "Other settings").set_value('engine.kind="openai"\nengine.model="small-model"')
    field(app.number_input, "Spend").set_value(0.5)
    field(app.number_input, "drawdown").set_value(30.0)
    field(app.button, "Run").click().run()
    assert not app.exception and not app.error
    request = asked_of(queue.jobs()[0])
    settings = request.on(None)
    assert request.timeframe == "4h" and request.teams == ("scripted", "model")
    engine = settings.engine
    assert (engine.kind, engine.model) == ("openai", "small-model")
    assert (settings.budget.max_cost, settings.guard.max_drawdown) == (0.5, 0.3)
    assert len(request.overrides) == 4, "what is not touched is left to the preset"


def test_the_form_begins_with_what_the_data_deserves(here: Path, queue: JobQueue) -> None:
    def sent(app: AppTest) -> Config:
        field(app.button, "Run").click().run()
        assert not app.exception and not app.error
        return settings_for("", asked_of(queue.jobs()[0]).overrides, folder)

    folder = Path("data/synthetic")
    synthetic = sent(open_page("views/new_backtest.py"))
    assert synthetic == Config(), "what is not touched is as the preset has it"
    queue.cancel(queue.jobs()[0].name)
    (folder / "market.json").unlink()  # now it looks recorded
    (folder / "truth.parquet").unlink()
    write_rules(folder / "rules.json", {"AAAUSDT": SymbolRules(lot=0.1)})
    recorded = sent(open_page("views/new_backtest.py"))
    assert (recorded.costs, recorded.venue) == (load_config("recorded").costs, synthetic.venue)
    assert recorded.costs != synthetic.costs


def _empty_folder() -> str:
    Path("empty").mkdir()
    return "empty"


def _other(app: AppTest, line: str) -> None:
    field(app.text_area, "Other settings").set_value(line)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda app: app.text_input[0].set_value("nowhere"), "no such folder"),
        (lambda app: app.text_input[0].set_value(_empty_folder()), "holds no bars"),
        (lambda app: app.multiselect[0].set_value([]), "no symbol is chosen"),
        (lambda app: app.multiselect[1].set_value([]), "no team is chosen"),
        (lambda app: _other(app, 'engine.url="http://localhost:9/v1"'), "set kind"),
        (lambda app: _other(app, "costs.taker_fe=1"), "taker_fee"),
        (lambda app: app.multiselect[1].set_value(["ema_cros"]), "did you mean 'ema_cross'"),
        (lambda app: app.date_input[0].set_value(app.date_input[1].value), "is empty"),
    ],
)
def test_mistakes_are_explained(queue: JobQueue, change: Callable[[AppTest], object], message: str) -> None:
    app = open_page("views/new_backtest.py")
    change(app)
    if app.button:
        field(app.button, "Run").click()
    app.run()
    assert not app.exception and not queue.jobs()
    assert message in app.error[0].value.replace("\\", "")


def test_no_field_of_the_page_imports_a_module(here: Path, queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not one that lies below the data: neither in the page nor in what it hands in."""
    monkeypatch.setenv("CRYPTOSENTINEL_REFUSE_OWN_MODULES", "1")
    monkeypatch.syspath_prepend(here)
    mark = here / "was-imported"
    for folder in (here, here / "data"):
        (folder / "evil.py").write_text(
            f"open({str(mark)!r}, 'w')\nclass Evil:\n    def decide(self, v, a): return []\n"
        )
    for name in ("evil:Evil", "data.evil:Evil", "evil:Evil:fast=1"):
        app = open_page("views/new_backtest.py")
        app.multiselect[1].set_value([name])
        field(app.button, "Run").click().run()
        assert not app.exception and not mark.exists()
    app = open_page("views/training.py")
    field(app.text_area, "Other settings").set_value("training.reward=evil:Evil").run()
    field(app.button, "Start").click().run()
    assert not app.exception and not mark.exists()
    jobs = queue.jobs()
    assert len(jobs) == 4 and not any(job.request.own_modules for job in jobs)
    monkeypatch.setattr(sys, "argv", ["process"])
    for job in sorted(jobs, key=lambda job: (job.request.submitted_at, job.name))[:3]:  # each waits for those before it
        assert process.run_job(job.path, job.request.command) == 2, "the job refuses it as the page would"
    assert not mark.exists()
