"""The records of a run as Parquet files: nothing is lost on the way, and others read them."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

import cryptosentinel as cs
from backend.decisions.backtest_document import read_backtests
from backend.decisions.document import read_decisions
from backend.decisions.parquet_export import export_parquet
from backend.store.errors import StoreError
from backend.store.records import MetricRecord, RewardRecord, RolloutRecord, RunRecord
from backend.store.store import Store
from tests.command_line import program

RUN = "train-20240101-000000-000"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a stored backtest of the scripted team, and the run's id."""
    folder = tmp_path_factory.mktemp("here")
    result = cs.backtest(
        "scripted", start="2021-06-01", end="2021-06-08", baselines="hold", store=folder / "store", runs=folder / "runs"
    )
    return folder, result.run


def test_every_record_of_a_backtest_is_a_row(place: tuple[Path, str], tmp_path: Path) -> None:
    folder, run = place
    with Store.open(folder / "store") as store:
        counts = export_parquet(store, run, tmp_path / "out")
        decisions, backtests = read_decisions(store, run), read_backtests(store, run)
    tables = {name: pd.read_parquet(tmp_path / "out" / f"{name}.parquet") for name in counts}
    assert {name: len(table) for name, table in tables.items()} == counts
    assert counts["decisions"] == len(decisions) and counts["orders"] == sum(
        len(one.document.orders) for one in decisions
    )
    assert counts["conversations"] == sum(len(one.document.conversations) for one in decisions)
    assert counts["fills"] == sum(len(one.document.fills) for one in backtests)
    assert counts["equity"] == sum(len(one.document.times) for one in backtests)
    first = next(one for one in backtests if one.document.fills)
    fill, row = first.document.fills[0], tables["fills"][tables["fills"]["team"] == first.name].iloc[0]
    assert (row["symbol"], row["quantity"], row["price"], row["fee"]) == (
        fill.symbol, fill.quantity, fill.price, fill.fee,
    )  # fmt: skip
    assert row["time"].value // 10**6 == fill.time and str(row["time"].tz) == "UTC"
    said, stored = tables["conversations"].iloc[0], decisions[0].document.conversations[0]
    assert [(turn["role"], turn["content"]) for turn in said["messages"]] == [
        (turn.role, turn.content) for turn in stored.messages
    ]
    assert json.loads(said["answer"]) == stored.answer and said["role"] == "manager"


def test_the_library_of_datasets_reads_the_conversations(place: tuple[Path, str], tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the package datasets is absent: it comes with trl")
    folder, run = place
    with Store.open(folder / "store") as store:
        counts = export_parquet(store, run, tmp_path / "out")
    read = datasets.load_dataset(
        "parquet",
        data_files=str(tmp_path / "out" / "conversations.parquet"),
        split="train",
        cache_dir=tmp_path / "cache",
    )
    assert len(read) == counts["conversations"] and read[0]["messages"][0]["role"] == "system"


def test_a_training_has_rollouts_rewards_and_metrics(tmp_path: Path) -> None:
    with Store.open("mem://") as store:
        store.add_run(RunRecord(RUN, "train", 1, "", 1_700_000_000_000, {}, "finished"))
        store.put(RolloutRecord(RUN, 1, 0, 0, 7, True, 0.5, {"manager": 1}, {"net_return": 0.01}))
        store.put(RewardRecord(RUN, 1, 0, 0, "manager", 0, 0.75, {"format": 1.0}, 0.5))
        store.put(MetricRecord(RUN, 1, {"team/outcome": 0.5}), MetricRecord(RUN, 2, {"team/other": 0.25}))
        assert export_parquet(store, RUN, tmp_path / "out") == {"metrics": 2, "rollouts": 1, "rewards": 1}
    metrics = pd.read_parquet(tmp_path / "out" / "metrics.parquet")
    assert metrics["team/outcome"].tolist()[0] == 0.5 and metrics["team/other"].isna().tolist() == [True, False]
    [reward] = pd.read_parquet(tmp_path / "out" / "rewards.parquet").to_dict("records")
    assert reward["advantage"] == 0.5 and json.loads(reward["parts"]) == {"format": 1.0}


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    with Store.open("mem://") as store:
        store.add_run(RunRecord(RUN, "train", 1, "", 1_700_000_000_000, {}))
        with pytest.raises(StoreError, match="still running"):
            export_parquet(store, RUN, tmp_path / "out")
        with pytest.raises(StoreError, match="has no run 'nothing'"):
            export_parquet(store, "nothing", tmp_path / "out")
        store.finish_run(RUN, "finished")
        (tmp_path / "there").mkdir()
        with pytest.raises(StoreError, match="exists already"):
            export_parquet(store, RUN, tmp_path / "there")


def test_the_command_names_each_file(
    place: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, run = place
    result = program(folder, monkeypatch, capsys)("runs", "export", run, "out", "--parquet", "--store", "store")
    assert result.code == 0, result.err
    assert "out/conversations.parquet: " in result.out and (folder / "out" / "fills.parquet").is_file()
