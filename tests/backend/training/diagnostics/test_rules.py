"""Every rule of the doctor both ways: silent on trainings that go well, speaking on those with its sickness."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.training.diagnostics import rules
from backend.training.diagnostics.catalogue import RULES
from backend.training.diagnostics.rules import History, Rule, can_judge, diagnose, missing_points, sustained
from cryptosentinel.agents.registry import ROLES

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
            "team/exposure": rng.uniform(0.3, 0.6),
            "team/net_exposure": rng.uniform(-0.2, 0.2),
            "team/market_move": rng.normal(0.0, 0.3),
            "team/timing": rng.normal(0.25, 0.1),
        }
        for role in ROLES:
            values |= {
                f"{role}/valid": rng.uniform(0.975, 1.0),
                f"{role}/calls": rng.uniform(0.5, 2.0),
                f"{role}/degenerate_share": rng.uniform(0.0, 0.4),
                f"{role}/reward/mean": 0.5 + 0.1 * done + rng.normal(0.0, 0.01),
                f"{role}/reward/format_share": rng.uniform(0.1, 0.2),
                f"{role}/reward/validity_share": rng.uniform(0.0, 0.3),
                f"{role}/trained": float(rng.integers(10, 80)),
                f"{role}/entropy": 1.2 - 0.6 * done + rng.normal(0.0, 0.05),
                f"{role}/kl": rng.uniform(0.0, 0.1),
                f"{role}/clip_share": rng.uniform(0.0, 0.15),
                f"{role}/ratio/max": rng.uniform(1.1, 4.0),
                f"{role}/grad_norm": float(rng.lognormal(0.0, 0.4)),
                f"{role}/gradient_mass": rng.uniform(0.1, 0.5),
                f"{role}/engine_gap": 10 ** rng.uniform(-6, -4),
                f"{role}/importance/cut_share": rng.uniform(0.0, 0.01),
                f"{role}/updates": 4.0,
                f"{role}/skipped_updates": 0.0,
                f"{role}/stale": 0.0,
                f"{role}/truncated": rng.uniform(0.0, 0.1),
            }
            if role != "manager":
                values[f"{role}/expert/mean"] = 0.45 + 0.15 * done + rng.normal(0.0, 0.01)
                values[f"{role}/calls/efficiency"] = rng.uniform(0.7, 1.0)
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


def overfit(values: dict[str, float], role: str, since: int) -> None:
    values["team/outcome"] = 0.60 + 0.002 * since
    if "validation/outcome" in values:
        values["validation/outcome"] = 0.502 - 0.0005 * since


def stagnant(values: dict[str, float], role: str, since: int) -> None:
    values[f"{role}/expert/mean"] = 0.45 + 0.01 * math.sin(5.0 * since)


def format_alone(values: dict[str, float], role: str, since: int) -> None:
    values[f"{role}/valid"] = 0.8 + 0.15 * min(1.0, since / 25)
    values[f"{role}/reward/mean"] = 0.4 + 0.15 * min(1.0, since / 25)
    values["team/outcome" if role == "manager" else f"{role}/expert/mean"] = 0.5


def spike(values: dict[str, float], role: str, since: int) -> None:
    values[f"{role}/grad_norm"] *= 100.0 if since == 9 else 1.0


SICKNESS: dict[str, Sicken] = {
    "most answers invalid": setting(valid=0.4),
    "terminal collapse": setting(valid=0.0, degenerate_share=1.0),
    "every update skipped": setting(skipped_updates=4.0, updates=0.0),
    "engine runs other weights": setting(importance__cut_share=0.8),
    "collapse to hold": setting(team__hold_share=1.0),
    "copies the drift": setting(team__net_exposure=0.9, team__exposure=0.95, team__market_move=0.2, team__timing=0.02),
    "learns the format only": format_alone,
    "validity decides the rewards": setting(reward__validity_share=0.8, valid=0.9),
    "format weight too low": setting(reward__format_share=0.05, valid=0.9),
    "sub-agent is not learning": stagnant,
    "role is silent": silent,
    "groups without spread": setting(degenerate_share=0.95),
    "alignment variance": setting(calls__efficiency=0.3),
    "unlearns the warm start": falls,
    "overfits the training windows": overfit,
    "entropy collapse": setting(entropy=0.001),
    "clip share too high": setting(clip_share=0.6),
    "ratio tail": setting(ratio__max=300.0),
    "far from the warm start": setting(kl=2.0),
    "gradient explosion": spike,
    "update skipped": setting(skipped_updates=1.0),
    "engine gap": setting(engine_gap=0.4),
    "stale rollouts": setting(stale=0.9),
    "answers cut off": setting(truncated=0.5),
    "lopsided gradients": setting(gradient_mass=0.97),
}
WHOLE_RUN = ("sub-agent is not learning", "learns the format only")  # can_judge by first and last third


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
    assert diagnose(History(run), RULES) == []


def test_every_rule_is_judged_and_has_its_sickness() -> None:
    assert set(SICKNESS) == set(BY_NAME)
    assert len(BY_NAME) == len(RULES)
    assert all(can_judge(History(healthy(0)), rule) for rule in RULES)


@pytest.mark.parametrize("name", SICKNESS)
@FEW
@given(data=st.data(), seed=SEEDS)
def test_a_rule_finds_its_sickness(name: str, data: st.DataObject, seed: int) -> None:
    rule = BY_NAME[name]
    role = data.draw(st.sampled_from(rule.roles()))
    onset = 0 if name in WHOLE_RUN else data.draw(st.integers(STAGE_2, STEPS - 14))
    run = sick(rule, role, seed, onset)
    found = diagnose(History(run), [rule])
    assert [one.role for one in found] == [role]
    assert found[0].severity == rule.severity
    assert onset < found[0].step <= found[0].until <= STEPS or name == "update skipped"
    assert rule.condition in found[0].sentence()
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
    assert diagnose(History(run), RULES) == []
    assert all(not can_judge(History([(1, {"stage": 1.0})]), rule) for rule in RULES if rule.needs)


@pytest.mark.parametrize("name", SICKNESS)
@FEW
@given(data=st.data(), seed=SEEDS, length=st.integers(0, STEPS))
def test_a_rule_speaks_on_no_fewer_points_than_it_says(name: str, data: st.DataObject, seed: int, length: int) -> None:
    """So silence counts as a judgement exactly where the rule could have spoken."""
    rule = BY_NAME[name]
    role = data.draw(st.sampled_from(rule.roles()))
    history = History(sick(rule, role, seed, 0)[: length + 1])
    if any(one.role == role for one in diagnose(history, [rule])):
        assert role not in missing_points(history, rule)
    assert missing_points(History(healthy(seed)), rule) == {}


@pytest.mark.parametrize("name", ["terminal collapse", "collapse to hold", "unlearns the warm start"])
def test_a_rule_can_speak_on_the_points_that_it_says(name: str) -> None:
    rule = BY_NAME[name]
    role = rule.roles()[0]
    run = sick(rule, role, 3, STAGE_2)
    spoke = next(end for end in range(len(run)) if diagnose(History(run[:end]), [rule]))
    assert missing_points(History([run[0], *run[STAGE_2:spoke]]), rule) == {}
    assert role in missing_points(History([run[0], *run[STAGE_2 : spoke - 1]]), rule)


@pytest.mark.parametrize("steps", [1, 2, 7, 30])
@pytest.mark.parametrize("name", ["valid", "practice/valid"])
@pytest.mark.parametrize("role", ROLES)
def test_a_role_that_is_mostly_invalid_is_named_after_any_number_of_steps(role: str, name: str, steps: int) -> None:
    found = diagnose(History([(step, {f"{role}/{name}": 0.49}) for step in range(1, steps + 1)]), RULES)
    assert ("most answers invalid", role) in [(one.rule, one.role) for one in found]
    recovered = [(step, {f"{role}/{name}": 0.2 if step <= steps // 2 else 0.99}) for step in range(1, steps + 1)]
    assert diagnose(History(recovered), [BY_NAME["most answers invalid"]]) == []


def test_every_rule_is_in_the_documentation() -> None:
    text = (Path(__file__).resolve().parents[4] / "docs" / "diagnostics.md").read_text(encoding="utf-8")
    for rule in RULES:
        assert f"| **{rule.name}**{', fatal' * (rule.severity == 'fatal')}" in text, rule.name


def test_an_empty_history_has_no_finding() -> None:
    assert diagnose(History([]), RULES) == []


@MORE
@given(st.lists(st.booleans(), max_size=40), st.integers(1, 6))
def test_sustained_is_a_run_of_its_length(marks: list[bool], length: int) -> None:
    rows = [(step, (float(mark),)) for step, mark in enumerate(marks)]
    found = [hit.step for hit in sustained(rows, length, lambda row: row[0] > 0.0)]
    assert found == [end for end in range(len(marks)) if end + 1 >= length and all(marks[end + 1 - length : end + 1])]


def test_the_gravest_comes_first() -> None:
    run = healthy(1)
    for step, values in run:
        if step >= 12:
            SICKNESS["lopsided gradients"](values, "trader", 0)
            SICKNESS["ratio tail"](values, "trader", 0)
        if step >= 30:
            SICKNESS["terminal collapse"](values, "trader", 0)
    found = [one.severity for one in diagnose(History(run), RULES)]
    assert found == sorted(found, key=["fatal", "warning", "note"].index)
    assert set(found) == {"fatal", "warning", "note"}


def test_stage_1_is_no_collapse_to_hold() -> None:
    run = healthy(2)
    for step, values in run:
        if 0 < step < STAGE_2:
            values |= {"team/hold_share": 1.0, "manager/trained": 0.0}
    assert diagnose(History(run), RULES) == []


def test_a_move_against_the_position_is_no_copying() -> None:
    run = healthy(3)
    for step, values in run:
        if step > 0:
            SICKNESS["copies the drift"](values, "manager", 0)
            values["team/market_move"] = -0.2
    assert diagnose(History(run), RULES) == []
    assert rules.copies_drift(History(run), "manager") == []


def test_a_team_that_takes_both_sides_copies_nothing() -> None:
    run = healthy(4)
    for step, values in run:
        if step > 0:
            SICKNESS["copies the drift"](values, "manager", 0)
            values["team/net_exposure"] = 0.5
    assert diagnose(History(run), RULES) == []


def test_older_weights_by_setting_are_no_engine_gap() -> None:
    run = healthy(6)
    for step, values in run:
        if step > 0:
            SICKNESS["engine gap"](values, "trader", 0)
    assert {one.rule for one in diagnose(History(run), RULES)} == {"engine gap"}
    for _, values in run:
        values["trader/staleness"] = 2.0
    assert diagnose(History(run), RULES) == []


def test_a_role_that_is_seldom_asked_has_not_collapsed() -> None:
    run = healthy(5)
    for step, values in run:
        if step > 0:
            values |= {"trader/valid": 0.0, "trader/degenerate_share": 1.0, "trader/calls": 0.05}
    assert "terminal collapse" not in {one.rule for one in diagnose(History(run), RULES)}
