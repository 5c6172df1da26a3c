"""The processes in which the cells of an experiment are run, as many at once as there are cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing.queues import SimpleQueue
from typing import TypeVar

from simulator.errors import RunFailed

_Task = TypeVar("_Task")
_Answer = TypeVar("_Answer")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def side_by_side_in_processes(
    work: Callable[[_Task], _Answer], tasks: Sequence[_Task], workers: int
) -> Iterator[tuple[_Task, _Answer]]:
    """Each task with what `work` made of it, in the order in which they are finished.

    With one worker, and of one task, all is done in this process. When the iteration is left, by Ctrl-C or an error,
    the processes are ended at once: what they were at is run again or goes on from what is on disk. Raises what `work`
    raised, and `RunFailed` where a process was killed.
    """
    if workers <= 1 or len(tasks) <= 1:
        for task in tasks:
            yield task, work(task)
        return
    context = multiprocessing.get_context("spawn")
    started: SimpleQueue[int] = context.SimpleQueue()
    pool = ProcessPoolExecutor(min(workers, len(tasks)), context, _begin, (started, os.getpid()))
    finished = False
    try:
        waiting: dict[Future[_Answer], _Task] = {pool.submit(work, task): task for task in tasks}
        while waiting:
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield waiting.pop(future), future.result()
        finished = True
    except BrokenProcessPool as error:
        raise RunFailed(
            "a process of the experiment was killed, perhaps for want of memory: the same command goes on, with "
            "--workers 1 it takes the least memory"
        ) from error
    finally:
        if not finished:
            while not started.empty():
                with suppress(ProcessLookupError):
                    os.kill(started.get(), signal.SIGTERM)
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(started: SimpleQueue[int], parent: int) -> None:
    """In a new process: say which one it is, leave Ctrl-C to the parent, and end with it."""
    started.put(os.getpid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="watch of the parent", daemon=True).start()


def silent(what: str, done: int, total: int) -> None:
    """Progress of many cells side by side is a line for each that is done."""
