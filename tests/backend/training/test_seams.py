"""A bandit for a manager and a sub-agent: the real engine samples a token in answer to a fixed prompt, and each role
is paid for tokens of its own arm. Learners, trainer, publisher and engine are those of the product; only the market
and the conversations are left out, so that what every role must learn is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from backend.builders.market import split
from backend.builders.teams import LoadedTeam, model_team
from backend.policies.adapters import InProcess
from backend.policies.role_policies import LoraSettings, RolePolicies
from backend.store.records import RunRecord
from backend.store.store import Store
from backend.training import trainer as trainer_module
from backend.training.algorithm.rewards import Outcome
from backend.training.algorithm.trajectory import Trajectory
from backend.training.checkpoints import TrainingState
from backend.training.components import RolloutBatch, TrainingParts
from backend.training.curriculum.curriculum import StepPlan
from backend.training.curriculum.queries import Query, QueryPool
from backend.training.in_process import LocalLearners, local_learners
from backend.training.learning.batches import MicroBatch
from backend.training.learning.learner import Learner, StepData
from backend.training.learning.role_trainer import Batch, PolicyGradient, RoleTrainer
from backend.training.recorder import TrainingRecorder
from backend.training.rollout import sharding
from backend.training.rollout.shared_shards import SharedShards
from backend.training.trainer import Trainer
from backend.training.validation import Validation
from cryptosentinel.agents.registry import ROLES, STANDARD
from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.engine import Engine, Request, Sampling
from cryptosentinel.team import derive_seed
from tests.small_world import (
    HORIZON,
    RUN,
    TRAIN,
    VALIDATION,
    one_process_trainer,
    rollout_settings,
    small_config,
    small_market,
)

TEMPERATURE = 0.6
PROMPTS = ((3, 1, 4), (2, 7, 1, 8))  # one a query
ROLLOUTS = 16
ANSWER = 1  # tokens
# The arm of each role: a token whose id leaves this remainder when divided by two. They are opposite, so that a role
# that learns from another's policy or reward goes the wrong way.
ARMS = {"manager": 0, "trader": 1}
TEAM = tuple(ARMS)


@dataclass(frozen=True)
class BanditRollout:
    """The manager's answer and the trader's, of which there are none, one or two."""

    main: Trajectory
    subs: tuple[Trajectory, ...]
    outcome: Outcome

    @property
    def shared_outcome(self) -> float:
        return self.outcome.score


def hits(role: str, ids: np.ndarray[Any, Any]) -> float:
    """The share of an answer's tokens that are of the role's arm."""
    return float(np.mean(ids[-ANSWER:] % 2 == ARMS[role]))


class BanditRollouts:
    """`RolloutSource` of the bandit. Half of the trader's reward is its own hits and most of the rest the manager's;
    the manager is paid for its own.

    `gaps` has, of each step and role, the largest difference between the log-prob of a token that the engine sampled
    and that of the role's policy as it is at the time.
    """

    def __init__(self, engine: Engine, policies: RolePolicies) -> None:
        self.engine = engine
        self.policies = policies
        self.gaps: list[dict[str, float]] = []
        self.last: StepData | None = None

    def collect(self, plan: StepPlan) -> RolloutBatch:
        """As `RolloutSource.collect`."""
        step, places = plan.step, list(product(range(len(PROMPTS)), range(ROLLOUTS)))
        mains = self._say(step, [("manager", query, number, 0) for query, number in places])
        subs = self._say(
            step, [("trader", query, number, call) for query, number in places for call in range((number + step) % 3)]
        )
        groups = [
            [
                BanditRollout(
                    main,
                    tuple(one for one in subs if (one.query, one.rollout) == (main.query, main.rollout)),
                    Outcome(hits("manager", main.ids), 0.0, 0.0, 0.0, 0.0),
                )
                for main in mains
                if main.query == f"{step}-{query}"
            ]
            for query in range(len(PROMPTS))
        ]
        self.gaps.append({"manager": self._gap("manager", mains), "trader": self._gap("trader", subs)})
        self.last = StepData(plan.stage, groups, groups)
        return RolloutBatch(self.last, {"stage": float(plan.stage.number)}, {})

    def _gap(self, role: str, said: Sequence[Trajectory]) -> float:
        largest = 0.0
        for prompt in PROMPTS:
            answers = [one for one in said if one.ids[: len(prompt)].tolist() == list(prompt)]
            if answers:
                ids = torch.tensor(np.array([one.ids for one in answers]), dtype=torch.int64)
                first = len(prompt)
                logps = policy_logps(self.policies, role, ids)[:, first - 1 : -1].gather(2, ids[:, first:, None])
                sampled = torch.tensor(np.array([one.sampled_logps[first:] for one in answers]))
                largest = max(largest, float((logps.squeeze(2) - sampled).abs().max()))
        return largest

    def _say(self, step: int, calls: Sequence[tuple[str, int, int, int]]) -> list[Trajectory]:
        """The answers of calls: role, query, rollout and ordinal."""
        sampling = Sampling(TEMPERATURE, ANSWER)
        requests = [
            Request(role, PROMPTS[query], sampling, derive_seed(step, role, query, number, call))
            for role, query, number, call in calls
        ]
        said: list[Trajectory] = []
        for (role, query, number, call), answer in zip(calls, self.engine.generate(requests), strict=True):
            ids = np.array([*PROMPTS[query], *answer.ids], np.int32)
            mask = np.arange(len(ids)) >= len(PROMPTS[query])
            logps = np.zeros(len(ids), np.float32)
            logps[mask] = answer.logps
            expert = None if role == "manager" else hits(role, ids)
            key = f"{step}-{query}"
            said.append(Trajectory(role, key, number, call, ids, mask, logps, "v", True, 1.0, expert, truncated=False))
        return said


class NoState:
    """`StateStore` that keeps nothing."""

    def load(self) -> TrainingState | None:
        """As `StateStore.load`."""
        return None

    def save(self, state: TrainingState) -> None:
        """As `StateStore.save`."""


@dataclass(frozen=True)
class Bandit:
    """The trainer of a bandit and what it is made of."""

    trainer: Trainer
    rollouts: BanditRollouts
    learners: dict[str, Learner]
    policies: RolePolicies

    def chance(self, role: str) -> float:
        """The probability that the first token of the role's answer is of its arm, mean over the prompts."""
        found = [policy_logps(self.policies, role, torch.tensor([prompt]))[0, -1].exp() for prompt in PROMPTS]
        return float(np.mean([float(one[ARMS[role] :: 2].sum()) for one in found]))


def policy_logps(policies: RolePolicies, role: str, ids: Tensor) -> Tensor:
    """(B, T, V) log-probs of what follows each token at the bandit's temperature, by the library's own pass over the
    role's merged weights."""
    model = Qwen3ForCausalLM(policies.base_config)
    model.load_state_dict(policies.merged_state(role), strict=False)
    with torch.no_grad():
        logps: Tensor = torch.log_softmax(model.eval()(ids).logits / TEMPERATURE, -1)
    return logps


def open_bandit(folder: Path, store: Store) -> Bandit:
    """A bandit whose files are in `folder`, before its first step."""
    codec = make_byte_codec()
    torch.manual_seed(7)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=codec.vocab_size, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1, head_dim=16, tie_word_embeddings=True, initializer_range=0.1,
        )
    )  # fmt: skip
    # The arms are two ends of one direction, so that few steps lead from one to the other.
    embedding = model.get_parameter("model.embed_tokens.weight")
    with torch.no_grad():
        embedding[:, 0] = 0.3 * (1.0 - 2.0 * (torch.arange(codec.vocab_size) % 2))
    config = small_config(
        temperature=TEMPERATURE,
        stage1_steps=0,
        stage1_max_steps=0,
        stage2_steps=1000,
        validation_every=1000,
        minibatches=2,
        warmup_steps=0,
        learning_rate=dict.fromkeys(TEAM, 0.05),
    )
    policies = RolePolicies(model, TEAM, lora=LoraSettings(4, 8, ("q_proj", "v_proj", "up_proj", "down_proj")), seed=1)
    store.add_run(RunRecord(RUN, "train", 1, small_market().content_hash, 1_700_000_000_000, {}))
    loaded = model_team(RUN, policies, codec, config.team, TEMPERATURE, config.training.precision)
    pool, validation = (QueryPool(small_market(), *part, HORIZON) for part in (TRAIN, VALIDATION))
    recorder = TrainingRecorder(store, RUN, folder)
    settings = rollout_settings(config)
    parts = TrainingParts(
        config.training, settings, loaded.team, loaded.engine, policies, pool, validation, recorder, folder
    )
    learners, rollouts = local_learners(parts), BanditRollouts(loaded.engine, policies)
    trainer = Trainer(parts, rollouts, LocalLearners(parts, learners), NoState())
    trainer.state.stage = 2
    return Bandit(trainer, rollouts, learners, policies)


STEPS = 6
SMALL_GAP = 1e-4  # nats between two computations of one log-prob
Plant = Callable[[pytest.MonkeyPatch], None]


# -- the bandit -----------------------------------------------------------------------------------------------------


def run_bandit(folder: Path, store: Store) -> dict[str, str]:
    """What is wrong with a training of the bandit, by role; empty where every rule holds."""
    bandit = open_bandit(folder, store)
    before = {role: bandit.chance(role) for role in TEAM}
    metrics = [bandit.trainer.step() for _ in range(STEPS)]
    wrong: dict[str, str] = {}
    for role in TEAM:
        after = bandit.chance(role)
        if max(gaps[role] for gaps in bandit.rollouts.gaps) > SMALL_GAP:
            wrong[role] = "the engine does not sample from the role's present policy at the temperature"
        elif not unmoved_ratios_are_one(bandit, role):
            wrong[role] = "the ratio is not to the role's own policy"
        elif max(one.get(f"{role}/engine_gap", 0.0) for one in metrics) > SMALL_GAP:
            wrong[role] = "the trainer does not score what was sampled as the engine did"
        elif not (0.3 < before[role] < 0.7 and after > 0.85):
            wrong[role] = f"its arm went from {before[role]:.2f} to {after:.2f}"
    return wrong


def unmoved_ratios_are_one(bandit: Bandit, role: str) -> bool:
    """Whether every ratio is 1 in all the updates of a step that moves nothing."""
    data, learner = bandit.rollouts.last, bandit.learners[role]
    assert data is not None
    said = learner.conversations(data)
    advantages, weights = [(-1.0) ** i for i in range(len(said))], [1.0 / len(said)] * len(said)
    found = learner.trainer.step(said, advantages, weights, learner.config.temperature, rate=0.0)
    low, high = found[f"{role}/ratio/p01"], found[f"{role}/ratio/max"]
    return (
        found[f"{role}/updates"] == 2.0 and low == pytest.approx(1.0, abs=1e-5) and high == pytest.approx(1.0, abs=1e-5)
    )


def test_every_role_of_a_bandit_learns_its_arm(tmp_path: Path, store: Store) -> None:
    assert run_bandit(tmp_path, store) == {}


def _traders_sign(patch: pytest.MonkeyPatch) -> None:
    whole = RoleTrainer.split_batch

    def split(self: RoleTrainer, calls: Sequence[Trajectory], advantages: Sequence[float], *others: Any) -> Batch:
        sign = -1.0 if self.role == "trader" else 1.0
        return whole(self, calls, [sign * one for one in advantages], *others)

    patch.setattr(RoleTrainer, "split_batch", split)


def _anothers_old_logps(patch: pytest.MonkeyPatch) -> None:
    whole = PolicyGradient.logps

    def logps(self: PolicyGradient, batches: Sequence[MicroBatch], temperature: float) -> list[list[Tensor]]:
        return whole(PolicyGradient(self.policies, self.policies.roles[0], self.config), batches, temperature)

    patch.setattr(PolicyGradient, "logps", logps)


def _learner_without_temperature(patch: pytest.MonkeyPatch) -> None:
    whole = RolePolicies.logps

    def logps(
        self: RolePolicies, role: str, ids: Tensor, mask: Tensor, temperature: float = 1.0, gradient: bool = False
    ) -> tuple[Tensor, Tensor]:
        return whole(self, role, ids, mask, 1.0, gradient)

    patch.setattr(RolePolicies, "logps", logps)


def _only_the_first_is_published(patch: pytest.MonkeyPatch) -> None:
    whole = InProcess.publish
    patch.setattr(InProcess, "publish", lambda self, roles: whole(self, list(roles)[:1]))


def _nothing_is_published(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InProcess, "publish", lambda self, roles: None)


@pytest.mark.parametrize(
    ("plant", "who", "what"),
    [
        (_traders_sign, {"trader"}, "its arm went"),
        (_anothers_old_logps, {"trader"}, "the ratio"),
        (_learner_without_temperature, {"manager", "trader"}, "the trainer does not score"),
        (_only_the_first_is_published, {"trader"}, "the engine does not sample"),
        (_nothing_is_published, {"manager", "trader"}, "the engine does not sample"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_a_mistake_between_learner_policy_and_engine_is_noticed(
    plant: Plant, who: set[str], what: str, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    wrong = run_bandit(tmp_path, store)
    assert wrong.keys() == who and all(reason.startswith(what) for reason in wrong.values()), wrong


# -- one step of a training as the command line starts it ------------------------------------------------------------


def run_step(nano: Path, folder: Path, store: Store, patch: pytest.MonkeyPatch) -> dict[str, str]:
    """What is wrong with the first step of a training and its validation, by what it is about."""
    config = small_config(base_model=str(nano), temperature=0.7, practice=dict.fromkeys(STANDARD, 4), scenario_paths=1)
    validated: list[Query] = []

    def validate(shared: SharedShards, queries: Sequence[Query], *rest: object) -> Validation:
        validated.extend(queries)
        return Validation(0.5, 0.0, 0.0, dict.fromkeys(ROLES, 1.0), {})

    patch.setattr(trainer_module, "validate", validate)
    store.add_run(RunRecord(RUN, "train", 1, small_market().content_hash, 1_700_000_000_000, {}))
    training = one_process_trainer(config, small_market(), store, folder, nano)
    training.state.stage = 2
    metrics = training.step()
    parts = split(small_market(), config.market, HORIZON)
    wrong: dict[str, str] = {}
    drawn = [record.bar for record in store.queries(RUN, 0)]
    for name, bars, part in (
        ("training", drawn, parts.train),
        ("validation", [query.bar for query in validated], parts.validation),
    ):
        assert bars
        if not all(part[0] <= bar and bar + HORIZON < part[1] for bar in bars):
            wrong[name] = f"windows at {bars} are not those of {part}"
    for role in ROLES:
        if metrics[f"{role}/engine_gap"] > SMALL_GAP:
            wrong[role] = "the trainer does not score what was sampled as the engine did"
    return wrong


def test_a_step_trains_on_what_was_sampled_and_validates_elsewhere(
    nano: Path, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_step(nano, tmp_path, store, monkeypatch) == {}


def _rollouts_without_temperature(patch: pytest.MonkeyPatch) -> None:
    def cold(*args: Any) -> LoadedTeam:
        name, policies, codec, team, _, precision = args
        return model_team(name, policies, codec, team, 1.0, precision)

    patch.setattr(sharding, "model_team", cold)


def _validation_on_training_windows(patch: pytest.MonkeyPatch) -> None:
    whole = Trainer.__init__

    def begin(self: Trainer, parts: TrainingParts, *rest: Any) -> None:
        whole(self, replace(parts, validation_pool=parts.pool), *rest)

    patch.setattr(Trainer, "__init__", begin)


def _training_on_validation_windows(patch: pytest.MonkeyPatch) -> None:
    whole = sharding.pools_of

    def pools(training: Any, market: Any, parts: Any, *rest: Any) -> Any:
        return whole(training, market, (parts[1], parts[1]), *rest)

    patch.setattr(sharding, "pools_of", pools)


@pytest.mark.parametrize(
    ("plant", "where"),
    [
        (_rollouts_without_temperature, set(ROLES)),
        (_validation_on_training_windows, {"validation"}),
        (_training_on_validation_windows, {"training"}),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_a_mistake_of_how_a_training_is_put_together_is_noticed(
    plant: Plant, where: set[str], nano: Path, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert run_step(nano, tmp_path, store, monkeypatch).keys() == where
