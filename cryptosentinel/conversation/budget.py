"""What inference costs: the price of a model, and the ledger of a run by role."""

from __future__ import annotations

from dataclasses import dataclass, field

from cryptosentinel.llm.engine import Usage

_MILLION = 1e6


@dataclass(frozen=True)
class Price:
    """What a model costs, in quote currency per million tokens: read, read from the cache, and sampled."""

    prompt: float = 0.0
    cached: float = 0.0
    sampled: float = 0.0

    def of(self, usage: Usage) -> float:
        """Money for `usage`."""
        read = (usage.prompt - usage.cached) * self.prompt + usage.cached * self.cached
        return (read + usage.sampled * self.sampled) / _MILLION


FREE = Price()  # of what runs on one's own machines


@dataclass
class Spending:
    """Requests to the engine, tokens read and sampled, seconds waited for answers, money."""

    calls: int = 0
    tokens: int = 0
    seconds: float = 0.0
    money: float = 0.0

    def add(self, usage: Usage, money: float) -> None:
        """One more answer, with the further requests that it took."""
        self.calls += 1 + usage.retried
        self.tokens += usage.tokens
        self.seconds += usage.seconds
        self.money += money


@dataclass
class Ledger:
    """What a run has spent, in all and by role, at the `price` of its model; None where that is not known."""

    price: Price | None = FREE
    run: Spending = field(default_factory=Spending)
    roles: dict[str, Spending] = field(default_factory=dict)

    def book(self, role: str, usage: Usage) -> float:
        """Book one request of `role`; returns what it cost, 0 where the price is not known."""
        money = 0.0 if self.price is None else self.price.of(usage)
        for spent in (self.run, self.roles.setdefault(role, Spending())):
            spent.add(usage, money)
        return money
