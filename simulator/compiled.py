"""How this package compiles its inner loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from numba import njit

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile with numba at the first call and keep the machine code on disk; no fastmath, so results are repeatable.

    numba caches beside the source or, where that is read-only, in the user's cache folder. Where neither can be written
    it raises; then every process compiles anew (a few seconds), which is better than no simulator.
    """
    try:
        return cast(Callable[P, R], njit(cache=True)(function))
    except RuntimeError:
        return cast(Callable[P, R], njit(function))
