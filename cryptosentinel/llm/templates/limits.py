"""Limits of a chat template's program.

A template comes with a model, so anybody may have written it. Its sandbox reaches nothing, but a loop in it may go on
for years, and three letters times a billion take all memory.
"""

from __future__ import annotations

import re
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

from jinja2 import Environment, nodes
from jinja2.exceptions import TemplateError

from simulator.errors import UserError

SECONDS = 10.0  # for one conversation; templates take milliseconds
MEGABYTES = 2048  # more than the program has when it begins
_TOO_DEEP = "it calls itself, or is nested, without end"
_MOST_TIMES = 1000  # a factor in a template
_GENERATION = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")  # a tag of transformers, which marks and does nothing


class OverLimit(UserError):
    """A template takes too long, too much memory, or might."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the chat template cannot be used: {what}; give the model one that you trust")


@contextmanager
def limited() -> Iterator[None]:
    """Ends what is called inside with `OverLimit` after `SECONDS`, or where it needs more than `MEGABYTES`.

    The time is looked at between two lines of Python, so one step of an interpreter's own function is not cut off:
    `check_program` refuses those that could take for ever.
    """
    until = time.monotonic() + SECONDS

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if time.monotonic() > until:
            raise OverLimit(f"it takes more than {SECONDS:g} seconds")
        return trace

    traced, (soft, hard) = sys.gettrace(), resource.getrlimit(resource.RLIMIT_AS)
    most = _address_space() + MEGABYTES * 2**20
    if soft == resource.RLIM_INFINITY or most < soft:
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    sys.settrace(trace)
    try:
        yield
    except MemoryError:
        raise OverLimit(f"it takes more than {MEGABYTES:,} MB of memory") from None
    except (RecursionError, SyntaxError):  # what Python says of the code that a template becomes
        raise OverLimit(_TOO_DEEP) from None
    finally:
        sys.settrace(traced)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@lru_cache(maxsize=256)
def check_program(template: str) -> None:
    """Raises `OverLimit` for powers, and for products of which no factor is a small number: a few of them make numbers
    that take for ever. No chat template needs them."""
    environment = Environment(extensions=["jinja2.ext.loopcontrols"], autoescape=True)
    try:
        parsed = environment.parse(_GENERATION.sub("", template))
        powers, products = parsed.find(nodes.Pow), list(parsed.find_all(nodes.Mul))
    except TemplateError:
        return  # it is not a template: whoever renders it says what is wrong
    except RecursionError:
        raise OverLimit(_TOO_DEEP) from None
    if powers is not None:
        raise OverLimit("it raises to a power, which no chat template needs")
    for product in products:
        if not (_is_small(product.left) or _is_small(product.right)):
            raise OverLimit(f"it multiplies by what may be more than {_MOST_TIMES:,}, which no chat template needs")


def _is_small(factor: nodes.Expr) -> bool:
    return (
        isinstance(factor, nodes.Const) and isinstance(factor.value, int | float) and abs(factor.value) <= _MOST_TIMES
    )


def _address_space() -> int:
    """Bytes of this process's address space."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()
