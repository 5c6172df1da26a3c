"""Data sets from elsewhere: a folder of one is learned from as a team is, and what cannot be is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend.training.sft.datasets import SftRow, read_rows, write_data_set
from backend.training.sft.shared_data import is_data_set, shared_rows
from backend.training.sft_job import DATA, run_sft
from simulator.errors import DataError
from tests.backend.training.test_sft_job import settings
from tests.small_world import small_market

ROW = SftRow(
    role="trader", source="elsewhere", state="0-0", symbol="AAAUSDT", bar=7, exposure=0.0, question="AAAUSDT long 0.5",
    rollout=0, score=0.75, margin=0.5, split="train", tools=None,
    messages=[{"role": "system", "content": "You are Trader."}, {"role": "user", "content": "Send it?"},
              {"role": "assistant", "content": "no"}],
)  # fmt: skip


def nothing(what: str, done: int, total: int) -> None:
    """Reports nothing."""


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A data set with a row for training and one for validation."""
    folder = tmp_path / "made"
    write_data_set(folder, [ROW, replace(ROW, state="0-1", split="validation")], {})
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"split": "test"}, "is of the split 'test'"),
        ({"score": 1.5}, "has the score 1.5"),
        ({"score": float("nan")}, "has the score nan"),
        ({"messages": []}, "has a turn without words"),
        ({"messages": [{"role": "user", "content": ""}]}, "has a turn without words"),
        ({"tools": "{"}, "has schemas of tools that are not JSON"),
        ({"tools": "{}"}, "has schemas of tools that are not a list"),
    ],
)
def test_a_row_that_cannot_be_learned_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    folder = tmp_path / "theirs"
    write_data_set(folder, [ROW, replace(ROW, **change)], {})
    with pytest.raises(DataError, match=rf"theirs: row 2 of trader\.parquet {message}"):
        shared_rows(str(folder), ["trader"])


def test_a_file_of_one_role_under_the_name_of_another_is_refused(made: Path) -> None:
    manifest = json.loads((made / "manifest.json").read_text())
    manifest["sha256"]["manager.parquet"] = manifest["sha256"]["trader.parquet"]
    (made / "manifest.json").write_text(json.dumps(manifest))
    (made / "manager.parquet").write_bytes((made / "trader.parquet").read_bytes())
    with pytest.raises(DataError, match=r"row 1 of manager\.parquet is of the role 'trader'"):
        shared_rows(str(made), ["manager"])


def test_a_data_set_without_a_role_of_the_team_is_refused(made: Path) -> None:
    with pytest.raises(DataError, match="has no conversation of manager"):
        shared_rows(str(made), ["manager"])


@pytest.mark.slow
def test_a_fine_tuning_learns_from_one_alone_and_beside_a_team(nano: Path, tmp_path: Path) -> None:
    config = settings(nano)
    first = run_sft(config, small_market(), ("scripted",), tmp_path / "first", nothing)
    theirs = str(first.folder / DATA)
    assert is_data_set(theirs) and not is_data_set(str(first.folder)) and not is_data_set("scripted")
    alone = run_sft(config, small_market(), (theirs,), tmp_path / "alone", nothing)
    assert read_rows(alone.folder / DATA, "trader") == read_rows(first.folder / DATA, "trader")
    counts = first.manifest["counts"]["trader"]
    assert alone.manifest["counts"]["trader"]["kept"] == counts["kept"] == counts["train"] + counts["validation"]
    assert alone.scores == first.scores, "the same conversations teach the same"
    both = run_sft(config, small_market(), ("scripted", theirs), tmp_path / "both", nothing)
    assert both.manifest["counts"]["trader"]["kept"] == 2 * counts["kept"]
