"""What a role remembers from step to step, and what of its settings is its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from transformers import Qwen3ForCausalLM

from backend.config.training import TrainingConfig
from backend.policies.role_policies import RolePolicies
from backend.training.algorithm.alignment import target_count
from backend.training.algorithm.rewards import Outcome
from backend.training.algorithm.trajectory import Trajectory
from backend.training.learning.learner import MAX_SKIPPED, Learner, LearnerState, StepData
from tests.small_world import small_config

Make = Callable[..., Trajectory]
OUTCOME = Outcome(0.8, 0.0, 0.0, 0.0, 0.0)
ROLE = "market_analyst"


@dataclass(frozen=True)
class Attempt:
    """A rollout of a team, whose manager said `main`."""

    main: Trajectory
    subs: tuple[Trajectory, ...]
    outcome: Outcome = OUTCOME
    shared_outcome: float = OUTCOME.score


def config(**training: Any) -> TrainingConfig:
    return small_config(**training).training


def step_data(
    learner: Learner, make: Make, calls: list[int], number: int = 2, expert: float = 0.3, spoilt: bool = False
) -> StepData:
    """One query whose rollouts called the role so often, answered with this expert score; where it is `spoilt`, the
    first rollout's answers are invalid."""
    said = make(1, role=ROLE, expert=expert)
    group = [
        Attempt(
            make(k, rollout=k),
            tuple(replace(said, rollout=k, ordinal=i, valid=k > 0 or not spoilt) for i in range(count)),
        )
        for k, count in enumerate(calls)
    ]
    return StepData(learner.curriculum.stage(number), [group], [group])


@pytest.fixture
def learn(tiny: Qwen3ForCausalLM, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Learner]:
    """A learner of `ROLE` with these settings of the training."""

    def build(**training: Any) -> Learner:
        return Learner(config(**training), RolePolicies(tiny, [ROLE]), ROLE)

    return build


def test_d_is_measured_in_each_step(learn: Callable[..., Learner], make: Make) -> None:
    learner = learn(alignment="duplicate_drop")
    for step, calls in enumerate([[0, 1, 5, 1], [2, 2, 2, 2], [0, 0, 0, 0], [1, 1, 1, 1], [3, 1, 1, 0]]):
        found = learner.train(step, step_data(learner, make, calls)).metrics[f"{ROLE}/alignment/target"]
        assert found == target_count({count: calls.count(count) for count in set(calls)})


def test_the_rate_follows_the_steps_of_stage_2(learn: Callable[..., Learner], make: Make) -> None:
    learner = learn(stage2_steps=3, beta=[0.2, 0.2, 0.6], lr_end=0.0, minibatches=1, warmup_steps=0)
    paid, rates = [], []
    # One of the two answers is invalid, so that there is something to learn.
    for step, (number, expert) in enumerate([(1, 0.5), (1, 0.5), (2, 0.5), (2, 0.5), (2, 0.5)]):
        learnt = learner.train(step, step_data(learner, make, [1, 1], number, expert, spoilt=True))
        assert learnt.credit is not None
        paid.append(learnt.credit.items[1].reward)
        rates.append(learnt.metrics[f"{ROLE}/lr"])
    # Stage 1: 0.2 + 0.8 expert. Stage 2: 0.2 + 0.2 outcome + 0.6 expert.
    assert paid == pytest.approx([0.6, 0.6, 0.66, 0.66, 0.66])
    assert [rate / rates[0] for rate in rates] == pytest.approx([1.0, 1.0, 1.0, 2 / 3, 1 / 3])


def test_stage_2_pays_the_manager_for_the_outcome(tiny: Qwen3ForCausalLM, make: Make) -> None:
    """Two rollouts whose managers both keep the format: in stage 2 the better outcome is praised, in stage 1 there is
    nothing between them."""
    learner = Learner(config(gate_format=1.0), RolePolicies(tiny, ["manager"]), "manager")
    group = [
        Attempt(make(k, rollout=k), (), outcome=Outcome(score, 0.0, 0.0, 0.0, 0.0), shared_outcome=score)
        for k, score in enumerate([0.9, 0.1])
    ]
    spoilt = Attempt(replace(make(2, rollout=2), valid=False, format_score=0.0), ())
    for number, wanted in ((1, [1.0, 1.0, 0.0]), (2, [0.1 + 0.9 * 0.9, 0.1 + 0.9 * 0.1, 0.0])):
        rolled = [*group, spoilt]
        learnt = learner.train(number, StepData(learner.curriculum.stage(number), [rolled], [rolled]))
        assert learnt.credit is not None
        assert [item.reward for item in learnt.credit.items] == pytest.approx(wanted)
        good, bad, _ = (item.advantage for item in learnt.credit.items)
        assert good > bad if number == 2 else good == bad


def test_silence_is_counted_until_the_role_speaks(learn: Callable[..., Learner], make: Make) -> None:
    learner = learn()
    told = [
        learner.train(step, step_data(learner, make, calls)).metrics[f"{ROLE}/silent_steps"]
        for step, calls in enumerate([[0, 0], [0, 0], [0, 1], [0, 0]])
    ]
    assert told == [1.0, 2.0, 0.0, 1.0]


def test_only_steps_in_a_row_without_a_finite_update_end_a_run(learn: Callable[..., Learner]) -> None:
    learner = learn()
    for updates, skipped, ended in [*[(0, 2, False)] * (MAX_SKIPPED - 1), (1, 1, False), *[(0, 4, False)] * 2,
                                    (0, 0, False), *[(0, 4, False)] * (MAX_SKIPPED - 3), (0, 1, True), (0, 0, True),
                                    (4, 0, False)]:  # fmt: skip
        metrics = {f"{ROLE}/updates": float(updates), f"{ROLE}/skipped_updates": float(skipped)}
        learner.count_skipped(metrics)
        assert (learner.failure() is not None) is ended
    learner.state = LearnerState(skipped_steps=MAX_SKIPPED)
    assert f"training.learning_rate.{ROLE}" in str(learner.failure())
