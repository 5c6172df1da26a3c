"""Lets a team or a strategy think without being held up by it: a model that hangs, or an order to stop, ends the
decision at once.

It thinks in a thread of its own. When the time is over, or the kill switch is set, that thread is left behind: a
model's requests count as failed, so the conversations end without an answer, and the decision is *no change*. While it
is still busy with what was left, nothing further is asked of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from cryptosentinel.llm.engine import Completion, Engine, Request, failed_completion
from cryptosentinel.team import AgentTask

_T = TypeVar("_T")
_LOOK_SECONDS = 0.02  # how often the reason to stop waiting is looked for
BUSY = "the model still thinks about an earlier decision"

WhyNot = Callable[[], str | None]  # why no answer is waited for any more; None: it is


def in_background(work: Callable[[], _T], name: str) -> Future[_T]:
    """Do `work` in a thread that the program's end does not wait for."""
    answer: Future[_T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001  # it is raised in the thread that waits
            answer.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return answer


class Thinker:
    """Runs work beside the session, one piece at a time. `why_not` is asked again and again meanwhile; `answered`
    counts the requests that got an answer since `begin`."""

    def __init__(self, why_not: WhyNot) -> None:
        self._why_not = why_not
        self._last: Future[Any] | None = None
        self.answered = 0
        self.cut_off = ""  # why, if an answer was not waited for since then

    def begin(self) -> None:
        """A new decision begins."""
        self.answered, self.cut_off = 0, ""

    def summary(self) -> dict[str, Any]:
        """For the journal: why the decision was cut off, if so, and after how many answers."""
        return {"cut_off": self.cut_off, "answered": self.answered}

    def run(self, task: AgentTask[_T], engine: Engine) -> _T:
        """Run `task` to its end with the answers of `engine`. Raises what either raises."""
        answers: Sequence[Completion] | None = None
        while True:
            try:
                requests = next(task) if answers is None else task.send(answers)
            except StopIteration as stop:
                result: _T = stop.value
                return result
            answers = self._answers(engine, requests)

    def ask(self, work: Callable[[], _T]) -> _T | None:
        """What `work` gives; None where it was not waited for, see `cut_off`. Raises what it raises."""
        if not self.cut_off and self._last is not None and not self._last.done():
            self.cut_off = BUSY
        self.cut_off = self.cut_off or self._why_not() or ""
        if self.cut_off:
            return None
        answer = in_background(work, "thinking")
        self._last = answer
        while not wait([answer], _LOOK_SECONDS).done:
            self.cut_off = self._why_not() or ""
            if self.cut_off:
                return None
        return answer.result()

    def _answers(self, engine: Engine, requests: Sequence[Request]) -> list[Completion]:
        completions = self.ask(lambda: engine.generate(requests))
        if completions is None:
            return [failed_completion(f"cut off: {self.cut_off}") for _ in requests]
        self.answered += len(requests)
        return completions
