"""The runner of the benchmarks."""

import json
from pathlib import Path

import pytest

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
    assert all(entry["machine"] == runner.machine() for entry in stored)


def test_an_unknown_name_is_told_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main(["store.writ"]) == 2
    assert "no benchmark 'store.writ'; there are" in capsys.readouterr().err
