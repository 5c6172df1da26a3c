"""The state that the guard keeps between decisions, as a JSON value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from cryptosentinel.guard.limits import GuardLimits
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
        sent: (time, orders) of the reviews that let orders through, as far as the order rate still counts them.
        shut: the drawdown was once so deep that nothing may open any more.
        flat_rule: "daily_loss" or "max_drawdown" while the account is kept flat for it, else empty. flat_until: the end
            of that, None: the end of the run.
        peak: from which the drawdown is measured after a pause; None before the first: the account's own.
        traded: (time, notional of all fills until then), from a day ago on.
        held_back: by symbol, at most one each.
    """

    day: int | None = None
    day_equity: float | None = None
    last_equity: float | None = None
    sent: tuple[tuple[int, int], ...] = ()
    shut: bool = False
    flat_rule: str = ""
    flat_until: int | None = None
    peak: float | None = None
    traded: tuple[tuple[int, float], ...] = ()
    held_back: tuple[HeldBack, ...] = ()

    def observed(self, limits: GuardLimits, now: int, account: AccountView) -> GuardState:
        """With the `account` (of finite equity) at `now`: its day, its peak, and whether it is to be flat."""
        return self._on_day(now, account.equity)._with_traded(now, account.traded)._flat(limits, now, account)

    def drawdown(self, account: AccountView) -> float:
        """Fraction lost since the peak that counts."""
        return account.drawdown if self.peak is None else 1.0 - account.equity / self.peak

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
        state = self if self.peak is None else replace(self, peak=max(self.peak, account.equity))
        if limits.on_loss == "freeze":
            return state
        loses = state.beyond_daily_loss(limits, account.equity)
        over = state.flat_until is not None and now >= state.flat_until and not any(account.positions.values())
        if state.flat_rule and over and not loses:
            peak = account.equity if state.flat_rule == "max_drawdown" else state.peak
            state = replace(state, flat_rule="", flat_until=None, peak=peak)
        if state.flat_rule != "max_drawdown" and state.drawdown(account) >= limits.max_drawdown:
            return replace(state, flat_rule="max_drawdown", flat_until=_later(now, limits.drawdown_pause_hours))
        if not state.flat_rule and loses:
            return replace(state, flat_rule="daily_loss", flat_until=_later(now, limits.daily_loss_pause_hours))
        return state

    def sent_after(self, time: int) -> int:
        """Orders let through later than `time`."""
        return sum(count for moment, count in self.sent if moment > time)

    def with_sent(self, now: int, orders: int, forget: int) -> GuardState:
        """With `orders` let through at `now`, and without what was up to the time `forget`."""
        kept = tuple(entry for entry in self.sent if entry[0] > forget)
        return replace(self, sent=(*kept, (now, orders)) if orders else kept)

    def to_json(self) -> dict[str, Any]:
        """As a JSON document; `state_from_json` is the inverse."""
        # A session writes it at each bar, and `asdict` of all would copy each pair twice.
        flat = {one.name: getattr(self, one.name) for one in fields(self)}
        pairs = {name: [list(entry) for entry in flat[name]] for name in ("sent", "traded")}
        return {"format": _FORMAT, **flat, **pairs, "held_back": [asdict(one) for one in self.held_back]}


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
        if not isinstance(data["shut"], bool):
            raise ValueError(f"shut is {data['shut']!r}")
        sent = tuple((time, count) for time, count in data["sent"])
        if not all(_is_whole(time) and _is_whole(count) and count > 0 for time, count in sent):
            raise ValueError("sent does not hold pairs of a time and a number of orders")
        rule, until, peak = data["flat_rule"], data["flat_until"], data["peak"]
        if rule not in ("", "daily_loss", "max_drawdown") or not (until is None or (rule and _is_whole(until))):
            raise ValueError(f"it is flat by {rule!r} until {until!r}")
        if not (peak is None or _is_money(peak)):
            raise ValueError(f"the peak is {peak!r}")
        traded = tuple((time, total) for time, total in data["traded"])
        if not all(_is_whole(time) and isinstance(total, float) and 0.0 <= total < math.inf for time, total in traded):
            raise ValueError("traded does not hold pairs of a time and a notional")
        held_back = tuple(_held_back(one) for one in data["held_back"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"the saved state of the guard is damaged ({error}): restore an undamaged copy, or begin a new account; "
            "without it the day's loss, the order rate, a pause and a shutdown would be forgotten"
        ) from error
    return GuardState(day, day_equity, last_equity, sent, data["shut"], rule, until, peak, traded, held_back)


def _held_back(data: Mapping[str, Any]) -> HeldBack:
    held = HeldBack(Order(**data["order"]), data["goal"], data["since"], data["begin"])
    if set(data) != set(asdict(held)) or not (_is_whole(held.since) and _is_whole(held.begin)):
        raise ValueError("an order that was held back has no times")
    if not (isinstance(held.goal, float) and math.isfinite(held.goal) and isinstance(held.order.quantity, float)):
        raise ValueError("an order that was held back has no size")
    return held


def _later(now: int, hours: float) -> int | None:
    return now + round(hours * HOUR_MS) if math.isfinite(hours) else None


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_money(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value) and value > 0.0
