"""What a role remembers from step to step, and what of its settings is its own."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers import Qwen3ForCausalLM

from backend.config.schema import Config
from backend.config.training import TrainingConfig
from backend.policies.build import role_policies
from backend.policies.role_policies import RolePolicies
from backend.processes import Workers
from backend.training.algorithm.alignment import target_count
from backend.training.algorithm.credit import RoleCredit, TrajectoryCredit
from backend.training.algorithm.rewards import Outcome, RewardParts, sub_reward
from backend.training.algorithm.trajectory import Trajectory, failure_kind
from backend.training.learning import helper_gradients as module
from backend.training.learning.helper_gradients import HelperGradients
from backend.training.learning.learner import MAX_SKIPPED, Learner, LearnerState, StepData
from backend.training.learning.role_trainer import RoleTrainer
from backend.training.learning.training_metrics import conversation_metrics, credit_metrics, practice_metrics
from backend.training.rollout.shared_shards import TrainingPlace
from tests.copying_helper import CopyingHelper
from tests.small_world import small_config
from tests.standard_settings import trainer_settings

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


SPEAKER = "trader"
BETA = (0.1, 0.4, 0.5)
PARTS = st.tuples(st.booleans(), st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0))


def said(rollout: int = 0, query: str = "0-0", length: int = 3, reason: str | None = None, **more: Any) -> Trajectory:
    mask = np.arange(length + 1) > 0
    logps = np.where(mask, np.float32(-1.0), np.float32(0.0))
    fields: dict[str, Any] = {"truncated": reason is not None and reason.startswith("cut_off"), **more}
    return Trajectory(
        SPEAKER, query, rollout, 0, np.ones(length + 1, np.int32), mask, logps, "v", reason is None, 1.0, None,
        failure=failure_kind(reason), **fields,
    )  # fmt: skip


@given(
    spoken=st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(1, 9),
            st.sampled_from([None, "bad_json: at 3", "bad_json: at 4", "cut_off: no end", "no_answer"]),
        ),
        min_size=1,
    )
)
def test_kinds_of_failure_and_validity_are_shares_of_all_conversations(
    spoken: list[tuple[int, int, str | None]],
) -> None:
    calls = [said(rollout, length=length, reason=reason) for rollout, length, reason in spoken]
    found = conversation_metrics(SPEAKER, calls, 4)
    failed = {name.rpartition("/")[2]: share for name, share in found.items() if "/failed/" in name}
    assert failed.keys() == {reason.partition(":")[0] for _, _, reason in spoken if reason is not None}
    assert sum(failed.values()) + found[f"{SPEAKER}/valid"] == pytest.approx(1.0)
    assert failed.get("cut_off", 0.0) == found[f"{SPEAKER}/truncated"]
    assert found[f"{SPEAKER}/length"] == pytest.approx(np.mean([length for _, length, _ in spoken]))
    assert found[f"{SPEAKER}/calls/max"] == max(Counter(rollout for rollout, _, _ in spoken).values())
    assert found[f"{SPEAKER}/calls"] == len(spoken) / 4


def test_practice_is_counted_apart_from_the_calls_of_the_team() -> None:
    """Of a sub-agent that the manager never asks nothing else says whether its answers are valid."""
    spoken, practice = [said(), said(reason="cut_off: no end")], [said(reason="bad_json: at 3")] * 3 + [said()]
    assert practice_metrics(SPEAKER, spoken, [*practice, *spoken]) == {f"{SPEAKER}/practice/valid": 0.25}
    assert practice_metrics(SPEAKER, [], practice) == {f"{SPEAKER}/practice/valid": 0.25}
    assert practice_metrics(SPEAKER, spoken, spoken) == practice_metrics(SPEAKER, [], []) == {}


@given(parts=st.lists(PARTS, min_size=1))
def test_shares_of_the_reward_are_what_valid_answers_are_paid_for(
    parts: list[tuple[bool, float, float, float]],
) -> None:
    items = []
    for valid, form, outcome, expert in parts:
        reward = sub_reward(valid, form, outcome, expert, BETA)
        items.append(TrajectoryCredit(said(), RewardParts(valid, form, outcome, expert), reward, 1.0, 0.0))
    found = credit_metrics(SPEAKER, RoleCredit(items, 1, 0), BETA)
    shares = [found.get(f"{SPEAKER}/reward/{name}_share") for name in ("format", "outcome", "expert")]
    paid = sum(item.reward or 0.0 for item in items)
    assume(paid == 0.0 or paid > 1e-9)
    if paid == 0.0:
        assert shares == [None] * 3
        return
    assert None not in shares and sum(share or 0.0 for share in shares) == pytest.approx(1.0)
    valid_ones = [one for one in parts if one[0]]
    for share, weight, column in zip(shares, BETA, (1, 2, 3), strict=True):
        assert share == pytest.approx(weight * sum(one[column] for one in valid_ones) / paid)
    assert found[f"{SPEAKER}/outcome/mean"] == pytest.approx(np.mean([one[2] for one in valid_ones]))


def test_nothing_is_told_of_a_role_that_was_not_paid() -> None:
    unscored = TrajectoryCredit(said(), RewardParts(True, 1.0, 1.0), None, 0.0, 0.0)
    assert credit_metrics(SPEAKER, RoleCredit([unscored]), BETA) == {f"{SPEAKER}/unscored": 1.0}
    assert conversation_metrics(SPEAKER, [], 4) == {}


ROLES = ("manager", "trader")
# Several updates of several micro-batches, with log-probs that are remembered, an anchor and an entropy bonus.
SETTINGS = trainer_settings(
    learning_rate=2e-3, warmup_steps=1, minibatches=2, kl=0.1, entropy=0.01, micro_batch_tokens=64
)


def policies_of(nano: Path) -> RolePolicies:
    return role_policies(nano, TrainingConfig(lora_rank=2, kl=0.1), roles=ROLES)[0]


def steps(trainer: RoleTrainer, make: Make) -> list[dict[str, float]]:
    batch = [make(i, prompt=3 + 2 * i, answer=1 + i % 5) for i in range(12)]
    return [trainer.step(batch, [math.sin(i) for i in range(12)], [0.25] * 12) for _ in range(2)]


@pytest.mark.parametrize("frozen", [("trader",), ()], ids=["one learns", "both learn"])
def test_shared_micro_batches_change_no_bit(
    frozen: tuple[str, ...], nano: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, together, there = (policies_of(nano) for _ in range(3))
    monkeypatch.setattr(module, "helpers_parts", lambda place: SimpleNamespace(parts=SimpleNamespace(policies=there)))
    expected = steps(RoleTrainer(alone, "manager", SETTINGS), make)
    helper = CopyingHelper()
    pool = HelperGradients(Workers([helper]), TrainingPlace(Config(), nano, None))
    trainer = RoleTrainer(together, "manager", SETTINGS, pool)

    def learn(role: str) -> list[dict[str, float]]:
        return steps(trainer, make) if role == "manager" else []

    found = pool.side_by_side(learn, ROLES, frozen)
    assert found == [expected, []]
    for name, value in alone.role_state("manager").items():
        assert torch.equal(together.role_state("manager")[name], value), name
    if frozen:
        assert helper.tasks > 4, "the helper had its part of the micro-batches"


def test_nothing_is_shared_once_the_roles_have_learned(nano: Path, make: Make) -> None:
    helper = CopyingHelper()
    pool = HelperGradients(Workers([helper]), TrainingPlace(Config(), nano, None))
    pool.side_by_side(lambda role: role, ROLES, ("trader",))
    steps(RoleTrainer(policies_of(nano), "manager", SETTINGS, pool), make)
    assert helper.tasks == 0
