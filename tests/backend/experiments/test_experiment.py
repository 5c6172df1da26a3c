import html
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from backend.experiments import run as experiment_run
from backend.experiments.cells import experiment_cells
from backend.experiments.plan import read_experiment
from backend.experiments.run import ExperimentOutcome
from backend.processes import WorkReport
from backend.store.store import Store
from simulator.errors import UserError

Write = Callable[..., Path]
Run = Callable[..., ExperimentOutcome]


def test_an_experiment_from_its_file_to_its_page(plan_file: Write, run_here: Run, tmp_path: Path) -> None:
    outcome = run_here(plan_file())
    result = outcome.result
    assert [one.arm for one in result.comparisons] == ["short", "random"]
    assert np.array(result.comparisons[0].values).shape == (3, 3)
    # Holm over two: the smaller p-value counts twice.
    raw = sorted(one.interval.p_value for one in result.comparisons)
    assert min(one.adjusted for one in result.comparisons) == pytest.approx(min(1.0, 2 * raw[0]))
    page = html.unescape(outcome.page.read_text())
    assert "Does an EMA cross earn more than holding?" in page and result.sentence in page
    assert len(page) < 1_500_000 and 'src="http' not in page and 'href="http' not in page
    assert json.loads(outcome.results.read_text())["sentence"] == result.sentence
    with Store.open(tmp_path / "store") as store:
        trials = store.trials()
        assert len(trials) == 3 * 3  # every cell: arms, seeds
        assert store.run(result.run).status == "finished"
        assert store.evaluations(result.run)[0].result["sentence"] == result.sentence


def test_a_finished_cell_is_not_run_again(plan_file: Write, run_here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    path = plan_file()
    calls: list[str] = []
    really = experiment_run._run

    def killed_after_four(task: experiment_run._Task, report: WorkReport) -> object:
        if len(calls) == 4:
            raise KeyboardInterrupt
        calls.append(task.cell.name)
        return really(task, report)

    monkeypatch.setattr(experiment_run, "_run", killed_after_four)
    with pytest.raises(Exception, match="the same command"):
        run_here(path)
    before, calls[:] = list(calls), []

    def counted(task: experiment_run._Task, report: WorkReport) -> object:
        calls.append(task.cell.name)
        return really(task, report)

    monkeypatch.setattr(experiment_run, "_run", counted)
    halves = run_here(path).result
    assert len(before) == 4 and len(calls) == 5 and not set(before) & set(calls)
    whole = run_here(path, name="whole").result
    assert [one.values for one in halves.comparisons] == [one.values for one in whole.comparisons]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('against = "hold"', 'against = "short"'), r'-against = "hold"\n  \+against = "short"'),
        (('seeds = "1-3"', 'seeds = "1-4"'), r"-seeds: 1, 2, 3\n  \+seeds: 1, 2, 3, 4"),
    ],
)
def test_a_file_that_changed_half_way_is_refused_with_the_difference(
    plan_file: Write, run_here: Run, change: tuple[str, str], said: str
) -> None:
    run_here(plan_file())
    with pytest.raises(UserError, match=said):
        run_here(plan_file(change))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('team = "always_short"', 'team = "always_shrt"'), "did you mean 'always_short'"),
        (('like = "short"', 'like = "shorts"'), "is no"),
        (('against = "hold"', 'against = "held"'), "is no"),
        (('name = "short"', 'name = "hold"'), "two arms are called 'hold'"),
        (
            ('team = "always_short"', 'team = "always_short"\nset = ["costs.taker_fee=0"]'),
            "could not be compared",
        ),
        (('team = "always_short"', 'team = "always_short"\ntokens = 5'), "tokens are of an arm that is trained"),
        (('seeds = "1-3"', 'seeds = "3-1"'), "are no"),
        (('config = "quick"', 'config = "quik"'), "no preset"),
        (("[windows]", "[window]"), "unknown key 'window'"),
        (('team = "always_short"', 'team = "ema_cros"'), "did you mean 'ema_cross'"),
        (('set = ["market.bars=600"', 'set = ["market.data=$NOT_SET_HERE", "market.bars=600"'), "NOT_SET_HERE"),
    ],
)
def test_a_file_that_cannot_be_run_is_refused(plan_file: Write, change: tuple[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_experiment(plan_file(change))


def test_cells_of_other_data_are_refused(plan_file: Write, run_here: Run) -> None:
    path = plan_file()
    outcome = run_here(path)
    cell = next(one for one in experiment_cells(read_experiment(path)) if one.arm == "short")
    file = outcome.folder / "cells" / f"{cell.name}.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "data_hash": "other"}))
    with pytest.raises(UserError, match="other data than 'hold'"):
        run_here(path)


@pytest.mark.slow
def test_a_killed_experiment_goes_on_and_leaves_no_process(plan_file: Write, run_here: Run, tmp_path: Path) -> None:
    path = plan_file()
    command = [sys.executable, "-m", "backend.cli", "experiment", "run", str(path), "--workers", "2"]
    command += ["--store", str(tmp_path / "store"), "--runs", str(tmp_path / "runs")]
    root = Path(__file__).resolve().parents[3]
    process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root)})
    cells = tmp_path / "runs" / "experiments" / "small" / "cells"
    deadline = time.monotonic() + 120
    while not list(cells.glob("*.json")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = {file.name: file.read_text() for file in cells.glob("*.json")}
    assert run_here(path).result.comparisons
    assert all((cells / name).read_text() == text for name, text in done.items())
