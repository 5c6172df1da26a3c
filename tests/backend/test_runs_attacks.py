"""The attack suite, third part: what lies in a folder of runs beside the store, and the file of an experiment.

A finished part of an experiment is taken as it is, and any of the names could be a link.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from backend.experiments.run import ExperimentRequest, run_experiment
from simulator.errors import UserError
from simulator.files import write_whole
from tests.backend.experiments.conftest import STRATEGIES
from tests.backend.test_malformed import Kind, mutated
from tests.command_line import Run, program


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    (tmp_path / "here").mkdir()
    return program(tmp_path / "here", monkeypatch, capsys)


def test_a_file_that_is_written_whole_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "file.json.tmp").symlink_to(tmp_path / "mine")
    (tmp_path / "file.json").symlink_to(tmp_path / "mine")
    write_whole(tmp_path / "file.json", "theirs")
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "file.json").read_text() == "theirs" and not (tmp_path / "file.json").is_symlink()


# -- the file of an experiment ---------------------------------------------------------------------------------------


def _experiment(folder: Path, *changes: tuple[str, str]) -> Path:
    text = STRATEGIES
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "theirs.toml").write_text(text)
    return folder / "theirs.toml"


def test_a_secret_of_the_environment_is_not_taken_into_an_experiment(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_API_KEY", "a-key-that-nobody-may-see")
    path = _experiment(tmp_path / "here", ('"market.coins=1"', '"market.data=$CANARY_API_KEY"'))
    result = command("experiment", "run", path)
    assert result.code == 2 and "may be a secret" in result.err and "Traceback" not in result.err
    assert "a-key-that-nobody-may-see" not in result.err + result.out


# -- finished parts --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with a finished experiment, and its file."""
    folder = tmp_path_factory.mktemp("finished")
    path = _experiment(folder)
    run_experiment(ExperimentRequest(file=path, workers=1), "mem://", folder / "runs")
    return folder


EXPERIMENT = ("experiment.json", "results.json", "cells/hold-1.json", "cells/short-2.json")


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 100), marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [f"experiments/theirs/{one}" for one in EXPERIMENT])
def test_a_malformed_part_is_taken_for_what_it_says_or_refused(
    name: str, seeds: range, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    kind = Kind(lambda folder: folder, lambda folder: None)
    content = (finished / "runs" / name).read_bytes()
    command = program(tmp_path, monkeypatch, capsys)
    for seed in seeds:
        shutil.copytree(finished / "runs", tmp_path / "runs")
        changed = mutated(content, kind, random.Random(f"{name} {seed}"))
        (tmp_path / "runs" / name).write_bytes(changed)
        try:
            run_experiment(ExperimentRequest(file=finished / "theirs.toml", workers=1), "mem://", tmp_path / "runs")
        except UserError as error:
            assert str(error), seed
        (tmp_path / "runs" / name).write_bytes(changed)
        for arguments in (("experiment", "list"), ("experiment", "show", "theirs")):
            result = command(*arguments)
            assert result.code in (0, 2) and "Traceback" not in result.err, (seed, result.err)
        shutil.rmtree(tmp_path / "runs")


@pytest.mark.parametrize("place", ["", "cells", "results.json"])
def test_parts_that_lie_elsewhere_or_belong_to_nothing_are_refused(place: str, finished: Path, tmp_path: Path) -> None:
    """Also where the folder does not say yet what it is of: then it would be said now, of another's parts."""
    runs, precious = tmp_path / "runs", tmp_path / "precious"
    shutil.copytree(finished / "runs", runs)
    state = runs / "experiments/theirs/experiment.json"

    def go_on() -> None:
        run_experiment(ExperimentRequest(file=finished / "theirs.toml", workers=1), "mem://", runs)

    if not place:
        state.unlink()
        with pytest.raises(UserError, match="not their plan"):
            go_on()
        shutil.move(state.parent, precious)
        state.parent.symlink_to(precious)
        with pytest.raises(UserError, match="does not lie in"):
            go_on()
        return
    precious.mkdir()
    (precious / "mine").write_text("mine")
    part = state.parent / place
    shutil.rmtree(part, ignore_errors=True)
    part.unlink(missing_ok=True)
    part.symlink_to(precious if "." not in place else precious / "mine")
    with pytest.raises(UserError, match="is a link out of"):
        go_on()
    assert os.listdir(precious) == ["mine"] and (precious / "mine").read_text() == "mine"
