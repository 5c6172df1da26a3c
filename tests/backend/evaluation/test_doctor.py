"""The doctor: every rule both ways on made series, by the run's own settings; and a real training that is sick."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from backend.cli.console import console
from backend.cli.evaluate import doctor
from backend.evaluation.doctor import (
    RULES,
    History,
    Rule,
    RunSettings,
    diagnose,
    examine,
    examine_run,
    missing_points,
    sustained,
)
from backend.store.errors import StoreError
from backend.store.records import RunRecord
from backend.store.store import Store
from cryptosentinel.agents.registry import ROLES
from simulator.errors import UserError
from tests.small_world import RUN, open_trainer, small_config, small_market

STEPS, STAGE_2 = 40, 11
Run = list[tuple[int, dict[str, float]]]
Sicken = Callable[[dict[str, float], str, int], None]  # values of a step, role, steps since it began

SEEDS = st.integers(0, 10_000)
FEW = settings(max_examples=8, deadline=None)  # of each of the two dozen rules
MORE = settings(max_examples=60, deadline=None)
BY_NAME = {rule.name: rule for rule in RULES}


def healthy(seed: int) -> Run:
    """A training that goes well: everything a rule reads, with noise, slowly better."""
    rng = np.random.default_rng(seed)
    run: Run = [(0, {"validation/outcome": 0.50})]
    for step in range(1, STEPS + 1):
        done = step / STEPS
        values = {
            "stage": 1.0 if step < STAGE_2 else 2.0,
            "team/outcome": 0.50 + 0.07 * done + rng.normal(0.0, 0.01),
            "team/hold_share": rng.uniform(0.2, 0.7),
        }
        for role in ROLES:
            values |= {
                f"{role}/valid": rng.uniform(0.975, 1.0),
                f"{role}/calls": rng.uniform(0.5, 2.0),
                f"{role}/degenerate_share": rng.uniform(0.0, 0.4),
                f"{role}/trained": float(rng.integers(10, 80)),
                f"{role}/entropy": 1.2 - 0.6 * done + rng.normal(0.0, 0.05),
                f"{role}/engine_gap": 10 ** rng.uniform(-6, -4),
                f"{role}/updates": 4.0,
                f"{role}/skipped_updates": 0.0,
            }
        if step % 2 == 0:
            values["validation/outcome"] = 0.50 + 0.06 * done + rng.normal(0.0, 0.002)
        run.append((step, values))
    return run


def setting(**changes: float) -> Sicken:
    """Sets metrics, `__` for a slash, those of the role unless they begin with `team` or `validation`."""

    def sicken(values: dict[str, float], role: str, since: int) -> None:
        for name, value in changes.items():
            path = name.replace("__", "/")
            values[path if path.startswith(("team/", "validation/")) else f"{role}/{path}"] = value

    return sicken


def silent(values: dict[str, float], role: str, since: int) -> None:
    values[f"{role}/trained"] = 0.0
    del values[f"{role}/entropy"]


def falls(values: dict[str, float], role: str, since: int) -> None:
    if "validation/outcome" in values:
        values["validation/outcome"] = 0.47 - 0.001 * since


SICKNESS: dict[str, Sicken] = {
    "most answers invalid": setting(valid=0.4),
    "terminal collapse": setting(valid=0.0, degenerate_share=1.0),
    "every update skipped": setting(skipped_updates=4.0, updates=0.0),
    "collapse to hold": setting(team__hold_share=1.0),
    "role is silent": silent,
    "unlearns the warm start": falls,
    "entropy collapse": setting(entropy=0.001),
    "engine gap": setting(engine_gap=0.4),
}
ALL = RunSettings()


def sick(rule: Rule, role: str, seed: int, onset: int) -> Run:
    run = healthy(seed)
    for step, values in run:
        if step >= onset and step > 0:
            SICKNESS[rule.name](values, role, step - onset)
    return run


@MORE
@given(SEEDS)
def test_a_healthy_training_has_no_finding(seed: int) -> None:
    run = healthy(seed)
    assert diagnose(History(run)) == []


def test_every_rule_is_judged_and_has_its_sickness() -> None:
    assert set(SICKNESS) == set(BY_NAME)
    assert len(BY_NAME) == len(RULES) == 8
    assert all(missing_points(History(healthy(0)), rule) == {} for rule in RULES)


@pytest.mark.parametrize("name", SICKNESS)
@FEW
@given(data=st.data(), seed=SEEDS)
def test_a_rule_finds_its_sickness(name: str, data: st.DataObject, seed: int) -> None:
    rule = BY_NAME[name]
    role = data.draw(st.sampled_from(rule.judged(ALL)))
    onset = data.draw(st.integers(STAGE_2, STEPS - 14))
    run = sick(rule, role, seed, onset)
    found = diagnose(History(run), [rule])
    assert [one.role for one in found] == [role]
    assert found[0].severity == rule.severity
    assert onset < found[0].step <= found[0].until <= STEPS
    assert math.isfinite(found[0].value)


@MORE
@given(seed=SEEDS)
def test_absent_and_nan_metrics_are_no_points(seed: int) -> None:
    rng = np.random.default_rng(seed)
    run = healthy(seed)
    for _, values in run:
        for name in list(values):
            if name not in ("stage",) and not name.endswith("/trained") and rng.random() < 0.3:
                values[name] = math.nan
    assert diagnose(History(run)) == []


def test_every_rule_is_in_the_documentation() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "concepts" / "diagnostics.md").read_text(encoding="utf-8")
    for rule in RULES:
        assert f"| **{rule.name}**{', fatal' * (rule.severity == 'fatal')}" in text, rule.name


@MORE
@given(st.lists(st.booleans(), max_size=40), st.integers(1, 6))
def test_sustained_is_a_run_of_its_length(marks: list[bool], length: int) -> None:
    rows = [(step, (float(mark),)) for step, mark in enumerate(marks)]
    found = [step for step, _ in sustained(rows, length, lambda row: row[0] > 0.0)]
    assert found == [end for end in range(len(marks)) if end + 1 >= length and all(marks[end + 1 - length : end + 1])]


def test_fatal_findings_come_first() -> None:
    run = healthy(1)
    for step, values in run:
        if step >= 12:
            SICKNESS["engine gap"](values, "trader", 0)
        if step >= 30:
            SICKNESS["terminal collapse"](values, "trader", 0)
    assert [one.severity for one in diagnose(History(run))][:2] == ["fatal", "warning"]


def test_stage_1_is_no_collapse_to_hold() -> None:
    run = healthy(2)
    for step, values in run:
        if 0 < step < STAGE_2:
            values |= {"team/hold_share": 1.0, "manager/trained": 0.0}
    assert diagnose(History(run)) == []


def test_a_role_that_is_seldom_asked_has_not_collapsed() -> None:
    run = healthy(5)
    for step, values in run:
        if step > 0:
            values |= {"trader/valid": 0.0, "trader/degenerate_share": 1.0, "trader/calls": 0.05}
    assert "terminal collapse" not in {one.rule for one in diagnose(History(run))}


# -- the run's own settings -----------------------------------------------------------------------------------------


def settings_of(**training: object) -> RunSettings:
    return RunSettings.of(small_config(**training).to_dict())


def test_a_role_that_the_run_freezes_is_not_silent() -> None:
    run = healthy(7)
    for _, values in run:
        for role in ("risk_analyst", "trader"):
            values[f"{role}/trained"] = 0.0
    assert {(one.rule, one.role) for one in diagnose(History(run))} == {
        ("role is silent", "risk_analyst"),
        ("role is silent", "trader"),
    }
    frozen = settings_of(freeze=["risk_analyst", "trader"], gate_format=0.9)
    assert diagnose(History(run, frozen)) == []
    assert missing_points(History(run[:3], frozen), BY_NAME["role is silent"]).keys() == {"manager", "market_analyst"}
    for _, values in run:
        values["trader/valid"] = 0.1
    assert [(one.rule, one.role) for one in diagnose(History(run, frozen))] == [("most answers invalid", "trader")]


def test_a_role_that_the_team_leaves_out_is_not_silent() -> None:
    run = [(step, {name: value for name, value in values.items() if "risk" not in name}) for step, values in healthy(8)]
    assert {one.role for one in diagnose(History(run))} == {"risk_analyst"}
    assert diagnose(History(run, RunSettings.of({"team": {"roles": ["market_analyst", "trader"]}}))) == []


@pytest.mark.parametrize(("gate", "found"), [(0.97, True), (0.5, True), (0.3, False)])
def test_valid_answers_are_held_to_the_runs_own_gate(gate: float, found: bool) -> None:
    run = [(step, {"trader/valid": 0.4}) for step in range(1, 9)]
    assert bool(diagnose(History(run, settings_of(gate_format=gate)), [BY_NAME["most answers invalid"]])) is found


# -- a whole run ----------------------------------------------------------------------------------------------------


def test_without_a_training_step_there_is_nothing_to_examine() -> None:
    with pytest.raises(UserError, match="no metrics of a training step"):
        examine("r", {0: {"validation/outcome": 0.5}}, {})


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
        store.set_document(RunRecord(RUN, "train", 1, small_market().content_hash, 1_700_000_000_000, document))
        yield store, folder


def test_a_ruined_training_is_found_out(ruined: tuple[Store, Path]) -> None:
    store, _ = ruined
    found = examine_run(store, RUN)
    assert any(one.rule == "terminal collapse" and one.severity == "fatal" for one in found.findings)
    lost = [one.role for one in found.findings if one.rule == "terminal collapse"]
    assert all(found.failures[role] for role in lost)


def program() -> typer.Typer:
    app = typer.Typer()
    app.command()(doctor)
    return app


def shown_for(store: Path, run: str, *options: str) -> str:
    """What the command prints."""
    with console.capture() as captured:
        CliRunner().invoke(program(), [run, "--store", str(store), *options], catch_exceptions=False)
    return " ".join(captured.get().split())


def written(folder: Path, steps: int, metrics: dict[str, float]) -> Path:
    """A store with a run of so many equal steps."""
    with Store.open(folder / "store") as store:
        store.add_run(RunRecord(RUN, "train", 1, "", 1_700_000_000_000, {"config": small_config().to_dict()}))
        for step in range(1, steps + 1):
            store.add_metrics(RUN, step, {"stage": 2.0, **metrics})
    return folder / "store"


def test_the_command_shows_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_width", 200)
    lost = {"manager/valid": 0.0, "manager/degenerate_share": 1.0, "manager/calls": 1.0}
    shown = shown_for(written(tmp_path, 5, lost), f"runs/{RUN}")
    assert "fatal: terminal collapse, manager" in shown and "not judged yet" in shown


@pytest.mark.parametrize("steps", [1, 9])
def test_the_command_never_calls_a_short_run_healthy(steps: int, tmp_path: Path) -> None:
    store = written(tmp_path, steps, {"team/hold_share": 0.5, "trader/valid": 1.0, "trader/trained": 9.0})
    shown = shown_for(store, RUN)
    assert "too short to judge" in shown and "none of the known failures" not in shown


def test_an_unknown_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no run 'nowhere'"):
        shown_for(tmp_path / "store", "nowhere")
