"""What the guard and RiskAnalyst withheld from the market, and what that was worth in money.

Each order is looked at alone: what was asked and what was let through are both traded at the next open on the bars
that came, with the costs of the run, and valued at the close of the next decision. What the latter made more than the
former would have is what the intervention saved.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from backend.decisions.document import RiskRuling, StoredDecision
from simulator.backtest.scenarios import recorded_path, simulate_scenarios
from simulator.exchange.costs import Costs
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Order
from simulator.market.market import Market
from simulator.market.price_paths import PricePaths

GUARD, RISK_ANALYST = "guard", "risk_analyst"
VETO, REDUCE, INVALID = "veto", "reduce", "invalid"
_ROOM = 100.0  # equity of the account that an order is tried on, in its notional: its costs never end it


@dataclass(frozen=True)
class Intervention:
    """One order that was lessened, dropped or added, in signed base units.

    Attributes:
        time: close at which was decided, ms UTC.
        by: "guard" or "risk_analyst". rule: the guard's rule; "veto", "reduce" or "invalid" of RiskAnalyst.
        saved: money that the intervention saved, negative where it cost some; None where it is not known, because a
            number of the order or a price is missing, or no bar came after.
    """

    time: int
    by: str
    rule: str
    symbol: str
    asked: float
    allowed: float
    saved: float | None


@dataclass(frozen=True)
class RuleWorth:
    """What the interventions of one rule came to, in money. `valued` of the `count` have a known worth;
    `losses_avoided` and `gains_missed` are both from 0 up, and `saved` is their difference."""

    by: str
    rule: str
    count: int
    valued: int
    saved: float
    losses_avoided: float
    gains_missed: float


def interventions(decisions: Sequence[StoredDecision], market: Market, costs: Costs, end: int) -> list[Intervention]:
    """All interventions in the decisions of one run of one team, in order of time.

    Args:
        market: the one that was traded.
        costs: of the run. Impact and the share of the volume are left out: they belong to the orders together.
        end: close (ms) at which the run ended; it stands for the decision after the last.
    """
    times = sorted({decision.time for decision in decisions})
    following = dict(zip(times, [*times[1:], end], strict=True))
    plain = replace(costs, impact=0.0, participation=None)
    at_once = Counter(decision.time for decision in decisions)
    entries: list[Intervention] = []
    for decision in sorted(decisions, key=lambda one: (one.time, one.ordinal)):
        time, document = decision.time, decision.document
        stretch = _Stretch(market, plain, time, following[time])
        for ruling in document.rulings:
            # A decision on one of several coins has its part of the equity.
            equity = math.nan if document.equity_before is None else document.equity_before / at_once[time]
            asked, allowed = _in_base_units(ruling, equity, stretch.close_of(ruling.symbol))
            rule = INVALID if ruling.verdict == INVALID else VETO if ruling.allowed == 0.0 else REDUCE
            saved = stretch.saved(ruling.symbol, asked, allowed)
            entries.append(Intervention(time, RISK_ANALYST, rule, ruling.symbol, asked, allowed, saved))
        for clamp in document.clamps:
            if clamp.symbol:  # the others are remarks on the account
                saved = stretch.saved(clamp.symbol, clamp.asked, clamp.allowed)
                entries.append(Intervention(time, GUARD, clamp.rule, clamp.symbol, clamp.asked, clamp.allowed, saved))
        for later in document.later:
            if later.symbol and later.asked != later.allowed:
                rest = _Stretch(market, plain, later.time, following[time])
                saved = rest.saved(later.symbol, later.asked, later.allowed)
                entries.append(
                    Intervention(later.time, GUARD, later.rule, later.symbol, later.asked, later.allowed, saved)
                )
    return sorted(entries, key=lambda one: one.time)


def by_rule(entries: Sequence[Intervention]) -> list[RuleWorth]:
    """The worth of each rule, RiskAnalyst's first, then the guard's, each by how often it was used."""
    rules: dict[tuple[str, str], list[Intervention]] = {}
    for one in entries:
        rules.setdefault((one.by, one.rule), []).append(one)
    worths = []
    for (by, rule), own in rules.items():
        saved = [one.saved for one in own if one.saved is not None]
        avoided = math.fsum(value for value in saved if value > 0.0)
        missed = math.fsum(-value for value in saved if value < 0.0)
        worths.append(RuleWorth(by, rule, len(own), len(saved), avoided - missed, avoided, missed))
    return sorted(worths, key=lambda one: (one.by != RISK_ANALYST, -one.count, one.rule))


def _in_base_units(ruling: RiskRuling, equity: float, close: float) -> tuple[float, float]:
    """What RiskAnalyst was asked for and allowed, in signed base units at the last close."""
    sign = -1.0 if ruling.side == "short" else 1.0
    unit = sign * equity / close if close > 0.0 else math.nan
    return ruling.asked * unit, ruling.allowed * unit


class _Stretch:
    """The bars from one decision to the next."""

    def __init__(self, market: Market, costs: Costs, begin: int, end: int) -> None:
        self._market = market
        self._costs = costs
        first = int(market.open_time[0])
        self._index = (begin - first) // market.interval - 1
        self._bars = (end - begin) // market.interval
        self._path: PricePaths | None = None

    def close_of(self, symbol: str) -> float:
        """The last close before the decision; NaN without one."""
        inside = symbol in self._market.symbols and 0 <= self._index < len(self._market)
        return self._market.view(self._index).last_close(symbol) if inside else math.nan

    def saved(self, symbol: str, asked: float, allowed: float) -> float | None:
        """Money that `allowed` made more than `asked` would have."""
        close = self.close_of(symbol)
        usable = all(map(math.isfinite, (asked, allowed, close))) and asked != allowed
        if not usable or not 1 <= self._bars < len(self._market) - self._index:
            return None
        rows = slice(self._index + 1, self._index + 1 + self._bars)
        if np.isnan(self._market.close[rows, self._market.column(symbol)]).all():
            return None
        return self._made(symbol, allowed, close) - self._made(symbol, asked, close)

    def _made(self, symbol: str, quantity: float, close: float) -> float:
        """What an order of `quantity` alone makes until the next decision."""
        if quantity == 0.0:
            return 0.0
        if self._path is None:
            self._path = recorded_path(self._market, self._index, self._bars, self._costs)
        symbols = self._market.symbols
        equity = _ROOM * abs(quantity) * close
        marks = {name: self.close_of(name) for name in symbols}
        account = AccountView(
            equity=equity,
            cash=equity,
            initial_cash=equity,
            positions=dict.fromkeys(symbols, 0.0),
            exposure=dict.fromkeys(symbols, 0.0),
            entry_price=dict.fromkeys(symbols),
            stop=dict.fromkeys(symbols),
            target=dict.fromkeys(symbols),
            mark=marks,
            drawdown=0.0,
        )
        outcome = simulate_scenarios(self._path, account, [Order(symbol, quantity)], symbols, self._costs)
        return float(outcome.net_return[0]) * equity
