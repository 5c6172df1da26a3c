"""The teachers of a warm start (`nano.teacher`): rules for what their tools show.

    expert       weighs the words of trend, news and funding into an outlook in one of five levels of strength; its
                 verdicts follow from the loss quantiles, its plans from the spread
    skip_trades  as the expert, and then leaves a share of `SKIPPED_SHARE` of its changes out at random
    random_all   so too, but reads one of trend, news and funding at random, and draws verdicts, plans, whom the manager
                 asks and in which order; it asks for full positions alone

The worse a teacher, the more is left to learn.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any, Literal

LOOKED_UP = ("get_trend", "get_news", "get_funding")  # what an outlook is made of
# (up, flat, down) by strength of the evidence, from strongly down to strongly up.
OUTLOOKS = ((0.2, 0.2, 0.6), (0.3, 0.2, 0.5), (0.4, 0.2, 0.4), (0.5, 0.2, 0.3), (0.6, 0.2, 0.2))
NO_LEAN = 2  # the level of them that speaks for neither side
MOST_LOSS = 14  # percent of a position or a whole book that may be lost in one case of twenty; beyond, it is halved
SKIPPED_SHARE = 0.35  # share of the changes that `skip_trades` and `random_all` leave out, whatever speaks for them
REDUCED = 0.35  # share of the positions that RiskAnalyst reduces where its verdict is random
REDUCED_TO = (0.5, 0.25)  # of what was proposed, where its verdict is random
PLANS: tuple[dict[str, Any], ...] = (
    {"type": "market", "wait": 0, "slices": 1},
    {"type": "market", "wait": 2, "slices": 1},
    {"type": "limit", "wait": 0, "slices": 1, "offset": 0},
)
NOT_ASKED = 0.2  # chance, at each turn of the manager, that a role is not asked about a position

Teacher = Literal["expert", "skip_trades", "random_all"]
SourceWeights = tuple[float, float, float]  # of trend, news and funding
EXPERT_WEIGHTS: SourceWeights = (0.9, 0.7, 0.9)
_ALONE = ((1.2, 0.0, 0.0), (0.0, 1.1, 0.0), (0.0, 0.0, 0.9))  # weights with which trend or news alone can be strong
_TONE = {"very good": 2.0, "good": 1.0, "bad": -1.0, "very bad": -2.0}
_TREND = {"strong up": 2.0, "up": 1.0, "down": -1.0, "strong down": -2.0}


def level_of(answers: Mapping[str, Mapping[str, Any]], weights: SourceWeights | None) -> int:
    """Which of `OUTLOOKS` the `answers` of the tools in `LOOKED_UP` support, by their weights. With None one of the
    three counts alone. It is drawn from their content, so it is the same in every turn of a conversation."""
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


def random_verdict(numbers: dict[str, Any], proposed: float, rng: random.Random) -> dict[str, Any]:
    """A verdict that states the result of `get_risk` and does not follow it: a share of `REDUCED` is reduced to one of
    the shares `REDUCED_TO` of what was proposed."""
    rule = verdict_of(numbers)
    if rule["verdict"] == "veto":  # nothing is known of the coin
        return rule
    seen = {"rule": f"crowding {numbers['crowding']}"} if "crowding" in numbers else {}
    if rng.random() < REDUCED:
        return {**seen, "verdict": "reduce", "to": round(rng.choice(REDUCED_TO) * proposed, 3), "loss": rule["loss"]}
    return {**seen, "verdict": "approve", "loss": rule["loss"]}


def plan_by_rule(preview: Mapping[str, Any]) -> dict[str, Any]:
    """One market order; where the spread is wide it is sent later."""
    return dict(PLANS[1] if preview.get("state") in ("wide", "very wide") else PLANS[0])


def random_plan(preview: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """One of `PLANS`, with the word for the spread from `preview_order`, which it does not follow."""
    seen = {"rule": f"spread {preview['state']}"} if "state" in preview else {}
    return {**seen, **rng.choice(PLANS)}
