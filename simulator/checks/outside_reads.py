"""What a strategy reads that is no part of its market: files, databases, connections, other programs.

The look-ahead verdict alters later bars of the market. What comes from elsewhere is the same in all its runs, so a file
of signals that were fitted on the whole history looks clean. It cannot be judged, but it can be named.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any

_CODE = (".py", ".pyc", ".pyi", ".so", ".nbi", ".nbc")  # and what numba keeps of it
_SYSTEM = ("/usr/", "/lib", "/proc/", "/sys/", "/etc/")
_NAMED = 3  # in a note, at most
_watching: dict[int, set[str]] = {}  # by thread: what it has read since it began to be watched
_hooked = False


@contextmanager
def outside_reads() -> Iterator[set[str]]:
    """Gives a set that fills with what this thread reads through Python. What libraries open in another language
    (pyarrow, polars) is not seen.

    Left out are code, the interpreter's own files and the system's.
    """
    global _hooked
    if not _hooked:  # a hook cannot be taken away again
        sys.addaudithook(_heard)
        _hooked = True
    thread, reads = threading.get_ident(), set[str]()
    before = _watching.get(thread)
    _watching[thread] = reads
    try:
        yield reads
    finally:
        if before is None:
            del _watching[thread]
        else:
            _watching[thread] = before
            before |= reads


def reads_note(reads: AbstractSet[str]) -> str | None:
    """A sentence's part about what was read; None for nothing."""
    if not reads:
        return None
    names = sorted(reads)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (
        f"the strategy reads {', '.join(names[:_NAMED])}{more}, the same in all runs of this check: whether that knows "
        "later prices cannot be found"
    )


def _heard(event: str, values: Sequence[Any]) -> None:
    reads = _watching.get(threading.get_ident()) if _watching else None
    if reads is None:
        return
    name: str | None = None
    if event == "open":
        name = _file(values[0], values[1], values[2])
    elif event == "sqlite3.connect":
        name = _file(values[0], "r", 0)
    elif event == "socket.connect":
        address = values[1]
        name = f"from {address[0] if isinstance(address, tuple) and address else address}"
    elif event == "subprocess.Popen":
        name = f"what {os.path.basename(os.fsdecode(values[0]))} answers"
    if name is not None:
        reads.add(name)


def _file(path: object, mode: object, flags: object) -> str | None:
    """How a file that was opened is called; None for what is no data, or was opened for writing only."""
    written = isinstance(flags, int) and bool(flags & os.O_WRONLY)
    if isinstance(mode, str):
        written = "r" not in mode and "+" not in mode
    if written or not isinstance(path, str | bytes | os.PathLike):  # the file of a descriptor was opened before
        return None
    full = os.path.abspath(os.fsdecode(path))
    of_python = (sys.prefix + os.sep, sys.base_prefix + os.sep)
    if full.endswith(_CODE) or full.startswith((*_SYSTEM, *of_python)) or "site-packages" in full:
        return None
    if "\0" in full or not os.path.isfile(full):
        return None
    return full.removeprefix(os.getcwd() + os.sep)
