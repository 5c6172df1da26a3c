"""Speed of decoding: our engine against transformers' `generate`, same random nano, same prompts, side by side.

Runs alternate between the two, each on prompts that neither has seen, and their medians are compared. No answer ends
early on either side. Both have two torch threads, whatever the environment says; on a machine with other work on its
cores, threads that wait for one another cost both sides many times their time, and the ratio means little.

The rows `engine.products.ROWS` are products of a hundred rows and of a thousand with nano's matrices: those of
`matrices.py` beside torch's own, by turns on one thread. What torch's own take depends on the maker of the processor.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from benchmarks.run import Result
from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.engine import Request, Sampling
from cryptosentinel.llm.local.engine import LocalEngine
from cryptosentinel.llm.local.matrices import product
from cryptosentinel.llm.nano import nano_config, new_nano

REPETITIONS = 7
THREADS = 2
VOCABULARY = 1024
SHAPES = ((128, 384), (384, 128), (128, 1024))  # of products, in and out: MLP up and down, output layer
ROWS = (128, 1024)
ROUNDS, CALLS, WARM_UP = 9, 50, 2


def run() -> list[Result]:
    """The rows `engine.decode` and `engine.shared_prefix`, of sampled tokens per second of our engine, and
    `engine.products.ROWS`, of thousand millions of operations a second."""
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        rows = [
            _compare("engine.decode", prompts=32, group=1, prompt_tokens=32, new_tokens=64, target=2.0),
            _compare("engine.shared_prefix", prompts=4, group=8, prompt_tokens=512, new_tokens=64, target=3.0),
        ]
        torch.set_num_threads(1)
        return [*rows, *(_products(count) for count in ROWS)]
    finally:
        torch.set_num_threads(threads)


def _compare(name: str, *, prompts: int, group: int, prompt_tokens: int, new_tokens: int, target: float) -> Result:
    """One row: `prompts` distinct prompts, each continued `group` times, all in one batch."""
    codec = make_byte_codec()
    codec.end_of_turn = -1  # no sampled token is this one
    config = nano_config(VOCABULARY)
    model: Any = new_nano(0, config)  # its stubs give `generate` no usable type
    engine = LocalEngine(codec, config, {"manager": model.state_dict()})
    settings = GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=new_tokens, pad_token_id=0
    )
    generator = torch.Generator().manual_seed(0)

    def ours(batch: torch.Tensor) -> int:
        sampling = Sampling(1.0, new_tokens)
        requests = [Request("manager", tuple(ids), sampling, seed) for seed, ids in enumerate(batch.tolist())]
        return sum(len(answer.ids) for answer in engine.generate(requests))

    def theirs(batch: torch.Tensor) -> int:
        with torch.inference_mode():
            answers = model.generate(batch, attention_mask=torch.ones_like(batch), generation_config=settings)
        return int(answers[:, prompt_tokens:].numel())

    seconds: dict[Callable[[torch.Tensor], int], list[float]] = {ours: [], theirs: []}
    for repetition in range(REPETITIONS + 1):
        distinct = torch.randint(0, VOCABULARY, (prompts, prompt_tokens), generator=generator)
        batch = distinct.repeat_interleave(group, dim=0)
        for decoder, times in seconds.items():
            start = time.perf_counter()
            count = decoder(batch)
            elapsed = time.perf_counter() - start
            if count != len(batch) * new_tokens:
                raise RuntimeError(f"{name}: {decoder.__name__} sampled {count} tokens, not {len(batch) * new_tokens}")
            if repetition > 0:  # the first run warms up
                times.append(elapsed)
    median = {decoder: statistics.median(times) for decoder, times in seconds.items()}
    ratio = median[theirs] / median[ours]
    return {
        "name": name,
        "value": prompts * group * new_tokens / median[ours],
        "unit": "tokens/s",
        "against": f"transformers generate, both on {torch.get_num_threads()} torch threads",
        "ratio": ratio,
        "target": target,
        "met": ratio >= target,
    }


def _products(rows: int) -> Result:
    generator = torch.Generator().manual_seed(0)
    pairs = [
        (torch.randn(rows, size, generator=generator), torch.randn(out, size, generator=generator))
        for size, out in SHAPES
    ]
    operations = CALLS * sum(2 * left.numel() * weight.shape[0] for left, weight in pairs)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with torch.inference_mode():
        for _ in range(WARM_UP + ROUNDS):
            for ours, times in seconds.items():
                times.append(_seconds(pairs, ours=ours))
    mine, theirs = (statistics.median(times[WARM_UP:]) for times in seconds.values())
    return {
        "name": f"engine.products.{rows}",
        "value": operations / mine / 1e9,
        "unit": "1e9 operations/s",
        "against": f"torch.nn.functional.linear, {operations / theirs / 1e9:.0f}, one thread",
        "ratio": theirs / mine,
        "target": "reported",
        "met": True,
    }


def _seconds(pairs: list[tuple[Tensor, Tensor]], *, ours: bool) -> float:
    multiply = product if ours else torch.nn.functional.linear
    began = time.perf_counter()
    for _ in range(CALLS):
        for left, weight in pairs:
            multiply(left, weight)
    return time.perf_counter() - began
