"""Several runs: rows of a table, runs side by side, and figures on a dark ground."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend.cli.console import console
from backend.cli.runs import _results_table
from backend.reporting.blocks import Missing, Picture, Table
from backend.reporting.comparison import compared_runs
from backend.reporting.run_summary import RunSummary, summarise
from backend.reporting.run_table import run_row, single_result_text
from backend.store.records import BacktestRecord, EvaluationRecord, RunRecord
from backend.store.store import Store
from tests.stored_runs import add_backtest_run, add_demo_run, episode


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunSummary]:
    with Store.open(tmp_path_factory.mktemp("runs") / "store") as store:
        add_backtest_run(store, "one")
        add_backtest_run(store, "two", data="elsewhere")
        add_demo_run(store, "d")
        return {name: summarise(store, name) for name in ("one", "two", "d")}


def test_a_row_has_what_the_run_came_to(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        add_backtest_run(store, "one")
        row = run_row(store, store.run("one"))
        metrics = episode().result.metrics
        assert row.total_return == metrics["total_return"]
        hold = next(one for one in store.backtests("one", "hold"))
        assert row.difference == pytest.approx(row.total_return - hold.result["metrics"]["total_return"])
        [window] = summarise(store, "one").windows()
        intervals, held = window.evidence["scripted"].intervals, 1.0 + hold.result["metrics"]["total_return"]
        assert intervals is not None and intervals.against is not None
        assert row.interval is not None and row.difference is not None
        assert row.interval == pytest.approx((held * intervals.against.low, held * intervals.against.high))
        assert row.interval[0] < 0.0 < row.interval[1] and row.interval[0] < row.difference < row.interval[1]
        assert row.verdict == "Not proven better." and window.title.endswith(row.verdict)
        assert row.window == "2020-01-31 to 2020-03-01"
        add_demo_run(store, "d")
        measured = run_row(store, store.run("d"))
        assert (measured.window, measured.bp) == ("1000 held-out states", (31.0, 30.0))
        bare = run_row(store, store.run("one"), intervals=False)
        assert (bare.total_return, bare.difference, bare.verdict) == (row.total_return, row.difference, "")
        assert store.backtests("one", "nobody") == []
        store.finish_run("one", "failed", "the disk is full")
        assert run_row(store, store.run("one")).verdict == "the disk is full"


@pytest.mark.parametrize("damage", [{"metrics": {}}, {"equity": "none"}, {}])
def test_a_run_whose_records_are_damaged_is_a_row_too(tmp_path: Path, damage: dict[str, object]) -> None:
    with Store.open(tmp_path / "store") as store:
        store.add_run(RunRecord("b", "backtest", 1, "hash", 1, {"teams": ["scripted"], "config": {"market": 7}}))
        store.put(BacktestRecord("b", "scripted", {**episode().result.to_dict(), **damage} if damage else {}))
        store.add_run(RunRecord("e", "evaluate", 1, "hash", 1, {}))
        store.put(EvaluationRecord("e", "held_out", 1, {"rows": 5, "difference": {"ci95": [None, 2]}}))
        for name in ("b", "e"):
            row = run_row(store, store.run(name))
            assert row.total_return is None and row.run == name


ARMS = {"arms": [{"arm": "team", "problem": ""}, {"arm": "teacher", "problem": "two windows"}]}
SCORE = {"before": 0.5, "after": 0.625, "reference": None, "valid_before": 0.8, "valid_after": 1.0}
SINGLE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "experiment": (
        {**ARMS, "sentence": "The team is ahead."},
        {"teams": "team, teacher", "verdict": "The team is ahead.", "total_return": None},
    ),
    "sft": (
        {"scores": {"trader": {**SCORE, "difference": {"mean": 0.125, "ci95": [0.1, 0.15]}}}},
        {"verdict": "Trader 0.500 to 0.625 (+0.100 to +0.150)", "total_return": None},
    ),
}


@pytest.mark.parametrize("kind", SINGLE)
def test_a_run_with_one_result_has_it_in_its_row(tmp_path: Path, kind: str) -> None:
    result, fields = SINGLE[kind]
    with Store.open(tmp_path / "store") as store:
        store.add_run(RunRecord("r", kind, 1, "hash", 1, {}))
        assert run_row(store, store.run("r")).verdict == ""
        assert "did not come to its end" in single_result_text(kind, {})
        store.put(EvaluationRecord("r", kind, 0, result))
        row = run_row(store, store.run("r"))
        assert {name: getattr(row, name) for name in fields} == fields
        assert single_result_text(kind, result) == row.verdict
        for broken in (dict.fromkeys(result), {"arms": [5], "scores": 5}):
            store.put(EvaluationRecord("r", kind, 0, broken))
            assert (
                run_row(store, store.run("r")).verdict
                == single_result_text(kind, broken)
                == "its records cannot be read"
            )


def test_runs_stand_side_by_side_with_intervals_and_the_settings_that_differ(runs: dict[str, RunSummary]) -> None:
    results, equity, against, wealth, settings = compared_runs([runs["one"], runs["two"]])
    assert isinstance(results, Table) and [row.label for row in results.rows] == [
        "one: Scripted team", "two: Scripted team",
    ]  # fmt: skip
    assert isinstance(against, Table) and [row.label for row in against.rows] == ["two: Scripted team"]
    assert against.rows[0].values["interval"] == "+0.00 to +0.00 %", "both runs are the same account"
    assert isinstance(wealth, Picture) and isinstance(equity, Picture) and len(equity.figure.data) == 2
    assert isinstance(settings, Table)
    assert [(row.label, row.values) for row in settings.rows] == [
        ("market.data", {"one": "data/synthetic", "two": "elsewhere"})
    ]
    titles = [block.title for block in compared_runs([runs["one"], runs["d"]])]
    assert titles == ["Results", "Equity", "d", "Settings that differ"]
    assert [type(block) for block in compared_runs([runs["d"], runs["d"]])] == [Missing, Missing]


def test_runs_that_cannot_be_paired_say_why(runs: dict[str, RunSummary]) -> None:
    other = replace(runs["two"], run=replace(runs["two"].run, data_hash="another"))
    [missing] = [block for block in compared_runs([runs["one"], other]) if block.title == "Differences"]
    assert isinstance(missing, Missing) and "cannot be compared" in missing.reason


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_the_terminal_has_a_line_a_run_at_any_width(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was broken at 80 columns: each name of a run took four lines."""
    monkeypatch.setattr(console, "_width", width)
    ids = [f"backtest-20260101-12000{number}-123" for number in range(2)]
    with Store.open("mem://") as store:
        for run in ids:
            add_backtest_run(store, run)
        store.add_run(RunRecord("train-20260101-130000-123", "train", 1, "hash", 1, {}))
        console.print(_results_table(store, "store"))
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= width for line in lines)
    made = f"{100 * episode().result.metrics['total_return']:+.1f} %"
    for run in ids:
        [line] = [line for line in lines if run in line]
        assert made in line and ("Scripted team" in line or width == 60) and ("2020-03-01" in line) == (width == 160)
    assert len(lines) <= 8
