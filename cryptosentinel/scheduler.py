"""Runs many conversations side by side: what waits for an engine at the same moment becomes one batch.

Deterministic: tasks advance in the order they were given, and a request's sample depends on its own seed only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from cryptosentinel.llm.engine import Completion, Engine, Request
from cryptosentinel.team import Talk

T = TypeVar("T")


def run_all(
    tasks: Sequence[Talk[T]],
    engine: Engine,
    *,
    max_batch: int = 512,
    on_finished: Callable[[int], None] | None = None,
) -> list[T]:
    """Run every task to its end and return their results in order. `on_finished` gets the number finished so far."""
    results: dict[int, T] = {}
    waiting: list[tuple[int, Request]] = []

    def advance(number: int, answer: Completion | None) -> None:
        try:
            request = next(tasks[number]) if answer is None else tasks[number].send(answer)
        except StopIteration as stop:
            results[number] = stop.value
            if on_finished is not None:
                on_finished(len(results))
        else:
            waiting.append((number, request))

    for number in range(len(tasks)):
        advance(number, None)
    while waiting:
        # One role at a time, so that identical prompts of a role meet in one batch.
        batch = sorted(waiting, key=lambda item: (item[1].role, item[0]))[:max_batch]
        chosen = {number for number, _ in batch}
        waiting = [item for item in waiting if item[0] not in chosen]
        completions = engine.generate([request for _, request in batch])
        for (number, _), completion in zip(batch, completions, strict=True):
            advance(number, completion)
    return [results[number] for number in range(len(tasks))]
