"""What each role's knowledge is worth in the market of the preset `demo`, and what its teachers make of it:
`make bench ONLY=learning.private`.

Two more rows say what MarketAnalyst's expert score pays for: how much better it rates the teacher that reads trend,
news and funding than the one that reads funding alone, as a Brier score and as what acting on the advice earns
(`training.advice_weight`).

No training: the values follow from the market's law (`simulator.synthetic.information`). A row for each source says how
much the best decision loses without it, on held-out states of several markets, in thousandths of the outcome, and a row
for the twin without edge that all of them lose nothing there. The rows of the teachers say how much of what the
evidence allows, above leaving positions as they are, each of them reaches in expectation. Intervals are Student's over
the means of the markets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

import numpy as np
import numpy.typing as npt

from backend.builders.loaded_team import scripted_team
from backend.builders.market import load_market, split
from backend.config.load import load_config
from backend.config.schema import Config
from backend.training.curriculum.queries import Query, pools_of
from backend.training.rollout.collect import rollout_settings
from backend.training.rollout.expected_value import decisions_in, evidence_values, scores_in
from benchmarks.run import Result
from cryptosentinel.teachers import Teacher
from simulator.synthetic.information import SOURCES, DecisionValues, KnowledgeSource

BY_NAME_ONLY = True  # it says something of the market and the rules, not of the code
SEEDS = (11, 12, 13, 14, 15)
STATES = 200  # of each market
BARS = 4_000  # fewer than the preset's: the values do not depend on how long the training part is
STUDENT = 2.776  # 97.5 % quantile of Student's t with four degrees of freedom
KNOWN_BY: dict[KnowledgeSource, str] = {"drift": "MarketAnalyst", "crowding": "RiskAnalyst", "spread": "Trader"}
_COMPARED: tuple[Teacher, ...] = ("expert", "random_all")
Row = npt.NDArray[np.float64]


def run() -> list[Result]:
    """The rows `learning.private.SOURCE`, `.limits`, `.brier`, `.advice`, `.twin` and `.teacher.TEACHER`."""
    rows = [(seed, *_measured(seed)) for seed in SEEDS]
    allowed = [values for _, values, _ in rows]
    found = [_source_row(source, allowed) for source in SOURCES] + [_limits_row(allowed)]
    found += [_score_row(name, weight) for name, weight in (("brier", 0.0), ("advice", 1.0))]
    twins = [evidence_values(held_out_states(config, STATES // 4), rollout_settings(config, 1)) for config in _twins()]
    worst = max(one.private(source) for twin in twins for one in twin for source in SOURCES)
    found.append(
        Result(
            name="learning.private.twin",
            value=1000.0 * worst,
            unit="thousandths of the outcome",
            against="the largest value of any source in any state of the twin without edge",
            ratio=None,
            target="0",
            met=worst == 0.0,
        )
    )
    for teacher in get_args(Teacher):
        gains = [(scores[teacher], np.array([one.hold for one in values])) for _, values, scores in rows]
        limit = [np.array([one.all - one.hold for one in values]) for values in allowed]
        found.append(share_row(f"learning.private.teacher.{teacher}", gains, limit))
    return found


def _measured(seed: int) -> tuple[list[DecisionValues], dict[str, Row]]:
    """Of a market's held-out states what the evidence allows, and the teachers' scores."""
    config = config_of(seed)
    queries, settings = held_out_states(config, STATES), rollout_settings(config, 1)
    scores = {}
    for teacher in get_args(Teacher):
        team = scripted_team(config.team, teacher)
        scores[teacher] = scores_in(decisions_in(team.team, team.engine, queries, settings, seed))
    return evidence_values(queries, settings), scores


def _score_row(name: str, weight: float) -> Result:
    """By a score with this share of the advice, of MarketAnalyst's answers: reading all less reading funding alone."""
    gains = []
    for seed in SEEDS:
        config = config_of(seed, f"training.advice_weight={weight}")
        queries, settings = held_out_states(config, STATES), rollout_settings(config, 1)
        means = []
        for teacher in _COMPARED:
            team = scripted_team(config.team, teacher)
            rollouts = decisions_in(team.team, team.engine, queries, settings, seed)
            asked = [call.expert for one in rollouts for call in one.subs if call.role == "market_analyst"]
            means.append(float(np.mean([score for score in asked if score is not None])))
        gains.append(1000.0 * (means[0] - means[1]))
    mean, low, high = interval(gains)
    return Result(
        name=f"learning.private.{name}",
        value=mean,
        unit="thousandths of the score",
        against=f"MarketAnalyst that reads funding alone; 95 % interval {low:.1f} to {high:.1f}, markets "
        + ", ".join(f"{one:.1f}" for one in gains),
        ratio=None,
        target="interval > 0" if weight else "reported",
        met=low > 0.0 or not weight,
    )


def config_of(seed: int, *more: str) -> Config:
    """The preset's configuration on a market of its own, with scenarios enough for a measurement."""
    return load_config("demo", [f"market.seed={seed}", f"market.bars={BARS}", "training.scenario_paths=256", *more])


def _twins() -> list[Config]:
    return [config_of(seed, "market.edge=false") for seed in SEEDS[:2]]


def held_out_states(config: Config, count: int) -> list[Query]:
    """States of the market's held-out part, with beliefs."""
    market = load_market(config.market, config.costs)
    horizon = config.team.horizon_bars
    part = split(market, config.market, horizon).held_out
    [pool] = pools_of(config.training, market, [part], horizon)
    return pool.draw(config.evaluation_seed, 0, count, easy=False)


def interval(means: Sequence[float]) -> tuple[float, float, float]:
    """Mean of the means of five markets, with Student's 95 % interval."""
    row = np.asarray(means)
    half = STUDENT * float(row.std(ddof=1)) / math.sqrt(len(row))
    return float(row.mean()), float(row.mean()) - half, float(row.mean()) + half


def _source_row(source: KnowledgeSource, markets: Sequence[Sequence[DecisionValues]]) -> Result:
    mean, low, high = interval([float(np.mean([one.all - one.without[source] for one in rows])) for rows in markets])
    gain = float(np.mean([one.all - one.hold for rows in markets for one in rows]))
    return Result(
        name=f"learning.private.{source}",
        value=1000.0 * mean,
        unit="thousandths of the outcome",
        against=f"all evidence, {1000 * gain:.1f} above holding; 95 % interval {1000 * low:.1f} to {1000 * high:.1f}; "
        f"{KNOWN_BY[source]} alone sees it",
        ratio=mean / gain,
        target="interval > 0",
        met=low > 0.0,
    )


def _limits_row(markets: Sequence[Sequence[DecisionValues]]) -> Result:
    """What limits add to the best decisions that are all made at the market."""
    mean, low, high = interval([float(np.mean([one.all - one.at_market for one in rows])) for rows in markets])
    gain = float(np.mean([one.at_market - one.hold for rows in markets for one in rows]))
    return Result(
        name="learning.private.limits",
        value=1000.0 * mean,
        unit="thousandths of the outcome",
        against=f"the best decisions without limits, {1000 * gain:.1f} above holding; "
        f"95 % interval {1000 * low:.1f} to {1000 * high:.1f}",
        ratio=mean / gain,
        target="reported",
        met=True,
    )


def share_row(name: str, gains: Sequence[tuple[Row, Row]], limit: Sequence[Row]) -> Result:
    """Of the gain over holding that the evidence allows the share that somebody reaches; `gains` are scores and those
    of holding, by market."""
    shares = [
        float((scores - hold).mean() / allowed.mean()) for (scores, hold), allowed in zip(gains, limit, strict=True)
    ]
    share, low, high = interval(shares)
    return Result(
        name=name,
        value=100.0 * share,
        unit="% of what the evidence allows above holding",
        against=f"the evidence; 95 % interval {low:.0%} to {high:.0%}, markets "
        + ", ".join(f"{one:.0%}" for one in shares),
        ratio=share,
        target="below 1",
        met=high < 1.0,
    )
