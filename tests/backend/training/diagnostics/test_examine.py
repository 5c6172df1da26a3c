"""What the doctor reads, what it derives from records, and a real training that it finds sick."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from backend.cli.console import console
from backend.cli.evaluate import doctor
from backend.store.errors import StoreError
from backend.store.records import RewardRecord, RolloutRecord, RunRecord, TrajectoryRecord
from backend.store.store import Store
from backend.training.curriculum.queries import QueryPool
from backend.training.diagnostics.examine import (
    _merge,
    call_metrics,
    conversation_metrics,
    examine,
    examine_folder,
    examine_run,
    read_metrics,
    reward_metrics,
    validity_share,
    with_derived_metrics,
)
from backend.training.learning.training_metrics import market_move, ordered_exposure
from backend.training.rollout.collect import collect
from cryptosentinel.agents.registry import ROLES
from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.scripted_team import expert_policies
from cryptosentinel.team import Team
from simulator.errors import UserError
from tests.small_world import HORIZON, RUN, TRAIN, open_trainer, rollout_settings, small_config, small_market
from tests.team_scenes import standard_team


def reward(query: int, rollout: int, total: float, format_score: float, step: int = 0) -> RewardRecord:
    parts = {"format": format_score, "outcome": 0.5}
    return RewardRecord("r", step, query, rollout, "manager", 0, total, parts, 0.0)


def rollout(query: int, number: int, calls: dict[str, int]) -> RolloutRecord:
    return RolloutRecord("r", 0, query, number, 1, True, 0.5, calls, {})


def talk(number: int, length: int, version: str = "v1", truncated: bool = False) -> TrajectoryRecord:
    mask = (False, *[True] * length)
    return TrajectoryRecord(
        "r", 0, 0, number, "trader", 0, version, tuple(range(length + 1)), mask, (0.0,) * (length + 1), True, truncated
    )


# -- files ----------------------------------------------------------------------------------------------------------


def test_metrics_are_read_from_their_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "a": 1.0, "b": null}\n{"step": 1, "c": 2}\n{"step": 2, "a": 3.0}\n{"step": 3, "a"')
    steps = read_metrics(path)
    assert steps[1]["a"] == 1.0 and np.isnan(steps[1]["b"]) and steps[1]["c"] == 2.0
    assert steps[2] == {"a": 3.0} and set(steps) == {1, 2}


@pytest.mark.parametrize(
    "text", ['{"a": 1}\n{"step": 2}\n', "no json\n{}\n", '[1]\n{"step": 1}\n', '{"step": 1, "a": "x"}\n{"step": 2}\n']
)
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match="line 1 is no line of metrics"):
        read_metrics(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give the folder of a training run"):
        read_metrics(tmp_path / "metrics.jsonl")


def test_without_a_training_step_there_is_nothing_to_examine() -> None:
    with pytest.raises(UserError, match="no metrics of a training step"):
        examine("r", {0: {"validation/outcome": 0.5}}, {})


# -- derived metrics ------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.floats(0.01, 100.0), min_size=2, max_size=4))
def test_gradient_masses_sum_to_one(norms: list[float]) -> None:
    values = {f"{role}/grad_norm": norm for role, norm in zip(ROLES, norms, strict=False)}
    found = with_derived_metrics(values)
    masses = [value for name, value in found.items() if name.endswith("/gradient_mass")]
    assert sum(masses) == pytest.approx(1.0) and len(masses) == len(norms)
    assert with_derived_metrics(found) == found


def test_lengths_and_the_gap_follow_from_metrics() -> None:
    found = with_derived_metrics(
        {"trader/tokens": 90.0, "trader/trained": 3.0, "team/outcome": 0.6, "validation/outcome": 0.5}
    )
    assert found["trader/length"] == 30.0
    assert found["team/train_gap"] == pytest.approx(0.1)


@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(st.floats(0.1, 1.0), st.booleans()), min_size=2, max_size=6), max_size=4))
def test_validity_share_is_a_share(groups: list[list[tuple[float, bool]]]) -> None:
    records = [
        reward(query, number, pay if valid else 0.0, float(valid))
        for query, group in enumerate(groups)
        for number, (pay, valid) in enumerate(group)
    ]
    share = validity_share(records)
    assert share is None or -1e-9 <= share <= 1.0 + 1e-9


def test_what_a_run_has_measured_itself_stands() -> None:
    steps = {1: {"trader/length": 7.0}}
    _merge(steps, {1: {"trader/length": 9.0, "trader/stale": 0.5}, 2: {"trader/stale": 1.0}})
    assert steps == {1: {"trader/length": 7.0, "trader/stale": 0.5}}, "and of step 2 the run has no metrics yet"


def test_validity_share_has_its_extremes() -> None:
    assert validity_share([reward(0, 0, 0.6, 1.0), reward(0, 1, 0.6, 1.0), reward(0, 2, 0.0, 0.0)]) == 1.0
    assert validity_share([reward(0, 0, 0.6, 1.0), reward(0, 1, 0.2, 1.0)]) == 0.0
    assert validity_share([reward(0, 0, 0.6, 1.0), reward(1, 0, 0.2, 1.0)]) is None
    both = [reward(0, 0, 0.6, 1.0), reward(0, 1, 0.2, 1.0), reward(0, 2, 0.0, 0.0)]
    assert validity_share(both) == pytest.approx(4 / 7)


def test_format_share_has_the_weights_of_the_stage() -> None:
    training = small_config(alpha=[0.2, 0.8]).training
    records = [reward(0, 0, 0.2 + 0.8 * 0.5, 1.0), reward(0, 1, 0.0, 0.0)]
    name = "manager/reward/format_share"
    assert reward_metrics(records, {1: {"stage": 2.0}}, training)[1][name] == pytest.approx(0.2 / 0.6)
    outcome = "manager/reward/outcome_share"
    assert reward_metrics(records, {1: {"stage": 2.0}}, training)[1][outcome] == pytest.approx(0.4 / 0.6)
    assert reward_metrics([reward(0, 0, 1.0, 1.0)], {1: {"stage": 1.0}}, training)[1][name] == 1.0
    assert name not in reward_metrics(records, {1: {"stage": 2.0}}, None)[1]


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=8))
def test_effective_calls_are_the_harmonic_by_the_arithmetic_mean(counts: list[int]) -> None:
    found = call_metrics([rollout(0, number, {"trader": count}) for number, count in enumerate(counts)])
    called = [count for count in counts if count]
    if not called:
        assert found == {}
        return
    harmonic = len(called) / sum(1 / count for count in called)
    assert found[1]["trader/calls/efficiency"] == pytest.approx(harmonic * len(called) / sum(called))
    assert found[1]["trader/calls/max"] == max(counts)


def test_conversations_have_lengths_versions_and_ends() -> None:
    found = conversation_metrics([talk(0, 10), talk(1, 20), talk(2, 30, "v0", True), talk(3, 40)])[1]
    assert found == {"trader/length": 25.0, "trader/truncated": 0.25, "trader/stale": 0.25}


# -- exposure -------------------------------------------------------------------------------------------------------


def test_exposure_is_what_was_ordered_and_the_move_what_came() -> None:
    codec = make_byte_codec()
    engine = ScriptedEngine(codec, expert_policies())
    team = Team(codec, engine.policy_version, standard_team(horizon_bars=HORIZON))
    config = small_config()
    queries = QueryPool(small_market(), *TRAIN, HORIZON).draw(5, 0, 8, easy=False)
    groups = collect(team, engine, queries, rollout_settings(config), 1)
    for group in groups:
        query = group[0].query
        moved = query.market.close[query.bar + HORIZON, 0] / query.market.close[query.bar, 0] - 1.0
        assert market_move(query, HORIZON) == pytest.approx(moved / query.volatility)
        for one in group:
            answer = one.decision.manager.answer
            assert answer is not None
            exposure = ordered_exposure(one)
            assert abs(exposure) <= 1.0 + 1e-9
            if one.decision.orders and answer["positions"]:  # RiskAnalyst may shrink it, nobody turns it
                side = {"long": 1.0, "short": -1.0, "flat": 0.0}[answer["positions"][0]["side"]]
                assert exposure * side >= -1e-9
                assert side != 0.0 or abs(exposure) < 1e-9
            assert one.decision.orders != [] or exposure == query.exposure


# -- a whole run ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ruined(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Path]]:
    """A training at a rate that no format survives, without rollback and without an anchor."""
    rates = dict.fromkeys(ROLES, 5e-2)
    config = small_config(stage1_max_steps=1, stage2_steps=6, learning_rate=rates, validation_every=7)
    folder = tmp_path_factory.mktemp("ruined") / RUN
    with Store.open("mem://") as store:
        trainer = open_trainer(config, nano, folder, store)
        trainer.run()
        trainer.recorder.close()
        document = {"config": config.to_dict()}
        store.add_run(RunRecord(RUN, "train", 1, small_market().content_hash, 1_700_000_000_000, document))
        yield store, folder


def test_a_ruined_training_is_found_out(ruined: tuple[Store, Path]) -> None:
    store, folder = ruined
    found = examine_run(store, RUN)
    assert any(one.rule == "terminal collapse" and one.severity == "fatal" for one in found.findings)
    lost = [one.role for one in found.findings if one.rule == "terminal collapse"]
    assert all(found.failures[role] for role in lost)
    assert found.summaries["manager/valid"].low < 0.5
    parts = [found.summaries[f"manager/reward/{part}_share"] for part in ("format", "outcome")]
    assert sum(part.first for part in parts) == pytest.approx(1.0)  # all that a manager is paid for
    assert "far from the warm start" in found.unjudged and "copies the drift" not in found.unjudged
    assert abs(found.summaries["team/net_exposure"].first) <= found.summaries["team/exposure"].high
    assert json.loads(json.dumps(found.to_dict()))["run"] == RUN
    from_file = examine_folder(folder)
    assert [(one.rule, one.role) for one in from_file.findings if one.severity == "fatal"] == [
        (one.rule, one.role) for one in found.findings if one.severity == "fatal"
    ]


def program() -> typer.Typer:
    app = typer.Typer()
    app.command()(doctor)
    return app


def test_the_command_shows_tables_findings_and_writes_json(
    ruined: tuple[Store, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "_width", 200)
    target = tmp_path / "out" / "doctor.json"
    with console.capture() as captured:
        result = CliRunner().invoke(program(), [str(ruined[1]), "--json", str(target)], catch_exceptions=False)
    shown = captured.get()
    assert result.exit_code == 0
    assert "fatal: terminal collapse" in shown and "market_analyst" in shown and "not judged" in shown
    assert json.loads(target.read_text())["findings"][0]["severity"] == "fatal"


def written(folder: Path, steps: int, **metrics: float) -> str:
    """What the command says of a run of so many equal steps."""
    lines = [json.dumps({"step": step, "stage": 2.0, **metrics}) for step in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    with console.capture() as captured:
        CliRunner().invoke(program(), [str(folder)], catch_exceptions=False)
    return " ".join(captured.get().split())


@pytest.mark.parametrize("steps", [1, 2, 5, 9])
def test_the_command_never_says_that_all_is_well_of_a_short_run(steps: int, tmp_path: Path) -> None:
    shown = written(tmp_path, steps, **{"team/hold_share": 0.5, "trader/valid": 1.0, "trader/trained": 9.0})
    assert "too short to say that all is well" in shown
    assert "none of the known failures" not in shown


def test_the_command_says_when_nothing_is_wrong(tmp_path: Path) -> None:
    metrics = {"team/hold_share": 0.5} | {f"{role}/{name}": 1.0 for role in ROLES for name in ("valid", "trained")}
    assert "no finding: none of the known failures shows" in written(tmp_path, 12, **metrics)


def test_an_unknown_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no run 'nowhere'"):
        CliRunner().invoke(program(), ["nowhere", "--store", str(tmp_path / "store")], catch_exceptions=False)


def test_json_that_cannot_be_written_is_told(ruined: tuple[Store, Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        arguments = [str(ruined[1]), "--json", str(tmp_path / "file" / "doctor.json")]
        CliRunner().invoke(program(), arguments, catch_exceptions=False)
