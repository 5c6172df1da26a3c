"""The one protocol that every engine speaks: a batch of requests in, sampled token ids and their log-probs out.

Text is never re-tokenised: what an engine sampled is what is trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Sampling:
    """How to sample. `temperature` 0 is greedy (log-probs are then those of the unscaled distribution)."""

    temperature: float = 1.0
    max_tokens: int = 96


@dataclass(frozen=True)
class Request:
    """One continuation wanted: `ids` is the whole conversation so far, generation prompt included.

    `seed` alone decides the sampled tokens: the same request gives the same completion in any batch.
    """

    role: str
    ids: tuple[int, ...]
    sampling: Sampling
    seed: int


@dataclass(frozen=True)
class Completion:
    """Sampled `ids` (the end-of-turn token included where the model ended its turn) and log-probs of equal length.

    Log-probs are those of the distribution that was sampled from, temperature included.
    """

    ids: tuple[int, ...]
    logps: tuple[float, ...]
    finished: bool  # False: cut off at max_tokens


class Engine(Protocol):
    """What thinks for the roles."""

    name: str

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Continue every request; the answers come in the order of the requests."""
        ...

    def policy_version(self, role: str) -> str:
        """Identifies the weights that answer for `role` right now."""
        ...
