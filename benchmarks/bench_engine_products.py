"""Products of a hundred rows and of a thousand with nano's matrices: those of `matrices.py` beside torch's own, by
turns on one thread. What torch's own take depends on the maker of the processor."""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor

from benchmarks.run import Result
from cryptosentinel.llm.local.matrices import product

SHAPES = ((128, 384), (384, 128), (128, 1024))  # in, out: MLP up and down, output layer
ROWS = (128, 1024)
REPETITIONS, CALLS, WARM_UP = 9, 50, 2


def run() -> list[Result]:
    """The rows `engine.products.ROWS`; values are thousand millions of operations a second."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_compare(rows) for rows in ROWS]
    finally:
        torch.set_num_threads(threads)


def _compare(rows: int) -> Result:
    generator = torch.Generator().manual_seed(0)
    pairs = [
        (torch.randn(rows, size, generator=generator), torch.randn(out, size, generator=generator))
        for size, out in SHAPES
    ]
    operations = CALLS * sum(2 * left.numel() * weight.shape[0] for left, weight in pairs)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with torch.inference_mode():
        for _ in range(WARM_UP + REPETITIONS):
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
