"""Runs many conversations side by side, and keeps their engine busy.

Requests of one role that wait at the same moment become one batch: the role for which the most wait. The others wait on
until theirs are more, since an engine answers many at once in hardly more time than a few. A streaming engine gets each
request at once, and a conversation continues as soon as its own answer arrives. The results are the same either way:
they are in the order of the tasks, and a request's sample depends on its own seed only.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, fields
from typing import Generic, TypeVar

from cryptosentinel.llm.engine import (
    NOTHING,
    Completion,
    Engine,
    Request,
    StreamingEngine,
    Usage,
    cancelled_at_the_end,
)
from cryptosentinel.team import AgentTask

_T = TypeVar("_T")

# Of `Throughput.metrics`: those that a repeated run reproduces, and those that measure the machine.
FILLING = ("requests", "failures", "sampled_tokens", "prompt_tokens", "batch", "batch_fill", "prefix_reuse")
SPEED = ("tokens_per_second", "outside")

# Seconds after which a wait for answers begins anew. Python misses a signal that comes in the moment in which its main
# thread goes to sleep, and hears it when that wakes: so Ctrl-C is heard within this time, and not with the next answer.
_HEARD_WITHIN = 1.0


@dataclass
class Throughput:
    """How busy an engine was. `engine_seconds` is the time in which conversations waited for it, `seconds` all time.
    `sent` counts submissions of requests to the engine. `living` and `flying` are sums over these submissions: of the
    unfinished conversations, and of the requests that the engine had. `thoughts_cut` counts thoughts that were closed
    as their budget was spent."""

    requests: int = 0
    failures: int = 0
    usage: Usage = NOTHING
    seconds: float = 0.0
    engine_seconds: float = 0.0
    sent: int = 0
    living: int = 0
    flying: int = 0
    thoughts_cut: int = 0

    def add(self, other: Throughput) -> None:
        """Count what `other` has counted as well. Of engines that worked side by side the seconds are summed too."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    def metrics(self) -> dict[str, float]:
        """By name: tokens sampled per second of the engine, requests it had at a time (`batch`) and as a share of the
        conversations under way (`batch_fill`), share of prompt tokens that were known (`prefix_reuse`), share of time
        that was not the engine's (`outside`); where there were any, tokens that were thoughts, further requests for
        answers that were cut off, and thoughts that were. Empty where nothing was asked."""
        if not self.requests:
            return {}
        further = {
            "reasoning_tokens": self.usage.reasoning,
            "cut_off_retries": self.usage.retried,
            "thoughts_cut": self.thoughts_cut,
        }
        return {
            **{name: float(count) for name, count in further.items() if count},
            "requests": float(self.requests),
            "failures": float(self.failures),
            "sampled_tokens": float(self.usage.sampled),
            "prompt_tokens": float(self.usage.prompt),
            "tokens_per_second": self.usage.sampled / max(self.engine_seconds, 1e-9),
            "batch": self.flying / self.sent,
            "batch_fill": self.flying / max(1, self.living),
            "prefix_reuse": self.usage.cached / max(1, self.usage.prompt),
            "outside": 1.0 - self.engine_seconds / max(self.seconds, 1e-9),
        }


def run_all(
    tasks: Sequence[AgentTask[_T]],
    engine: Engine,
    *,
    max_batch: int = 512,
    on_finished: Callable[[int], None] | None = None,
    throughput: Throughput | None = None,
) -> list[_T]:
    """Run every task to its end and return their results in order. `on_finished` gets the number finished so far;
    `throughput` is added to. An engine that streams has at most `max_batch` requests at a time."""
    pool = _TaskPool(tasks, on_finished, throughput or Throughput())
    began = time.perf_counter()
    pool.start()
    try:
        if isinstance(engine, StreamingEngine):
            _stream(pool, engine, max_batch)
        else:
            _in_batches(pool, engine, max_batch)
    finally:
        pool.throughput.seconds += time.perf_counter() - began
    return [pool.results[number] for number in range(len(tasks))]


@dataclass(frozen=True)
class _Wanted:
    """A request that a task waits for: the one at `place` of those that it made at once."""

    number: int
    place: int
    request: Request


class _TaskPool(Generic[_T]):
    """The tasks, the requests that they wait for, and their results."""

    def __init__(
        self, tasks: Sequence[AgentTask[_T]], on_finished: Callable[[int], None] | None, throughput: Throughput
    ) -> None:
        self._tasks = tasks
        self._on_finished = on_finished
        self._completions: dict[int, list[Completion | None]] = {}
        self.throughput = throughput
        self.results: dict[int, _T] = {}
        self.waiting: list[_Wanted] = []

    def start(self) -> None:
        """Advance every task to its first requests."""
        for number in range(len(self._tasks)):
            self._advance(number, None)

    def answer(self, wanted: _Wanted, completion: Completion) -> None:
        """Hand a completion to its task, which advances once all of its completions are there."""
        self.throughput.requests += 1
        self.throughput.failures += completion.failure is not None
        self.throughput.usage += completion.usage
        self.throughput.thoughts_cut += completion.forced > 0
        completions = self._completions[wanted.number]
        completions[wanted.place] = completion
        whole = [one for one in completions if one is not None]
        if len(whole) == len(completions):
            self._advance(wanted.number, whole)

    def sent(self, flying: int) -> None:
        """Count a submission after which the engine has `flying` requests."""
        self.throughput.sent += 1
        self.throughput.flying += flying
        self.throughput.living += len(self._tasks) - len(self.results)

    def _advance(self, number: int, answers: Sequence[Completion] | None) -> None:
        """Advance a task to its next requests, or to its end."""
        task = self._tasks[number]
        try:
            requests = next(task) if answers is None else task.send(answers)
        except StopIteration as stop:
            self.results[number] = stop.value
            if self._on_finished is not None:
                self._on_finished(len(self.results))
        else:
            self._completions[number] = [None] * len(requests)
            self.waiting += [_Wanted(number, place, request) for place, request in enumerate(requests)]


def _in_batches(pool: _TaskPool[_T], engine: Engine, max_batch: int) -> None:
    while pool.waiting:
        # Each role has weights of its own, and identical prompts of a role meet in one batch. Windows that are played
        # side by side soon wait for different roles: all roles in turn, 18 windows of the demo had 3 rows a token; the
        # role for which the most wait, they have 11.
        waiting = Counter(wanted.request.role for wanted in pool.waiting)
        role = max(waiting, key=lambda name: (waiting[name], name))
        of_role = [wanted for wanted in pool.waiting if wanted.request.role == role]
        batch = sorted(of_role, key=lambda wanted: (wanted.number, wanted.place))[:max_batch]
        sent = {(wanted.number, wanted.place) for wanted in batch}
        pool.waiting = [wanted for wanted in pool.waiting if (wanted.number, wanted.place) not in sent]
        pool.sent(len(batch))
        began = time.perf_counter()
        completions = engine.generate([wanted.request for wanted in batch])
        pool.throughput.engine_seconds += time.perf_counter() - began
        for wanted, completion in zip(batch, completions, strict=True):
            pool.answer(wanted, completion)


def _stream(pool: _TaskPool[_T], engine: StreamingEngine, max_batch: int) -> None:
    flying: dict[Future[Completion], _Wanted] = {}
    with cancelled_at_the_end(engine, flying):
        while pool.waiting or flying:
            if pool.waiting and len(flying) < max_batch:
                room = max_batch - len(flying)
                for wanted in pool.waiting[:room]:
                    flying[engine.submit(wanted.request)] = wanted
                pool.waiting = pool.waiting[room:]
                pool.sent(len(flying))
            began = time.perf_counter()
            done = wait(flying, timeout=_HEARD_WITHIN, return_when=FIRST_COMPLETED).done
            pool.throughput.engine_seconds += time.perf_counter() - began
            for future in sorted(done, key=lambda one: (flying[one].number, flying[one].place)):
                pool.answer(flying.pop(future), future.result())
