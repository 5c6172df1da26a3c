"""What the documentation imports is there after `pip install`, where the layers are not packages of their own, and the
sample market is known by its name in any folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import cryptosentinel as cs
from backend.config.load import load_config
from setup import MOVED
from simulator.folders import SAMPLE, data_folder, named_data, sample_data
from tests.command_line import program
from tests.shown_commands import FENCE, PRESENT

ROOT = Path(__file__).resolve().parents[1]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
IMPORT = re.compile(r"\b(?:import|from) ((?:[a-z_]+)(?:\.\w+)*)")
NAME = re.compile(r"\bcs\.([A-Za-z_]\w*)")


@pytest.mark.parametrize("page", PRESENT, ids=lambda page: page.name)
def test_documented_imports_work_in_a_wheel(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    code = [*PYTHON.findall(text), *re.findall(r"`([^`\n]+)`", FENCE.sub("", text))]
    named = [name for part in code for name in IMPORT.findall(part)]
    moved = [name for name in named if name.partition(".")[0] in MOVED]
    if page.name != "architecture.md":  # which says how the wheel is made
        assert moved == [], "in a wheel these are inside the package: name what `cryptosentinel` has"
    assert {name for part in code for name in NAME.findall(part)} <= set(cs.__all__)


def test_the_sample_has_a_name_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert sample_data() == data_folder(SAMPLE) == ROOT / "data" / "synthetic"
    assert load_config(None, ["market.data=sample"]).market.data == str(sample_data())
    frame = cs.backtest("ema_cross", data="sample", start="2021-06-01", end="2021-06-20", store="mem://").frame()
    assert "ema_cross" in frame.index
    (tmp_path / SAMPLE).mkdir()
    assert named_data(SAMPLE) == Path(SAMPLE), "the user's own folder of that name goes before"


@pytest.mark.parametrize(
    "arguments",
    [
        ("data", "list", "sample"),
        ("data", "list"),
        ("data", "check", "sample"),
        ("backtest", "--data", "sample", "--team", "ema_cross", "--start", "2021-06-01", "--end", "2021-06-20"),
        ("check", "lookahead", "--team", "ema_cross", "--data", "sample"),
    ],
    ids=" ".join,
)
def test_every_command_knows_the_sample(
    arguments: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = program(tmp_path, monkeypatch, capsys)(*arguments)
    assert said.code == 0, said.err
