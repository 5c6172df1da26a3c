"""A whole GRPO step of nano, ours against TRL's `GRPOTrainer` (`trl_step.py`), on two threads.

16 prompts of 96 tokens in groups of 8 and answers of 48 tokens: what ours computes once for a group is about 60 of 143
tokens a rollout.

`training.step.updates` is the learning of a step alone with four updates, where the log-probs before the first one are
the engine's, as they are in float32, beside the same where a second version of the weights is said to have sampled
half of the answers, so that they are computed.
"""

from __future__ import annotations

import random
import statistics
import string
import time
from dataclasses import replace

import torch
from transformers import PreTrainedTokenizerFast

from benchmarks.run import Result
from benchmarks.trl_step import OurStep, Work, alternating
from cryptosentinel.llm.chat_codec import PADDING, TURN_END, make_byte_codec
from cryptosentinel.llm.nano import nano_config, new_nano
from tests.standard_settings import trainer_settings

STEPS = 8  # the first two warm up
WARM_UP = 2
PROMPTS, GROUP, PROMPT_TOKENS, NEW_TOKENS = 16, 8, 96, 48
THREADS = 2
UPDATES = 4
LIMIT = 0.3


def run() -> list[Result]:
    """The rows `training.step`, whose value is the seconds of a step of ours, and `training.step.updates`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        theirs, ours = alternating(_work(), STEPS, WARM_UP)
        believed, computed = _updates()
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
        },
        {
            "name": "training.step.updates",
            "value": believed,
            "unit": "s of learning",
            "against": f"{computed:.2f} s with a pass for the log-probs before the first of {UPDATES} updates",
            "ratio": believed / computed,
            "target": "reported",
            "met": True,
        },
    ]


def _updates() -> tuple[float, float]:
    """Seconds of learning in a step of `UPDATES` updates that believe the engine, and where they do not."""
    mine = OurStep(_work(), UPDATES)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(STEPS):
        for believed, times in seconds.items():
            spoken, advantages = mine.sample()
            if not believed:
                spoken[::2] = [replace(one, policy_version="another") for one in spoken[::2]]
            began = time.perf_counter()
            mine.learn(spoken, advantages)
            times.append(time.perf_counter() - began)
    return statistics.median(seconds[True][WARM_UP:]), statistics.median(seconds[False][WARM_UP:])


def _work() -> Work:
    rng = random.Random(0)
    codec = make_byte_codec()
    codec.end_of_turn = -1  # no answer ends early
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=codec.tokenizer, eos_token=TURN_END, pad_token=PADDING, padding_side="left"
    )
    return Work(
        model=new_nano(0, nano_config(1024)),
        tokenizer=tokenizer,
        codec=codec,
        prompts=["".join(rng.choices(string.ascii_letters, k=PROMPT_TOKENS)) for _ in range(PROMPTS)],
        group=GROUP,
        new_tokens=NEW_TOKENS,
        micro_batch=(trainer_settings().micro_batch_tokens, PROMPTS * GROUP),
        lora_rank=16,
    )
