"""Limits on inference cost: calls, tokens, seconds and money, for a decision, a day of the market and a run.

A limit is checked before each request, with what that may take: its prompt, by the tokens that earlier ones had for
their length, and the longest answer so far. A request that could go beyond the limit is not made. What cannot be known
before, such as the first request, or several at once, can pass it. Once nothing is left, the conversation ends without
an answer. If it was the manager's, the decision is *no change*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptosentinel.llm.engine import NOTHING, Usage
from simulator.market.timeframes import DAY_MS

_MILLION = 1e6
MEASURES = ("calls", "tokens", "seconds", "money")


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


@dataclass(frozen=True)
class SpendingLimits:
    """Upper limits; 0 means no limit."""

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
        """One more answer, with the further requests that it took."""
        self.calls += 1 + usage.retried
        self.tokens += usage.tokens
        self.seconds += usage.seconds
        self.money += money

    def reached(self, limits: SpendingLimits) -> str | None:
        """The limit that is used up, as `12 of 12 calls`; None where none is."""
        for name in MEASURES:
            spent, limit = getattr(self, name), getattr(limits, name)
            if limit and spent >= limit:
                return f"{spent:.6g} of {limit:.6g} {name}"
        return None

    def exceeded_by(self, more: Mapping[str, float], limits: SpendingLimits) -> str | None:
        """The limit that `more`, by measure, would exceed, as `11 of 12 tokens, and the next request may take 5`."""
        for name, amount in more.items():
            spent, limit = getattr(self, name), getattr(limits, name)
            if limit and spent + amount > limit:
                return f"{spent:.6g} of {limit:.6g} {name}, and the next request may take {amount:.6g}"
        return None


@dataclass(frozen=True)
class Budget:
    """The limits of a team, and the price of its model; None where it is not known."""

    decision: SpendingLimits = SpendingLimits()
    day: SpendingLimits = SpendingLimits()
    run: SpendingLimits = SpendingLimits()
    price: Price | None = Price()


@dataclass
class Ledger:
    """What a run has spent under its budget. `exhausted` counts the conversations that a limit ended."""

    budget: Budget = field(default_factory=Budget)
    run: Spending = field(default_factory=Spending)
    roles: dict[str, Spending] = field(default_factory=dict)
    exhausted: int = 0
    _read_share: float = 0.0
    _longest: int = 0
    _today: int = -1
    _day: Spending = field(default_factory=Spending)

    def open(self, now: int) -> DecisionBudget:
        """What a decision at the time `now` (ms) may spend; a day is a UTC day."""
        if now // DAY_MS != self._today:
            self._today, self._day = now // DAY_MS, Spending()
        return DecisionBudget(self, self._day)

    def expected(self, length: int) -> Usage:
        """What a request whose prompt has `length` tokens of the codec may take, from those before it."""
        return Usage(prompt=round(self._read_share * length), sampled=self._longest)

    def learn(self, usage: Usage, length: int) -> None:
        """Remember what a request with a prompt of `length` tokens took."""
        if length:
            self._read_share = max(self._read_share, usage.prompt / (1 + usage.retried) / length)
        self._longest = max(self._longest, usage.sampled)


class DecisionBudget:
    """What one decision may spend."""

    def __init__(self, ledger: Ledger, day: Spending) -> None:
        self._ledger = ledger
        self._spent = {"decision": Spending(), "day": day, "run": ledger.run}
        limits = {span: getattr(ledger.budget, span) for span in self._spent}
        # Only spans with a limit are checked before each request.
        self._limits = {span: limit for span, limit in limits.items() if limit != SpendingLimits()}

    def refusal(self, length: int = 0) -> str | None:
        """Why no further request may be made, as `the day has spent 12 of 12 calls`; None where one may. Its prompt has
        `length` tokens of the codec; 0: only what is spent counts."""
        expected = self._ledger.expected(length) if length else NOTHING
        price = self._ledger.budget.price or Price()
        more = {"tokens": expected.tokens, "money": price.of(expected)}
        for span, limits in self._limits.items():
            reached = self._spent[span].reached(limits) or self._spent[span].exceeded_by(more, limits)
            if reached is not None:
                self._ledger.exhausted += 1
                return f"the {span} has spent {reached}"
        return None

    def remaining(self) -> dict[str, float]:
        """The calls, tokens, seconds and money that remain under the tightest limit; unlimited ones are left out."""
        found: dict[str, float] = {}
        for span, limits in self._limits.items():
            for name in MEASURES:
                limit = getattr(limits, name)
                if limit:
                    rest = max(0.0, limit - getattr(self._spent[span], name))
                    found[name] = min(rest, found.get(name, rest))
        return found

    def book(self, role: str, usage: Usage, length: int = 0) -> float:
        """Book one request of `role`, whose prompt had `length` tokens of the codec; returns its price, 0 where that is
        not known."""
        self._ledger.learn(usage, length)
        price = self._ledger.budget.price
        money = 0.0 if price is None else price.of(usage)
        for spent in (*self._spent.values(), self._ledger.roles.setdefault(role, Spending())):
            spent.add(usage, money)
        return money
