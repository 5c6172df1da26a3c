"""A bandit for a manager and a sub-agent: the real engine samples a token in answer to a fixed prompt, and each role
is paid for tokens of its own arm. Learners, trainer, publisher and engine are those of the product; only the market
and the conversations are left out, so that what every role must learn is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from backend.builders.teams import model_team
from backend.policies.role_policies import LoraSettings, RolePolicies
from backend.store.records import RunRecord
from backend.store.store import Store
from backend.training.algorithm.rewards import Outcome
from backend.training.algorithm.trajectory import Trajectory
from backend.training.checkpoints import TrainingState
from backend.training.components import RolloutBatch, TrainingParts
from backend.training.curriculum.curriculum import StepPlan
from backend.training.curriculum.queries import QueryPool
from backend.training.in_process import LocalLearners, local_learners
from backend.training.learning.learner import Learner, StepData
from backend.training.recorder import TrainingRecorder
from backend.training.trainer import Trainer
from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.engine import Engine, Request, Sampling
from cryptosentinel.team import derive_seed
from tests.small_world import HORIZON, RUN, TRAIN, VALIDATION, rollout_settings, small_config, small_market

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
    recorder = TrainingRecorder(store, RUN, folder, HORIZON)
    settings = rollout_settings(config)
    parts = TrainingParts(
        config.training, settings, loaded.team, loaded.engine, policies, pool, validation, recorder, folder
    )
    learners, rollouts = local_learners(parts), BanditRollouts(loaded.engine, policies)
    trainer = Trainer(parts, rollouts, LocalLearners(parts, learners), NoState())
    trainer.state.stage = 2
    return Bandit(trainer, rollouts, learners, policies)
