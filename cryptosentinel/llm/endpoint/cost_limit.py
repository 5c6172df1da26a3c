"""A limit on money that no request passes: the most that an attempt can cost is held before it is sent.

Each byte of a request counts as a token that is read, and the answer as long as the request allows. What an answer
states that it took replaces that; an attempt that brought no answer, or none that counts, stays at the most, since the
provider may have done the work. Attempts of all engines of a program share one account.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from cryptosentinel.llm.engine import Usage

LIMIT_NAMES = ("max_tokens", "max_completion_tokens")  # of an answer's tokens, as the APIs call it
_LONGEST_ANSWER = 131_072  # tokens, where a request names no limit: the longest that a provider of the table gives
_ADDED_TOKENS = 1_000  # what a provider itself may put before a prompt, such as how tools are called
_PAUSE_SECONDS = 0.05


class CostLimitReached(Exception):
    """The next request could pass the limit."""


@dataclass
class RequestCosts:
    """Money: `spent` for what is over, `held` for what is under way."""

    spent: float = 0.0
    held: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)


PROGRAM_COSTS = RequestCosts()


class CostLimit:
    """At most `most` money for the requests of this program.

    Args:
        most: in the currency of the price.
        price_of: money for what an answer took.
        costs: the account; that of the program where it is left out.
    """

    def __init__(self, most: float, price_of: Callable[[Usage], float], costs: RequestCosts | None = None) -> None:
        self.most = most
        self._price_of = price_of
        self._costs = PROGRAM_COSTS if costs is None else costs

    def worst_case(self, body: bytes) -> float:
        """The most that a request with this JSON body can cost."""
        document = json.loads(body)
        named = [document[name] for name in LIMIT_NAMES if name in document]
        sampled = max(named, default=_LONGEST_ANSWER)
        read = len(body) + _ADDED_TOKENS
        written = (0, read)  # to write into a cache costs more than to read at some, and less at none
        return max(self._price_of(Usage(prompt=read, sampled=sampled, written=count)) for count in written)

    async def hold(self, body: bytes) -> float:
        """Hold the money for one attempt, and return how much that is. Waits while attempts that are under way may
        leave enough. Raises `CostLimitReached` where they cannot."""
        amount, costs = self.worst_case(body), self._costs
        while True:
            with costs.lock:
                if costs.spent + costs.held + amount <= self.most:
                    costs.held += amount
                    return amount
                if costs.spent + amount > self.most:
                    raise CostLimitReached(
                        f"the requests of this program have cost {costs.spent:.4g} of at most {self.most:g}, and the "
                        f"next one may cost {amount:.4g}"
                    )
            await asyncio.sleep(_PAUSE_SECONDS)

    def settle(self, held: float, usage: Usage | None) -> None:
        """End the hold of one attempt: it took `usage`, or the most where that is not known (None)."""
        paid = held if usage is None else self._price_of(usage)
        with self._costs.lock:
            self._costs.held -= held
            self._costs.spent += paid
