"""A training whose base is not there, or that does not fit, is refused before anything is created."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backend.models.registry import hub_folder
from backend.runs import train
from backend.runs.requests import SftRequest, TrainRequest
from backend.store.store import Store
from backend.training import rl_job
from simulator.errors import UserError

NAME = "Qwen/Qwen3-4B"
DOCS = Path(__file__).resolve().parents[3] / "docs"


def train_with(store: Path, runs: Path, *overrides: str) -> Any:
    return train.train_team(TrainRequest(config="quick", overrides=overrides), store, runs)


def sft_with(store: Path, runs: Path, *overrides: str) -> Any:
    request = SftRequest(config="quick", overrides=overrides, folder=runs / "sft")
    return train.fine_tune_roles(request, store=store)


@pytest.mark.parametrize("command", [train_with, sft_with])
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (f"training.base_model={NAME}", f"cryptosentinel models pull {NAME}"),
        ("training.start_from=nowhere", "nowhere"),
    ],
)
def test_a_base_that_is_not_there(
    command: Callable[..., Any], setting: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        command(tmp_path / "store", tmp_path / "runs", setting)
    assert list(tmp_path.iterdir()) == []


def test_a_training_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rl_job, "machine_memory", lambda device: 2**20)
    with Store.open("mem://") as store:
        with pytest.raises(UserError, match="cannot fit"):
            train.train_team(TrainRequest(config="quick"), store, tmp_path / "runs")
        assert store.runs() == [] and list(tmp_path.iterdir()) == []


def test_the_docs_serve_a_model_from_where_pull_puts_it() -> None:
    served = re.findall(r"vllm serve (\S+)", (DOCS / "concepts" / "training.md").read_text(encoding="utf-8"))
    assert str(hub_folder(NAME)) in served
    assert not [name for name in served if name.startswith("models/") and "--" not in name]
