"""Decorators that compile the inner loops with numba."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
from numba import njit
from numba.core.types import unliteral

_P = ParamSpec("_P")
_R = TypeVar("_R")


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile with numba at the first call and keep the machine code on disk; no fastmath, so results are repeatable.

    The function makes no array: numba refuses to compile one that does (see `allocating`). So nothing has to be counted
    when arrays are handed on; the caller, at the outermost Python itself, keeps them alive. Counting took three
    quarters of the time of a fill.

    A division by zero gives what numpy gives. numba caches beside the source or, where that is read-only, in the user's
    cache folder. Where neither can be written it raises; then every process compiles again (half a minute), which is
    better than no simulator.
    """
    return _compile(function)


def inlined(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`compiled`, and copied into its callers: for hot small functions, where a call costs more than its work."""
    return _compile(function, inlined=True)


def allocating(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`compiled`, for a function that makes arrays."""
    return _compile(function, counted=True)


def _compile(function: Callable[_P, _R], inlined: bool = False, counted: bool = False) -> Callable[_P, _R]:
    options: dict[str, Any] = {"error_model": "numpy", "forceinline": inlined, "_nrt": counted}
    try:
        dispatcher: Any = njit(cache=True, **options)(function)
    except RuntimeError:
        return cast(Callable[_P, _R], njit(**options)(function))
    # numba asks only whether the function's own file has changed, not those of the functions and constants that it has
    # compiled in. So the stamp of a cached function is that of the whole simulator.
    # It also stands in the place of numba's version, which is compared before anything else is read: an index that was
    # written when a class had another name or place cannot be read at all.
    file = dispatcher._cache._cache_file
    file._source_stamp = _package_stamp()
    file._version = f"{numba.__version__} {_package_stamp()}"
    # A call with a constant (a bar's point, a flag) compiles the callee once more for that constant: a quarter of all
    # compiling, for no speed.
    template = dispatcher.get_call_template
    dispatcher.get_call_template = lambda args, kws: template(tuple(map(unliteral, args)), kws)
    return cast(Callable[_P, _R], dispatcher)


def is_compiled(function: Callable[..., Any]) -> bool:
    """Whether a later call finds machine code of `function` (as one of the decorators above gave it) on disk. False
    also where nothing can be kept."""
    file = getattr(getattr(function, "_cache", None), "_cache_file", None)
    return file is not None and bool(file._load_index())


@cache
def _package_stamp() -> str:
    """Hash of every module of the simulator that compiles something, and of the arrays' layout."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        source = path.read_bytes()
        if b"simulator.kernel.jit import" in source or path.name == "layout.py":
            digest.update(source)
    return digest.hexdigest()
