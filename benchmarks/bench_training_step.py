"""A whole GRPO step of nano, ours against TRL's `GRPOTrainer` (`trl_step.py`), on two threads.

16 prompts of 96 tokens in groups of 8 and answers of 48 tokens: what ours computes once for a group is about 60 of 143
tokens a rollout.
"""

from __future__ import annotations

import random
import statistics
import string

import torch
from transformers import PreTrainedTokenizerFast

from benchmarks.run import Result
from benchmarks.trl_step import Work, alternating
from cryptosentinel.llm.chat_codec import PADDING, TURN_END, make_byte_codec
from cryptosentinel.llm.nano import nano_config, new_nano
from tests.standard_settings import trainer_settings

STEPS = 8  # the first two warm up
WARM_UP = 2
PROMPTS, GROUP, PROMPT_TOKENS, NEW_TOKENS = 16, 8, 96, 48
THREADS = 2
LIMIT = 0.5


def run() -> list[Result]:
    """The row `training.step`; the value is the seconds of a step of ours."""
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        theirs, ours = alternating(_work(), STEPS, WARM_UP)
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
