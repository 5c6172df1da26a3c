"""What works without the extras of the installation, and that all else says what to install. Nothing is installed or
removed for it: in a process of its own the packages of the extras cannot be imported."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import cryptosentinel as cs
from backend.errors import EXTRAS, missing_extra, names_missing_extras
from simulator.data.archive import write_market
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate

ROOT = Path(__file__).resolve().parents[3]
# Runs commands one after the other in a process that cannot import some packages; prints codes and what was said last.
WITHOUT = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import PackageNotFoundError
import importlib.metadata

gone = set(json.loads(sys.argv[1]))

class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in gone:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def version(name, known=importlib.metadata.version):
    if name in gone:
        raise PackageNotFoundError(name)
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
print(json.dumps(ended))
"""


def without(gone: list[str], folder: Path, *lines: list[str]) -> list[tuple[int, str]]:
    command = [sys.executable, "-c", WITHOUT, json.dumps(gone), json.dumps(lines)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=os.environ | {"COLUMNS": "400"})
    assert done.returncode == 0, done.stderr
    return [(code, said) for code, said in json.loads(done.stdout.splitlines()[-1])]


def test_the_table_of_extras_is_that_of_the_project() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {extra: {Requirement(line).name for line in listed[extra]} for extra in EXTRAS}
    assert named == {extra: set(packages) for extra, packages in EXTRAS.items()}


def test_the_simulators_commands_need_no_extra_and_the_others_say_which(tmp_path: Path) -> None:
    write_market(generate(SyntheticConfig(bars=600, seed=5, symbols=("AAAUSDT",), timeframe="4h")), tmp_path / "bars")
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
    ended = without(gone, tmp_path, *lines)
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
    [(code, said)] = without(gone, tmp_path, training)
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
