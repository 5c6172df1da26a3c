"""Ctrl-C at a chosen place of the code, for tests that try one after the other."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

# After these the interpreter looks for signals; between a lock's taking and the block that gives it back it does not.
_LOOKS = ("RESUME", "CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD")


class Interrupt:
    """A trace function that raises `KeyboardInterrupt` once, at the n-th place where the interpreter looks for signals
    in the code of files whose paths begin with one of `files`."""

    def __init__(self, at: int, files: tuple[str, ...]) -> None:
        self.came = False
        self._left = at
        self._files = files
        self._last: dict[FrameType, str] = {}

    def __call__(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.startswith(self._files):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self._left -= self._last.get(frame, "") in _LOOKS
            self._last[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        elif event == "return":
            self._last.pop(frame, None)  # what it refers to must not outlive it
        if self._left <= 0:
            self.came = True
            raise KeyboardInterrupt
        return self


def interrupted_at(at: int, files: tuple[str, ...], work: Callable[[], object]) -> bool:
    """Do `work` with an interrupt at the n-th place, and whether it came: False where the work ended before."""
    former, tracer = sys.gettrace(), Interrupt(at, files)
    sys.settrace(tracer)  # Python takes a trace function away that has raised
    try:
        work()
    except BaseException as error:
        # `shutil.rmtree` of Python 3.11 makes an OSError of an interrupt at one place of it.
        if not isinstance(error, KeyboardInterrupt) and not isinstance(error.__context__, KeyboardInterrupt):
            raise
    finally:
        sys.settrace(former)
    return tracer.came  # Python ignores what is raised in a destructor
