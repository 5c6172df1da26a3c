"""The demo's folder: an unfinished demo goes on, a finished or another one makes room."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from backend.runs.demo import _begin, _save, run_demo
from backend.runs.requests import RunRequest
from tests.small_world import small_config


def test_an_unfinished_demo_of_the_same_configuration_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    run, spent = _begin(small_config(), folder)
    assert spent == 0.0
    _save(folder, small_config(), run, 12.5, finished=False)
    assert _begin(small_config(), folder) == (run, 12.5)


@pytest.mark.parametrize("finished", [True, False])
def test_a_finished_demo_or_one_of_another_configuration_is_kept_under_its_id(finished: bool, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    _save(folder, small_config(), "demo-1", 12.5, finished=finished)
    (folder / "report.html").write_text("former")
    run, spent = _begin(small_config() if finished else small_config(seed=9), folder)
    assert run != "demo-1"
    assert spent == 0.0
    assert (tmp_path / "demo-1" / "report.html").read_text() == "former"
    assert not (folder / "report.html").exists()


def test_a_full_disk_leaves_the_former_state_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "demo"
    run, _ = _begin(small_config(), folder)
    write = Path.write_text

    def full(self: Path, text: str, encoding: str) -> int:
        write(self, text[:10], encoding)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        _save(folder, small_config(), run, 99.0, finished=True)
    monkeypatch.undo()
    assert _begin(small_config(), folder) == (run, 0.0)


@pytest.mark.slow
def test_a_demo_is_the_same_however_many_processes_share_it(tmp_path: Path) -> None:
    overrides = ("training.shards=2", "nano.steps=40", "nano.decisions=60", "evaluation.windows=2")
    request = RunRequest(config="quick", overrides=(*overrides, "evaluation.decisions_per_window=2"))
    outcomes = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        outcome = run_demo(request, "mem://", folder, workers=workers)
        metrics = (folder / "demo" / "metrics.jsonl").read_text()
        weights = {path.name: path.read_bytes() for path in (folder / "demo" / "nano").glob("*.safetensors")}
        assert outcome.answer is not None
        outcomes.append((outcome.held_out, outcome.answer["bp"], outcome.value, metrics, weights))
    assert outcomes[0] == outcomes[1]
