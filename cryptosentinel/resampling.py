"""A decision once more, from one of its questions on: what came before is repeated word for word, the rest is sampled
anew.

A decision is a generator that asks for completions and depends on nothing else, so the completions that it was given
make it again, without an engine. The idea is that of tree-structured sampling (GiGPO, arXiv 2505.10978; AT-GRPO,
arXiv 2510.11062): answers that were given in one and the same situation can be compared with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from cryptosentinel.llm.engine import Completion, Request
from cryptosentinel.team import AgentTask, derive_seed

_T = TypeVar("_T")


@dataclass(frozen=True)
class AnsweredRequests:
    """The requests that a task made at once, and their completions in the same order."""

    requests: Sequence[Request]
    completions: Sequence[Completion]


def noted(task: AgentTask[_T], notes: list[AnsweredRequests]) -> AgentTask[_T]:
    """`task`, whose exchanges are appended to `notes` as they happen."""
    try:
        requests = next(task)
        while True:
            completions = yield requests
            notes.append(AnsweredRequests(requests, completions))
            requests = task.send(completions)
    except StopIteration as stop:
        result: _T = stop.value
        return result


def repeated(task: AgentTask[_T], past: Sequence[AnsweredRequests]) -> AgentTask[_T]:
    """`task`, whose first requests get the completions of `past`: only what comes after these asks the engine. It must
    be made as the task was whose exchanges they are, but for the seed."""
    try:
        requests = next(task)
        for exchange in past:
            requests = task.send(exchange.completions)
        while True:
            requests = task.send((yield requests))
    except StopIteration as stop:
        result: _T = stop.value
        return result


def before_call(notes: Sequence[AnsweredRequests], seed: int, role: str, ordinal: int) -> list[AnsweredRequests]:
    """The exchanges of a decision with this `seed` before call number `ordinal` of `role` said its first word.

    Calls that were opened together begin together. Raises ValueError where there was no such call.
    """
    first = derive_seed(seed, role, ordinal, 0)
    for place, exchange in enumerate(notes):
        if any(request.seed == first for request in exchange.requests):
            return list(notes[:place])
    raise ValueError(f"the decision has no call {ordinal} of {role}")


def was_sampled(notes: Sequence[AnsweredRequests], seed: int, role: str, ordinal: int) -> bool:
    """Whether the first turn of a call is among the exchanges `notes` of a decision with this `seed`."""
    first = derive_seed(seed, role, ordinal, 0)
    return any(request.seed == first for exchange in notes for request in exchange.requests)


def sampled_tokens(notes: Sequence[AnsweredRequests], role: str) -> int:
    """The tokens that were sampled for `role` in these exchanges; what an engine wrote to close a thought is none."""
    return sum(
        len(completion.ids) - completion.forced
        for exchange in notes
        for request, completion in zip(exchange.requests, exchange.completions, strict=True)
        if request.role == role
    )
