"""What thinking may cost: limits on calls, tokens, seconds and money, for a decision, a day of the market and a run.

A limit is looked at before each request, so what is spent can pass it by one request at most. Where nothing is left,
the conversation ends without an answer; from the manager that is *no change*.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cryptosentinel.llm.engine import Usage
from simulator.market.timeframes import DAY_MS

_MILLION = 1e6
MEASURES = ("calls", "tokens", "seconds", "money")


@dataclass(frozen=True)
class Price:
    """What a model costs, in quote currency per million tokens: read, read from the cache, sampled."""

    prompt: float = 0.0
    cached: float = 0.0
    sampled: float = 0.0

    def of(self, usage: Usage) -> float:
        """Money for `usage`."""
        fresh = usage.prompt - usage.cached
        return (fresh * self.prompt + usage.cached * self.cached + usage.sampled * self.sampled) / _MILLION


@dataclass(frozen=True)
class SpendingLimits:
    """At most so much; 0: any amount."""

    calls: int = 0
    tokens: int = 0
    seconds: float = 0.0
    money: float = 0.0


@dataclass
class Spending:
    """Requests to the engine, tokens read and sampled, seconds waited for answers, money."""

    calls: int = 0
    tokens: int = 0
    seconds: float = 0.0
    money: float = 0.0

    def add(self, usage: Usage, money: float) -> None:
        """One more request."""
        self.calls += 1
        self.tokens += usage.tokens
        self.seconds += usage.seconds
        self.money += money

    def reached(self, limits: SpendingLimits) -> str | None:
        """Which limit leaves nothing, as `12 of 12 calls`."""
        for name in MEASURES:
            spent, limit = getattr(self, name), getattr(limits, name)
            if limit and spent >= limit:
                return f"{spent:.6g} of {limit:.6g} {name}"
        return None


@dataclass(frozen=True)
class Budget:
    """The limits of a team, and the price of its model."""

    decision: SpendingLimits = SpendingLimits()
    day: SpendingLimits = SpendingLimits()
    run: SpendingLimits = SpendingLimits()
    price: Price = Price()


@dataclass
class Ledger:
    """What a run has spent under its budget. `exhausted` counts the conversations that ended for want of it."""

    budget: Budget = field(default_factory=Budget)
    run: Spending = field(default_factory=Spending)
    roles: dict[str, Spending] = field(default_factory=dict)
    exhausted: int = 0
    _today: int = -1
    _day: Spending = field(default_factory=Spending)

    def open(self, now: int) -> DecisionBudget:
        """The purse of a decision at the time `now` (ms); days are those of UTC."""
        if now // DAY_MS != self._today:
            self._today, self._day = now // DAY_MS, Spending()
        return DecisionBudget(self, self._day)


class DecisionBudget:
    """What one decision may spend."""

    def __init__(self, ledger: Ledger, day: Spending) -> None:
        self._ledger = ledger
        self._spent = {"decision": Spending(), "day": day, "run": ledger.run}
        limits = {span: getattr(ledger.budget, span) for span in self._spent}
        # Looked at before each request: the spans that have no limit are not.
        self._limits = {span: limit for span, limit in limits.items() if limit != SpendingLimits()}

    def refusal(self) -> str | None:
        """Why no further request may be made, as `the day has spent 12 of 12 calls`; None where one may."""
        for span, limits in self._limits.items():
            reached = self._spent[span].reached(limits)
            if reached is not None:
                self._ledger.exhausted += 1
                return f"the {span} has spent {reached}"
        return None

    def left(self) -> dict[str, float]:
        """What the tightest limit leaves of calls, tokens, seconds and money; what has no limit is left out."""
        found: dict[str, float] = {}
        for span, limits in self._limits.items():
            for name in MEASURES:
                limit = getattr(limits, name)
                if limit:
                    rest = max(0.0, limit - getattr(self._spent[span], name))
                    found[name] = min(rest, found.get(name, rest))
        return found

    def pay(self, role: str, usage: Usage) -> float:
        """Book one request of `role`; returns its price."""
        money = self._ledger.budget.price.of(usage)
        for spent in (*self._spent.values(), self._ledger.roles.setdefault(role, Spending())):
            spent.add(usage, money)
        return money
