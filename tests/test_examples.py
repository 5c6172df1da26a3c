"""What lies in `examples/` does what it says. The role is trained in `tests/backend/training/test_other_teams.py`."""

import contextlib
import importlib
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import cryptosentinel as cs
from backend.builders.plugins import load_plugins
from backend.config.load import load_config
from backend.reporting.run_summary import how_it_was_run
from backend.store.store import Store
from backend.training.algorithm.rewards import outcome_scores
from backend.training.rollout.collect import rollout_settings
from cryptosentinel.agents.registry import STANDARD, team_of
from cryptosentinel.conversation.masking import Mask
from simulator.exchange.exchange import Exchange

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NAMES = {path.stem for path in EXAMPLES.glob("*.py")}


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports an example, as it is in the folder where it lies; runs are kept elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield importlib.import_module
    for name in NAMES & sys.modules.keys():
        del sys.modules[name]


def test_bars_of_ones_own_are_traded(example: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]) -> None:
    example("own_data").main()
    said = capsys.readouterr().out
    assert "donchian_breakout" in said and "report.html" in said
    assert len(list(Path("runs/data").iterdir())) == 1


def test_a_strategy_of_ones_own_sees_no_future(example: Callable[[str], ModuleType]) -> None:
    market = cs.Market.from_frame(example("own_data").load(bars=400), "BTCUSDT")
    result = cs.backtest("own_strategy:CalmTrend", data=market, baselines="hold", store="mem://")
    assert result.lookahead["own_strategy:CalmTrend"].status == "clean"
    assert result.frame()["trades"]["own_strategy:CalmTrend"] > 0


def test_an_agent_learns_in_the_environment(example: Callable[[str], ModuleType]) -> None:
    market = cs.Market.from_frame(example("own_data").load(bars=400), "BTCUSDT")
    env = cs.TradingEnv(market, cs.EnvConfig(length=20, window=4))
    check_env(env)
    earned = example("gymnasium_agent").train(env, rounds=2, drawn=6, kept=2)
    assert len(earned) == 2


def test_bars_of_a_source_of_ones_own_are_kept(example: Callable[[str], ModuleType]) -> None:
    """The source is asked once; the run that names its folder is repeated without it."""
    settings = ["market.source=own_data:load"]
    result = cs.backtest("ema_cross", baselines="hold", overrides=settings, store="store")
    assert result.config.market.source == "own_data:load" and Path(result.config.market.data).is_dir()
    assert len(example("own_data").load()) == 900
    with Store.open("store") as store:
        [record] = store.run(result.run).config["plugins"]
    assert (record["kind"], record["name"]) == ("source", "own_data:load") and len(record["digest"]) == 16
    assert any(label == "Plug-ins" and record["digest"] in text for label, text in how_it_was_run(result.summary))
    again = cs.backtest("ema_cross", data=result.config.market.data, baselines="hold", store="mem://")
    assert again.summary.run.data_hash == result.summary.run.data_hash


def test_an_engine_of_ones_own_trades(example: Callable[[str], ModuleType]) -> None:
    settings = ["engine.kind=own_engine:engine", "team.roles=market_analyst"]
    market = cs.Market.from_frame(example("own_data").load(bars=300), "BTCUSDT")
    result = cs.backtest("model", data=market, baselines="hold", overrides=settings, store="mem://")
    [name] = [name for name in result.frame().index if "always_long" in name]
    assert result.frame().loc[name, "trades"] > 0
    with pytest.raises(cs.UserError, match=r"engine\.kind = own_engine:engine gives no log-probs"):
        cs.train("quick", overrides=settings, store="mem://")


def test_a_tool_of_ones_own_is_offered_and_answers(example: Callable[[str], ModuleType]) -> None:
    config = load_config("quick", ["team.tools=market_analyst=own_tool:TOOL"])
    load_plugins(config)
    _, sub_agents = team_of(STANDARD, tools=config.team.tools)
    tool = sub_agents["consult_market_analyst"].tool("get_activity")
    market = cs.Market.from_frame(example("own_data").load(bars=400), "BTCUSDT")
    view, account = market.view(398), Exchange(market, 398).account()
    context = cs.ToolContext(view, account, Mask(view.symbols, True), view.symbols, 6, 1.0, "BTCUSDT")
    assert tool.run is not None
    assert tool.run(context, example("own_tool").Days(days=5)) == {"activity": 1.0}  # the volume is always the same


def test_a_reward_of_ones_own_is_what_a_training_learns_from(
    example: Callable[[str], ModuleType],
) -> None:
    named = ["training.reward=own_reward:cautious"]
    functions = rollout_settings(load_config("quick", named), 1).functions
    plain = rollout_settings(load_config("quick"), 1).functions
    net = np.array([[-0.02, 0.02], [0.0, 0.0], [0.01, 0.01]])
    cautious, shipped = functions.outcomes(net, 0.02), plain.outcomes(net, 0.02)
    assert cautious[0] < shipped[0] == 0.5 and cautious[1:].tolist() == shipped[1:].tolist()
    assert shipped.tolist() == outcome_scores(net, 0.02).tolist()


def test_ppo_of_stable_baselines_learns_in_the_environment(example: Callable[[str], ModuleType]) -> None:
    module = example("sb3_agent")
    earned = module.returns(module.train(steps=256), episodes=2)
    assert len(earned) == 2 and np.isfinite(earned).all()


NOTEBOOKS = ("data_to_team", "your_strategy")


def cells(notebook: str) -> list[str]:
    """The code of a notebook, a text for each cell."""
    document = json.loads((EXAMPLES / f"{notebook}.ipynb").read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == "code"]


def run_cells(notebook: str) -> tuple[str, dict[str, object]]:
    """What a notebook prints, and its names at the end."""
    printed, names = io.StringIO(), dict[str, object](__name__="__main__")
    with contextlib.redirect_stdout(printed):
        for source in cells(notebook):
            exec(compile(source, f"{notebook}.ipynb", "exec"), names)
    return printed.getvalue(), names


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_a_notebook_is_kept_without_outputs(notebook: str) -> None:
    document = json.loads((EXAMPLES / f"{notebook}.ipynb").read_text(encoding="utf-8"))
    assert document["nbformat"] == 4 and len(cells(notebook)) >= 5
    for cell in document["cells"]:
        assert cell["cell_type"] == "markdown" or (cell["outputs"] == [] and cell["execution_count"] is None)


def test_the_notebook_goes_from_a_csv_to_an_optimized_strategy(example: Callable[[str], ModuleType]) -> None:
    example("own_data")
    _, names = run_cells("your_strategy")
    found = names["found"]
    assert isinstance(found, cs.OptimizeOutcome) and len(found.table) == 6 and found.overfitting is not None
    assert found.result.lookahead.popitem()[1].trusted and Path("runs/best/trades.csv").is_file()


@pytest.mark.slow
def test_the_notebook_goes_from_a_table_to_a_trained_team(example: Callable[[str], ModuleType]) -> None:
    printed, _ = run_cells("data_to_team")
    assert "95 %" in printed
    assert len(list(Path("runs").glob("train-*/adapters"))) == 1
