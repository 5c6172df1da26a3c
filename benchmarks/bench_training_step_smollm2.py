"""A whole GRPO step of a real model, SmolLM2-135M-Instruct, ours against TRL's `GRPOTrainer` (`trl_step.py`).

What the manager has read when it decides, about 290 tokens, with short prompts as in a training by the preset
`smollm2`, at two bars; eight answers of 48 tokens to each, one thread. Seconds are those of the processor, so that
other work on the machine counts for nobody. Where torch sees a GPU, both compute there, in float32 and in bfloat16, and
seconds are those of the clock. The folder of SmolLM2 is named by CRYPTOSENTINEL_SMOLLM2 (`python -m
scripts.smollm2 FOLDER`); without it there is no row. It takes some minutes.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

import torch

from backend.policies.hardware import Hardware
from benchmarks.run import Result
from benchmarks.trl_step import Work, alternating
from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.llm.nano import load_model
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.llm.templates.choose import chat_format
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import expert_policies
from cryptosentinel.team import Team
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.standard_limits import guard_limits
from tests.team_scenes import account_in, standard_team

BY_NAME_ONLY = True
SMOLLM2 = "CRYPTOSENTINEL_SMOLLM2"
STEPS = int(os.environ.get("CRYPTOSENTINEL_BENCH_REPETITIONS", "3")) + 1  # the first warms up
BARS, GROUP, NEW_TOKENS = (140, 220), 8, 48
ROWS_AT_ONCE, TOKENS_AT_ONCE = 4, 2048  # of a forward pass
UNSAID = "<file_sep>"  # a token that no answer holds: none ends early
LIMIT = 0.5


def run() -> list[Result]:
    """The row `training.step_smollm2`, on a GPU one for each precision; the value is the seconds of a step of ours."""
    if not os.environ.get(SMOLLM2):
        print(f"no row of SmolLM2: {SMOLLM2} names no folder", file=sys.stderr)
        return []
    folder = Path(os.environ[SMOLLM2])
    if torch.cuda.is_available():
        return [
            _row(f"training.step_smollm2.gpu.{name}", folder, Hardware("cuda", name, compiled=name == "bfloat16"))
            for name in ("float32", "bfloat16")
        ]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_row("training.step_smollm2", folder, Hardware())]
    finally:
        torch.set_num_threads(threads)


def _row(name: str, folder: Path, hardware: Hardware) -> Result:
    work = _work(folder, hardware)
    theirs, ours = alternating(work, STEPS, 1)
    mine, peer = statistics.median(ours), statistics.median(theirs)
    lengths = " and ".join(str(len(ids)) for ids in work.ids())
    where = "one thread" if hardware.kind == "cpu" else f"{torch.cuda.get_device_name()}, {hardware.precision}"
    return {
        "name": name,
        "value": mine,
        "unit": "s of processor" if hardware.kind == "cpu" else "s",
        "against": f"TRL GRPOTrainer, {peer:.1f} s: prompts of {lengths} tokens, K = {GROUP}, {NEW_TOKENS} new "
        f"tokens, {where}, median of {len(ours)}",
        "ratio": mine / peer,
        "target": f"<= {LIMIT}",
        "met": mine <= LIMIT * peer,
    }


def _work(folder: Path, hardware: Hardware) -> Work:
    model, tokenizer = load_model(folder)
    codec = chat_format(tokenizer, folder)
    prompts = [str(tokenizer.decode(list(_asked(codec, bar)))) for bar in BARS]
    tokenizer.eos_token, tokenizer.padding_side = UNSAID, "left"
    return Work(
        model=model,
        tokenizer=tokenizer,
        codec=_Endless(codec),
        prompts=prompts,
        group=GROUP,
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
