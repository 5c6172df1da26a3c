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

from benchmarks import bench_demo_speedrun as speedrun
from benchmarks import run as runner
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
        patch.setattr(runner, "pace", lambda: slower)
        time, rate = (
            runner.at_most("a", taken * slower, "s a step", limit),
            runner.at_least("b", 1 / (taken * slower), "/s", 1 / limit),
        )
    assert time["ratio"] == pytest.approx(taken / limit) and rate["ratio"] == pytest.approx(limit / taken)
    assert time["ratio"] is not None and rate["ratio"] is not None
    assert time["met"] == (time["ratio"] <= 1.0) and rate["met"] == (rate["ratio"] >= 1.0)
    assert f"{limit:g} s at pace 1; this machine's is {slower:.2f}" in time["against"]


def test_the_pace_is_the_time_of_a_piece_of_work_beside_that_of_the_machine_of_the_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = {
        runner._interpreter: 3.0 * runner.REFERENCE["interpreter"],
        runner._arrays: 12.0 * runner.REFERENCE["arrays"],
    }
    monkeypatch.setattr(runner, "_seconds", lambda work: taken[work])
    runner.pace.cache_clear()
    try:
        assert runner.pace() == pytest.approx(6.0)
    finally:
        runner.pace.cache_clear()
    assert runner._interpreter() > 0 and np.isfinite(runner._arrays())


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


def test_the_speedrun_takes_the_newest_team_within_the_time() -> None:
    ready = {1: 70.0, 2: 89.9, 3: 90.5, 4: 400.0}
    assert [speedrun.newest(ready, limit) for limit in (60.0, 90.0, 150.0, 400.0)] == [None, 2, 3, 4]
    config = speedrun.config_of(9301)
    assert config.market.seed == config.training.seed == 9301
    shown = speedrun.row("90", 0.7, [0.5, 0.9, 0.7, 0.8, 0.6])
    assert shown["value"] == pytest.approx(70.0) and shown["ratio"] == pytest.approx(1.0) and shown["met"]
