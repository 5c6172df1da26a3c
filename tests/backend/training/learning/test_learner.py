"""What a role remembers from step to step, and what of its settings is its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen3ForCausalLM

from backend.config.experimental import RoleSettings
from backend.config.training import TrainingConfig
from backend.policies.role_policies import RolePolicies
from backend.training.algorithm.alignment import target_count
from backend.training.algorithm.exploration import next_entropy_weight
from backend.training.algorithm.rewards import Outcome
from backend.training.algorithm.trajectory import Trajectory
from backend.training.curriculum.curriculum import curriculum_of
from backend.training.learning.learner import Learner, LearnerState, role_settings
from backend.training.learning.step_data import StepData
from cryptosentinel.agents.registry import ROLES
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
    resampled_from: int | None = None


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


@pytest.mark.parametrize("window", [1, 2, 3])
def test_d_is_measured_over_the_last_steps_also_after_a_resume(
    window: int, learn: Callable[..., Learner], make: Make
) -> None:
    counts = [[0, 1, 5, 1], [2, 2, 2, 2], [0, 0, 0, 0], [1, 1, 1, 1], [3, 1, 1, 0]]
    learner = learn(alignment="duplicate_drop", alignment_window=window)
    for step, calls in enumerate(counts):
        found = learner.train(step, step_data(learner, make, calls)).metrics[f"{ROLE}/alignment/target"]
        recent = [count for earlier in counts[max(0, step - window + 1) : step + 1] for count in earlier]
        assert found == target_count({count: recent.count(count) for count in set(recent)})
        resumed = learn(alignment="duplicate_drop", alignment_window=window)
        resumed.restore(LearnerState.from_dict(json.loads(json.dumps(learner.state.to_dict()))), None)
        assert resumed.state == learner.state
        learner = resumed


def test_d_of_a_role_can_be_fixed(learn: Callable[..., Learner], make: Make) -> None:
    learner = learn(alignment="duplicate_drop", per_role={ROLE: {"alignment_target": 3}})
    learnt = learner.train(0, step_data(learner, make, [1, 5, 0, 2]))
    assert learnt.metrics[f"{ROLE}/alignment/target"] == 3.0
    assert learnt.credit is not None
    weights: dict[int, float] = {}
    for item in learnt.credit.items:
        weights[item.trajectory.rollout] = weights.get(item.trajectory.rollout, 0.0) + 3 * 3 * item.weight
    assert weights == pytest.approx({0: 3.0, 1: 3.0, 3: 3.0}), "each of the three callers stands with three calls"


@given(state=st.builds(
    LearnerState, st.integers(0, 99), st.integers(0, 99), st.integers(0, 99),
    st.lists(st.dictionaries(st.integers(0, 9), st.integers(0, 9))), st.none() | st.floats(1e-6, 1.0),
))  # fmt: skip
def test_what_is_remembered_comes_back_from_json(state: LearnerState) -> None:
    assert LearnerState.from_dict(json.loads(json.dumps(state.to_dict()))) == state


def test_weights_and_rate_follow_the_steps_of_stage_2(learn: Callable[..., Learner], make: Make) -> None:
    learner = learn(
        stage2_steps=3, beta=[0.2, 0.2, 0.6], beta_end=[0.2, 0.8, 0.0], schedule="linear", minibatches=1, warmup_steps=0
    )
    paid, rates = [], []
    # One of the two answers is invalid, so that there is something to learn.
    for step, (number, expert) in enumerate([(1, 0.5), (1, 0.5), (2, 0.5), (2, 0.5), (2, 0.5)]):
        learnt = learner.train(step, step_data(learner, make, [1, 1], number, expert, spoilt=True))
        assert learnt.credit is not None
        paid.append(learnt.credit.items[1].reward)
        rates.append(learnt.metrics[f"{ROLE}/lr"])
    # Stage 1: 0.2 + 0.8 expert. Stage 2: from 0.2 + 0.2 outcome + 0.6 expert to 0.2 + 0.8 outcome.
    assert paid == pytest.approx([0.6, 0.6, 0.66, 0.2 + 0.5 * 0.8 + 0.3 * 0.5, 0.84])
    assert [rate / rates[0] for rate in rates] == pytest.approx([1.0, 1.0, 1.0, 2 / 3, 1 / 3])


def test_silence_is_counted_until_the_role_speaks(learn: Callable[..., Learner], make: Make) -> None:
    learner = learn()
    told = [
        learner.train(step, step_data(learner, make, calls)).metrics[f"{ROLE}/silent_steps"]
        for step, calls in enumerate([[0, 0], [0, 0], [0, 1], [0, 0]])
    ]
    assert told == [1.0, 2.0, 0.0, 1.0]


def test_only_steps_in_a_row_without_a_finite_update_end_a_run(learn: Callable[..., Learner]) -> None:
    learner, never = learn(max_skipped=3), learn(max_skipped=0)
    for updates, skipped, ended in [(0, 2, False), (0, 2, False), (1, 1, False), (0, 4, False), (0, 0, False),
                                    (0, 4, False), (0, 1, True), (0, 0, True), (4, 0, False)]:  # fmt: skip
        metrics = {f"{ROLE}/updates": float(updates), f"{ROLE}/skipped_updates": float(skipped)}
        learner.count_skipped(metrics)
        never.count_skipped(metrics)
        assert (learner.failure() is not None) is ended and never.failure() is None
    learner.restore(LearnerState(skipped_steps=3), None)
    assert f"training.learning_rate.{ROLE}" in str(learner.failure())


def test_the_weight_of_the_entropy_follows_its_target_also_after_a_resume(
    learn: Callable[..., Learner], make: Make
) -> None:
    settings = {"entropy": 0.01, "entropy_target": 1.0, "minibatches": 1}
    learner = learn(**settings)
    want = 0.01
    for step in range(4):
        metrics = learner.train(step, step_data(learner, make, [1, 2])).metrics
        assert metrics[f"{ROLE}/entropy_weight"] == pytest.approx(want)
        assert learner.trainer.settings.entropy == pytest.approx(want), "of the updates that were just made"
        want = next_entropy_weight(want, metrics[f"{ROLE}/entropy"], 1.0, 0.01)
        assert learner.state.entropy_weight == pytest.approx(want) != pytest.approx(0.01)
        if step % 2:
            learner.restart()
        else:
            resumed = learn(**settings)
            resumed.restore(LearnerState.from_dict(json.loads(json.dumps(learner.state.to_dict()))), None)
            learner = resumed


def test_without_a_target_the_weight_of_the_entropy_stays(learn: Callable[..., Learner], make: Make) -> None:
    learner = learn(entropy=0.01)
    for step in range(2):
        assert f"{ROLE}/entropy_weight" not in learner.train(step, step_data(learner, make, [1, 2])).metrics
    assert learner.trainer.settings.entropy == 0.01 and learner.state.entropy_weight is None


OWN: Mapping[str, Any] = {
    "clip_low": 0.3, "clip_high": 0.5, "kl": 0.7, "entropy": 0.01, "entropy_target": 0.3, "beta": (0.2, 0.3, 0.5),
    "beta_end": (0.1, 0.8, 0.1), "alignment_target": 4,
}  # fmt: skip


def test_what_a_role_has_of_its_own_is_no_other_roles() -> None:
    assert OWN.keys() == {key for key in RoleSettings.model_fields if not key.startswith("lora_")}
    common = config(alignment="duplicate_drop")
    for role in ("risk_analyst", "manager"):
        own = {key: value for key, value in OWN.items() if role != "manager" or not key.startswith(("beta", "align"))}
        mine = config(alignment="duplicate_drop", per_role={role: own})
        for other in ROLES:
            seen = mine.of_role(other)
            if other == role:
                deeper = seen.experimental.model_dump()
                assert {key: deeper[key] if key in deeper else getattr(seen, key) for key in own} == own
                trained = role_settings(seen, role)
                assert (trained.clip_low, trained.clip_high, trained.kl, trained.entropy) == (
                    0.3,
                    0.5,
                    0.7,
                    0.01,
                )
                assert curriculum_of(seen).stage(2).beta == seen.beta
            else:
                assert seen == common.of_role(other) == common
                assert role_settings(seen, other) == role_settings(common, other)
