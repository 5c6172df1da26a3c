"""What commands import, and what they do without it: `--help` and a refusal load nothing that takes seconds; without
the extras of the installation strategies and teams trade, and all else says what to install. Nothing is installed or
removed for it: in a process of its own the packages cannot be imported."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import cryptosentinel as cs
from backend.cli.main import COMMANDS
from backend.cli.progress import ProgressLines
from backend.errors import EXTRAS, missing_extra, names_missing_extras
from backend.store.records import RunRecord
from backend.store.store import Store
from simulator.data.archive import write_market
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.mock_endpoint import MODEL, serve
from tests.provider_servers import SERVERS

ROOT = Path(__file__).resolve().parents[3]
MODELS = {
    "accelerate", "datasets", "huggingface_hub", "llguidance", "openai", "peft", "ray", "safetensors",
    "torch", "transformers", "vllm",
}  # fmt: skip
CALCULATION = {
    "aiohttp", "ccxt", "gymnasium", "httpx2", "numba", "numpy", "pandas", "plotly", "pyarrow", "surrealdb", "talib",
}  # fmt: skip
# Runs commands one after the other in a process that cannot import some packages; prints their codes with what each
# said, and which packages the process then has.
SEVERAL = """
import importlib.metadata, io, json, sys
from contextlib import redirect_stderr, redirect_stdout
gone = set(json.loads(sys.argv[1]))
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in gone:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
def version(name, known=importlib.metadata.version):
    if name in gone:
        raise importlib.metadata.PackageNotFoundError(name)
    return known(name)
importlib.metadata.version = version
sys.meta_path.insert(0, Gone())
from backend.cli import main as cli
ended = []
for line in json.loads(sys.argv[2]):
    sys.argv, said = ["cryptosentinel", *line], io.StringIO()
    cli.console.file = cli.errors.file = said
    code = 0
    with redirect_stdout(said), redirect_stderr(said):
        try:
            cli.main()
        except SystemExit as ending:
            code = ending.code or 0
    ended.append([code, said.getvalue()])
print(json.dumps([ended, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def after(folder: Path, *lines: list[str], gone: list[str] | None = None) -> tuple[list[tuple[int, str]], set[str]]:
    """The code of each command and what it said, and the packages that are loaded then."""
    command = [sys.executable, "-c", SEVERAL, json.dumps(gone or []), json.dumps(lines)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=os.environ | {"COLUMNS": "400"})
    assert done.returncode == 0, done.stderr
    ended, packages = json.loads(done.stdout.splitlines()[-1])
    return [(code, said) for code, said in ended], set(packages)


@pytest.fixture
def bars(tmp_path: Path) -> Path:
    """A folder with a market in `bars`."""
    write_market(generate(SyntheticConfig(bars=600, seed=5, symbols=("AAAUSDT",), timeframe="4h")), tmp_path / "bars")
    return tmp_path


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
    ended, packages = after(tmp_path, *shown, *refused)
    assert [code for code, _ in ended] == [0] * len(shown) + [2] * len(refused)
    assert packages & (MODELS | CALCULATION) == set()
    assert [path.name for path in tmp_path.iterdir()] == ["bars"]


def test_the_table_of_extras_is_that_of_the_project() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {extra: {Requirement(line).name for line in listed[extra]} for extra in EXTRAS}
    assert named == {extra: set(packages) for extra, packages in EXTRAS.items()}


def test_the_simulators_commands_need_no_extra_and_the_others_say_which(bars: Path) -> None:
    data = ["--data", "bars"]
    work = [
        ["--help"],
        ["backtest", *data, "--team", "ema_cross", "--team", "scripted", "--baselines", "hold"],
        ["runs"],
        ["check", "lookahead", *data, "--team", "sma_cross"],
        ["check", "lookahead", *data, "--team", "scripted"],
        ["data", "check", "bars"],
    ]
    refused = {
        "train": [["train", "--config", "quick"], ["demo", "--config", "quick"], ["sft", "--config", "quick"]],
        "paper": [
            ["data", "download", "--symbols", "BTC/USDT", "--timeframe", "1h", "--start", "2024-01-01", "--out", "x"]
        ],
    }
    lines = [*work, *(line for listed in refused.values() for line in listed)]
    # aiohttp comes with the store's package as well.
    gone = [package for packages in EXTRAS.values() for package in packages if package != "aiohttp"]
    ended, _ = after(bars, *lines, gone=gone)
    assert [said for code, said in ended[: len(work)] if code] == []
    for (code, said), extra in zip(
        ended[len(work) :], [name for name, listed in refused.items() for _ in listed], strict=True
    ):
        assert code == 2, said
        assert f"pip install 'cryptosentinel[{extra}]'" in said and "Traceback" not in said


def test_a_training_needs_the_extra_train_alone(tmp_path: Path) -> None:
    others = [package for extra, listed in EXTRAS.items() if extra != "train" for package in listed]
    gone = [package for package in others if package != "aiohttp"]
    settings = [
        "market.bars=600", "nano.hidden_size=32", "nano.layers=1", "nano.decisions=12",
        "nano.steps=3", "training.stage1_steps=0", "training.validation_queries=1", "training.queries_per_step=1",
        "training.rollouts_per_query=2",
    ]  # fmt: skip
    training = ["train", "--config", "quick", "--runs", "runs", *(word for one in settings for word in ("--set", one))]
    [(code, said)], _ = after(tmp_path, training, gone=gone)
    assert code == 0, said


def test_a_function_of_python_says_it_too() -> None:
    @names_missing_extras
    def needs(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    with pytest.raises(
        cs.UserError, match=r"this needs torch, which is not installed: pip install 'cryptosentinel\[train\]'"
    ):
        needs("torch.nn")
    with pytest.raises(ModuleNotFoundError):  # a defect, or a package of the user's
        needs("torches")
    assert missing_extra(ModuleNotFoundError("what")) is None


def test_a_team_at_an_endpoint_decides_records_and_is_replayed_without_torch(tmp_path: Path) -> None:
    write_market(generate(SyntheticConfig(bars=260, seed=5, symbols=("AAAUSDT",))), tmp_path / "made")
    window = ["--data", "made", "--baselines", "none", "--start", "2020-02-01", "--end", "2020-02-03"]
    with serve(SERVERS["ollama"]()) as endpoint:
        asked = ["-s", "engine.kind=ollama", "-s", f"engine.model={MODEL}", "-s", f"engine.url={endpoint.url}"]
        tried = ["models", "try", MODEL, "--provider", "ollama", "--url", endpoint.url, "--data", "made"]
        lines = [tried, ["backtest", "--team", "model", *asked, *window, "--record", "tape.jsonl"]]
        lines.append(["backtest", "--team", "tape.jsonl", *window])
        ended, _ = after(tmp_path, *lines, gone=[*MODELS - {"openai", "datasets", "huggingface_hub"}, "tensorboard"])
    assert [said for code, said in ended if code] == []
    assert len((tmp_path / "tape.jsonl").read_text().splitlines()) > 2


def test_paper_trading_of_the_scripted_team_imports_nothing_of_models(bars: Path) -> None:
    session = ["paper", "run", "--data", "bars", "--start", "2020-04-01", "--session", "one"]
    ended, packages = after(bars, session, ["paper", "status", "one"], ["paper", "report", "one"])
    assert [said for code, said in ended if code] == []
    assert packages & MODELS == set()


def test_the_list_of_runs_imports_no_library_of_calculation_and_of_the_client_only_what_it_uses(tmp_path: Path) -> None:
    with Store.open(tmp_path / "runs" / "store") as store:
        store.add_run(RunRecord("backtest-1", "backtest", 1, "hash", 1_700_000_000_000, {}))
    [(code, _)], packages = after(tmp_path, ["runs"])
    assert code == 0
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
