"""Names as people read them, for roles, teams, baselines and numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from cryptosentinel.agents.registry import ROLES

ABSENT = "not available"

_TITLES = {
    "trained": "Trained team",
    "warm_started": "Warm-started team",
    "teacher": "Scripted teacher",
    "scripted": "Scripted team",
    "team": "Team",
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
    "teacher": "hand-written rules for the same four roles",
    "hold": "buys once and keeps it",
    "flat": "never trades",
    "always_short": "sells short once and stays short",
    "sma_cross": "follows the crossing of two moving averages",
    "volatility_target": "long, less when prices swing more",
    "matched_random": "trades at random, as much and as often as the team",
    "oracle": "knows the hidden regimes: what perfect knowledge would have earned",
}


@dataclass(frozen=True)
class Column:
    """A column of a table of results. `kind` says how its numbers are written, `meaning` what they tell."""

    key: str
    title: str
    kind: Literal["change", "share", "ratio", "count"]
    meaning: str


COLUMNS = (
    Column("total_return", "Return", "change", "net of all costs"),
    Column("sharpe", "Sharpe", "ratio", "return per unit of risk, for a year of 365 days"),
    Column("max_drawdown", "Max drawdown", "share", "largest loss from a peak"),
    Column("exposure", "Exposure", "share", "how much of the equity was in the market on average"),
    Column("trades", "Trades", "count", "positions opened and closed"),
    Column("long_share", "Long share", "share", "part of the exposure that was long"),
    Column("hold_rate", "Hold rate", "share", "decisions that changed nothing; teams only"),
    Column("turnover", "Turnover", "ratio", "traded value over equity; 2 is one all-in round trip"),
)


def title_of(name: str) -> str:
    """A team's or baseline's name for people: `warm_started_greedy` as 'Warm-started team, greedy'."""
    base, greedy = name.removesuffix("_greedy"), name.endswith("_greedy")
    title = _TITLES.get(base) or base.replace("_", " ").capitalize()
    return f"{title}, greedy" if greedy else title


def role_title(key: str) -> str:
    """A role's title; another name (of a metric, say) with its underscores as spaces."""
    return ROLES[key].title if key in ROLES else key.replace("_", " ")


def number_text(value: Any, kind: str) -> str:
    """A number of a table: `change` +1.23 %, `share` 1.2 %, `ratio` 1.23, `count` 1.2; a dash where there is none."""
    if not isinstance(value, int | float):
        return "–"
    if kind == "change":
        return f"{100 * value:+.2f} %"
    if kind == "share":
        return f"{100 * value:.1f} %"
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
