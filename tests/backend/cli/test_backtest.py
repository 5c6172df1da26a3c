"""What a user can ask of a backtest: help of every command, strategies in a team's place, baselines, costs, venue."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import typer

from backend.builders.loaded_team import scripted_team
from backend.builders.market import load_market
from backend.builders.strategies import named_strategy
from backend.cli import main as cli
from backend.cli.main import commands_below
from backend.config.load import load_config
from backend.config.schema import Config
from backend.models.manifest import TeamManifest, TrainedSpan, write_manifest
from backend.runs.backtest import (
    Subject,
    market_settings,
    notes_on,
    notes_on_headlines,
    plan_backtest,
    settings_for,
    subject_of,
)
from backend.runs.requests import BacktestRequest
from backend.store.store import Store
from simulator.backtest.run import Window
from simulator.data.archive import write_market
from simulator.data.venue import write_rules
from simulator.errors import UserError
from simulator.exchange.rules import SymbolRules
from simulator.market.events import NewsItem
from simulator.market.market import Market
from simulator.market.timeframes import DAY_MS
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.command_line import Run, program

FINE = generate(SyntheticConfig(bars=1000, seed=5, symbols=("AAAUSDT", "BBBUSDT"), timeframe="1h"))
ROOT = Path(__file__).resolve().parents[3]
RECORDED = ROOT.parent / "shared" / "market-data" / "binance"
OWN = """
class Buys:
    name = "buys"

    def decide(self, view, account):
        return orders_for_target(view, account, "AAAUSDT", 0.5)


class Broken:
    def decide(self, view, account):
        return 1 / 0
"""


def write_recorded(market: Market, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for column, symbol in enumerate(market.symbols):
        table = {name: getattr(market, name)[:, column] for name in ("open", "high", "low", "close")}
        table["volume"] = 1e6 * market.volume[:, column]
        frame = pd.DataFrame({"timestamp": pd.to_datetime(market.open_time, unit="ms"), **table})
        frame.to_parquet(folder / f"{symbol}-{market.timeframe}.parquet")


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """command("backtest", ...) in a folder with recorded bars in `bars`, a written market in `made`, and `my_own`."""
    monkeypatch.delitem(sys.modules, "my_own", raising=False)
    write_recorded(FINE.resample("4h"), tmp_path / "bars")
    write_recorded(FINE, tmp_path / "bars")
    write_market(FINE, tmp_path / "made")
    (tmp_path / "my_own.py").write_text("from simulator.backtest.run import orders_for_target\n" + OWN)
    return program(tmp_path, monkeypatch, capsys)


EVERY = dict(commands_below(typer.main.get_command(cli.app), "cryptosentinel"))


@pytest.mark.parametrize("path", EVERY)
def test_help_explains_every_option(path: str) -> None:
    command = EVERY[path]
    assert command.help
    for one in command.params:
        if not getattr(one, "hidden", False):
            assert getattr(one, "help", None), f"{path} {one.name} has no help"
            assert one.param_type_name == "argument" or all(name.startswith("-") for name in one.opts)


LISTS = ("symbols", "teams", "baselines", "variants")


@pytest.mark.parametrize("name", LISTS)
def test_every_list_takes_commas_or_several_options(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a, b").mkdir()
    for given in ("x,y", ["x", "y"], " x , y,", ("x,y",)):
        assert getattr(BacktestRequest.of(**{name: given}), name) == ("x", "y")
    assert getattr(BacktestRequest.of(**{name: ["a, b", "x"]}), name) == ("a, b", "x"), "a folder keeps its comma"
    assert BacktestRequest.of(**{name: ""}) == BacktestRequest.of(**{name: None}) == BacktestRequest()
    assert BacktestRequest.of(baselines="none").baselines == ()
    assert BacktestRequest.of(overrides=["a.b=[1,2]"]).overrides == ("a.b=[1,2]",)


BACKTEST = ("backtest", "--data", "bars", "--timeframe", "4h", "--start", "2020-01-24", "--end", "2020-02-05")


def test_strategies_are_tested_in_a_teams_place_under_the_costs_of_the_data(command: Run) -> None:
    write_rules("bars/rules.json", {name: SymbolRules(lot=0.01, taker_fee=0.003) for name in FINE.symbols})
    result = command(
        *BACKTEST, "--team", "donchian_breakout,my_own:Buys", "--baselines", "hold,sma_cross,oracle",
        "--finer", "1h", "--store", "here",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert "square-root impact x 1; at most 10 % of a bar's volume" in result.out
    assert (
        "venue: rules of AAAUSDT, BBBUSDT with taker fees of 0.3 %; 1h bars inside those of AAAUSDT, BBBUSDT"
        in result.out
    )
    with Store.open("here") as store:
        [run] = store.runs()
        played = {one.name: one.result for one in store.backtests(run.run)}
    assert set(played) == {"donchian_breakout", "my_own:Buys", "hold", "sma_cross"}, "recorded bars have no oracle"
    assert run.config["teams"] == ["donchian_breakout", "my_own:Buys"]
    assert run.config["venue"]["rules"] and run.config["venue"]["finer"]
    assert run.config["config"]["costs"]["impact"] == 1.0
    for fill in played["hold"]["fills"]:
        assert fill["fee"] == pytest.approx(0.003 * abs(fill["quantity"]) * fill["price"])
    assert Path("runs", run.run, "report.html").is_file()


def test_a_baseline_that_is_tested_is_not_run_again_and_there_may_be_none(command: Run) -> None:
    for options, names in (
        (("--team", "hold"), {"hold", "flat", "equal_weight", "always_short", "sma_cross", "volatility_target",
                              "matched_random", "oracle"}),
        (("--team", "hold", "--baselines", "none"), {"hold"}),
    ):  # fmt: skip
        result = command(
            "backtest", "--data", "made", "--timeframe", "1h", "--start", "2020-02-01", "--end", "2020-02-05",
            "--store", f"s{len(options)}", *options,
        )  # fmt: skip
        assert result.code == 0, result.err
        with Store.open(f"s{len(options)}") as store:
            assert {one.name for one in store.backtests(store.runs()[0].run)} == names
            assert store.runs()[0].config["config"]["costs"]["impact"] == 0.0, (
                "a synthetic market has too little volume"
            )


@pytest.mark.parametrize("what", ["lookahead", "recursion"])
def test_checks_trade_at_the_same_venue_as_backtests(what: str, command: Run) -> None:
    write_rules("bars/rules.json", {name: SymbolRules(lot=0.01) for name in FINE.symbols})
    Path("bars/mark").mkdir()
    write_recorded(FINE, Path("bars/mark"))
    options = () if what == "lookahead" else ("--warm-up", "125,150", "--times", 4)
    result = command(
        "check", what, "--data", "bars", "--timeframe", "4h", "--team", "sma_cross",
        "--start", "2020-01-28", "--set", "venue.finer=1h", *options,
    )  # fmt: skip
    assert result.code == 0, result.out + result.err
    assert "mark prices are left out here" in result.out


def test_a_preset_fits_the_data_unless_one_is_named(command: Run) -> None:
    recorded, demo = load_config("recorded"), load_config("demo")
    assert recorded.costs != Config().costs
    assert settings_for("", [], Path("bars")) == recorded
    assert settings_for("", ["market.data='bars'"], None).costs == recorded.costs
    assert settings_for("", ["costs.impact=0"], Path("bars")).costs.participation == 0.1
    assert settings_for("", [], Path("made")) == settings_for("", [], None) == Config()
    assert settings_for("demo", [], Path("bars")) == demo


def test_a_name_is_a_strategy_before_it_is_a_folder(command: Run, tmp_path: Path) -> None:
    (tmp_path / "hold").mkdir()
    assert subject_of("hold", load_config("demo")).name == "hold"
    with pytest.raises(UserError, match="no team 'hold'"):
        subject_of("hold/", load_config("demo"))


def _write_team(folder: Path, config: Config) -> None:
    """A team that was trained in the generated market of `config`."""
    span = TrainedSpan(
        data_hash="", first=0, until=1, origin="generated", shares=(0.6, 0.2), costs=config.costs, market=config.market
    )
    write_manifest(folder, TeamManifest.of(config, base="nano", adapters=None, trained_on=(span,)))


def test_a_team_plays_its_own_world_unless_it_is_given_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    world = load_config("demo", ["market.bars=1200", "costs.taker_fee=0.001"])
    (tmp_path / "team").mkdir()
    _write_team(tmp_path / "team", world)
    own = market_settings(BacktestRequest(teams=("ema_cross", "team")))
    assert (own.market, own.costs, own.team) == (world.market, world.costs, world.team)
    generated = market_settings(BacktestRequest(teams=("ema_cross",), config="demo"))
    assert generated.market == load_config("demo").market
    for request in (
        BacktestRequest(teams=("ema_cross",)),
        BacktestRequest(teams=("team",), data=ROOT / "data" / "synthetic"),
    ):
        assert market_settings(request).market.data.endswith("data/synthetic")


def test_a_team_in_its_own_market_plays_the_last_150_days_any_other_90_and_a_strategy_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A team needs a hundred decisions to prove anything, and makes them in less than a minute."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "team").mkdir()
    _write_team(tmp_path / "team", load_config("demo", ["market.bars=1200"]))
    monkeypatch.setattr("backend.runs.backtest.subject_of", lambda name, config: scripted_team(config.team))

    def days(**asked: Any) -> tuple[float, str]:
        plan = plan_backtest(BacktestRequest(**asked))
        return (plan.window.stop - plan.window.start) * plan.market.interval / DAY_MS, plan.why_window

    assert days(teams=("team",)) == (150.0, "the last 150 days; choose with --start and --end")
    everything = days(teams=("ema_cross",), data=ROOT / "data" / "synthetic")
    assert everything[0] > 500.0 and everything[1] == "all of it; choose with --start and --end"
    assert plan_backtest(BacktestRequest(teams=("ema_cross",))).window.decide_every == 1
    assert plan_backtest(BacktestRequest(teams=("ema_cross",), decide_every=6)).window.decide_every == 6
    both = plan_backtest(BacktestRequest(teams=("ema_cross", "team"), data=ROOT / "data" / "synthetic")).window
    assert both.decide_every == 6 and both.stop - both.start == 540, "a team decides once a day, and so do all"
    data = ROOT / "data" / "synthetic"
    assert days(teams=("team",), data=data) == (90.0, "the last 90 days; choose with --start and --end")


def test_the_note_on_headlines_counts_what_was_masked() -> None:
    last = int(FINE.open_time[-1]) + FINE.interval
    texts = ["Elon Musk sells again after the report", "Traders buy as demand grows", "Buterin Hoskinson Lubin"]
    news = tuple(NewsItem(last - 9, last - 9 + number, None, text) for number, text in enumerate(texts))
    subjects: list[Subject] = [scripted_team(Config().team), named_strategy("hold")]
    window = Window(150, len(FINE) - 1, 24)
    [note] = notes_on_headlines(subjects, replace(FINE, news=news), window)
    assert note.startswith("scripted: headlines were masked, ") and note.endswith("some names still pass")
    assert notes_on_headlines(subjects, FINE, window) == [], "the headlines of a synthetic market name nothing"


def test_a_team_on_another_kind_of_market_gets_a_line_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "team").mkdir()
    (tmp_path / "trend").mkdir()
    _write_team(tmp_path / "team", load_config("demo"))
    _write_team(tmp_path / "trend", load_config("quick"))
    market = load_market(load_config("quick", ["market.bars=600"]).market, Config().costs)
    [note] = notes_on([str(tmp_path / "team"), str(tmp_path / "trend")], load_config("quick"), market)
    assert note.startswith(f"{tmp_path / 'team'} was trained on an invented market in which each role knows")
    assert note.endswith("is played on an invented market of trends, which it has not learned")
    private = load_market(load_config("demo", ["market.bars=600"]).market, Config().costs)
    assert notes_on([str(tmp_path / "team")], load_config("demo"), private) == []
    [note] = notes_on([str(tmp_path / "trend")], load_config("quick"), replace(market, truth=None))
    assert note.endswith("is played on recorded bars, which it has not learned")


@pytest.mark.skipif(not RECORDED.is_dir(), reason="the recorded bars are not here: ../shared/market-data/binance")
def test_recorded_minutes_decide_inside_recorded_hours(command: Run) -> None:
    result = command(
        "backtest", "--data", RECORDED, "--symbols", "BTCUSDT,SOLUSDT", "--timeframe", "1h", "--finer", "1m",
        "--set", "market.start=2024-07-20", "--set", "market.end=2024-08-10", "--start", "2024-08-01",
        "--team", "rsi_reversion", "--baselines", "hold",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert "venue: 1m bars inside those of BTCUSDT" in result.out, "there are no minutes of SOLUSDT"
    assert "square-root impact x 1" in result.out
