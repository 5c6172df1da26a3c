"""The state that the guard keeps between decisions, as a JSON value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from cryptosentinel.guard.limits import DAILY_LOSS_PAUSE_HOURS, GuardLimits
from simulator.errors import UserError
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Order
from simulator.market.timeframes import DAY_MS, HOUR_MS

_FORMAT = 2


@dataclass(frozen=True)
class HeldBack:
    """The part of an order that waits in the guard until reductions that are under way have filled.

    Attributes:
        order: as it was asked for; its quantity says the side only.
        goal: position in base units at which it is done.
        since, begin: time of its decision, and from when on it may be sent, ms UTC.
    """

    order: Order
    goal: float
    since: int
    begin: int


@dataclass(frozen=True)
class GuardState:
    """Times are ms UTC, money is in quote currency; None is what was not seen yet.

    Attributes:
        day: UTC day of the last review. last_equity: the equity then.
        day_equity: from which that day's loss is measured: the last one reviewed before the day, on the first day the
            first.
        flat_rule: "daily_loss" or "max_drawdown" while the account is kept flat for it, else empty. flat_until: the end
            of that, None: the end of the run.
        traded: (time, notional of all fills until then), from a day ago on.
        held_back: by symbol, at most one each.
    """

    day: int | None = None
    day_equity: float | None = None
    last_equity: float | None = None
    flat_rule: str = ""
    flat_until: int | None = None
    traded: tuple[tuple[int, float], ...] = ()
    held_back: tuple[HeldBack, ...] = ()

    def observed(self, limits: GuardLimits, now: int, account: AccountView) -> GuardState:
        """With the `account` (of finite equity) at `now`: its day, and whether it is to be flat."""
        return self._on_day(now, account.equity)._with_traded(now, account.traded)._flat(limits, now, account)

    def beyond_daily_loss(self, limits: GuardLimits, equity: float) -> bool:
        """Whether so much was lost since the day began, or the `equity` is no number."""
        return self.day_equity is not None and not equity > self.day_equity * (1.0 - limits.daily_loss)

    def turnover(self, account: AccountView) -> float:
        """Notional traded in the last 24 hours over the equity."""
        return (account.traded - self.traded[0][1]) / account.equity if self.traded else 0.0

    def _on_day(self, now: int, equity: float) -> GuardState:
        day = now // DAY_MS
        if day == self.day:
            return replace(self, last_equity=equity)
        before = equity if self.last_equity is None else self.last_equity
        return replace(self, day=day, day_equity=before, last_equity=equity)

    def _with_traded(self, now: int, total: float) -> GuardState:
        """The newest entry that is a day old, and those after it; one a change."""
        begin = max((number for number, (time, _) in enumerate(self.traded) if time <= now - DAY_MS), default=0)
        if self.traded and self.traded[-1][1] == total:
            return replace(self, traded=self.traded[begin:]) if begin else self
        kept = tuple(entry for entry in self.traded[begin:] if entry[0] < now and entry[1] <= total)
        return replace(self, traded=(*kept, (now, total)))

    def _flat(self, limits: GuardLimits, now: int, account: AccountView) -> GuardState:
        state, loses = self, self.beyond_daily_loss(limits, account.equity)
        over = self.flat_until is not None and now >= self.flat_until and not any(account.positions.values())
        if over and not loses:
            state = replace(state, flat_rule="", flat_until=None)
        if state.flat_rule != "max_drawdown" and account.drawdown >= limits.max_drawdown:
            return replace(state, flat_rule="max_drawdown", flat_until=None)
        if not state.flat_rule and loses:
            return replace(state, flat_rule="daily_loss", flat_until=now + DAILY_LOSS_PAUSE_HOURS * HOUR_MS)
        return state

    def to_json(self) -> dict[str, Any]:
        """As a JSON document; `state_from_json` is the inverse."""
        # A session writes it at each bar, and `asdict` of all would copy each pair twice.
        flat = {one.name: getattr(self, one.name) for one in fields(self)}
        traded = [list(entry) for entry in self.traded]
        return {"format": _FORMAT, **flat, "traded": traded, "held_back": [asdict(one) for one in self.held_back]}


def state_from_json(data: Mapping[str, Any]) -> GuardState:
    """The state that `GuardState.to_json` gave.

    Raises `UserError` for one that is damaged or of another format.
    """
    try:
        if data["format"] != _FORMAT or set(data) != {"format", *(one.name for one in fields(GuardState))}:
            raise ValueError(f"it is not of format {_FORMAT}")
        day, day_equity, last_equity = (data[name] for name in ("day", "day_equity", "last_equity"))
        if day is None and (day_equity, last_equity) != (None, None):
            raise ValueError("it has an equity and no day")
        if day is not None and not (_is_whole(day) and _is_money(day_equity) and _is_money(last_equity)):
            raise ValueError(f"day {day!r} has the equities {day_equity!r} and {last_equity!r}")
        rule, until = data["flat_rule"], data["flat_until"]
        if not (_is_whole(until) if rule == "daily_loss" else rule in ("", "max_drawdown") and until is None):
            raise ValueError(f"it is flat by {rule!r} until {until!r}")
        traded = tuple((time, total) for time, total in data["traded"])
        if not all(_is_whole(time) and isinstance(total, float) and 0.0 <= total < math.inf for time, total in traded):
            raise ValueError("traded does not hold pairs of a time and a notional")
        held_back = tuple(_held_back(one) for one in data["held_back"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"the saved state of the guard is damaged ({error}): restore an undamaged copy, or begin a new account; "
            "without it the day's loss and a pause would be forgotten"
        ) from error
    return GuardState(day, day_equity, last_equity, rule, until, traded, held_back)


def _held_back(data: Mapping[str, Any]) -> HeldBack:
    held = HeldBack(Order(**data["order"]), data["goal"], data["since"], data["begin"])
    if set(data) != set(asdict(held)) or not (_is_whole(held.since) and _is_whole(held.begin)):
        raise ValueError("an order that was held back has no times")
    if not (isinstance(held.goal, float) and math.isfinite(held.goal) and isinstance(held.order.quantity, float)):
        raise ValueError("an order that was held back has no size")
    return held


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_money(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value) and value > 0.0
