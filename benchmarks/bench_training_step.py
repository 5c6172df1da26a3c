"""A whole GRPO step of nano, ours against TRL's `GRPOTrainer` (`trl_step.py`), on two threads.

16 prompts of 96 tokens in groups of 8 and answers of 48 tokens: what ours computes once for a group is about 60 of 143
tokens a rollout.

`training.step.updates` is the learning of a step alone with four updates, where the log-probs before the first one are
the engine's, as they are in float32, beside the same where a second version of the weights is said to have sampled
half of the answers, so that they are computed.

`training.step.smollm2` is the same of a real model, SmolLM2-135M-Instruct: what the manager has read when it decides,
about 290 tokens, with short prompts, at two bars; eight answers of 48 tokens to each, one thread. Seconds are those of
the processor, so that other work on the machine counts for nobody. Where torch sees a GPU, both compute there, in
float32 and in bfloat16, and seconds are those of the clock. The folder of SmolLM2 is named by CRYPTOSENTINEL_SMOLLM2
(`python -m scripts.smollm2 FOLDER`); without it there is no such row. It takes some minutes.
"""

from __future__ import annotations

import os
import random
import statistics
import string
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from backend.policies.hardware import Hardware
from benchmarks.run import Result
from benchmarks.trl_step import OurStep, Work, alternating
from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.chat_codec import PADDING, TURN_END, make_byte_codec
from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.llm.nano import load_model, nano_config, new_nano
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.llm.templates import chat_format
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import expert_policies
from cryptosentinel.team import Team
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.standard_limits import guard_limits
from tests.standard_settings import trainer_settings
from tests.team_scenes import account_in, standard_team

STEPS = 8  # the first two warm up
WARM_UP = 2
PROMPTS, GROUP, PROMPT_TOKENS, NEW_TOKENS = 16, 8, 96, 48
THREADS = 2
UPDATES = 4
LIMIT = 0.3
REAL_STEPS = int(os.environ.get("CRYPTOSENTINEL_BENCH_REPETITIONS", "3")) + 1  # the first warms up
REAL_BARS, REAL_GROUP = (140, 220), 8
ROWS_AT_ONCE, TOKENS_AT_ONCE = 4, 2048  # of a forward pass
UNSAID = "<file_sep>"  # a token that no answer holds: none ends early
REAL_LIMIT = 0.5
SMOLLM2 = "CRYPTOSENTINEL_SMOLLM2"


def run() -> list[Result]:
    """The rows `training.step`, whose value is the seconds of a step of ours, `.updates` and `.smollm2`."""
    return [*_of_nano(), *_of_smollm2()]


def _of_nano() -> list[Result]:
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


def _of_smollm2() -> list[Result]:
    if not os.environ.get(SMOLLM2):
        print(f"no row of SmolLM2: {SMOLLM2} names no folder", file=sys.stderr)
        return []
    folder = Path(os.environ[SMOLLM2])
    if torch.cuda.is_available():
        return [
            real_row(f"training.step.smollm2.gpu.{name}", folder, Hardware("cuda", name, compiled=name == "bfloat16"))
            for name in ("float32", "bfloat16")
        ]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [real_row("training.step.smollm2", folder, Hardware())]
    finally:
        torch.set_num_threads(threads)


def real_row(name: str, folder: Path, hardware: Hardware) -> Result:
    """Of SmolLM2 in `folder`."""
    work = _real_work(folder, hardware)
    theirs, ours = alternating(work, REAL_STEPS, 1)
    mine, peer = statistics.median(ours), statistics.median(theirs)
    lengths = " and ".join(str(len(ids)) for ids in work.ids())
    where = "one thread" if hardware.kind == "cpu" else f"{torch.cuda.get_device_name()}, {hardware.precision}"
    return {
        "name": name,
        "value": mine,
        "unit": "s of processor" if hardware.kind == "cpu" else "s",
        "against": f"TRL GRPOTrainer, {peer:.1f} s: prompts of {lengths} tokens, K = {REAL_GROUP}, {NEW_TOKENS} new "
        f"tokens, {where}, median of {len(ours)}",
        "ratio": mine / peer,
        "target": f"<= {REAL_LIMIT}",
        "met": mine <= REAL_LIMIT * peer,
    }


def _real_work(folder: Path, hardware: Hardware) -> Work:
    model, tokenizer = load_model(folder)
    codec = chat_format(tokenizer, folder)
    prompts = [str(tokenizer.decode(list(_asked(codec, bar)))) for bar in REAL_BARS]
    tokenizer.eos_token, tokenizer.padding_side = UNSAID, "left"
    return Work(
        model=model,
        tokenizer=tokenizer,
        codec=_Endless(codec),
        prompts=prompts,
        group=REAL_GROUP,
        new_tokens=NEW_TOKENS,
        micro_batch=(TOKENS_AT_ONCE, ROWS_AT_ONCE),
        lora_rank=8,
        clock=time.process_time if hardware.kind == "cpu" else _seconds_there,
        hardware=hardware,
    )


def _seconds_there() -> float:
    """The clock, once the GPU has done what it was given."""
    torch.cuda.synchronize()
    return time.perf_counter()


def _asked(codec: ChatFormat, bar: int) -> tuple[int, ...]:
    """What the manager has read when it decides about a coin, after what the scripted team says of it."""
    market = generate(SyntheticConfig(bars=320, seed=3, symbols=("AAAUSDT", "BBBUSDT")))
    engine = ScriptedEngine(codec, expert_policies())
    team = Team(codec, engine.policy_version, standard_team(prompts="short"))
    task = team.decide(market.view(bar), account_in(market, bar), market.symbols[:1], Guard(guard_limits()), 1)
    [decision] = run_all([task], engine)
    manager = decision.manager
    return tuple(manager.ids[: max(at for at, own in enumerate(manager.mask) if not own) + 1])


class _Endless:
    """A chat format whose turns end nowhere."""

    ends: frozenset[int] = frozenset()
    thoughts: None = None

    def __init__(self, codec: ChatFormat) -> None:
        self.vocab_size = codec.vocab_size
