"""Names as people read them, for roles, teams, baselines and numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from cryptosentinel.agents.registry import ROLES

ABSENT = "not available"

_TITLES = {
    "trained": "Trained team",
    "warm_started": "Warm-started team",
    "scripted": "Scripted team",
    "hold": "Hold",
    "flat": "Flat",
    "always_short": "Always short",
    "sma_cross": "SMA cross",
    "volatility_target": "Volatility target",
    "matched_random": "Random, matched",
    "oracle": "Oracle",
}
MEANINGS = {
    "trained": "the four small models after M-GRPO",
    "warm_started": "the same models before it: they know the language and little of the trade",
    "trained, greedy": "each role says what it thinks likeliest, nothing is left to chance",
    "scripted": "hand-written rules for the same four roles: the teacher of the warm start",
    "hold": "buys once and keeps it",
    "flat": "never trades",
    "always_short": "sells short once and stays short",
    "sma_cross": "follows the crossing of two moving averages",
    "volatility_target": "long, less when prices swing more",
    "matched_random": "trades at random, as much and as often as the team",
    "oracle": "knows the hidden regimes: what perfect knowledge would have earned",
}


Kind = Literal["change", "share", "small_share", "ratio", "count"]


@dataclass(frozen=True)
class Column:
    """A column of a table of results. `kind` says how its numbers are written, `meaning` what they tell."""

    key: str
    title: str
    kind: Kind
    meaning: str


COLUMNS = (
    Column("total_return", "Return", "change", "net of all costs"),
    Column("sharpe", "Sharpe", "ratio", "return per unit of risk, for a year of 365 days"),
    Column("max_drawdown", "Drawdown", "share", "largest loss from a peak"),
    Column("exposure", "Exposure", "share", "how much of the equity was in the market on average"),
    Column("trades", "Trades", "count", "positions opened and closed"),
    Column("long_share", "Long share", "share", "part of the exposure that was long"),
    Column("hold_rate", "Hold rate", "share", "decisions that changed nothing; teams only"),
    Column("turnover", "Turnover", "ratio", "traded value over equity; 2 is one all-in round trip"),
    Column("costs", "Costs", "small_share", "fees, spread and funding, as a share of the equity at the start"),
)


def title_of(name: str) -> str:
    """A team's or baseline's name for people: `warm_started, greedy` as 'Warm-started team, greedy'.

    A name that is not known is that of a team's folder.
    """
    base, comma, variant = name.partition(", ")
    return (_TITLES.get(base) or f"Team {base}") + comma + variant


def role_title(key: str) -> str:
    """A role's title; another name (of a metric, say) with its underscores as spaces."""
    return ROLES[key].title if key in ROLES else key.replace("_", " ")


def number_text(value: Any, kind: Kind) -> str:
    """A number of a table: `change` +1.23 %, `share` 1.2 %, `small_share` 1.23 %, `ratio` 1.23, `count` 1.2.

    A dash where there is none.
    """
    if not isinstance(value, int | float):
        return "–"
    if kind == "change":
        return f"{100 * value:+.2f} %"
    if kind == "share":
        return f"{100 * value:.1f} %"
    if kind == "small_share":
        return f"{100 * value:.2f} %"
    if kind == "count":
        return f"{value:.0f}" if float(value).is_integer() else f"{value:.1f}"
    return f"{value:.2f}"


def duration_text(seconds: Any) -> str:
    """`75.2` as '1 min 15 s', `7500` as '2 h 5 min'."""
    if not isinstance(seconds, int | float):
        return ABSENT
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
