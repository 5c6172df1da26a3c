"""A whole GRPO step, generate, score, train and have the new weights answer: ours beside TRL's `GRPOTrainer`.

TRL's steps and ours alternate in one run: ours follow each of TRL's from a callback of its own loop. The same model
with a LoRA adapter of the same shape, the same prompts, K, lengths, reward and number of threads, one optimizer step on
the whole batch, no KL, no clipping to speak of since the step is on-policy. No answer ends early. TRL generates with
transformers' `generate`, as it does without vLLM.

The prompts of a group are equal, and ours makes use of it: it reads each once when it generates, and once forward and
backward when it trains (`shared_prefixes`). TRL's trainer computes all of them. The gradient is the same.
"""

from __future__ import annotations

import logging
import os
import string
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerFast, TrainerCallback

from backend.policies.hardware import Hardware
from backend.policies.role_policies import RolePolicies
from backend.training.algorithm.advantages import group_advantages
from backend.training.algorithm.trajectory import Trajectory
from backend.training.learning.role_trainer import RoleTrainer
from cryptosentinel.llm.architecture import linear_names
from cryptosentinel.llm.engine import Completion, Request, Sampling
from cryptosentinel.llm.local.engine import LocalEngine
from simulator.arrays import FloatArray
from tests.standard_settings import lora_settings, trainer_settings

ROLE = "manager"
Clock = Callable[[], float]


@dataclass(frozen=True)
class Work:
    """What a step has to do.

    Attributes:
        model: its base, which stays as it is.
        tokenizer: TRL's, whose `eos_token` no model says.
        codec: ours, of which no token ends a turn.
        prompts: texts, whose ids are those of `tokenizer`.
        group, new_tokens: K, and the tokens of an answer.
        micro_batch: tokens of one forward pass of ours, padded; rows of one of TRL's.
        clock: what counts the seconds.
        hardware: where both compute, and in which numbers. TRL keeps its base in float32 and has products in bfloat16
            by autocast, as it does by its own setting.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    codec: Any
    prompts: Sequence[str]
    group: int
    new_tokens: int
    micro_batch: tuple[int, int]
    lora_rank: int
    clock: Clock = time.perf_counter
    hardware: Hardware = field(default_factory=Hardware)

    def ids(self) -> list[tuple[int, ...]]:
        """The prompts' ids."""
        return [tuple(self.tokenizer(prompt)["input_ids"]) for prompt in self.prompts]


def reward(text: str) -> float:
    """Share of lower-case letters: cheap, and different for each answer."""
    return sum(one in string.ascii_lowercase for one in text) / max(1, len(text))


class OurStep:
    """Our step."""

    def __init__(self, work: Work, updates: int = 1) -> None:
        """`updates` are the optimizer steps of one step."""
        self._work, self._ids, self._number = work, work.ids(), 0
        shape = lora_settings(lora_rank=work.lora_rank, lora_alpha=2 * work.lora_rank)
        hardware = work.hardware
        self._policies = RolePolicies(work.model, [ROLE], "lora", shape, hardware=hardware)
        self._engine = LocalEngine(
            work.codec, self._policies.base_config, {}, device=hardware.device, dtype=hardware.dtype
        )
        settings = trainer_settings(learning_rate=1e-5, micro_batch_tokens=work.micro_batch[0], minibatches=updates)
        self._trainer = RoleTrainer(self._policies, ROLE, settings)

    def step(self) -> float:
        """Seconds of one step."""
        began = self._work.clock()
        self.learn(*self.sample())
        return self._work.clock() - began

    def learn(self, spoken: Sequence[Trajectory], advantages: FloatArray) -> None:
        """Train on answers."""
        self._trainer.step(spoken, advantages, [1.0 / self._work.group] * len(spoken), 1.0)

    def sample(self) -> tuple[list[Trajectory], FloatArray]:
        """Answers by the policy as it is, and their advantages."""
        work, group = self._work, self._work.group
        self._engine.set_weights(ROLE, self._policies.merged_state(ROLE), self._policies.version(ROLE))
        sampling = Sampling(1.0, work.new_tokens)
        asked = [
            Request(ROLE, ids, sampling, 1000 * self._number + place * group + k)
            for place, ids in enumerate(self._ids)
            for k in range(group)
        ]
        answers = self._engine.generate(asked)
        texts = work.tokenizer.batch_decode([list(answer.ids) for answer in answers])
        rewards = np.array([reward(text) for text in texts]).reshape(-1, group)
        advantages = np.concatenate([group_advantages(row)[0] for row in rewards])
        spoken = [self._trajectory(*pair, place) for place, pair in enumerate(zip(asked, answers, strict=True))]
        self._number += 1
        return spoken, advantages

    def _trajectory(self, asked: Request, answer: Completion, place: int) -> Trajectory:
        before, after = len(asked.ids), len(answer.ids)
        if after != self._work.new_tokens:
            raise RuntimeError("an answer ended early")
        return Trajectory(
            role=ROLE,
            query=str(place // self._work.group),
            rollout=place % self._work.group,
            ordinal=0,
            ids=np.array(asked.ids + answer.ids, np.int32),
            mask=np.array([False] * before + [True] * after),
            sampled_logps=np.array((0.0,) * before + answer.logps, np.float32),
            policy_version="v",
            valid=True,
            format_score=1.0,
            expert=None,
            truncated=False,
        )


@dataclass
class _Alternate(TrainerCallback):
    """Times TRL's steps, and lets ours follow each of them."""

    mine: OurStep
    clock: Clock
    began: float = 0.0
    theirs: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)

    def on_step_begin(self, *arguments: Any, **named: Any) -> None:
        self.began = self.clock()

    def on_step_end(self, *arguments: Any, **named: Any) -> None:
        self.theirs.append(self.clock() - self.began)
        self.ours.append(self.mine.step())


def _rewards(completions: list[str], **named: Any) -> list[float | None]:
    return [reward(text) for text in completions]


def alternating(work: Work, steps: int, warm_up: int) -> tuple[list[float], list[float]]:
    """Seconds of TRL's steps and of ours, after the warm-up."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    logging.getLogger("trl").setLevel(logging.ERROR)
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOConfig, GRPOTrainer

    rows, rows_at_once = len(work.prompts) * work.group, work.micro_batch[1]
    mine = OurStep(work)
    with tempfile.TemporaryDirectory() as scratch:
        settings = GRPOConfig(
            output_dir=scratch,
            per_device_train_batch_size=rows_at_once,
            gradient_accumulation_steps=rows // rows_at_once,
            num_generations=work.group,
            max_completion_length=work.new_tokens,
            num_iterations=1,
            beta=0.0,
            loss_type="grpo",
            learning_rate=1e-5,
            lr_scheduler_type="constant",
            max_steps=steps,
            use_cpu=work.hardware.kind == "cpu",
            bf16=work.hardware.precision == "bfloat16",
            gradient_checkpointing=False,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            shuffle_dataset=False,
            seed=0,
        )
        alternate = _Alternate(mine, work.clock)
        trainer = GRPOTrainer(
            model=work.model,
            reward_funcs=_rewards,
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": list(work.prompts) * steps}),
            processing_class=work.tokenizer,
            peft_config=LoraConfig(
                r=work.lora_rank,
                lora_alpha=2 * work.lora_rank,
                target_modules=list(linear_names(work.model.config)),
                task_type="CAUSAL_LM",
            ),
            callbacks=[alternate],
        )
        trainer.train()
    return alternate.theirs[warm_up:], alternate.ours[warm_up:]
