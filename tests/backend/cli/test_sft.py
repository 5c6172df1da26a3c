"""`cryptosentinel sft`: what it prints, that it goes on, and how it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from backend.cli.console import console
from backend.cli.train import sft
from simulator.errors import Interrupted, UserError

FEW = ("states=8", "steps=2", "score_states=2")


@pytest.fixture
def run(nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "_width", 100)
    return Runner(nano)


class Runner:
    """run("--from", ...): the command on the quick preset with a nano that is there, as small as can be."""

    def __init__(self, nano: Path) -> None:
        self.nano = nano
        self.app = typer.Typer()
        self.app.command()(sft)

    def __call__(self, *arguments: str) -> Result:
        small = [f"sft.{one}" for one in FEW]
        small += [f"training.base_model={self.nano}", "market.bars=900", "market.coins=1"]
        options = [word for one in small for word in ("--set", one)]
        return CliRunner().invoke(self.app, ["--config", "quick", *options, "--out", "team", *arguments])


def test_it_prints_what_was_kept_and_what_it_was_worth(run: Runner, tmp_path: Path) -> None:
    result = run("--from", "scripted")
    assert result.exit_code == 0, result.output
    for words in ("Conversations", "held-out score of each role", "market_analyst", "cryptosentinel evaluate team"):
        assert words in result.output
    assert (tmp_path / "team" / "team.json").is_file()
    again = run("--from", "scripted")
    assert [line for line in again.output.splitlines() if "0." in line][-8:] == [
        line for line in result.output.splitlines() if "0." in line
    ][-8:]


def test_a_role_without_rows_is_named(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    from backend.training.sft.datasets import select

    monkeypatch.setattr("backend.training.sft_job.select", lambda said, selection: ([], select([], selection)[1]))
    result = run()
    assert result.exit_code == 0, result.output
    assert "note: trader has nothing to learn from" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--from", "nobody"), "no team 'nobody'"),
        (("--set", "sft.steps=0"), "sft.steps = 0 is not allowed"),
        (("--set", "sft.stats=3"), "unknown key 'sft.stats'"),
        (("--set", "training.base_model=nowhere"), "there is no model folder nowhere"),
        (("--data", "nowhere"), "nowhere"),
    ],
)
def test_mistakes_are_the_users_to_mend(run: Runner, arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert isinstance(result.exception, UserError)
    assert message in str(result.exception)


def test_ctrl_c_says_how_to_go_on(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("backend.training.sft_job._train_role", stop)
    result = run()
    assert isinstance(result.exception, Interrupted)
    assert "the same command continues" in str(result.exception)
