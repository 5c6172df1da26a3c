"""Lets a team think without being held up by it: a model that hangs, or an order to stop, ends the decision at once.

The engine answers in a thread of its own. When the time is over, or the kill switch is set, that thread is left behind:
its requests count as failed, so the conversations end without an answer, and the decision is *no change*. An engine
that is still busy with requests that were left is not asked again before it is done.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cryptosentinel.llm.engine import Completion, Engine, Request, failed_completion
from cryptosentinel.team import AgentTask

_T = TypeVar("_T")
_LOOK_SECONDS = 0.02  # how often it is looked whether to go on waiting

WhyNot = Callable[[], str | None]  # why no answer is waited for any more; None: it is


@dataclass
class _Job:
    requests: Sequence[Request]
    done: threading.Event = field(default_factory=threading.Event)
    completions: list[Completion] = field(default_factory=list)
    error: BaseException | None = None


class Thinker:
    """Runs tasks on `engine`, one at a time. `why_not` is asked again and again while a model thinks; `answered` counts
    the requests that got an answer since `begin`."""

    def __init__(self, engine: Engine, why_not: WhyNot) -> None:
        self._engine, self._why_not = engine, why_not
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._last: _Job | None = None
        self.answered = 0
        self.cut_off = ""  # why, if an answer was not waited for since then
        threading.Thread(target=self._work, name="thinking", daemon=True).start()

    def begin(self) -> None:
        """A new decision begins."""
        self.answered, self.cut_off = 0, ""

    def summary(self) -> dict[str, Any]:
        """For the journal: why the decision was cut off, if so, and after how many answers."""
        return {"cut_off": self.cut_off, "answered": self.answered}

    def run(self, task: AgentTask[_T]) -> _T:
        """Run `task` to its end. Raises what the engine raises, and what the task does."""
        answers: Sequence[Completion] | None = None
        while True:
            try:
                requests = next(task) if answers is None else task.send(answers)
            except StopIteration as stop:
                result: _T = stop.value
                return result
            answers = self._answers(requests)

    def _answers(self, requests: Sequence[Request]) -> list[Completion]:
        if not self.cut_off and self._last is not None and not self._last.done.is_set():
            self.cut_off = "the model still thinks about an earlier decision"
        why = self.cut_off or self._why_not()
        if not why:
            job = self._last = _Job(requests)
            self._jobs.put(job)
            while not job.done.wait(_LOOK_SECONDS):
                why = self._why_not()
                if why:
                    break
            else:
                if job.error is not None:
                    raise job.error
                self.answered += len(requests)
                return job.completions
        self.cut_off = why or ""
        return [failed_completion(f"cut off: {why}") for _ in requests]

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                job.completions = self._engine.generate(job.requests)
            except BaseException as error:  # noqa: BLE001  # it is raised in the thread that waits
                job.error = error
            finally:
                job.done.set()
