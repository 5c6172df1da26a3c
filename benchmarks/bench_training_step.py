"""A whole GRPO step, ours against TRL's `GRPOTrainer`: generate, score, train and have the new weights answer.

The same nano with a LoRA adapter of the same shape, the same prompts, K, lengths, reward and number of threads, one
optimizer step on the whole batch, no KL, no clipping to speak of since the step is on-policy. TRL's steps and ours
alternate in one run: ours follow each of TRL's from a callback of its own loop. TRL generates with transformers'
`generate`, as it does without vLLM.

The prompts of a group are equal, and ours makes use of it: it reads each once when it generates, and once forward and
backward when it trains (`shared_prefixes`), about 60 of 143 tokens a rollout. TRL's trainer computes all of them. The
gradient is the same.
"""

from __future__ import annotations

import logging
import os
import random
import statistics
import string
import tempfile
import time
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast, TrainerCallback

from backend.policies.role_policies import RolePolicies
from backend.training.algorithm.advantages import group_advantages
from backend.training.algorithm.trajectory import Trajectory
from backend.training.learning.role_trainer import RoleTrainer
from benchmarks.run import Result
from cryptosentinel.llm.chat_codec import PADDING, TURN_END, make_byte_codec
from cryptosentinel.llm.engine import Completion, Request, Sampling
from cryptosentinel.llm.local.engine import LocalEngine
from cryptosentinel.llm.nano import nano_config, new_nano
from tests.standard_settings import lora_settings, trainer_settings

STEPS = 8  # the first two warm up
WARM_UP = 2
PROMPTS, GROUP, PROMPT_TOKENS, NEW_TOKENS = 16, 8, 96, 48
THREADS = 2
LIMIT = 0.5
ROLE = "manager"


def run() -> list[Result]:
    """The row `training.step`; the value is the seconds of a step of ours."""
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        theirs, ours = _alternating()
    finally:
        torch.set_num_threads(threads)
    mine, peer = statistics.median(ours), statistics.median(theirs)
    return [
        {
            "name": "training.step",
            "value": mine,
            "unit": "s",
            "against": f"TRL GRPOTrainer, {peer:.2f} s: {PROMPTS} prompts of {PROMPT_TOKENS} tokens, K = {GROUP}, "
            f"{NEW_TOKENS} new tokens, {THREADS} threads",
            "ratio": mine / peer,
            "target": f"<= {LIMIT}",
            "met": mine <= LIMIT * peer,
        }
    ]


def reward(text: str) -> float:
    """Share of lower-case letters: cheap, and different for each answer."""
    return sum(one in string.ascii_lowercase for one in text) / max(1, len(text))


class _Ours:
    """Our step."""

    def __init__(self, prompts: list[str]) -> None:
        self.codec = make_byte_codec()
        self.codec.end_of_turn = -1  # no answer ends early
        self.prompts = [tuple(self.codec.encode_data(prompt)) for prompt in prompts]
        self.policies = RolePolicies(
            new_nano(0, nano_config(1024)), [ROLE], "lora", lora_settings(lora_rank=16, lora_alpha=32)
        )
        self.engine = LocalEngine(self.codec, self.policies.base_config, {})
        self.trainer = RoleTrainer(self.policies, ROLE, trainer_settings(learning_rate=1e-5))
        self.number = 0

    def step(self) -> float:
        """Seconds of one step."""
        began = time.perf_counter()
        self.engine.set_weights(ROLE, self.policies.merged_state(ROLE), self.policies.version(ROLE))
        sampling = Sampling(1.0, NEW_TOKENS)
        asked = [
            Request(ROLE, ids, sampling, 1000 * self.number + place * GROUP + k)
            for place, ids in enumerate(self.prompts)
            for k in range(GROUP)
        ]
        answers = self.engine.generate(asked)
        rewards = np.array([reward(self.codec.decode(answer.ids)) for answer in answers]).reshape(-1, GROUP)
        advantages = np.concatenate([group_advantages(group)[0] for group in rewards])
        trajectories = [self._trajectory(*pair, place) for place, pair in enumerate(zip(asked, answers, strict=True))]
        self.trainer.step(trajectories, advantages, [1.0 / GROUP] * len(asked), 1.0)
        self.number += 1
        return time.perf_counter() - began

    def _trajectory(self, asked: Request, answer: Completion, place: int) -> Trajectory:
        before, after = len(asked.ids), len(answer.ids)
        return Trajectory(
            role=ROLE,
            query=str(place // GROUP),
            rollout=place % GROUP,
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


class _Alternate(TrainerCallback):
    """Times TRL's steps, and lets ours follow each of them."""

    def __init__(self, ours: _Ours) -> None:
        self.began = 0.0
        self.mine = ours
        self.theirs: list[float] = []
        self.ours: list[float] = []

    def on_step_begin(self, *arguments: Any, **named: Any) -> None:
        self.began = time.perf_counter()

    def on_step_end(self, *arguments: Any, **named: Any) -> None:
        self.theirs.append(time.perf_counter() - self.began)
        self.ours.append(self.mine.step())


def _rewards(completions: list[str], **named: Any) -> list[float | None]:
    return [reward(text) for text in completions]


def _alternating() -> tuple[list[float], list[float]]:
    """Seconds of TRL's steps and of ours, after the warm-up."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    logging.getLogger("trl").setLevel(logging.ERROR)
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOConfig, GRPOTrainer

    rng = random.Random(0)
    prompts = ["".join(rng.choices(string.ascii_letters, k=PROMPT_TOKENS)) for _ in range(PROMPTS)]
    codec = make_byte_codec()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=codec.tokenizer, eos_token=TURN_END, pad_token=PADDING, padding_side="left"
    )
    shape = lora_settings(lora_rank=16, lora_alpha=32)
    with tempfile.TemporaryDirectory() as scratch:
        settings = GRPOConfig(
            output_dir=scratch,
            per_device_train_batch_size=PROMPTS * GROUP,
            num_generations=GROUP,
            max_completion_length=NEW_TOKENS,
            steps_per_generation=1,
            num_iterations=1,
            beta=0.0,
            loss_type="grpo",
            learning_rate=1e-5,
            lr_scheduler_type="constant",
            max_steps=STEPS,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            shuffle_dataset=False,
            seed=0,
        )
        alternate = _Alternate(_Ours(prompts))
        trainer = GRPOTrainer(
            model=new_nano(0, nano_config(1024)),
            reward_funcs=_rewards,
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": prompts * STEPS}),
            processing_class=tokenizer,
            peft_config=LoraConfig(
                r=shape.lora_rank,
                lora_alpha=shape.lora_alpha,
                target_modules=list(shape.lora_targets),
                task_type="CAUSAL_LM",
            ),
            callbacks=[alternate],
        )
        trainer.train()
    return alternate.theirs[WARM_UP:], alternate.ours[WARM_UP:]
