"""What the teachers of a warm start make of what their tools show (`nano.teacher`).

A teacher weighs the words of trend, news and funding and speaks of an outlook in one of five levels of strength. The
worse it weighs them, the more is left to learn. Its verdicts follow from the loss quantiles, or are drawn by lot.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

LOOKED_UP = ("get_trend", "get_news", "get_funding")  # what an outlook is made of
# (up, flat, down) by strength of the evidence, from strongly down to strongly up.
OUTLOOKS = ((0.2, 0.2, 0.6), (0.3, 0.2, 0.5), (0.4, 0.2, 0.4), (0.5, 0.2, 0.3), (0.6, 0.2, 0.2))
NO_LEAN = 2  # the level of them that speaks for neither side
MOST_LOSS = 14  # percent of a position or a whole book that may be lost in one case of twenty; beyond, it is halved
HESITATION = 0.35  # share of the changes that a hesitant teacher leaves out, whatever speaks for them
REDUCED = 0.35  # share of the positions that RiskAnalyst reduces where its verdict is a lot
PLANS: tuple[dict[str, Any], ...] = (
    {"type": "market", "wait": 0, "slices": 1},
    {"type": "market", "wait": 2, "slices": 1},
    {"type": "limit", "wait": 0, "slices": 1, "offset": 0},
)
NOT_ASKED = 0.2  # chance, at each turn of the manager, that a role is not asked about a position

Teacher = Literal[
    "whole", "funding", "news_backwards", "hesitant", "one_source", "by_lot", "all_by_lot", "limits", "none"
]
SourceWeights = tuple[float, float, float]  # of trend, news and funding


@dataclass(frozen=True)
class TeacherRules:
    """`weights` of the sources; None: one of the three alone, by lot. A teacher that `hesitates` leaves a share of
    `HESITATION` of its changes out. RiskAnalyst reduces to one of the parts `reduced_to` of what was proposed, by lot;
    () where its verdict follows from the loss quantiles. With `draws_plans` Trader draws one of `PLANS`, and the
    manager which of RiskAnalyst and Trader it asks, and in which order; it asks for whole positions alone.
    With `limits` Trader sends a limit where the spread is wide, in place of waiting."""

    weights: SourceWeights | None
    hesitates: bool = False
    reduced_to: tuple[float, ...] = ()
    draws_plans: bool = False
    limits: bool = False


_WHOLE = (0.9, 0.7, 0.9)
TEACHERS: dict[Teacher, TeacherRules] = {  # but for "none", which has no rules
    "whole": TeacherRules(_WHOLE),
    "funding": TeacherRules((0.0, 0.0, 0.9)),
    "news_backwards": TeacherRules((0.9, -0.7, 0.9)),
    "hesitant": TeacherRules(_WHOLE, hesitates=True),
    "one_source": TeacherRules(None, hesitates=True),
    "by_lot": TeacherRules(None, hesitates=True, reduced_to=(0.5,)),
    "all_by_lot": TeacherRules(None, hesitates=True, reduced_to=(0.5, 0.25), draws_plans=True),
    "limits": TeacherRules(_WHOLE, limits=True),
}
HESITANT: tuple[Teacher, ...] = tuple(name for name, rules in TEACHERS.items() if rules.hesitates)
_ALONE = ((1.2, 0.0, 0.0), (0.0, 1.1, 0.0), (0.0, 0.0, 0.9))  # weights with which trend or news alone can be strong
_TONE = {"very good": 2.0, "good": 1.0, "bad": -1.0, "very bad": -2.0}
_TREND = {"strong up": 2.0, "up": 1.0, "down": -1.0, "strong down": -2.0}


def level_of(answers: Mapping[str, Mapping[str, Any]], weights: SourceWeights | None) -> int:
    """Which of `OUTLOOKS` the `answers` of the tools in `LOOKED_UP` speak for, with their weights. With None one of the
    three speaks alone. It is drawn from what they said, so it is the same in every turn of a conversation."""
    if weights is None:
        weights = random.Random(json.dumps([answers[tool] for tool in LOOKED_UP])).choice(_ALONE)
    trend, news, funding = weights
    score = trend * _TREND.get(str(answers["get_trend"].get("trend")), 0.0)
    score += news * _TONE.get(str(answers["get_news"].get("tone")), 0.0)
    score += {"longs pay": funding, "shorts pay": -funding}.get(str(answers["get_funding"].get("funding")), 0.0)
    return 4 if score > 2.0 else 3 if score > 0.7 else 0 if score < -2.0 else 1 if score < -0.7 else NO_LEAN


def verdict_of(numbers: dict[str, Any], proposed: float = 1.0) -> dict[str, Any]:
    """The verdict that follows from the loss quantiles of `get_risk`; what is reduced is reduced to half of
    `proposed`."""
    known = [float(numbers[key]) for key in ("var", "historical") if isinstance(numbers.get(key), int | float)]
    if not known:
        return {"verdict": "veto", "loss": 20}
    loss = min(100, round(sum(known) / len(known)))
    half = round(0.5 * proposed, 3)
    return {"verdict": "reduce", "to": half, "loss": loss} if loss > MOST_LOSS else {"verdict": "approve", "loss": loss}


def verdict_by_lot(
    numbers: dict[str, Any], proposed: float, lots: random.Random, parts: tuple[float, ...]
) -> dict[str, Any]:
    """A verdict that says what `get_risk` has shown and does not heed it: a share of `REDUCED` is reduced to one of the
    `parts` of what was proposed."""
    rule = verdict_of(numbers)
    if rule["verdict"] == "veto":  # nothing is known of the coin
        return rule
    seen = {"rule": f"crowding {numbers['crowding']}"} if "crowding" in numbers else {}
    if lots.random() < REDUCED:
        return {**seen, "verdict": "reduce", "to": round(lots.choice(parts) * proposed, 3), "loss": rule["loss"]}
    return {**seen, "verdict": "approve", "loss": rule["loss"]}


def plan_by_rule(preview: Mapping[str, Any], limits: bool) -> dict[str, Any]:
    """One market order; where the spread is wide it is sent later, or with `limits` as a limit at the price now."""
    at_once, later, limit = PLANS
    return dict((limit if limits else later) if preview.get("state") in ("wide", "very wide") else at_once)


def plan_by_lot(preview: Mapping[str, Any], lots: random.Random) -> dict[str, Any]:
    """One of `PLANS`, with the word for the spread that `preview_order` has shown, which it does not heed."""
    seen = {"rule": f"spread {preview['state']}"} if "state" in preview else {}
    return {**seen, **lots.choice(PLANS)}
