"""How a command ends when it is told to: Ctrl-C, or a signal from a process manager.

The first signal ends the command in order: what is under way is left, the run is recorded as interrupted, and the
message says how to continue. That may take a while, as when a model is being saved. A second signal ends the process at
once. Nothing that was acknowledged is lost by that: the store and the checkpoints outlive a kill at any moment. The
program that opens the store next finds the run interrupted.

After a signal the program ends as soon as its last word is said: what the interpreter does at its end, as waiting for
threads of libraries, is given some seconds.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

# SIGHUP comes when a terminal or a connection closes; under `nohup` it is ignored, and stays so.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_END_SECONDS = 10.0  # for handlers of the interpreter's end, which end servers and remove temporary folders
_received: list[int] = []
_whole_program: list[bool] = []


@contextmanager
def end_in_order() -> Iterator[None]:
    """Take the signals for a block, in the main thread: the first as `KeyboardInterrupt`, the second as the end."""
    former = {number: signal.getsignal(number) for number in _SIGNALS}
    _received.clear()
    for number, handler in former.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _take)
    try:
        yield
    finally:
        if not _whole_program:
            for number, handler in former.items():
                signal.signal(number, handler)
        elif not _received:  # else a second signal ends the process during the interpreter's end, too
            for number, handler in former.items():
                if handler is not signal.SIG_IGN:
                    signal.signal(number, _take_after_the_work)


def exit_code(otherwise: int) -> int:
    """128 and the number of the signal that ended the command; `otherwise` where there was none."""
    return 128 + _received[0] if _received else otherwise


@contextmanager
def end_soon() -> Iterator[None]:
    """Around all that the program does: after a signal the process ends within seconds of the block, with that signal's
    code, whatever threads, libraries and the interpreter still do or say. Without one it changes nothing."""
    _whole_program.append(True)
    atexit.register(_leave)  # handlers run in the reverse order, so those of libraries come before it
    try:
        yield
    finally:
        if _received:
            threading.Thread(target=_leave, args=(_END_SECONDS,), name="end", daemon=True).start()


def _leave(seconds: float = 0.0) -> None:
    if _received:
        time.sleep(seconds)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # closed, broken or none
                stream.flush()
        os._exit(128 + _received[0])


def _take(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    if len(_received) == 1:
        if _whole_program:
            _silence_leftovers()
        raise KeyboardInterrupt
    # Not through the interpreter, which may be anywhere: in a lock, in a destructor, in the engine.
    words = "\nended at once; what was stored until now is kept\n"
    os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, words.encode())
    os._exit(128 + number)


def _take_after_the_work(number: int, frame: FrameType | None) -> None:
    """The command has done all that it was told: a first signal has nothing left to stop, and an exception would cut
    off the handlers of the interpreter's end. A second one is for an end that hangs."""
    signal.signal(number, signal.SIG_DFL)


def _silence_leftovers() -> None:
    """What the interruption left half made is reported by Python when it is removed, as a coroutine that nobody awaited
    or a loop of events without its socket. That does no harm: the process ends, and one message says why."""
    sys.unraisablehook = lambda unraisable: None
    warnings.simplefilter("ignore", RuntimeWarning)
