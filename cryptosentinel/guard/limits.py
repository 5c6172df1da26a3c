"""The guard's limits, the record of one intervention, and the state that the guard keeps between decisions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, PositiveFloat, ValidationError, model_validator

from simulator.errors import DataError, UserError
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Order
from simulator.market.timeframes import DAY_MS, HOUR_MS

# Of one review: a plan of one decision has an order and its brackets for each of a few coins.
MOST_ORDERS = 12
# Bars without which a symbol's position may only shrink: one bar is late now and then, three in a row are an outage.
STALE_BARS = 3
# Hours that an account stays flat after a day's loss, at least until the UTC day is over.
DAILY_LOSS_PAUSE_HOURS = 24
_FORMAT: Literal[2] = 2  # of a saved state
_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True)
class GuardLimits:
    """Infinity is not a limit.

    Attributes:
        max_exposure, max_gross_exposure: of one symbol, and summed as absolute values, which is the leverage; fractions
            of the equity.
        max_drawdown, daily_loss: past these all positions are closed, after a day's loss for `DAILY_LOSS_PAUSE_HOURS`
            and at least until the UTC day is over, after a drawdown to the end of the run.
        max_daily_turnover: notional traded in 24 hours, as a multiple of the equity, closing what is held included.
    """

    max_exposure: float
    max_gross_exposure: float
    max_drawdown: float
    daily_loss: float
    max_daily_turnover: float

    def __post_init__(self) -> None:
        for one in fields(self):
            if not getattr(self, one.name) > 0.0:
                raise DataError(f"the guard's {one.name} is {getattr(self, one.name)}; give a positive number.")

    def numbers(self) -> dict[str, float]:
        """The finite limits that bind now, by name, as the team reads them."""
        return {name: value for name, value in asdict(self).items() if math.isfinite(value)}


@dataclass(frozen=True)
class Clamp:
    """One intervention: the rule, what was asked and what was let through, in signed base units.

    Without a symbol it tells of the whole account: that it was flattened, and until when it stays so.
    """

    rule: str
    symbol: str
    asked: float
    allowed: float
    detail: str


@dataclass(frozen=True)
class HeldBack:
    """The part of an order that waits in the guard until reductions that are under way have filled.

    Attributes:
        order: as it was asked for; its quantity says the side only.
        goal: position in base units at which it is done.
        since, begin: time of its decision, and from when on it may be sent, ms UTC.
    """

    __pydantic_config__ = _STRICT

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
        """Whether so much was lost since the day began, or the `equity` is not a number."""
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


class _Saved(BaseModel):
    """What `GuardState.to_json` gives."""

    model_config = _STRICT
    format: Literal[2]
    day: int | None
    day_equity: PositiveFloat | None
    last_equity: PositiveFloat | None
    flat_rule: Literal["", "daily_loss", "max_drawdown"]
    flat_until: int | None
    traded: tuple[tuple[int, NonNegativeFloat], ...]
    held_back: tuple[HeldBack, ...]

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if (self.flat_rule == "daily_loss") != (self.flat_until is not None):
            raise ValueError(f"it is flat by {self.flat_rule!r} until {self.flat_until!r}")
        if not (self.day is None) == (self.day_equity is None) == (self.last_equity is None):
            raise ValueError(f"day {self.day!r} has the equities {self.day_equity!r} and {self.last_equity!r}")
        return self


def state_from_json(data: Mapping[str, Any]) -> GuardState:
    """The state that `GuardState.to_json` gave. Raises `UserError` for one that is damaged or of another format."""
    try:
        saved = _Saved.model_validate_json(json.dumps(dict(data)))
    except (TypeError, ValueError) as error:
        found = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        raise UserError(
            f"the saved state of the guard is damaged ({'.'.join(map(str, found['loc']))} {found['msg']}): restore an "
            "undamaged copy, or begin a new account; without it the day's loss and a pause would be forgotten"
        ) from error
    return GuardState(**{name: getattr(saved, name) for name in _Saved.model_fields if name != "format"})
