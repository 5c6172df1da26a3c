"""What the team remembers: its own decisions and their outcomes, with one sentence each.

A decision is kept as an `OpenDecision` and becomes a `Lesson` once its horizon is over. Nothing is recalled before its
outcome was known: `Memory.recall` takes the time and returns no lesson with a later `known_at`. Code writes every
lesson; no word comes from a model, so a lesson cannot carry an instruction.
"""

from __future__ import annotations

import json
import math
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

from cryptosentinel.conversation.masking import Mask
from cryptosentinel.protocol.untrusted import clean
from simulator.errors import DataError
from simulator.market.timeframes import DAY_MS

DecidedSide = Literal["long", "short", "flat", "unchanged"]  # "unchanged": not named, or there was no valid answer
Direction = Literal["up", "down", "none"]

_SENTENCE_CHARS = 160


@dataclass(frozen=True)
class OpenDecision:
    """A decision on one coin whose outcome is not known yet. Times are milliseconds UTC.

    Attributes:
        side, exposure: what the manager asked for, the exposure as the team speaks of it of it.
        lean: where MarketAnalyst's newest valid answer pointed; None where it was not asked or did not answer.
        due_at: the end of the horizon.
        close: price of the coin at the decision.
        capital: the equity of which exposures are fractions, in quote currency.
        earned: net profit of the coin in the run so far, in quote currency, all costs taken off.
    """

    symbol: str
    decided_at: int
    due_at: int
    side: DecidedSide
    exposure: float
    lean: Direction | None
    close: float
    capital: float
    earned: float


@dataclass(frozen=True)
class Lesson:
    """A decision with its outcome. `move` is the coin's return over the horizon; `net` is what the account made with
    the coin in that time, net of all costs, as a fraction of the equity that exposures are fractions of. Later
    decisions within the horizon are in `net` too: it is what was realised."""

    symbol: str
    decided_at: int
    known_at: int
    side: DecidedSide
    exposure: float
    lean: Direction | None
    move: float
    net: float

    def sentence(self, alias: str) -> str:
        """The lesson in one line of code's making, the coin under the name `alias`. Percentages, like the brief's."""
        said = f"{self.side} {self.exposure:.1f}" if self.side in ("long", "short") else self.side
        lean = "" if self.lean is None else f", lean {self.lean}"
        days = (self.known_at - self.decided_at) / DAY_MS
        text = f"{alias} {said}{lean}; in {days:.1f} days moved {100 * self.move:+.1f}, made {100 * self.net:+.1f}"
        return clean(f"{text}: {self._judgement()}", _SENTENCE_CHARS)

    def _judgement(self) -> str:
        if self.side == "unchanged":
            return "left as it was"
        if self.side == "flat":
            return "no position was wanted"
        with_it = self.move > 0 if self.side == "long" else self.move < 0
        if with_it:
            return "right side" if self.net > 0 else "right side, but it did not pay"
        return "wrong side" if self.net <= 0 else "wrong side, yet it paid"


@dataclass(frozen=True)
class Recollection:
    """A lesson as it is remembered; `age` is the time since the decision, in ms."""

    lesson: Lesson
    age: int


@dataclass(frozen=True)
class TrackRecord:
    """Of `count` leans of MarketAnalyst whose outcome is known, `right` came true: the coin moved that way."""

    right: int
    count: int


class Memory:
    """Decisions of one account: those whose outcome is open, and the lessons of the others."""

    def __init__(self) -> None:
        self._open: list[OpenDecision] = []
        self._lessons: list[tuple[int, int, str, int, Lesson]] = []  # sorted: decided_at, known_at, symbol, number

    def note(self, decision: OpenDecision) -> None:
        """Keep a decision until its outcome is known. One without a usable price or capital teaches nothing."""
        if all(math.isfinite(value) and value > 0 for value in (decision.close, decision.capital)):
            self._open.append(decision)

    def abandon(self) -> None:
        """Forget the decisions whose outcome is open. Lessons stay."""
        self._open = []

    def settle(self, now: int, close: Mapping[str, float], earned: Mapping[str, float]) -> None:
        """Make lessons of all decisions whose horizon is over at `now`, from the last closes and the net profit per
        coin in the run so far. Their outcome counts as known from `now` on, never from an earlier time. Where the
        price is not known it teaches nothing."""
        still_open = []
        for decision in self._open:
            if decision.due_at > now:
                still_open.append(decision)
                continue
            move = close[decision.symbol] / decision.close - 1.0
            net = (earned[decision.symbol] - decision.earned) / decision.capital
            if math.isfinite(move) and math.isfinite(net):
                position = (decision.side, decision.exposure, decision.lean)
                self.add(Lesson(decision.symbol, decision.decided_at, now, *position, move, net))
        self._open = still_open

    def add(self, lesson: Lesson) -> None:
        """Remember a lesson. Raises `DataError` for one that was known before it was decided."""
        if lesson.known_at < lesson.decided_at:
            raise DataError(
                f"a lesson on {lesson.symbol} was known at {lesson.known_at}, before its decision at "
                f"{lesson.decided_at}; give times in ms in this order"
            )
        insort(self._lessons, (lesson.decided_at, lesson.known_at, lesson.symbol, len(self._lessons), lesson))

    def recall(self, now: int, symbol: str, count: int) -> list[Recollection]:
        """The newest `count` lessons on `symbol` whose outcome was known at `now`, the oldest first."""
        return self._recall(now, (symbol,), count)

    def track_record(self, now: int) -> TrackRecord:
        """How often MarketAnalyst's leans, over all coins, came true as far as that was known at `now`."""
        leans = [
            one.move > 0 if one.lean == "up" else one.move < 0
            for *_, one in self._lessons
            if one.known_at <= now and one.lean in ("up", "down")
        ]
        return TrackRecord(sum(leans), len(leans))

    def describe(self, now: int, symbols: Sequence[str], count: int, mask: Mask, close: Mapping[str, float]) -> str:
        """What the manager reads at `now`, a line each: the newest `count` lessons on `symbols`, MarketAnalyst's track
        record, and the newest `count` open decisions with the move so far. Where `mask` hides dates, ages stand in
        their place. Empty where nothing is known yet."""
        lines = []
        for one in self._recall(now, symbols, count):
            date = mask.date(one.lesson.decided_at)
            when = f"{one.age / DAY_MS:.1f} days ago" + ("" if date == "-" else f" ({date} UTC)")
            lines.append(f"lesson, {when}: {one.lesson.sentence(mask.alias(one.lesson.symbol))}")
        leans = self.track_record(now)
        if leans.count:
            lines.append(f"MarketAnalyst's leans: {leans.right} of {leans.count} came true")
        held = [
            one
            for one in self._open
            if one.symbol in symbols and one.side in ("long", "short") and one.decided_at < now < one.due_at
        ]
        for decision in held[max(0, len(held) - count) :]:
            move = close[decision.symbol] / decision.close - 1.0
            so_far = f"{100 * move:+.1f}" if math.isfinite(move) else "not available"
            lean = "" if decision.lean is None else f", lean {decision.lean}"
            horizon = decision.due_at - decision.decided_at
            days = f"{(now - decision.decided_at) / DAY_MS:.1f} of {horizon / DAY_MS:.1f} days"
            said = f"{mask.alias(decision.symbol)} {decision.side} {decision.exposure:.1f}{lean}; moved {so_far}"
            lines.append(f"open, {days}: {clean(said, _SENTENCE_CHARS)}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON types; `from_dict` brings back an equal memory."""
        return {"open": [asdict(one) for one in self._open], "lessons": [asdict(one) for *_, one in self._lessons]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The memory that `to_dict` described. Raises `DataError` for anything else."""
        memory = cls()
        try:
            for entry in data["open"]:
                memory.note(OpenDecision(**_checked(OpenDecision, entry)))
            for entry in data["lessons"]:
                memory.add(Lesson(**_checked(Lesson, entry)))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"a saved memory cannot be read ({error}): start with an empty one") from error
        return memory

    def _recall(self, now: int, symbols: Sequence[str], count: int) -> list[Recollection]:
        known = [one for *_, one in self._lessons if one.known_at <= now and one.symbol in symbols]
        return [Recollection(one, now - one.decided_at) for one in known[max(0, len(known) - count) :]]


def direction_of(answer: Mapping[str, Any]) -> Direction:
    """The way that MarketAnalyst's `lean` points, whatever its strength."""
    word = str(answer.get("lean", "none")).rpartition(" ")[2]
    return "up" if word == "up" else "down" if word == "down" else "none"


_WORDS = {"side": ("long", "short", "flat", "unchanged"), "lean": ("up", "down", "none", None)}


def _checked(kind: type[OpenDecision] | type[Lesson], entry: Any) -> dict[str, Any]:
    """The fields of `kind` in `entry`, each of its type. Raises `KeyError`, `TypeError` or `ValueError`."""
    values: dict[str, Any] = {}
    for item in fields(kind):
        value = entry[item.name]
        if item.name in _WORDS:
            if value not in _WORDS[item.name]:
                raise ValueError(f"{item.name} is {json.dumps(value)[:40]}")
        elif item.name == "symbol":
            if not isinstance(value, str):
                raise TypeError("symbol is no text")
        elif isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise TypeError(f"{item.name} is no finite number")
        values[item.name] = value
    return values
