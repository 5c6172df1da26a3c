"""Data sets from elsewhere: a folder or one of a hub is learned from as a team is, and what cannot be is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend.training.sft.datasets import SftRow, read_rows, write_data_set
from backend.training.sft.shared_data import fetch_data_set, is_data_set, shared_rows
from backend.training.sft_job import DATA, SHARED, run_sft
from simulator.errors import DataError, UserError
from tests.backend.training.test_sft_job import settings
from tests.local_hub import COMMIT, LocalHub, serving
from tests.small_world import small_market

NAME = "somebody/advice"
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


@pytest.fixture
def hub(made: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    for name in ("HF_TOKEN", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    (made / "loader.py").write_text("raise SystemExit")
    with serving(LocalHub({NAME: made})) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


def test_one_of_the_hub_is_fetched_once_and_read_as_it_was_written(hub: LocalHub, made: Path, tmp_path: Path) -> None:
    source = f"hf://{NAME}@{COMMIT}"
    folder = fetch_data_set(source, tmp_path / "run")
    assert shared_rows(source, folder, ["manager", "trader"]) == read_rows(made, "trader")
    assert "loader.py" not in hub.fetched() and "trader.parquet" in hub.fetched()
    asked = len(hub.asked)
    assert fetch_data_set(source, tmp_path / "run") == folder and len(hub.asked) == asked


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("hf://advice", "hf://OWNER/NAME"),
        ("hf://somebody/advice@", "hf://OWNER/NAME"),
        ("hf://somebody/else", "knows no data set somebody/else"),
        (f"hf://{NAME}@v2", "has no revision 'v2'"),
    ],
)
def test_an_address_that_leads_nowhere_is_refused(hub: LocalHub, tmp_path: Path, source: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        fetch_data_set(source, tmp_path)


def test_a_hub_that_is_not_there_or_holds_something_else_is_told(
    hub: LocalHub, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (made / "manifest.json").rename(made / "readme.json")
    with pytest.raises(UserError, match=r"has no manifest\.json on the hub"):
        fetch_data_set(f"hf://{NAME}", tmp_path / "a")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"cannot be reached .* copy the data set's folder here"):
        fetch_data_set(f"hf://{NAME}", tmp_path / "b")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"split": "test"}, "is of the split 'test'"),
        ({"score": 1.5}, "has the score 1.5"),
        ({"score": float("nan")}, "has the score nan"),
        ({"messages": []}, "has a turn without words"),
        ({"messages": [{"role": "user", "content": ""}]}, "has a turn without words"),
        ({"tools": "{"}, "has schemas of tools that are no JSON"),
        ({"tools": "{}"}, "has schemas of tools that are no list"),
    ],
)
def test_a_row_that_cannot_be_learned_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    folder = tmp_path / "theirs"
    write_data_set(folder, [ROW, replace(ROW, **change)], {})
    with pytest.raises(DataError, match=rf"theirs: row 2 of trader\.parquet {message}"):
        shared_rows("theirs", folder, ["trader"])


def test_a_file_of_one_role_under_the_name_of_another_is_refused(made: Path) -> None:
    manifest = json.loads((made / "manifest.json").read_text())
    manifest["sha256"]["manager.parquet"] = manifest["sha256"]["trader.parquet"]
    (made / "manifest.json").write_text(json.dumps(manifest))
    (made / "manager.parquet").write_bytes((made / "trader.parquet").read_bytes())
    with pytest.raises(DataError, match=r"row 1 of manager\.parquet is of the role 'trader'"):
        shared_rows("theirs", made, ["manager"])


def test_a_data_set_without_a_role_of_the_team_is_refused(made: Path) -> None:
    with pytest.raises(DataError, match="has no conversation of manager"):
        shared_rows("made", made, ["manager"])


@pytest.mark.slow
def test_a_fine_tuning_learns_from_one_alone_and_beside_a_team(nano: Path, tmp_path: Path) -> None:
    config = settings(nano)
    first = run_sft(config, small_market(), ("scripted",), tmp_path / "first", nothing)
    theirs = str(first.folder / DATA)
    assert is_data_set(theirs) and not is_data_set(str(first.folder)) and not is_data_set("scripted")
    alone = run_sft(config, small_market(), (theirs,), tmp_path / "alone", nothing)
    assert read_rows(alone.folder / DATA, "trader") == read_rows(first.folder / DATA, "trader")
    assert not (alone.folder / SHARED).exists()
    counts = first.manifest["counts"]["trader"]
    assert alone.manifest["counts"]["trader"]["kept"] == counts["kept"] == counts["train"] + counts["validation"]
    assert alone.scores == first.scores, "the same conversations teach the same"
    both = run_sft(config, small_market(), ("scripted", theirs), tmp_path / "both", nothing)
    assert both.manifest["counts"]["trader"]["kept"] == 2 * counts["kept"]
