"""The gate: it passes only who is better for certain, on what nobody has learnt from, and says why not."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.builders.market import load_market
from backend.builders.spans import spans_trained_on
from backend.config.load import config_from_dict
from backend.config.schema import Config
from backend.decisions.document import GuardClamp
from backend.evaluation.evaluate import held_out_windows
from backend.evaluation.gate import GATE_RECORD, held_out_rules, judged
from backend.models.manifest import TeamManifest, read_manifest, write_manifest
from backend.models.team_digest import team_digest
from backend.runs.evaluation import evaluate_team, training_of
from backend.runs.requests import EvaluateRequest
from backend.store.records import RunRecord
from backend.store.store import Store
from simulator.data.archive import write_market
from simulator.errors import UserError
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.small_world import team_in
from tests.stored_runs import full_decision

SEED = 3


def measured(lead: float, windows: int = 24, trials: int = 1, **rows: float) -> dict[str, Any]:
    """A measurement in which the trained team is ahead of all others by `lead` a window, give or take 0.01."""
    noise = np.random.default_rng(5).normal(0.0, 0.01, windows)
    names = {"warm_started": 0.0, "flat": 0.0, **rows}
    return {
        "windows": windows,
        "trials": trials,
        "rows": {
            "trained": {"per_window": (lead + noise - noise.mean()).tolist()},
            **{name: {"per_window": [value] * windows} for name, value in names.items()},
        },
    }


def failed(held_out: dict[str, Any], control: dict[str, Any] | None = None) -> list[str]:
    """The names of the rules that are not kept."""
    rules = judged(SEED, held_out, control, [])
    assert all(rule.sentence for rule in rules)
    return [rule.name for rule in rules if not rule.passed]


def test_who_is_better_for_certain_passes() -> None:
    assert failed(measured(0.02)) == []
    assert failed(measured(0.0)) == ["better than warm_started", "better than flat"]
    assert failed(measured(0.02, flat=0.05)) == ["better than flat"], "all rivals are to be beaten"
    assert failed(measured(0.02, windows=6)) == ["windows"]


@given(st.floats(-0.03, 0.03), st.integers(1, 500), st.integers(1, 500))
def test_more_tries_on_the_same_windows_never_help(lead: float, some: int, more: int) -> None:
    few, many = (failed(measured(lead, trials=count)) for count in (some, some + more))
    assert set(few) <= set(many)


def test_a_gain_over_holding_where_nothing_can_be_known_is_luck() -> None:
    def control(low: float) -> dict[str, Any]:
        interval = {"net_return": low + 0.01, "net_return_ci95": [low, low + 0.02]}
        return {"differences": [{"against": "teacher", "net_return": 0.0}, {"against": "holding", **interval}]}

    assert failed(measured(0.02), control(-0.01)) == failed(measured(0.02), control(0.0)) == []
    assert failed(measured(0.02), control(0.001)) == ["no-edge control"]


def test_a_guard_that_had_to_end_trading_is_a_failure() -> None:
    made = full_decision()
    daily = GuardClamp(rule="max_exposure", symbol="AAAUSDT", asked=2.0, allowed=1.0, detail="")
    decision = replace(made, document=made.document.model_copy(update={"clamps": (daily,)}))
    quiet = judged(SEED, measured(0.02), None, [decision])
    assert all(rule.passed for rule in quiet), "a clamp of an order is the guard's daily work"
    clamp = daily.model_copy(update={"rule": "max_drawdown", "symbol": ""})
    shut = replace(decision, document=decision.document.model_copy(update={"clamps": (clamp,)}))
    [rule] = [one for one in judged(SEED, measured(0.02), None, [shut, shut]) if not one.passed]
    assert rule.name == "guard" and "2 times max_drawdown" in rule.sentence


def generated(**market: Any) -> Config:
    small = {"bars": 600, "coins": 1, "seed": 3, **market}
    return config_from_dict(
        {"market": small, "team": {"horizon_bars": 6}, "evaluation": {"windows": 3, "decisions_per_window": 2}}, "test"
    )


def apart(trained: Config, measured_with: Config) -> tuple[bool, str]:
    """Whether the windows of a measurement lie apart from a team's training, and why."""
    spans = spans_trained_on(trained, load_market(trained.market, trained.costs))
    manifest = TeamManifest.of(trained, base="nano", adapters=None, trained_on=spans)
    market = load_market(measured_with.market, measured_with.costs)
    windows = held_out_windows(measured_with, market)
    rules = held_out_rules(manifest, measured_with, market, windows, trained_here=True)
    return rules[0].passed, rules[0].sentence


def test_the_windows_lie_apart_from_the_training() -> None:
    assert apart(generated(), generated()) == (True, apart(generated(), generated())[1])
    assert apart(generated(), generated(seed=4))[0], "another market"
    passed, why = apart(generated(), generated(shares=(0.3, 0.1)))
    assert not passed and "measure it on later bars" in why
    assert not apart(generated(), generated(bars=400))[0], "a shorter one is the beginning of a longer one"


def test_recorded_bars_are_compared_by_time(tmp_path: Path) -> None:
    market = generate(SyntheticConfig(bars=600, seed=3, symbols=("AAAUSDT",)))
    write_market(market, tmp_path / "all")
    trained = generated(data=str(tmp_path / "all"))
    assert apart(trained, trained)[0]
    assert not apart(trained, generated(data=str(tmp_path / "all"), shares=(0.2, 0.1)))[0]
    assert apart(trained, generated())[0], "recorded and generated have nothing in common"
    manifest = TeamManifest.of(trained, base="nano", adapters=None)
    windows = held_out_windows(trained, market)
    [rule, *_] = held_out_rules(manifest, trained, market, windows, trained_here=False)
    assert not rule.passed and "cannot be verified" in rule.sentence, "anybody may have written its manifest"


def test_the_digest_is_of_every_byte_that_decides(nano: Path, tmp_path: Path) -> None:
    folder = team_in(tmp_path / "team", nano)
    first = team_digest(folder)
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / "report.html").write_text("a report is no part of the team")
    assert team_digest(tmp_path / "copy") == first
    write_manifest(tmp_path / "copy", read_manifest(folder).model_copy(update={"adapters": None}))
    others = {first, team_digest(tmp_path / "copy")}
    for file in ("nano", "adapters"):
        path = next(one for one in sorted((folder / file).rglob("*.safetensors")))
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(bytes(content))
        others.add(team_digest(folder))
    assert len(others) == 4
    with pytest.raises(UserError, match="no team"):
        team_digest(tmp_path)


def test_the_verdict_is_recorded_with_what_it_is_of(nano: Path, tmp_path: Path) -> None:
    """A nano that knows next to nothing does not pass, and the store says so for exactly these files."""
    folder = team_in(tmp_path / "team", nano)
    small = ("market.bars=400", "market.coins=1", "market.seed=9", "market.edge=false", "evaluation.windows=2",
             "evaluation.decisions_per_window=1", "team.max_tokens=8")  # fmt: skip
    with Store.open("mem://") as store:
        outcome = evaluate_team(
            EvaluateRequest(folder=folder, gate=True, overrides=small, baselines=("flat",)), store, tmp_path
        )
        assert outcome.gate is not None and not outcome.gate.passed and "windows" in outcome.gate.sentence()
        [kept] = [one.result for one in store.evaluations(outcome.run) if one.name == GATE_RECORD]
        record = store.run(outcome.run)
    assert kept["team_digest"] == team_digest(folder) and kept["data_hash"] == record.data_hash
    assert not kept["passed"] and {rule["name"] for rule in kept["rules"]} >= {"windows", "guard", "held out"}
    assert record.config["versions"]["cryptosentinel"]


def test_a_team_was_trained_here_where_a_run_of_the_store_made_its_folder(tmp_path: Path, store: Store) -> None:
    """By the run's id, or by the folder that its record names; what was imported trained nothing here."""
    folder, elsewhere = tmp_path / "train-1", tmp_path / "my-team"
    assert training_of(store, folder) is None
    store.add_run(RunRecord("train-1", "train", 1, "hash", 1, {"config": {}}, "finished", imported=True))
    store.add_run(RunRecord("backtest-1", "backtest", 1, "hash", 2, {"folder": str(elsewhere)}, "finished"))
    assert training_of(store, folder) is None and training_of(store, elsewhere) is None
    store.add_run(RunRecord("sft-1", "sft", 1, "hash", 3, {"folder": str(elsewhere.resolve())}, "finished"))
    found = training_of(store, elsewhere)
    assert found is not None and found.run == "sft-1"
    store.delete_run("train-1")
    store.add_run(RunRecord("train-1", "train", 1, "hash", 1, {"config": {}}, "finished"))
    found = training_of(store, folder)
    assert found is not None and found.run == "train-1"
