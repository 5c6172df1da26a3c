"""Further processes of this program on this machine, which take work off the one that the user started.

`Workers` is this process and its helpers. A helper is a process of its own with one thread: it does one piece of work
after the other, keeps nothing that the answer of the next one depends on, and ends with the process that started it.
So what comes out is the same however many there are; only the time is another.
"""

from __future__ import annotations

import ctypes
import io
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeVar

from simulator.errors import RunFailed, UserError

_Task = TypeVar("_Task")
_Answer = TypeVar("_Answer")
WorkReport = Callable[[str, int, int], None]  # what is being done, how much of it, of how much
Work = Callable[[_Task, WorkReport], _Answer]

_THREADS = "OMP_NUM_THREADS"
_EXIT_SECONDS = 2.0  # that a helper has to end by itself before it is killed


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of glibc's `mallopt`
_KEPT, _APART_FROM = 2**28, 2**25  # bytes; glibc takes no larger block from what is kept


def keep_freed_memory() -> None:
    """Let this process keep up to 256 MB of memory that it has freed.

    A training step frees blocks of some megabytes and needs them again at once. By itself glibc gives them back to the
    system, which hands them out page by page and cleared: an eighth of the time of nano's learning on two cores. Where
    the environment says something else (`MALLOC_TRIM_THRESHOLD_`, `MALLOC_MMAP_THRESHOLD_`), and with another C
    library, nothing is changed.
    """
    if any(f"MALLOC_{name}_THRESHOLD_" in os.environ for name in ("TRIM", "MMAP")):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _APART_FROM)
        mallopt(_TRIM_THRESHOLD, _KEPT)


class Helper(Protocol):
    """A process that works for this one."""

    def do(self, work: Work[_Task, _Answer], task: _Task, report: WorkReport) -> _Answer:
        """What `work`, a function of a module, makes of `task` there. Waits for it. Raises what it raised, and
        `RunFailed` where the process has died."""
        ...


class Workers:
    """This process, and helpers beside it."""

    def __init__(self, helpers: Sequence[Helper] = ()) -> None:
        self.helpers = tuple(helpers)

    @property
    def number(self) -> int:
        """Processes in all."""
        return 1 + len(self.helpers)

    def each(
        self, work: Work[_Task, _Answer], tasks: Sequence[_Task], report: WorkReport | None = None
    ) -> list[_Answer]:
        """What `work` makes of each task, in the order of the tasks; who is free takes the next one. Raises what the
        first failure raised. `report` is called by one process at a time."""
        reported = _one_at_a_time(report or silent)
        return self.share(
            lambda helper, task: helper.do(work, task, reported) if helper else work(task, reported), tasks
        )

    def share(self, work: Callable[[Helper | None, _Task], _Answer], tasks: Sequence[_Task]) -> list[_Answer]:
        """As `each`, where `work` itself asks the helper that it is given, or does the task here if it is given None.

        It is called in one thread for each process, and with None in this one.
        """
        waiting = deque(enumerate(tasks))
        answers: dict[int, _Answer] = {}
        failures: list[BaseException] = []

        def take(helper: Helper | None) -> None:
            while not failures:
                try:
                    number, task = waiting.popleft()
                except IndexError:
                    return
                try:
                    answers[number] = work(helper, task)
                except Exception as error:  # noqa: BLE001 - it is raised in this process's own thread
                    failures.append(error)

        threads = [
            threading.Thread(target=take, args=(helper,), daemon=True) for helper in self.helpers[: len(tasks) - 1]
        ]
        for thread in threads:
            thread.start()
        # A Ctrl-C is raised here and in the joins. It leaves `started`, which ends the helpers and so the threads.
        take(None)
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return [answers[number] for number in range(len(tasks))]


ALONE = Workers()


@contextmanager
def started(number: int, *, import_torch: bool = True) -> Iterator[Workers]:
    """`number` processes, this one included. The helpers begin at once and are ended with the block. In each of them
    torch computes with one thread; work that may do without torch need not import it for that."""
    if number <= 1:
        yield ALONE
        return
    helpers: list[_HelperProcess] = []
    try:
        helpers.extend(_HelperProcess(f"helper-{rank}", import_torch) for rank in range(1, number))
        with _one_thread(import_torch):
            yield Workers(helpers)
    finally:
        for helper in helpers:
            helper.close()


class _HelperProcess:
    """A helper, started when this object is made."""

    def __init__(self, name: str, import_torch: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, os.getpid(), import_torch)
        self._process = context.Process(target=_serve, args=arguments, name=name, daemon=True)
        self._process.start()
        theirs.close()  # only the helper holds this end now, so its death closes the pipe

    def do(self, work: Work[_Task, _Answer], task: _Task, report: WorkReport) -> _Answer:
        """As `Helper.do`."""
        try:
            _send(self._pipe, (work, task))
            while True:
                kind, content = _received(self._pipe)
                if kind == "progress":
                    report(*content)
                elif kind == "failure":
                    raise content
                else:
                    return content
        except (EOFError, OSError) as error:
            if isinstance(error, OSError) and self._process.is_alive():
                raise
            self._process.join(_EXIT_SECONDS)
            raise RunFailed(
                f"a process beside this one died ({_how(self._process.exitcode)}), perhaps for want of memory: the "
                "same command continues; with --workers 1 it takes the least memory"
            ) from error

    def close(self) -> None:
        """End it, whatever it is at: nothing of a helper is kept."""
        self._pipe.close()
        self._process.terminate()
        self._process.join(_EXIT_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(pipe: Connection, parent: int, import_torch: bool) -> None:
    """The main function of a helper, until the parent's end of the pipe is closed."""
    _end_with(parent)
    with _one_thread(import_torch):
        _work_for(pipe)


def _work_for(pipe: Connection) -> None:
    def report(what: str, done: int, total: int) -> None:
        _send(pipe, ("progress", (what, done, total)))

    while True:
        try:
            work, task = _received(pipe)
        except EOFError:
            return
        try:
            answer: tuple[str, Any] = ("answer", work(task, report))
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent raises it
            answer = ("failure", _sendable(error))
        _send(pipe, answer)


def _end_with(parent: int) -> None:
    """In a new process: leave Ctrl-C to the process `parent`, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="watch of the parent", daemon=True).start()


class _Pickler(pickle.Pickler):
    """Tensors go by value. `Connection.send` would hand each over as a file of its own that both processes map, which
    takes a hundred times as long for the small ones that a task is full of."""

    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(obj) is not torch.Tensor or obj.requires_grad or obj.device.type != "cpu":
            return NotImplemented
        try:
            return _tensor, (obj.numpy(),)
        except (TypeError, RuntimeError):  # numpy has no such numbers: as the library writes it
            return NotImplemented


def _tensor(values: Any) -> Any:
    import torch

    return torch.from_numpy(values if values.flags.writeable else values.copy())


def _send(pipe: Connection, content: object) -> None:
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(content)
    pipe.send_bytes(buffer.getbuffer())


def _received(pipe: Connection) -> Any:
    """Only from a process of this program's own: it unpickles."""
    return pickle.loads(pipe.recv_bytes())


def silent(what: str, done: int, total: int) -> None:
    """A report that nobody reads."""


@contextmanager
def _one_thread(import_torch: bool) -> Iterator[None]:
    """Let torch compute with one thread here for a block, also where it is imported in it. Two threads in one process
    are many times slower than one while another process computes."""
    former = os.environ.get(_THREADS)
    if import_torch or "torch" in sys.modules:
        import torch  # heavy, and not needed by one process alone

        before = torch.get_num_threads()
        torch.set_num_threads(1)
    else:
        before = int(former) if former and former.isdecimal() else cores()
        os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        os.environ.pop(_THREADS, None)
        os.environ.update({} if former is None else {_THREADS: former})
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(before)


def _sendable(error: Exception) -> Exception:
    """An error that the other process can read: itself, or a `RunFailed` in its words."""
    with suppress(Exception):
        if isinstance(pickle.loads(pickle.dumps(error)), type(error)):
            return error
    return (UserError if isinstance(error, UserError) else RunFailed)(f"{type(error).__name__}: {error}")


def _one_at_a_time(report: WorkReport) -> WorkReport:
    lock = threading.Lock()

    def reported(what: str, done: int, total: int) -> None:
        with lock:
            report(what, done, total)

    return reported


def _how(code: int | None) -> str:
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
