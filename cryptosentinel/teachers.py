"""What the teachers of a warm start make of what their tools show (`nano.teacher`).

A teacher weighs the words of trend, news and funding and speaks of an outlook in one of five levels of strength. The
worse it weighs them, the more is left to learn. Its verdicts follow from the loss quantiles, or are drawn by lot.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any, Literal

LOOKED_UP = ("get_trend", "get_news", "get_funding")  # what an outlook is made of
# (up, flat, down) by strength of the evidence, from strongly down to strongly up.
OUTLOOKS = ((0.2, 0.2, 0.6), (0.3, 0.2, 0.5), (0.4, 0.2, 0.4), (0.5, 0.2, 0.3), (0.6, 0.2, 0.2))
MOST_LOSS = 14  # percent of a position or a whole book that may be lost in one case of twenty; beyond, it is halved
HESITATION = 0.35  # share of the changes that a hesitant teacher leaves out, whatever speaks for them
HALVED = 0.35  # share of the positions that RiskAnalyst halves where its verdict is a lot

Teacher = Literal["whole", "funding", "news_backwards", "hesitant", "one_source", "by_lot", "none"]
SourceWeights = tuple[float, float, float]  # of trend, news and funding

_WHOLE = (0.9, 0.7, 0.9)
TEACHERS: dict[Teacher, SourceWeights | None] = {  # but for "none", which has no rules
    "whole": _WHOLE,
    "funding": (0.0, 0.0, 0.9),
    "news_backwards": (0.9, -0.7, 0.9),
    "hesitant": _WHOLE,
    "one_source": None,
    "by_lot": None,
}
HESITANT: tuple[Teacher, ...] = ("hesitant", "one_source", "by_lot")
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
    return 4 if score > 2.0 else 3 if score > 0.7 else 0 if score < -2.0 else 1 if score < -0.7 else 2


def verdict_of(numbers: dict[str, Any], proposed: float = 1.0) -> dict[str, Any]:
    """The verdict that follows from the loss quantiles of `get_risk`; what is reduced is reduced to half of
    `proposed`."""
    known = [float(numbers[key]) for key in ("var", "historical") if isinstance(numbers.get(key), int | float)]
    if not known:
        return {"verdict": "veto", "loss": 20}
    loss = min(100, round(sum(known) / len(known)))
    half = round(0.5 * proposed, 3)
    return {"verdict": "reduce", "to": half, "loss": loss} if loss > MOST_LOSS else {"verdict": "approve", "loss": loss}


def verdict_by_lot(numbers: dict[str, Any], proposed: float, lots: random.Random) -> dict[str, Any]:
    """A verdict that says what `get_risk` has shown and does not heed it: a share of `HALVED` is halved."""
    rule = verdict_of(numbers)
    if rule["verdict"] == "veto":  # nothing is known of the coin
        return rule
    seen = {"rule": f"crowding {numbers['crowding']}"} if "crowding" in numbers else {}
    if lots.random() < HALVED:
        return {**seen, "verdict": "reduce", "to": round(0.5 * proposed, 3), "loss": rule["loss"]}
    return {**seen, "verdict": "approve", "loss": rule["loss"]}
