"""The processes in which the cells of an experiment and the sets of a search are run, as many at once as there are
cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.queues import SimpleQueue
from typing import TypeVar

from backend.processes import end_with
from simulator.errors import RunFailed

_Task = TypeVar("_Task")
_Answer = TypeVar("_Answer")


class Processes:
    """`workers` processes that were started and take one list of tasks after the other; one is this process."""

    def __init__(self, workers: int, pool: ProcessPoolExecutor | None = None) -> None:
        self.workers = workers
        self._pool = pool

    def each(self, work: Callable[[_Task], _Answer], tasks: Sequence[_Task]) -> Iterator[tuple[_Task, _Answer]]:
        """Each task with what `work` made of it, in the order in which they are finished. Raises what `work` raised,
        and `RunFailed` where a process was killed."""
        if self._pool is None:
            for task in tasks:
                yield task, work(task)
            return
        try:
            waiting: dict[Future[_Answer], _Task] = {self._pool.submit(work, task): task for task in tasks}
            while waiting:
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    yield waiting.pop(future), future.result()
        except BrokenProcessPool as error:
            raise RunFailed(
                "a process of the experiment was killed, perhaps for want of memory: the same command goes on, with "
                "--workers 1 it takes the least memory"
            ) from error


@contextmanager
def processes(workers: int) -> Iterator[Processes]:
    """As many processes as `workers`; with one, all is done in this process.

    When the block is left by Ctrl-C or an error, they are ended at once: what they were at is done again or goes on
    from what is on disk.
    """
    if workers <= 1:
        yield Processes(1)
        return
    context = multiprocessing.get_context("spawn")
    started: SimpleQueue[int] = context.SimpleQueue()
    pool = ProcessPoolExecutor(workers, context, _begin, (started, os.getpid()))
    finished = False
    try:
        yield Processes(workers, pool)
        finished = True
    finally:
        if not finished:
            while not started.empty():
                with suppress(ProcessLookupError):
                    os.kill(started.get(), signal.SIGTERM)
        pool.shutdown(wait=True, cancel_futures=True)


def side_by_side_in_processes(
    work: Callable[[_Task], _Answer], tasks: Sequence[_Task], workers: int
) -> Iterator[tuple[_Task, _Answer]]:
    """Each task with what `work` made of it, in processes that are there for these tasks alone; of one task in this
    process. See `processes`."""
    with processes(min(workers, len(tasks))) as pool:
        yield from pool.each(work, tasks)


def _begin(started: SimpleQueue[int], parent: int) -> None:
    """In a new process: say which one it is, leave Ctrl-C to the parent, and end with it."""
    started.put(os.getpid())
    end_with(parent)
