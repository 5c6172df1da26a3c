"""What lies in `examples/` does what it says. The role is trained in `tests/backend/training/test_own_role.py`."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from gymnasium.utils.env_checker import check_env

import cryptosentinel as cs

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
