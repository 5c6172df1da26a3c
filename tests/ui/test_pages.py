"""The pages by Streamlit's own test client: what is stored is shown, a backtest starts, mistakes are explained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from backend.config.load import load_config
from backend.config.schema import Config
from backend.decisions.document import Message, StoredDecision, write_decisions
from backend.reporting.run_summary import summarise
from backend.runs import backtest
from backend.runs.outcomes import BacktestOutcome
from backend.runs.requests import BacktestRequest, Observer
from backend.store.records import RunRecord
from backend.store.store import Store
from simulator.data.archive import write_market
from simulator.data.venue import write_rules
from simulator.errors import UserError
from simulator.exchange.orders import Order
from simulator.exchange.rules import SymbolRules
from tests.hostile_runs import RUN, dangerous, hostile_store
from tests.stored_runs import add_backtest_run, add_demo_run, episode, full_decision, small_market

APP = Path(__file__).resolve().parents[2] / "ui" / "app.py"
EVIL = "<script>alert(1)</script> ![x](https://evil.example/x) :red[no] $x$"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a small sample of data and an empty store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CRYPTOSENTINEL_STORE", str(tmp_path / "store"))
    write_market(small_market(), tmp_path / "data" / "synthetic")
    return tmp_path


def open_page(page: str = "pages/runs.py") -> AppTest:
    app = AppTest.from_file(str(APP), default_timeout=30).run()
    return app if page == "pages/runs.py" else app.switch_page(page).run()


def words(app: AppTest) -> str:
    kinds = (app.title, app.subheader, app.markdown, app.caption, app.text, app.info, app.warning, app.success)
    return "\n".join(str(element.value) for kind in kinds for element in kind)


def test_an_empty_store_says_what_to_do(here: Path) -> None:
    app = open_page()
    assert not app.exception
    assert "There are no runs yet" in words(app)


def test_a_backtest_is_listed_and_opened(here: Path) -> None:
    with Store.open(here / "store") as store:
        add_backtest_run(store, "backtest-1")
        add_demo_run(store, "demo-1")
    app = open_page()
    assert list(app.dataframe[0].value["run"]) == ["demo-1", "backtest-1"]
    assert list(app.dataframe[0].value["status"]) == ["finished", "finished"]
    app.selectbox(key="open").select("backtest-1").run()
    assert not app.exception and not app.error
    assert f"Scripted team made {100 * episode().result.metrics['total_return']:+.2f} %" in words(app)
    assert len(app.get("plotly_chart")) == 7  # equity, drawdown, Sharpe, exposure, costs, excursions, candles
    [numbers] = [table.value for table in app.dataframe if "Turnover" in table.value]
    assert list(numbers["Who"]) == ["Scripted team", "Flat", "Hold"]
    assert numbers["Return"][0] == pytest.approx(100 * episode().result.metrics["total_return"])
    [trades] = [table.value for table in app.dataframe if "Closed by" in table.value]
    assert list(trades["Profit"]) == [trade.pnl for trade in episode().result.trades]


def test_a_decision_is_a_conversation(here: Path) -> None:
    with Store.open(here / "store") as store:
        add_backtest_run(store, "b")
    app = open_page()
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
    for text in ("M-GRPO made the team better", "Reward", "Expert score", "Validation", "Whom the manager asked"):
        assert text in said
    assert len(app.get("plotly_chart")) == 8
    held_out = app.dataframe[1].value
    assert held_out["Return"][list(held_out["Who"]).index("Trained team")] == pytest.approx(2.1)


def test_a_run_that_was_interrupted_can_be_opened(here: Path) -> None:
    with Store.open(here / "store") as store:
        store.add_run(RunRecord("r", "demo", 1, "hash", 1_700_000_000_000, {}))
    app = open_page()
    assert not app.exception
    assert "This run is interrupted" in words(app)
    assert "not available" in words(app)


def test_untrusted_words_are_never_markdown(here: Path) -> None:
    document = full_decision().document
    message = Message(role="assistant", content=EVIL)
    conversation = document.conversations[0].model_copy(update={"messages": (message,), "problem": EVIL})
    with Store.open(here / "store") as store:
        add_backtest_run(store, "b")
        evil = document.model_copy(update={"conversations": (conversation,), "orders": (Order("A", 1.0),)})
        write_decisions(store, [StoredDecision("b", "scripted", 0, 0, evil)])
        store.finish_run("b", "failed", EVIL)
    app = open_page()
    assert EVIL in [text.value for text in app.text]
    for kind in (app.markdown, app.caption, app.warning, app.subheader):
        assert not [element.value for element in kind if "<script>" in element.value or "![x](" in element.value]


def test_a_store_that_cannot_be_opened_is_explained_and_can_be_tried_again(here: Path) -> None:
    (here / "store").write_text("no folder")
    app = open_page()
    assert "cannot use this folder" in app.error[0].value
    assert not app.exception
    (here / "store").unlink()
    app.button[0].click().run()
    assert not app.error
    assert "There are no runs yet" in words(app)


def test_a_store_that_others_use_is_shown(here: Path) -> None:
    with Store.open(here / "store") as store:
        add_backtest_run(store, "backtest-9")
        app = open_page()
        assert not app.error and not app.exception
        assert "backtest-9" in [str(one) for one in app.selectbox[0].options]


def stored_run(store: Store) -> BacktestOutcome:
    run = add_backtest_run(store, "backtest-9")
    report = Path("runs", run, "report.html")
    return BacktestOutcome(run, report.parent, report, load_config("demo"), summarise(store, run))


def test_a_backtest_is_started_with_what_the_form_says(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[BacktestRequest] = []

    def job(request: BacktestRequest, store: Store, runs: Path, observer: Observer) -> BacktestOutcome:
        asked.append(request)
        observer.progress("backtest", 0, 0)
        observer.progress("backtest", 30, 60)
        return stored_run(store)

    (here / "runs" / "mine").mkdir(parents=True)
    (here / "runs" / "mine" / "team.json").write_text("{}")
    monkeypatch.setattr(backtest, "backtest_teams", job)
    app = open_page("pages/new_backtest.py")
    app.multiselect[0].set_value(["BBBUSDT"])
    app.selectbox[1].select("runs/mine")
    app.number_input[0].set_value(5)
    app.number_input[1].set_value(7.5)
    app.multiselect[1].set_value(["hold", "ema_cross"])
    [whole] = [one for one in app.toggle if "one decision" in one.label]
    whole.set_value(True)
    app.button[0].click().run()
    assert not app.exception and not app.error
    [request] = asked
    settings = load_config("demo", request.overrides)
    assert (settings.costs.taker_fee, settings.evaluation.baselines) == (0.00075, ("hold", "ema_cross"))
    assert settings.team.portfolio
    assert request == BacktestRequest(
        data=Path("data/synthetic"), symbols=("BBBUSDT",), timeframe="4h", teams=("runs/mine",),
        start="2020-01-01", end="2020-03-01", decide_every=6, seed=5, overrides=request.overrides,
    )  # fmt: skip
    assert "Stored as run backtest-9" in words(app).replace("\\", "")
    assert "Scripted team made" in words(app)
    app.toggle(key="active ").set_value(False).run()
    assert "Scripted team made" in words(app), "the result stays when something in it is clicked"
    app.switch_page("pages/runs.py").run()
    assert app.selectbox(key="open").value == "backtest-9"


def test_a_real_backtest_on_the_sample(here: Path) -> None:
    app = open_page("pages/new_backtest.py")
    assert app.text_input[0].value == "data/synthetic"
    app.button[0].click().run(timeout=60)
    assert not app.exception and not app.error
    assert "Scripted team made" in words(app)
    with Store.open(here / "store") as store:
        [run] = store.runs()
        assert (run.kind, run.status) == ("backtest", "finished")
        assert "hold" in {record.name for record in store.backtests(run.run)}


def test_the_form_begins_with_what_the_data_deserves(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[BacktestRequest] = []

    def job(request: BacktestRequest, store: Store, runs: Path, observer: Observer) -> BacktestOutcome:
        asked.append(request)
        return stored_run(store)

    monkeypatch.setattr(backtest, "backtest_teams", job)

    def sent(app: AppTest) -> Config:
        app.button[0].click().run()
        assert not app.exception and not app.error
        return load_config("demo", asked[-1].overrides)

    synthetic = sent(open_page("pages/new_backtest.py"))
    assert synthetic == load_config("demo"), "what is not touched is as the preset has it"
    folder = here / "data" / "synthetic"
    (folder / "market.json").unlink()  # now it looks recorded
    (folder / "truth.parquet").unlink()
    write_rules(folder / "rules.json", {"AAAUSDT": SymbolRules(lot=0.1)})
    recorded = sent(open_page("pages/new_backtest.py"))
    assert (recorded.costs, recorded.venue) == (load_config("recorded").costs, synthetic.venue)
    assert recorded.costs != synthetic.costs
    app = open_page("pages/new_backtest.py")
    [rules] = [one for one in app.toggle if "rules" in one.label]
    rules.set_value(False)
    [impact] = [one for one in app.toggle if "move" in one.label]
    impact.set_value(False)
    changed = sent(app)
    assert (changed.venue.rules, changed.costs.impact, changed.costs.participation) == ("none", 0.0, 0.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda app: app.text_input[0].set_value("nowhere"), "no such folder"),
        (lambda app: app.text_input[0].set_value("data"), "holds no bars"),
        (lambda app: app.multiselect[0].set_value([]), "no symbol is chosen"),
        (lambda app: app.date_input[0].set_value(app.date_input[1].value), "is empty"),
    ],
)
def test_mistakes_are_explained(here: Path, change: Callable[[AppTest], object], message: str) -> None:
    app = open_page("pages/new_backtest.py")
    change(app)
    if app.button:
        app.button[0].click()
    app.run()
    assert not app.exception
    assert message in app.error[0].value.replace("\\", "")


def test_a_failing_backtest_is_explained(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def job(*_: object) -> BacktestOutcome:
        raise UserError("the window is too short: choose other dates")

    monkeypatch.setattr(backtest, "backtest_teams", job)
    app = open_page("pages/new_backtest.py")
    app.button[0].click().run()
    assert not app.exception
    assert "the window is too short" in app.error[0].value.replace("\\", "")


@pytest.mark.parametrize("kind", ["backtest", "demo"])
def test_a_hostile_run_is_shown_as_text(here: Path, kind: str) -> None:
    hostile_store(here / "store", kind)
    app = open_page()
    app.selectbox(key="open").select(RUN).run()
    assert not app.exception, app.exception
    said = words(app)
    assert dangerous(said) == []
    assert "\\u{1b}" in said.replace("\\\\", "\\")
