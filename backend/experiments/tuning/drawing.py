"""Sets of parameters, drawn round by round: each of them different, and one that its subject takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from backend.experiments.tuning.proposals import Dimension, Proposal, Proposals
from simulator.errors import UserError

_Made = TypeVar("_Made")
_ATTEMPTS = 20  # for each set that is wanted: most are new, but for few whole numbers or many that are refused


@dataclass(frozen=True)
class DrawnSet(Generic[_Made]):
    """A set that was not tried before: its text, as `fast=10,slow=50`, and what was made of it."""

    proposal: Proposal
    text: str
    made: _Made


class Drawing(Generic[_Made]):
    """Draws sets. `make` turns the text of one into whatever is tried, and raises `UserError` for one that it refuses,
    as a fast average above the slow one."""

    def __init__(self, dimensions: Sequence[Dimension], proposals: Proposals, make: Callable[[str], _Made]) -> None:
        self._dimensions = dimensions
        self._proposals = proposals
        self._make = make
        self._scores: dict[str, float | None] = {}  # of all texts that were drawn; None: refused, or not scored yet
        self.refusal = ""  # why the last one was refused

    def next_round(self, count: int) -> list[DrawnSet[_Made]]:
        """`count` sets; fewer, or none, where no more are met within these ranges."""
        fresh: list[DrawnSet[_Made]] = []
        for _ in range(_ATTEMPTS * count):
            if len(fresh) == count:
                break
            proposal = self._proposals.ask()
            text = ",".join(f"{one.name}={one.text(proposal.values[one.name])}" for one in self._dimensions)
            if text in self._scores:
                self._proposals.tell(proposal, self._scores[text])
                continue
            self._scores[text] = None
            try:
                fresh.append(DrawnSet(proposal, text, self._make(text)))
            except UserError as error:
                self.refusal = str(error)
                self._proposals.tell(proposal, None)
        return fresh

    def score(self, drawn: DrawnSet[_Made], score: float) -> None:
        """Say what became of a set."""
        self._scores[drawn.text] = score
        self._proposals.tell(drawn.proposal, score)
