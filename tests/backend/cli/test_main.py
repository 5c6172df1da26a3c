"""The command line: every mistake is one clear message and an exit code, and every command does its work."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from backend.store.store import Store
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.command_line import Run

ROOT = Path(__file__).parents[3]
SAMPLE = ROOT / "data" / "synthetic"

SMALL = (
    "team.horizon_bars=6", "team.max_tokens=24", "market.coins=1", "market.bars=400", "training.stage1_steps=1",
    "training.stage1_max_steps=1", "training.stage2_steps=1", "training.queries_per_step=1",
    "training.rollouts_per_query=2", "training.scenario_paths=2", "training.lora_rank=2", "training.validation_every=1",
    "training.validation_queries=1", "training.gate_format=0", "training.rollback_format=0", "training.shards=1",
)  # fmt: skip
SMALL_OPTIONS = [part for override in SMALL for part in ("--set", override)]


def bars(count: int = 400, seed: int = 3) -> pd.DataFrame:
    """Sound 4h bars."""
    market = generate(SyntheticConfig(bars=count, seed=seed, symbols=("AAAUSDT",)))
    columns = {name: getattr(market, name)[:, 0] for name in ("open", "high", "low", "close", "volume")}
    return pd.DataFrame({"timestamp": pd.to_datetime(market.open_time, unit="ms"), **columns})


def _write(folder: Path, table: pd.DataFrame, name: str = "AAAUSDT-4h.parquet") -> Path:
    folder.mkdir(exist_ok=True)
    table.to_parquet(folder / name)
    return folder


def test_a_resume_refuses_other_data_and_a_lost_folder(command: Run, tmp_path: Path, nano: Path) -> None:
    data = _write(tmp_path / "d", bars())
    trained = command("train", "--data", data, *SMALL_OPTIONS, "--set", f"training.base_model='{nano}'")
    assert trained.code == 0, trained.err
    run = re.findall(r"run (train-\S+) in", trained.out)[0]
    lost = command("train", "--resume", run, "--runs", tmp_path / "elsewhere")
    assert lost.code == 2
    assert "no such folder" in lost.err
    _write(data, bars(seed=4))
    changed = command("train", "--resume", run)
    assert changed.code == 2
    assert "other data" in changed.err
    shown = command("runs")
    assert run in shown.out, "what was stored stays readable"
    assert "finished" in command("runs", "--long").out


def test_runs_in_place_of_a_folder_is_a_clear_message(command: Run, tmp_path: Path, nano: Path) -> None:
    (tmp_path / "file").write_text("")
    options = [*SMALL_OPTIONS, "--set", f"training.base_model='{nano}'"]
    result = command("train", *options, "--runs", tmp_path / "file", "--store", tmp_path / "store")
    assert result.code == 1
    assert "cannot be written" in result.err
    assert "choose another folder" in result.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["training.precision=nf4"], "training.precision = nf4 needs a GPU"),  # apart, other machines may have one
        (["team.roles=nobody"], "no role 'nobody'"),
        (["team.roles=nobody", "--launch", "ray"], "no role 'nobody'"),
        (["training.practice={nobody=4}"], "training.practice: 'nobody' is not a sub-agent"),
    ],
)
def test_what_cannot_be_trained_is_told_before_anything_is_stored(
    options: list[str], said: str, command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    failed = command("train", *SMALL_OPTIONS, "--set", *options)
    assert failed.code == 2 and said in failed.err
    assert not (tmp_path / "runs").exists()


def test_config_and_dry_run_show_what_would_be_used(command: Run) -> None:
    shown = command("config", "--config", "quick", "--set", "training.seed=4711")
    assert shown.code == 0
    assert "4711" in shown.out
    assert "seed of all random draws of the training" in shown.out
    dry = command(
        "train", "--dry-run", "--data", "somewhere", "--symbols", "A,B", "--timeframe", "1h", "--resample", "4h"
    )
    assert dry.code == 0
    for value in ("somewhere", "['A', 'B']", "1h"):
        assert value in dry.out
    assert not Path("runs").exists(), "a dry run writes nothing"


def test_the_sample_is_written_listed_and_checked(command: Run, tmp_path: Path) -> None:
    assert command("data", "sample", "--out", tmp_path / "made").code == 0
    made = tmp_path / "made" / "synthetic"
    names = {path.name for path in SAMPLE.iterdir()} - {"sample-run.jsonl.gz"}  # of `scripts.make_sample_run`
    assert {path.name for path in made.iterdir()} == names
    # The shipped data comes from this very command. Another processor rounds the last bits of a price otherwise.
    for name in names - {"market.json"}:
        pd.testing.assert_frame_equal(pd.read_parquet(made / name), pd.read_parquet(SAMPLE / name), rtol=1e-9)
    here, shipped = (json.loads((folder / "market.json").read_text()) for folder in (made, SAMPLE))
    assert {**here, "content_hash": ""} == {**shipped, "content_hash": ""} and here.keys() == shipped.keys()
    listed = command("data", "list", tmp_path / "made" / "no_edge")
    assert listed.code == 0
    assert listed.out.count("2020-01-01 00:00") == 4
    checked = command("data", "check", tmp_path / "made" / "no_edge")
    assert checked.code == 0
    assert "usable, 0 notes" in checked.out


def test_a_gap_is_a_note_in_the_check_and_is_told_by_the_backtest(command: Run, tmp_path: Path) -> None:
    table = bars()
    data = _write(tmp_path / "d", table[(table.index < 300) | (table.index >= 305)])
    checked = command("data", "check", data)
    assert checked.code == 0
    assert "5 bars are absent in 1 gaps" in checked.out
    played = command("backtest", "--data", data, "--start", "2020-02-01")
    assert played.code == 0, played.err
    assert "AAAUSDT: 5 bars absent in 1 gaps" in played.out
    assert "5 bars absent in 1 gaps" in next(tmp_path.glob("runs/backtest-*/report.html")).read_text()


def test_a_backtest_of_the_sample_is_stored_and_reported(command: Run, tmp_path: Path) -> None:
    options = ["--data", SAMPLE, "--symbols", "AAAUSDT,BBBUSDT", "--start", "2021-05-01T00:30", "--end", "2021-05-11"]
    first = command("backtest", *options)
    assert first.code == 0, first.err
    assert "from 2021-05-01 04:00 to 2021-05-11 00:00 UTC" in first.out, "no decision before the time asked for"
    for name in ("scripted", "hold", "flat", "always_short", "matched_random", "oracle"):
        assert f" {name} " in first.out
    with Store.open(tmp_path / "runs" / "store") as store:
        [run] = store.runs()
        assert run.status == "finished"
        decisions = store.decisions(run.run, "scripted")
        result = {record.name: record.result for record in store.backtests(run.run)}["scripted"]
    assert len(decisions) == 2 * 10, "two coins, ten days"
    assert result["equity"][0] == 10_000.0
    change = result["equity"][-1] / result["equity"][0] - 1
    assert np.prod([1 + one.document["net_return"] for one in decisions[::2]]) - 1 == pytest.approx(change)
    assert (tmp_path / "runs" / run.run / "report.html").is_file()
    shown = command("runs", run.run)
    assert shown.code == 0
    assert "finished" in shown.out


@pytest.mark.slow
def test_train_evaluate_backtest_and_demo_work_from_end_to_end(command: Run, tmp_path: Path) -> None:
    trained = command("train", "--config", "quick")
    assert trained.code == 0, trained.err
    [folder] = tmp_path.glob("runs/train-*")
    measured = command("evaluate", folder)
    assert measured.code == 0, measured.err
    assert "a decision of the trained team earns" in " ".join(measured.out.split())
    assert "95 % interval" in measured.out
    played = command("backtest", "--data", SAMPLE, "--symbols", "AAAUSDT", "--start", "2021-06-01", "--team", folder)
    assert played.code == 0, played.err
    assert f" {folder.name} " in played.out
    first = command("demo", "--config", "quick")
    assert first.code == 0, first.err
    assert "Its teacher earns" in " ".join(first.out.split())
    results = tmp_path / "runs" / "demo"
    assert (results / "report.html").stat().st_size > 10_000
    assert json.loads((results / "report.json").read_text())
    again = command("demo", "--config", "quick", "--set", "training.stage2_steps=0")
    assert again.code == 0, again.err
    assert len(list(tmp_path.glob("runs/demo-*/report.html"))) == 1, "the finished demo is kept under its run's id"
    shown = command("runs")
    for kind in ("train", "evaluate", "backtest", "demo"):
        assert f" {kind} " in shown.out
