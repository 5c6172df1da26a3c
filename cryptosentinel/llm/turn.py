"""One turn in the making: a thought up to its budget, then an answer up to its own.

A thought opens and closes by id. Where its budget is spent, the engine closes it: what it writes was not sampled and
has the log-prob 0. A grammar holds the answer, never the thought.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from llguidance import LLMatcher

from cryptosentinel.llm.chat_format import ChatFormat, ThoughtFormat
from cryptosentinel.llm.engine import Completion, Request
from cryptosentinel.llm.grammar import restrict

TurnPhase = Literal["opening", "thought", "closing", "answer"]


@dataclass
class TurnState:
    """What a request has been answered so far. `begin` gives the grammar of its answer, behind a thought's end with
    True; None where it is not constrained. `is_blank` tells which tokens are white space alone. A thought
    with all that opens and closes it stays within its budget."""

    request: Request
    ends: Collection[int]
    thoughts: ThoughtFormat | None
    begin: Callable[[bool], LLMatcher] | None
    is_blank: Callable[[int], bool]
    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    matcher: LLMatcher | None = None  # of the next token
    thought: int = 0
    forced: int = 0
    finished: bool = False
    phase: TurnPhase = "answer"

    def __post_init__(self) -> None:
        if self.thoughts is not None and not self._fits(self.thoughts):
            self.thoughts = None
        self._opened = 0  # how many tokens of an opening there are
        if self.thoughts is not None:
            self.phase = "thought" if self.thoughts.begun else "opening"
        if self.phase != "thought" and self.begin is not None:
            self.matcher = self.begin(False)
        self._close_if_spent()

    @property
    def done(self) -> bool:
        """Whether nothing more is to be said."""
        spoken = len(self.ids) - self.thought
        return self.finished or (self.phase in ("opening", "answer") and spoken >= self.request.sampling.max_tokens)

    @property
    def next_forced(self) -> int | None:
        """The token that the engine writes next; None where one is sampled."""
        if self.phase != "closing":
            return None
        assert self.thoughts is not None
        return self.thoughts.cut_off[self.forced]

    @property
    def room(self) -> int:
        """How many tokens may be sampled until something else comes next."""
        sampling, thoughts = self.request.sampling, self.thoughts
        if self.phase == "opening" and thoughts is not None:
            return min(len(thoughts.opening) - self._opened, sampling.max_tokens - len(self.ids))
        if self.phase == "thought" and thoughts is not None:
            return sampling.thinking_tokens - len(thoughts.cut_off) - len(self.ids)
        return sampling.max_tokens + self.thought - len(self.ids)

    def would_open(self, ids: Sequence[int]) -> bool:
        """Whether these tokens open a thought."""
        return self.thoughts is not None and tuple(ids) == self.thoughts.opening[self._opened :]

    def begin_answer(self) -> None:
        """No thought will open."""
        self.phase = "answer"

    @property
    def is_free(self) -> bool:
        """Whether any token may come next."""
        return self.matcher is None and (self.begin is None or self.phase == "answer")

    def restrict(self, logits: torch.Tensor, restricted: torch.Tensor) -> None:
        """Write into the row `restricted` (V,), in which the matcher has had its say, what a constrained turn may be
        before its answer: a thought may open, and the turn may not end in it. `logits` (V,) are as they were."""
        if self.thoughts is None or self.begin is None:
            return
        if self.phase == "opening":
            following = self.thoughts.opening[self._opened]
            if self._opened:
                restricted.fill_(float("-inf"))
            restricted[following] = logits[following]
        elif self.phase == "thought":
            restricted[list(self.ends)] = float("-inf")

    def take(self, token: int, logp: float) -> None:
        """Continue with a token that was sampled, or that `next_forced` named."""
        self.ids.append(token)
        if self.phase == "closing":
            self.logps.append(0.0)
            self.forced += 1
            self._close_if_spent()
            return
        self.logps.append(logp)
        self.finished = token in self.ends
        if self.phase == "opening":
            self._take_opening(token)
        elif self.phase == "thought":
            self.thought = len(self.ids)
            if self.thoughts is not None and token == self.thoughts.closing:
                self._begin_answer(True)
            else:
                self._close_if_spent()
        elif self.matcher is not None:
            self.matcher.consume_token(token)

    def completion(self) -> Completion:
        """What was said."""
        return Completion(tuple(self.ids), tuple(self.logps), self.finished, thought=self.thought, forced=self.forced)

    def _fits(self, thoughts: ThoughtFormat) -> bool:
        """Whether the budget has room for what opens and what closes a thought; where it has not, none may open. Raises
        `ValueError` where the prompt has opened one already."""
        budget, frame = self.request.sampling.thinking_tokens, len(thoughts.cut_off)
        if thoughts.begun and 0 < budget < frame:
            raise ValueError(f"thinking_tokens = {budget}, and to close a thought takes {frame}")
        return budget >= max(1, frame if thoughts.begun else frame + len(thoughts.opening))

    def _take_opening(self, token: int) -> None:
        assert self.thoughts is not None
        if token == self.thoughts.opening[self._opened]:
            self._opened += 1
            self.matcher = None
            if self._opened == len(self.thoughts.opening):
                self.phase, self.thought = "thought", len(self.ids)
                self._close_if_spent()
        elif self._opened or not self.is_blank(token) or self.matcher is not None:
            self.phase = "answer"
            if self.matcher is not None:
                self.matcher.consume_token(token)

    def _close_if_spent(self) -> None:
        """Begin to close a thought whose budget is spent, or, where it is closed, the answer."""
        if self.thoughts is None or self.phase not in ("thought", "closing") or self.finished:
            return
        self.thought = len(self.ids)
        if self.forced == len(self.thoughts.cut_off):
            self._begin_answer(False)
        elif len(self.ids) >= self.request.sampling.thinking_tokens - len(self.thoughts.cut_off):
            self.phase = "closing"

    def _begin_answer(self, led: bool) -> None:
        self.phase, self.thought = "answer", len(self.ids)
        self.matcher = None if self.begin is None else self.begin(led)


def turn_of(request: Request, codec: ChatFormat, begin: Callable[[Request, str], LLMatcher] | None = None) -> TurnState:
    """The turn of a request at its beginning. `begin` makes a grammar of its tools and what leads to a call; None for
    an engine that constrains elsewhere."""
    thoughts = codec.thoughts

    def grammar(led: bool) -> LLMatcher:
        assert begin is not None
        return begin(request, thoughts.lead if led and thoughts is not None else "")

    def is_blank(token: int) -> bool:
        return not codec.decode([token]).strip()

    return TurnState(
        request, codec.ends, thoughts, grammar if begin and request.sampling.constrained else None, is_blank
    )


def choices(logits: torch.Tensor, turns: Sequence[TurnState]) -> torch.Tensor:
    """`logits` (B, V) with -inf where a row's turn forbids the token."""
    if all(turn.is_free for turn in turns):
        return logits
    restricted = restrict(logits, [turn.matcher for turn in turns])
    for row, turn in enumerate(turns):
        turn.restrict(logits[row], restricted[row])
    return restricted
