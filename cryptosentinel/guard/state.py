"""The state that the guard keeps between decisions, as a JSON value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from simulator.errors import UserError
from simulator.market.timeframes import DAY_MS

_FORMAT = 1


@dataclass(frozen=True)
class GuardState:
    """Times are ms UTC, money is in quote currency; None is what was not seen yet.

    Attributes:
        day: UTC day of the last review. last_equity: the equity then.
        day_equity: from which that day's loss is measured: the last one reviewed before the day, on the first day the
            first.
        sent: (time, orders) of the reviews that let orders through, as far as the order rate still counts them.
        shut: the drawdown was once so deep that nothing may open any more.
    """

    day: int | None = None
    day_equity: float | None = None
    last_equity: float | None = None
    sent: tuple[tuple[int, int], ...] = ()
    shut: bool = False

    def observed(self, now: int, equity: float) -> GuardState:
        """With the `equity` (finite) of a review at `now`."""
        day = now // DAY_MS
        if day == self.day:
            return replace(self, last_equity=equity)
        before = equity if self.last_equity is None else self.last_equity
        return replace(self, day=day, day_equity=before, last_equity=equity)

    def sent_after(self, time: int) -> int:
        """Orders let through later than `time`."""
        return sum(count for moment, count in self.sent if moment > time)

    def with_sent(self, now: int, orders: int, forget: int) -> GuardState:
        """With `orders` let through at `now`, and without what was up to the time `forget`."""
        kept = tuple(entry for entry in self.sent if entry[0] > forget)
        return replace(self, sent=(*kept, (now, orders)) if orders else kept)

    def to_json(self) -> dict[str, Any]:
        """As a JSON document; `state_from_json` is the inverse."""
        return {"format": _FORMAT, **asdict(self), "sent": [list(entry) for entry in self.sent]}


def state_from_json(data: Mapping[str, Any]) -> GuardState:
    """The state that `GuardState.to_json` gave. Raises `UserError` for one that is damaged or of another version."""
    try:
        if data["format"] != _FORMAT or set(data) != {"format", *asdict(GuardState())}:
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
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"the saved state of the guard is damaged ({error}): restore an undamaged copy, or begin a new account; "
            "without it the day's loss, the order rate and a shutdown would be forgotten"
        ) from error
    return GuardState(day, day_equity, last_equity, sent, data["shut"])


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_money(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value) and value > 0.0
