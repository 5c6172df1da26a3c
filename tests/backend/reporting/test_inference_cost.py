"""A team's engine, and what its inference costs: engines and budgets from the configuration, to the report's lines."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend.builders.loaded_team import LoadedTeam
from backend.builders.teams import configured_team
from backend.config.load import load_config
from backend.decisions.backtest_document import BacktestDocument, inference_cost, read_backtests
from backend.reporting.result_stats import inference_cost_line
from backend.runs import backtest
from backend.runs.backtest import subject_of
from backend.store.store import Store
from cryptosentinel.conversation.budget import Ledger
from cryptosentinel.llm.engine import Completion, Request, Usage
from cryptosentinel.scheduler import Throughput
from simulator.data.archive import write_market
from simulator.errors import RunFailed, UserError
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.command_line import Run, program
from tests.stored_runs import episode

MARKET = generate(SyntheticConfig(bars=260, seed=5, symbols=("AAAUSDT", "BBBUSDT")))
SHORT = ("--data", "made", "--baselines", "hold", "--start", "2020-02-01", "--end", "2020-02-05")


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    write_market(MARKET, tmp_path / "made")
    return program(tmp_path, monkeypatch, capsys)


def only_run(folder: Path) -> tuple[Any, dict[str, BacktestDocument], int]:
    """The run in the store, the results by name, and how many decisions it stores."""
    with Store.open(str(folder / "runs" / "store")) as store:
        [run] = [one.run for one in store.runs()]
        return store.run(run), {one.name: one.document for one in read_backtests(store, run)}, len(store.decisions(run))


def test_a_model_that_was_not_trained_trades_and_its_inference_is_a_line_of_the_result(
    command: Run, nano: Path, tmp_path: Path
) -> None:
    prices = f"budget.prices.{nano.name}=[1000.0, 100.0, 5000.0]"
    played = command("backtest", "--team", "model", "-s", f"engine.model={nano}", "-s", prices, *SHORT)
    assert played.code == 0, played.err
    _, results, _ = only_run(tmp_path)
    own = results[f"model {nano.name}"]
    spent = own.inference
    assert spent is not None
    assert spent.calls == sum(role.calls for role in spent.roles.values()) > 0
    assert spent.money > 0 and spent.engine["prefix_reuse"] > 0
    left = own.return_after_inference
    assert left == pytest.approx(own.total_return - spent.money / own.equity[0])
    assert f"leaves a return of {100 * left:+.2f} %" in played.out
    [report] = (tmp_path / "runs").glob("backtest-*/report.html")
    page = report.read_text()
    assert "What inference cost" in page and "Inference took another" in page and "after the cost of its model" in page


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["engine.model="], "engine.model is empty"),
        (["engine.model=nowhere"], "there is no model folder nowhere"),
        (["engine.url=http://localhost:1"], "kind = local runs here"),
        (["engine.model={nano}", "budget.prices.nano=[1,2]"], "each entry a list of 3 numbers"),
    ],
)
def test_what_cannot_think_is_told_before_anything_is_stored(
    command: Run, nano: Path, tmp_path: Path, options: list[str], said: str
) -> None:
    given = [part for option in options for part in ("-s", option.format(nano=nano))]
    failed = command("backtest", "--team", "model", *given, *SHORT)
    assert failed.code == 2 and said in failed.err
    assert not (tmp_path / "runs").exists()


def test_a_trained_team_does_not_run_at_an_endpoint(tmp_path: Path) -> None:
    config = load_config("demo", ["engine.kind=openai_api", "engine.model=x"])
    with pytest.raises(UserError, match="was trained here, so it cannot run at an endpoint"):
        configured_team(str(tmp_path), config)
    assert configured_team("scripted", config).name == "scripted"  # rules need no engine


def test_a_model_that_was_not_taught_is_constrained_by_itself_and_that_is_said(nano: Path) -> None:
    def chosen(*overrides: str) -> tuple[bool, str]:
        loaded = configured_team("model", load_config("demo", [f"engine.model={nano}", *overrides]))
        return loaded.team.settings.sampling.constrained, " ".join(loaded.notes)

    constrained, said = chosen("team.prompts=full")
    assert constrained and "calls that its tools allow" in said
    assert chosen() == (False, "")  # nano learnt its tools in the warm start


def test_rules_cost_no_inference() -> None:
    ledger = Ledger()
    ledger.book("manager", Usage())
    assert inference_cost(ledger, Throughput()) is None
    assert inference_cost_line(BacktestDocument.of(episode().result)) is None


class Dying:
    """The scripted team's engine, until it dies."""

    name = "dying"

    def __init__(self, loaded: LoadedTeam, requests: int, end: BaseException) -> None:
        self.inner, self.left, self.end = loaded.engine, requests, end

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        self.left -= len(requests)
        if self.left < 0:
            raise self.end
        return self.inner.generate(requests)

    def policy_version(self, role: str) -> str:
        return self.inner.policy_version(role)


@pytest.mark.parametrize(("end", "code"), [(RunFailed("the engine is gone"), 1), (KeyboardInterrupt(), 130)])
def test_what_was_decided_before_an_engine_died_is_stored(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException, code: int
) -> None:
    whole = command("backtest", *SHORT)
    assert whole.code == 0
    with Store.open(str(tmp_path / "runs" / "store")) as store:
        [run] = [one.run for one in store.runs()]
        told = [one.document for one in store.decisions(run)]

    def dying(name: str, config: Any) -> Any:
        loaded = subject_of(name, config)
        assert isinstance(loaded, LoadedTeam)
        return replace(loaded, engine=Dying(loaded, 20, end))

    monkeypatch.setattr(backtest, "subject_of", dying)
    failed = command("backtest", *SHORT, "--store", "other")
    assert failed.code == code
    with Store.open(str(tmp_path / "other")) as store:
        [record] = store.runs()
        documents = [one.document for one in store.decisions(record.run)]
        [result] = [one.result for one in store.backtests(record.run)]
    assert record.status == ("failed" if code == 1 else "interrupted")
    assert 0 < len(documents) < len(told)
    for early, late in zip(documents, told, strict=False):
        for key in ("conversations", "orders", "symbols"):
            assert json.dumps(early[key]) == json.dumps(late[key])
    assert 1 < len(result["equity"]) < len(MARKET)


def results_of(folder: Path) -> str:
    """The results and the decisions of the only run in a store, as JSON."""
    with Store.open(str(folder)) as store:
        [run] = [one.run for one in store.runs()]
        results = {one.name: one.result for one in store.backtests(run)}
        return json.dumps([results, [one.document for one in store.decisions(run)]], sort_keys=True)


def test_several_models_play_one_window_beside_one_another(command: Run, nano: Path, tmp_path: Path) -> None:
    """A name may have a colon, as that of a tagged model: it is no strategy of the user's own."""
    other = tmp_path / "nano:7b"
    shutil.copytree(nano, other)
    played = command("backtest", "--team", f"model={nano}", "--team", f"model={other}", *SHORT)
    assert played.code == 0, played.err
    run, results, _ = only_run(tmp_path)
    assert run.config["teams"] == [f"model {nano.name}", "model nano:7b"]
    first, second = (results[name] for name in run.config["teams"])
    assert first.equity == second.equity and first.inference is not None
    refused = command("backtest", "--team", "model=nowhere", *SHORT)
    assert refused.code == 2 and "there is no model folder nowhere" in refused.err


def test_a_recorded_run_is_played_again_without_its_model(command: Run, nano: Path, tmp_path: Path) -> None:
    recorded = command(
        "backtest",
        "--team",
        "model",
        "-s",
        f"engine.model={nano}",
        "--record",
        "tape.jsonl",
        "--store",
        "first",
        *SHORT,
    )
    assert recorded.code == 0, recorded.err
    played = command("backtest", "--team", "tape.jsonl", "--store", "second", *SHORT)
    assert played.code == 0, played.err
    first, second = json.loads(results_of(tmp_path / "first")), json.loads(results_of(tmp_path / "second"))
    for results, _ in (first, second):
        for result in results.values():
            # How busy the engine was is the machine's affair; all else is the run's.
            (result["inference"] or {}).pop("engine", None)
    assert json.dumps(first) == json.dumps(second)
    other = command("backtest", "--team", "tape.jsonl", "--seed", "2", *SHORT)
    assert other.code == 2 and "has no answer to call 1 of manager" in other.err


def test_an_interrupted_recording_goes_on_and_asks_nothing_twice(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def dying(name: str, config: Any) -> Any:
        loaded = subject_of(name, config)
        assert isinstance(loaded, LoadedTeam)
        asked.append(20 if not asked else 10_000)
        return replace(loaded, engine=Dying(loaded, asked[-1], RunFailed("gone")))

    monkeypatch.setattr(backtest, "subject_of", dying)
    assert command("backtest", *SHORT, "--record", "tape.jsonl", "--store", "a").code == 1
    calls = len((tmp_path / "tape.jsonl").read_text().splitlines()) - 1
    assert 0 < calls <= 20
    assert command("backtest", *SHORT, "--record", "tape.jsonl", "--store", "b").code == 0
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert command("backtest", *SHORT, "--store", "c").code == 0
    assert results_of(tmp_path / "b") == results_of(tmp_path / "c")


def test_a_recording_is_of_one_team(command: Run) -> None:
    for teams in (["--team", "hold"], ["--team", "scripted", "--variant", "unmasked"]):
        failed = command("backtest", *teams, "--record", "tape.jsonl", *SHORT, "--baselines", "flat")
        assert failed.code == 2 and "--record is for the calls of one team" in failed.err
