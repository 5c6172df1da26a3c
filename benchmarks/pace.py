"""How fast this machine is, so that a limit of time means the same on every machine.

Limits such as 3 s or 500 decisions/s were set on one machine, and say nothing about a program on another: one of half
the speed misses them all. So a limit is stretched by `pace()`: what a fixed piece of work takes here, in relation to
what it took there. The work is what the program's own time goes into: Python's interpreter, and numpy on small arrays.
A row's ratio is to the stretched limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import numpy as np

from benchmarks.run import Result

# Seconds of processor time of `_interpreter` and `_arrays` on the machine that the limits are stated for: two cores of
# an AMD EPYC, Python 3.11.7, numpy 2.4.6.
REFERENCE = {"interpreter": 0.0204, "arrays": 0.0139}
ROUNDS = 15


@cache
def pace() -> float:
    """How many times as long as on the machine of the limits the work takes here: the geometric mean of its parts,
    each at its fastest."""
    ratios = [min(_seconds(work) for _ in range(ROUNDS)) / REFERENCE[name] for name, work in _WORK.items()]
    return float(np.exp(np.mean(np.log(ratios))))


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _interpreter() -> int:
    """Calls, dicts, lists and texts."""
    words: dict[str, list[int]] = {}
    for number in range(60_000):
        words.setdefault(f"w{number * 7919 % 4093}", []).append(number)
    return sum(len(numbers) for word, numbers in sorted(words.items()) if not word.endswith("0"))


def _arrays() -> float:
    """Functions, sums and orders of arrays that fit into a cache; nothing that more threads would make faster."""
    values, total = np.linspace(0.0, 1.0, 2_000), 0.0
    for _ in range(300):
        values = np.tanh(values[::-1] + 0.1)
        total += float(np.sort(values).cumsum()[-1])
    return total


_WORK: dict[str, Callable[[], object]] = {"interpreter": _interpreter, "arrays": _arrays}


def within(name: str, value: float, unit: str, limit: float, said: str = "") -> Result:
    """A row whose `value`, a time, must be no more than `limit` of the same unit, stretched by the machine's pace.
    `said` stands behind the limit. The first word of `unit` is that of the limit."""
    most = limit * pace()
    return Result(
        name=name, value=value, unit=unit, against=_words(limit, unit.split()[0].rstrip(","), said),
        ratio=value / most, target="<= 1.0", met=value <= most,
    )  # fmt: skip


def at_least(name: str, value: float, unit: str, least: float, said: str = "") -> Result:
    """The same of a rate, which must be no less than `least` divided by the pace."""
    enough = least / pace()
    return Result(
        name=name, value=value, unit=unit, against=_words(least, unit.split()[0], said), ratio=value / enough,
        target=1.0, met=value >= enough,
    )  # fmt: skip


def _words(limit: float, unit: str, said: str) -> str:
    stated = f"{limit:g} {unit} at pace 1; this machine's is {pace():.2f}"
    return f"{stated}; {said}" if said else stated
