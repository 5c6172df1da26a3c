"""The Python API: `docs/guides/python.md` runs as it is written, and every function does what its command does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from backend import api as cs
from backend.config.load import load_config
from backend.reporting.run_table import run_row
from backend.runs.requests import STORE
from backend.store.store import Store
from simulator.errors import UserError
from simulator.market.market import Market
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.small_world import HORIZON

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "python.md"
TRAINING = "## Train a team and measure it"
SMALL = (
    f"team.horizon_bars={HORIZON}", "market.coins=1", "market.bars=900", "training.stage1_steps=1",
    "training.stage1_max_steps=1", "training.stage2_steps=2", "training.queries_per_step=2",
    "training.rollouts_per_query=4", "training.scenario_paths=4", "training.lora_rank=2", "training.validation_every=1",
    "training.validation_queries=2", "training.gate_format=0", "training.rollback_format=0", "evaluation.windows=2",
    "evaluation.decisions_per_window=3", "evaluation.states=8",
    "training.shards=1",
)  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the shipped data."""
    (tmp_path / "data").symlink_to(ROOT / "data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def executed(text: str, names: dict[str, Any]) -> dict[str, Any]:
    """The names that the blocks of code in `text` define."""
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    return names


def test_the_page_s_backtests_run_as_they_are_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = executed(PAGE.read_text(encoding="utf-8").split(TRAINING)[0], {})
    result, cheap = names["result"], names["cheap"]
    assert list(result.frame().index[:2]) == ["scripted", "ema_cross"] and "hold" in result.frame().index
    returns = result.equity.iloc[-1] / result.equity.iloc[0] - 1
    pd.testing.assert_series_equal(returns, result.frame()["total_return"], check_names=False)
    assert result.equity.index[0] == pd.Timestamp("2021-06-01", tz="UTC")
    change = result.equity["scripted"].iloc[-1] - result.equity["scripted"].iloc[0]
    assert names["profit"]["scripted"] == pytest.approx(change)
    assert set(result.decisions["team"]) == {"scripted"} and len(result.decisions) == 30
    assert 0 < len(names["active"]) <= 30 and names["drawdown"].max().max() == 0.0
    assert [trace.name for trace in result.plot().data][:2] == ["Scripted team", "EMA cross"]
    assert result.report().is_file() and result.report().parent == result.folder
    assert names["worst"]["depth"][0] == pytest.approx(result.frame()["max_drawdown"]["ema_cross"])
    grown = (1.0 + names["returns"]).prod() - 1.0
    pd.testing.assert_series_equal(grown, result.frame()["total_return"], check_names=False)
    with pytest.raises(UserError, match="no result of 'nobody'; there are scripted, ema_cross"):
        result.drawdowns("nobody")
    compared = names["compared"]
    assert compared.verdict.startswith("ema_cross is") and list(compared.frame().index) == ["ema_cross"]
    assert compared.frame()["wealth"]["ema_cross"] == pytest.approx(
        (1 + result.frame()["total_return"]["ema_cross"]) / (1 + result.frame()["total_return"]["scripted"]) - 1
    )
    assert compared.verdict in names["page"].read_text(encoding="utf-8")
    within = cs.compare(result.run).frame()
    pd.testing.assert_frame_equal(within, compared.frame())
    with pytest.raises(UserError, match="cannot be compared"):
        cs.compare(result, cheap)
    again = cs.compare(result, result.run, team="ema_cross")
    assert again.frame()["wealth"].tolist() == [0.0] and result.run in again.frame().index[0]
    with pytest.raises(UserError, match="needs two results or more"):
        cs.compare(result, team="ema_cross")
    assert cheap.config.costs.taker_fee == 0.0 and list(cheap.frame().index) == ["sma_cross", "hold"]
    assert cheap.trades["fees"].sum() == 0.0
    assert "no team 'ema_cros' (did you mean 'ema_cross'?)" in capsys.readouterr().out
    with Store.open("runs/store") as store:
        assert [run.run for run in store.runs()] == [result.run], "what is refused or in memory is not in this store"


@pytest.mark.slow
def test_the_whole_page_runs_as_it_is_written(here: Path) -> None:
    names = executed(PAGE.read_text(encoding="utf-8"), {})
    assert "decision of the trained team earns" in names["measured"].verdict
    assert (names["started"].folder / "team.json").is_file()
    assert names["demo"].answer["bp"].keys() == {"trained", "initial", "teacher", "holding"}


def test_a_training_and_its_evaluation(here: Path, nano: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    overrides = [*SMALL, "training.shards=2", f"training.base_model={str(nano)!r}"]  # a helper, on two cores
    training = cs.train(overrides=overrides, on_progress=lambda *news: seen.append(news))
    assert ("M-GRPO", 3, 3) in seen
    assert list(training.frame().index) == [0, 1, 2, 3] and "manager/reward/mean" in training.frame()
    assert training.state.step == 3 and training.plot("Validation").data
    assert training.report("copy.html").is_file() and (training.folder / "report.html").is_file()
    with pytest.raises(UserError, match=r"no picture 'Loss'; there are .*Validation"):
        training.plot("Loss")
    measured = cs.evaluate(training.folder, baselines=["hold"])
    assert set(measured.frame().index) == {"trained", "warm_started", "scripted", "hold"}
    assert list(measured.differences.index) == ["Held-out windows"]
    assert (measured.differences["low"] <= measured.differences["mean"]).all()
    assert measured.equity.iloc[0].tolist() == [1.0] * 4 and measured.report().is_file()
    with pytest.raises(UserError, match="not a training run"):
        cs.train(resume=measured.run)


def test_a_fine_tuning(here: Path, nano: Path) -> None:
    few = ("states=8", "steps=2", "score_states=2")
    overrides = [*(f"sft.{one}" for one in few), f"training.base_model={nano}", "market.bars=900", "market.coins=1"]
    tuned = cs.sft(config="quick", folder="team", overrides=overrides)
    assert tuned.folder == Path("team") and (here / "team" / "team.json").is_file()
    table = tuned.frame()
    assert (table["collected"] == table["kept"] + table["dropped"]).all()
    assert (table["kept"] == table["train"] + table["validation"]).all()
    with Store.open(STORE) as store:
        [record] = store.runs()
        row = run_row(store, record)
    assert (record.kind, record.status, record.config["folder"]) == ("sft", "finished", str(here / "team"))
    assert f"DeepTraderManager {tuned.scores['manager']['before']:.3f} to " in row.verdict


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"data": "nowhere"}, "no such folder"),
        ({"start": "soon"}, "'soon' is not a date"),
        ({"overrides": ["costs.taker=1"]}, "unknown key 'costs.taker'"),
        ({"teams": []}, "no team"),
        ({"decide_every": -1}, "decide_every"),
    ],
)
def test_a_mistake_is_a_user_error_and_leaves_nothing(here: Path, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        cs.backtest(**{"data": "data/synthetic", **wrong})
    assert not (here / "runs").exists()


def test_a_configuration_object_is_used_as_it_is(here: Path) -> None:
    config = load_config("quick", ["costs.taker_fee=0.01"])
    result = cs.backtest(
        "hold",
        config=config,
        data="data/synthetic",
        symbols="AAAUSDT",
        start="2021-06-20",
        baselines=(),
        store="mem://",
    )
    assert result.config.costs == config.costs and list(result.frame().index) == ["hold"]


def test_a_market_that_is_more_than_its_bars_is_not_cut_down(here: Path) -> None:
    market = generate(SyntheticConfig(bars=300, seed=3, symbols=("AAAUSDT",)))
    with pytest.raises(UserError, match="funding, news, truth beside its bars"):
        cs.backtest("hold", data=market, store="mem://")
    assert not (here / "runs").exists()


def test_bars_of_a_table_are_kept_whole(here: Path) -> None:
    """Also where a file of them is gone."""
    times = pd.date_range("2024-01-01", periods=300, freq="4h")
    close = pd.Series(range(100, 400), times, dtype=float)
    table = pd.DataFrame({"open": close, "high": close, "low": close, "close": close, "volume": 9.0})
    market = Market.from_frame({"AAAUSDT": table, "BBBUSDT": table})
    first = cs.backtest("hold", data=market, store="mem://", baselines=())
    [folder] = (here / "runs" / "data").iterdir()
    (folder / "BBBUSDT-4h.parquet").unlink()
    again = cs.backtest("hold", data=market, store="mem://", baselines=())
    assert first.frame().equals(again.frame()) and first.frame()["trades"]["hold"] == 2
