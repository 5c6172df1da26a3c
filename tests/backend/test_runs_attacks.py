"""The attack suite, third part: what lies in a folder of runs beside the store, and the file of an experiment.

Somebody gives you his folder of runs, or the file of an experiment. A job in it is a command that would be run, a
finished part of a search or of an experiment is taken as it is, and any of the names could be a link.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from backend.config.artefacts import effect_of
from backend.experiments.plan import OF_AN_ARM, read_experiment
from backend.experiments.run import ExperimentRequest, run_experiment
from backend.experiments.search import SearchRequest, search_parameters
from backend.jobs import queue
from backend.jobs.files import JOB, JobRequest
from backend.jobs.queue import JobQueue
from simulator.data.archive import write_market
from simulator.errors import UserError
from simulator.files import write_whole
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.backend.experiments.conftest import STRATEGIES
from tests.backend.test_malformed import Kind, mutated
from tests.command_line import Run, program
from tests.hostile import Canary, canary, dangerous_keys

MODULE = "canary_of_runs"  # in the folder from which the user works; whoever imports it is noticed
COMMAND = ("backtest", "--team", f"{MODULE}:Strategy")


@pytest.fixture
def bird(tmp_path: Path) -> Iterator[Canary]:
    with canary(tmp_path / "outside") as watching:
        yield watching


@pytest.fixture
def command(tmp_path: Path, bird: Canary, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    here = tmp_path / "here"
    here.mkdir()
    (here / f"{MODULE}.py").write_text(f"open({str(bird.folder / 'was-run')!r}, 'w').close()\n")
    return program(here, monkeypatch, capsys)


# -- jobs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whose", ["nobody's", "another user's", "another command's", "another place's"])
def test_a_job_that_this_user_did_not_ask_for_is_not_run(
    whose: str, command: Run, bird: Canary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when it lies there, not as one of the user's own, and not when it is resumed."""
    here = tmp_path / "here"
    jobs, name = here / "runs" / "jobs", "backtest-20240101-000000-000"
    hostile = JobRequest(COMMAND, str(here), int(time.time() * 1000))
    if whose == "another user's":
        with monkeypatch.context() as other:
            other.setenv("XDG_STATE_HOME", str(tmp_path / "their-state"))
            hostile = hostile.signed(jobs / name)
    elif whose == "another command's":
        token = replace(hostile, command=("backtest", "--team", "hold")).signed(jobs / name).token
        hostile = replace(hostile, token=token)
    elif whose == "another place's":
        hostile = hostile.signed(jobs / "backtest-20240101-000000-001")
    (jobs / name).mkdir(parents=True)
    (jobs / name / JOB).write_text(json.dumps(asdict(hostile)))
    begun: list[str] = []

    def begin(module: str, arguments: list[str], *rest: object) -> None:
        begun.append(Path(arguments[0]).name)

    monkeypatch.setattr(queue, "start_detached", begin)
    assert name in command("jobs", "list").out
    shown = command("jobs", "show", name)
    assert shown.code == 0 and "is not yours" in shown.out and MODULE in shown.out
    for refused in ("resume", "cancel"):
        result = command("jobs", refused, name)
        assert result.code == 2 and "is not yours" in result.err
    assert begun == []
    again = JobQueue(here / "runs").submit(COMMAND, here, once=True)
    assert again.new and begun == [again.job.name], "another's job is not taken for one's own"
    bird.assert_untouched()
    assert MODULE not in sys.modules


def test_a_job_is_refused_where_no_key_can_be_kept(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    result = command("jobs", "run", "--", "backtest")
    assert result.code == 2 and "XDG_STATE_HOME" in result.err and "Traceback" not in result.err
    assert command("jobs", "list").out.startswith("there are no jobs")


def test_a_link_for_the_folder_of_jobs_writes_nothing_elsewhere(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "start_detached", lambda module, arguments, out, folder: out.write(b"said"))
    precious = tmp_path / "precious"
    precious.mkdir()
    jobs = tmp_path / "here" / "runs" / "jobs"
    jobs.parent.mkdir(parents=True)
    jobs.symlink_to(precious)
    result = command("jobs", "run", "--", "backtest")
    assert result.code == 2 and "is a link" in result.err
    assert not list(precious.iterdir())


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


def _wanting() -> list[tuple[str, str]]:
    """Keys that do more than read, and where a file may say them: for all arms, or for one of them."""
    keys = [key for key in dangerous_keys() if effect_of(key) != "reads"]
    return [(key, "set") for key in keys] + [(key, "arm") for key in keys if key.partition(".")[0] in OF_AN_ARM]


@pytest.mark.parametrize(("key", "where"), _wanting())
def test_a_file_of_an_experiment_sets_nothing_that_runs_contacts_or_spends(
    key: str, where: str, tmp_path: Path
) -> None:
    section = key.partition(".")[0]
    value = "{}" if key == "budget.prices" else "theirs:thing"
    change = (
        ('set = ["market.bars=600"', f"set = ['{key}={value}', \"market.bars=600\"")
        if where == "set"
        else ('control = "always_short"', f"control = \"always_short\"\nset = ['{key}={value}']")
    )
    path = _experiment(tmp_path, change)
    with pytest.raises(UserError, match=f"--allow {key}"):
        read_experiment(path)
    for spelling in (f" {key} ", key.replace(".", " . ", 1), section):
        other = path.read_text().replace(f"{key}={value}", f"{spelling}={value}")
        path.write_text(other)
        with pytest.raises(UserError):
            read_experiment(path)
        path.write_text(other.replace(f"{spelling}={value}", f"{key}={value}"))


def test_an_experiments_code_settings_and_secrets_are_the_users_to_allow(
    command: Run, bird: Canary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    monkeypatch.setenv("CANARY_API_KEY", "a-key-that-nobody-may-see")
    (here / "beside.toml").write_text('[engine]\nkind = "vllm"\n')
    for change, said in (
        (('control = "always_short"', f'team = "{MODULE}:Strategy"'), "--allow team"),
        (('config = "quick"', 'config = "beside.toml"'), "--allow config"),
        (('"market.coins=1"', '"market.data=$CANARY_API_KEY"'), "may be a secret"),
    ):
        result = command("experiment", "run", _experiment(here, change))
        assert result.code == 2 and said in result.err and "Traceback" not in result.err, (change, result.err)
        assert "a-key-that-nobody-may-see" not in result.err + result.out
    bird.assert_untouched()
    assert MODULE not in sys.modules
    ours = _experiment(here, ('control = "always_short"', 'team = "ema_cross:fast=3,slow=9"'), ("[test]", "\n[test]"))
    assert read_experiment(ours).plan.arm("short").subject.startswith("ema_cross")
    allowed = read_experiment(_experiment(here, ('config = "quick"', 'config = "beside.toml"')), allowed=["config"])
    assert allowed.config.engine.kind == "vllm"


# -- finished parts --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with a finished experiment and a finished search, the file and the bars of these."""
    folder = tmp_path_factory.mktemp("finished")
    path = _experiment(folder)
    run_experiment(ExperimentRequest(file=path, workers=1), "mem://", folder / "runs")
    write_market(generate(SyntheticConfig(bars=900, seed=4, symbols=("AAAUSDT",))), folder / "bars")
    search_parameters(_search(folder), "mem://", runs=folder / "runs")
    return folder


def _search(folder: Path) -> SearchRequest:
    return SearchRequest(
        strategy="ema_cross", trials=6, name="theirs", workers=1, data=folder / "bars", start="2000-01-01",
        decide_every=1,
    )  # fmt: skip


EXPERIMENT = ("experiment.json", "results.json", "cells/as_is-hold-1-0.json", "cells/no_edge-short-2-0.json")
SEARCH = ("search.json", "result.json", "parts/0000.json")


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 100), marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [*(f"experiments/theirs/{one}" for one in EXPERIMENT),
                                  *(f"searches/theirs/{one}" for one in SEARCH)])  # fmt: skip
def test_a_malformed_part_is_taken_for_what_it_says_or_refused(
    name: str, seeds: range, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    kind = Kind(lambda folder: folder, lambda folder: None)
    content = (finished / "runs" / name).read_bytes()
    command = program(tmp_path, monkeypatch, capsys)
    for seed in seeds:
        shutil.copytree(finished / "runs", tmp_path / "runs")
        if name.endswith("parts/0000.json"):
            (tmp_path / "runs/searches/theirs/result.json").unlink()
        changed = mutated(content, kind, random.Random(f"{name} {seed}"))
        (tmp_path / "runs" / name).write_bytes(changed)
        try:
            if name.startswith("searches"):
                search_parameters(_search(finished), "mem://", runs=tmp_path / "runs")
            else:
                run_experiment(ExperimentRequest(file=finished / "theirs.toml", workers=1), "mem://", tmp_path / "runs")
        except UserError as error:
            assert str(error), seed
        if name.startswith("experiments"):
            (tmp_path / "runs" / name).write_bytes(changed)
            for arguments in (("experiment", "list"), ("experiment", "show", "theirs")):
                result = command(*arguments)
                assert result.code in (0, 2) and "Traceback" not in result.err, (seed, result.err)
        shutil.rmtree(tmp_path / "runs")


@pytest.mark.parametrize("kind", ["experiments", "searches"])
@pytest.mark.parametrize("place", ["", "parts", "cells", "result.json"])
def test_parts_that_lie_elsewhere_or_belong_to_nothing_are_refused(
    kind: str, place: str, finished: Path, tmp_path: Path
) -> None:
    """Also where the folder does not say yet what it is of: then it would be said now, of another's parts."""
    runs, precious = tmp_path / "runs", tmp_path / "precious"
    shutil.copytree(finished / "runs", runs)
    state = runs / kind / "theirs" / ("experiment.json" if kind == "experiments" else "search.json")

    def go_on() -> None:
        if kind == "searches":
            search_parameters(_search(finished), "mem://", runs=runs)
        else:
            run_experiment(ExperimentRequest(file=finished / "theirs.toml", workers=1), "mem://", runs)

    if not place:
        state.unlink()
        with pytest.raises(UserError, match="not what they are parts of"):
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
