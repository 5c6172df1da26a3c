"""Small experiments of strategies, in this process: a market of 600 bars, windows of four decisions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backend.experiments.run import ExperimentOutcome, ExperimentRequest, run_experiment

STRATEGIES = """
question = "Does an EMA cross earn more than holding?"
config = "quick"
set = ["market.bars=600", "market.coins=1"]
seeds = "1-3"

[test]
against = "hold"

[windows]
count = 3
decisions = 4

[[arms]]
name = "hold"
team = "hold"

[[arms]]
name = "short"
team = "always_short"

[[arms]]
name = "random"
team = "matched_random"
like = "short"
"""


@pytest.fixture
def plan_file(tmp_path: Path) -> Callable[..., Path]:
    """plan_file(old, new, ...): a file of the experiment above, with texts replaced."""

    def write(*changes: tuple[str, str], text: str = STRATEGIES) -> Path:
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "small.toml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def run_here(tmp_path: Path) -> Callable[..., ExperimentOutcome]:
    """run_here(path): run it in this process, with store and folders in a temporary one."""

    def run(path: Path, **options: Any) -> ExperimentOutcome:
        request = ExperimentRequest(file=path, workers=1, **options)
        return run_experiment(request, tmp_path / "store", tmp_path / "runs")

    return run
