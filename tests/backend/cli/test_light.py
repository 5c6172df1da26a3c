"""What commands import: `--help` and a refusal nothing that takes seconds, a strategy's backtest nothing of models."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backend.cli.main import COMMANDS
from backend.cli.parts.progress import ProgressLines
from backend.store.records import RunRecord
from backend.store.store import Store
from simulator.data.archive import write_market
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.mock_endpoint import MODEL, serve
from tests.provider_servers import SERVERS

MODELS = {
    "accelerate", "datasets", "huggingface_hub", "llguidance", "openai", "peft", "ray", "safetensors",
    "torch", "transformers", "vllm",
}  # fmt: skip
CALCULATION = {
    "aiohttp", "ccxt", "gymnasium", "httpx2", "numba", "numpy", "pandas", "plotly", "pyarrow", "surrealdb", "talib",
}  # fmt: skip
# Runs commands one after the other in one process; prints their exit codes, and which packages it then has.
SEVERAL = """
import json, sys
from backend.cli import main as cli
codes = []
for line in json.loads(sys.argv[1]):
    sys.argv = ["cryptosentinel", *line]
    try:
        cli.main()
        codes.append(0)
    except SystemExit as ended:
        codes.append(ended.code or 0)
print(json.dumps([codes, sorted({name.partition(".")[0] for name in sys.modules})]), file=sys.stderr)
"""


def packages_after(folder: Path, *lines: list[str]) -> tuple[list[int], set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", SEVERAL, json.dumps(lines)], cwd=folder, capture_output=True, text=True, check=True
    )
    codes, packages = json.loads(done.stderr.splitlines()[-1])
    return codes, set(packages)


def test_help_and_refusals_import_no_library_of_calculation(tmp_path: Path) -> None:
    (tmp_path / "bars").mkdir()
    refused = [
        ["data", "check", "nowhere"],
        ["backtest", "--data", "nowhere"],
        ["backtest", "--data", "bars", "--team", "ema_cros"],
        ["backtest", "--data", "bars", "--baselines", "hodl"],
        ["backtest", "--data", "bars", "--start", "soon"],
        ["check", "lookahead", "--data", "nowhere", "--team", "hold"],
        ["demo", "--config", "nothing"],
        ["demo", "--set", "training.sed=5"],
        ["train", "--data", "nowhere"],
        ["sft", "--data", "nowhere"],
        ["evaluate", "nowhere"],
        ["bactest"],
    ]
    shown = [["--help"], ["--version"], *([command.name, "--help"] for command in COMMANDS)]
    codes, packages = packages_after(tmp_path, *shown, *refused)
    assert codes == [0] * len(shown) + [2] * len(refused)
    assert packages & (MODELS | CALCULATION) == set()
    assert [path.name for path in tmp_path.iterdir()] == ["bars"]


def test_a_strategys_backtest_and_the_list_of_runs_import_nothing_of_models(tmp_path: Path) -> None:
    write_market(generate(SyntheticConfig(bars=600, seed=5, symbols=("AAAUSDT",), timeframe="4h")), tmp_path / "bars")
    backtest = ["backtest", "--data", "bars", "--team", "ema_cross", "--team", "scripted", "--baselines", "hold"]
    codes, packages = packages_after(tmp_path, backtest, ["runs"])
    assert codes == [0, 0]
    assert packages & MODELS == set()


# Nothing of a model that runs here can be imported, as where only the extra `llm` is installed.
BARE = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BANNED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
BANNED = {"torch", "transformers", "peft", "safetensors", "llguidance", "accelerate", "tensorboard"}
sys.meta_path.insert(0, Absent())
from backend.cli import main as cli
sys.argv = ["cryptosentinel", *sys.argv[1:]]
cli.main()
"""


def test_a_team_at_an_endpoint_decides_records_and_is_replayed_without_torch(tmp_path: Path) -> None:
    write_market(generate(SyntheticConfig(bars=260, seed=5, symbols=("AAAUSDT",))), tmp_path / "made")
    window = ["--data", "made", "--baselines", "none", "--start", "2020-02-01", "--end", "2020-02-03"]
    with serve(SERVERS["ollama"]()) as endpoint:
        asked = ["-s", "engine.kind=ollama", "-s", f"engine.model={MODEL}", "-s", f"engine.url={endpoint.url}"]
        tried = ["models", "try", MODEL, "--provider", "ollama", "--url", endpoint.url, "--data", "made"]
        lines = [tried, ["backtest", "--team", "model", *asked, *window, "--record", "tape.jsonl"]]
        for line in (*lines, ["backtest", "--team", "tape.jsonl", *window]):
            done = subprocess.run([sys.executable, "-c", BARE, *line], cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0, (line, done.stdout, done.stderr)
    assert len((tmp_path / "tape.jsonl").read_text().splitlines()) > 2


def test_paper_trading_of_the_scripted_team_imports_nothing_of_models(tmp_path: Path) -> None:
    write_market(generate(SyntheticConfig(bars=600, seed=5, symbols=("AAAUSDT",), timeframe="4h")), tmp_path / "bars")
    session = ["paper", "run", "--data", "bars", "--start", "2020-04-01", "--session", "one"]
    codes, packages = packages_after(tmp_path, session, ["paper", "status", "one"], ["paper", "report", "one"])
    assert codes == [0, 0, 0]
    assert packages & MODELS == set()


def test_the_list_of_runs_imports_no_library_of_calculation_and_of_the_client_only_what_it_uses(tmp_path: Path) -> None:
    with Store.open(tmp_path / "runs" / "store") as store:
        store.add_run(RunRecord("backtest-1", "backtest", 1, "hash", 1_700_000_000_000, {}))
    codes, packages = packages_after(tmp_path, ["runs"])
    assert codes == [0]
    assert packages & (MODELS | CALCULATION | {"requests"}) == {"surrealdb"}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_listed_command_is_the_one_that_is_called(command: Any) -> None:
    loaded = command.load()
    assert loaded.name == command.name and loaded.help and len(command.help) < 80


def test_a_log_gets_a_line_every_some_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    lines = ProgressLines(lambda start: None, seconds=10.0, clock=lambda: now)
    for step in range(101):
        now = 0.5 * step
        lines.progress("M-GRPO", step, 100)
    for step in range(5):  # quick: no line
        lines.progress("report", step, 4)
    told = capsys.readouterr().out.splitlines()
    assert told == [
        "0:10  M-GRPO 20/100", "0:20  M-GRPO 40/100", "0:30  M-GRPO 60/100", "0:40  M-GRPO 80/100",
        "0:50  M-GRPO 100/100",
    ]  # fmt: skip
