"""The runner of the benchmarks."""

import importlib
import io
import json
import re
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks import pace
from benchmarks import run as runner
from benchmarks.bench_learning_surpass import AGAINST, config_of, count_configuration, surpass_row, twin_row
from benchmarks.run import Result


def result(name: str, value: float) -> Result:
    return Result(name=name, value=value, unit="s", against="peer", ratio=None, target="<= 1", met=value <= 1)


def test_names_come_from_the_files(tmp_path: Path) -> None:
    for name in ("bench_engine_shared_prefix.py", "bench_store_write.py", "other.py"):
        (tmp_path / name).write_text("")
    assert runner.benchmarks(tmp_path) == {
        "engine.shared_prefix": "bench_engine_shared_prefix",
        "store.write": "bench_store_write",
    }


def test_results_replace_their_namesakes_only(tmp_path: Path) -> None:
    path = tmp_path / "results" / "latest.json"
    runner.write([result("b", 1.0), result("a", 1.0)], path)
    runner.write([result("b", 2.0)], path)
    stored = json.loads(path.read_text())
    assert [(entry["name"], entry["value"], entry["met"]) for entry in stored] == [("a", 1.0, True), ("b", 2.0, False)]
    for entry in stored:
        assert entry["machine"] == runner.machine()
        assert date.fromisoformat(entry["date"]) <= date.today() and re.fullmatch(
            r"([0-9a-f]{7,}\+?)?", entry["commit"]
        )


def test_every_stored_result_says_when_and_of_which_commit_it_is() -> None:
    stored = json.loads(runner.RESULTS.read_text())
    assert [one["name"] for one in stored if not (one.get("date") and one.get("commit") and one.get("machine"))] == []


@given(st.floats(0.1, 10.0), st.floats(0.01, 100.0), st.floats(0.01, 100.0))
def test_a_limit_of_time_is_as_hard_on_a_slow_machine_as_on_a_fast_one(
    slower: float, limit: float, taken: float
) -> None:
    """Work that takes `taken` on the machine of the limits takes `slower` times as long on this one, and so does the
    piece of work that says how fast it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pace, "pace", lambda: slower)
        time, rate = (
            pace.within("a", taken * slower, "s a step", limit),
            pace.at_least("b", 1 / (taken * slower), "/s", 1 / limit),
        )
    assert time["ratio"] == pytest.approx(taken / limit) and rate["ratio"] == pytest.approx(limit / taken)
    assert time["ratio"] is not None and rate["ratio"] is not None
    assert time["met"] == (time["ratio"] <= 1.0) and rate["met"] == (rate["ratio"] >= 1.0)
    assert f"{limit:g} s at pace 1; this machine's is {slower:.2f}" in time["against"]


def test_the_pace_is_the_time_of_a_piece_of_work_beside_that_of_the_machine_of_the_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = {pace._interpreter: 3.0 * pace.REFERENCE["interpreter"], pace._arrays: 12.0 * pace.REFERENCE["arrays"]}
    monkeypatch.setattr(pace, "_seconds", lambda work: taken[work])
    pace.pace.cache_clear()
    try:
        assert pace.pace() == pytest.approx(6.0)
    finally:
        pace.pace.cache_clear()
    assert pace._interpreter() > 0 and np.isfinite(pace._arrays())


def test_an_unknown_name_is_told_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main(["stor.write"]) == 2
    assert "no benchmark 'stor.write'; there are" in capsys.readouterr().err


def test_what_takes_long_runs_only_when_it_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = SimpleNamespace(BY_NAME_ONLY=True, run=lambda: [result("slow", 1.0)])
    quick = SimpleNamespace(run=lambda: [result("quick", 1.0)])
    monkeypatch.setattr(runner, "benchmarks", lambda: {"quick": "bench_quick", "slow": "bench_slow"})
    monkeypatch.setattr(
        importlib, "import_module", lambda name: {"benchmarks.bench_slow": slow, "benchmarks.bench_quick": quick}[name]
    )
    written: list[list[str]] = []
    monkeypatch.setattr(runner, "write", lambda results: written.append([one["name"] for one in results]))
    assert runner.main([]) == 0
    assert "make bench ONLY=slow" in capsys.readouterr().out
    assert runner.main(["slow"]) == 0
    assert written == [["quick"], ["slow"]]


def test_the_table_is_whole_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "machine", lambda: "a processor with a long name, 128 cores, Python 3.11.7")
    stored = json.loads(runner.RESULTS.read_text())
    results: list[Result] = [{**result(one["name"], one["value"]), "against": one["against"]} for one in stored]
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(runner.table(results))
    text = console.export_text()
    shown = [" ".join(line.split()) for line in text.splitlines()]
    for one in results:
        [line] = [line for line in shown if line.startswith(f"{one['name']} ")]
        assert f"{one['value']:,.4g}" in line and line.endswith(("yes", "no"))
    assert "…" not in text and " ".join(results[0]["against"].split()) in " ".join(shown)


def test_a_team_surpasses_where_every_seed_says_so_and_by_enough() -> None:
    def documents(*gains: float) -> list[dict[str, object]]:
        return [
            {
                "allowed": 0.02,
                "value": {
                    "rows": {"trained, greedy": {"questions": 2.0, "traded_now": 0.9, "traded_later": None}},
                    "differences": [{"against": name, "outcome": gain} for name in AGAINST],
                },
            }
            for gain in gains
        ]

    row = surpass_row("teacher", documents(0.004, 0.005, 0.006), 1)
    assert row["value"] == pytest.approx(5.0) and row["ratio"] == pytest.approx(0.25) and row["met"]
    assert "+2.5 to +7.5" in row["against"]  # 4.303 standard errors of 0.577 to either side
    assert not surpass_row("teacher", documents(0.002, 0.0021, 0.0022), 1)["met"]  # certain, and too little
    assert not surpass_row("teacher", documents(-0.01, 0.005, 0.02), 1)["met"]  # enough, and uncertain


def test_on_a_twin_without_edge_nothing_may_be_earned() -> None:
    def document(low: float, high: float) -> dict[str, object]:
        found = {"against": "holding", "outcome": (low + high) / 2.0, "outcome_ci95": [low, high]}
        return {"value": {"rows": {"trained, greedy": {"traded": 0.125}}, "differences": [found]}}

    row = twin_row(document(-0.001, 0.0004))
    assert row["value"] == pytest.approx(-0.3) and row["met"] and "-1.0 to +0.4" in row["against"]
    assert twin_row(document(-0.003, -0.001))["met"]  # it pays costs
    assert not twin_row(document(0.001, 0.003))["met"]
    assert not config_of(9201, edge=False).market.edge and config_of(9201).market.edge


def test_the_configurations_of_the_headlines_seeds_are_counted(tmp_path: Path) -> None:
    config = config_of(9201)
    assert [count_configuration(tmp_path, config) for _ in range(2)] == [1, 1]
    changed = config.model_copy(update={"nano": config.nano.model_copy(update={"steps": 3})})
    assert count_configuration(tmp_path, changed) == 2
    assert count_configuration(tmp_path, config) == 2
