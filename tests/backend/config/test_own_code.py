"""A process of the page runs no code that a field names: not in itself, and not in the jobs that it hands in."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from backend.builders.engines import served_engine
from backend.builders.plugins import load_plugins, reward_of
from backend.builders.sources import bars_of_source
from backend.builders.strategies import named_strategy
from backend.config import plugins
from backend.config.load import load_config
from backend.config.plugins import PLUGIN_KINDS, plugin, refuse_own_modules
from backend.config.schema import Config
from backend.jobs import process, queue
from backend.jobs.queue import JobQueue
from simulator.errors import UserError

SAMPLE = Path(__file__).resolve().parents[3] / "data" / "synthetic"
REFUSAL = "the page runs no code that a field names"
NAMES = ("evil:Evil", "data.uploads.evil:Evil", "evil:Evil:fast=1")


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module in the current folder that leaves a file when it is imported, in a process of the page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(plugins._REFUSED, "1")
    mark = tmp_path / "was-imported"
    code = f"open({str(mark)!r}, 'w')\nclass Evil:\n    def decide(self, view, account): return []\n"
    (tmp_path / "data" / "uploads").mkdir(parents=True)
    for place in ("evil.py", "data/uploads/evil.py"):
        (tmp_path / place).write_text(code)
    return mark


def config_with(setting: str) -> Config:
    default = Config().training  # what the preset rewards besides is of the shipped scores
    shipped = [f"training.{key}={getattr(default, key)}" for key in ("tail_weight", "advice_weight", "verdict_weight")]
    return load_config("demo", [*shipped, setting])


FIELDS: dict[str, Callable[[str], object]] = {
    **{f"kind {kind.word}": partial(plugin, kind) for kind in PLUGIN_KINDS},
    "strategy": named_strategy,
    "market.source": lambda name: bars_of_source(name, Path("runs")),
    "plugins.roles": lambda name: load_plugins(config_with(f'plugins.roles=["{name}"]')),
    "team.tools": lambda name: load_plugins(config_with(f'team.tools=["market_analyst={name}"]')),
    "training.reward": lambda name: reward_of(config_with(f"training.reward={name}").training),
}


@pytest.mark.parametrize("name", NAMES[:2])
@pytest.mark.parametrize("field", FIELDS)
def test_no_field_imports_a_module(evil: Path, field: str, name: str) -> None:
    with pytest.raises(UserError, match=REFUSAL):
        FIELDS[field](name)
    assert not evil.exists()


def test_a_strategy_with_arguments_is_refused_as_well(evil: Path) -> None:
    with pytest.raises(UserError, match=REFUSAL):
        named_strategy(NAMES[2])
    assert not evil.exists()


@pytest.mark.parametrize("allowed", [True, False])
def test_a_job_has_the_refusal_of_who_asked_for_it(
    evil: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], allowed: bool
) -> None:
    """Whatever its process was started with; and so has the job that resumes it."""
    monkeypatch.setattr(queue, "start_detached", lambda *given: None)
    refuse_own_modules(not allowed)
    jobs = JobQueue(Path("runs"))
    job = jobs.submit(("check", "lookahead", "--team=evil:Evil", f"--data={SAMPLE}"))
    assert job.request.own_modules is allowed
    refuse_own_modules(allowed)  # as its process has it
    monkeypatch.setattr(sys, "argv", ["process"])
    process.run_job(job.path, job.request.command)
    assert evil.exists() is allowed and (allowed or REFUSAL in capsys.readouterr().err)


def test_no_program_that_a_setting_names_is_run(evil: Path, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ntouch {evil}\n")
    program.chmod(0o700)
    with pytest.raises(UserError, match=REFUSAL):
        served_engine(config_with(f"engine.python={program}").engine, tmp_path)
    assert not evil.exists()
