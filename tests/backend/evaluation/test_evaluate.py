"""Measuring: windows that do not overlap, intervals that hold what they promise, verdicts that say what was found."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backend.builders.loaded_team import scripted_team
from backend.builders.market import Account
from backend.builders.strategies import named_strategies
from backend.config.schema import BASELINES, EvaluationConfig
from backend.decisions.document import StoredDecision
from backend.evaluation.compare import baselines, chained_equity, difference, play_windows, split_windows, table
from backend.evaluation.evaluate import choose_example, verdict
from backend.statistics.mean_interval import mean_interval
from cryptosentinel.team_settings import TeamConfig
from simulator.errors import DataError
from simulator.exchange.costs import Costs
from simulator.exchange.rules import SymbolRules
from simulator.exchange.venue import Venue
from tests.small_world import small_market
from tests.standard_limits import guard_limits
from tests.stored_runs import decision_of

ACCOUNT = Account(10_000.0, Costs(), 1.0, Venue())
NAMES = EvaluationConfig().baselines


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=30), st.floats(-1, 1), st.integers(0, 5))
def test_the_interval_holds_the_mean_and_moves_with_the_values(numbers: list[int], shift: float, seed: int) -> None:
    values = np.array(numbers) / 50
    low, high = mean_interval(values, 400, seed)
    assert low <= values.mean() <= high
    moved = mean_interval(values + shift, 400, seed)
    assert moved == pytest.approx((low + shift, high + shift), abs=1e-9)
    assert (low, high) == mean_interval(values, 400, seed)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, np.nan], [[1.0, 2.0]]])
def test_an_interval_of_too_little_is_refused(values: Any) -> None:
    with pytest.raises(ValueError, match="at least two finite values"):
        mean_interval(values, 100, 1)


@example(0, 13, 3, 4, 1)  # they just fit
@given(st.integers(0, 500), st.integers(1, 2000), st.integers(1, 30), st.integers(1, 20), st.integers(1, 12))
def test_windows_do_not_overlap_and_stay_inside(
    start: int, length: int, count: int, decisions: int, every: int
) -> None:
    try:
        windows = split_windows(start, start + length, count, decisions, every)
    except DataError as error:
        assert count * decisions * every >= length
        assert "use fewer or shorter windows" in str(error)
        return
    assert len(windows) == count
    assert windows[0].start >= start
    assert windows[-1].stop <= start + length - 1
    assert all(one.stop - one.start == decisions * every and one.decide_every == every for one in windows)
    assert all(one.stop <= other.start for one, other in pairwise(windows))


def test_differences_are_taken_window_by_window() -> None:
    market, windows = small_market(), split_windows(150, 390, 3, 4, 6)
    episodes = play_windows(
        scripted_team(TeamConfig()), market, windows, ACCOUNT, guard_limits(), 3, lambda *args: None
    )
    team = [episode.result for episode in episodes]
    results = {"scripted": team, **baselines(NAMES, market, windows, ACCOUNT, team, 3)}
    found = difference(results, "scripted", "hold", 300, 3)
    gains = [
        one.equity[-1] / one.equity[0] - other.equity[-1] / other.equity[0]
        for one, other in zip(team, results["hold"], strict=True)
    ]
    assert found["per_window"] == pytest.approx(gains)
    assert found["mean"] == pytest.approx(np.mean(gains))
    assert found["ci95"] == pytest.approx(mean_interval(gains, 300, 3))
    costs = [sum(run.costs.values()) for name in ("hold", "scripted") for run in results[name]]
    assert found["costs_saved"] == pytest.approx((sum(costs[:3]) - sum(costs[3:])) / 3 / 10_000)
    rows = table(results, {"scripted": episodes})
    assert rows["flat"]["total_return"] == rows["flat"]["trades"] == rows["flat"]["costs"] == 0.0
    assert rows["hold"]["hold_rate"] is None
    decisions = [decision for episode in episodes for _, decision in episode.decisions]
    assert len(decisions) == 12
    assert rows["scripted"]["hold_rate"] == sum(not one.orders for one in decisions) / 12
    assert rows["oracle"]["total_return"] > rows["matched_random"]["total_return"]
    curve = chained_equity(results, market.interval)
    assert curve["equity"]["hold"][0] == 1.0
    grown = [1.0 + one for one in rows["hold"]["per_window"]]
    assert curve["equity"]["hold"][-1] == pytest.approx(math.prod(grown))
    assert curve["equity_days"][-1] == 4.0 * len(windows)


def test_every_baseline_by_name_and_no_other() -> None:
    market, windows = small_market(), split_windows(150, 390, 2, 4, 6)
    assert set(BASELINES) == {*named_strategies(), "matched_random", "oracle"}
    first = baselines(["hold"], market, windows, ACCOUNT, [], 3)
    assert list(first) == ["hold"]
    results = baselines(BASELINES, market, windows, ACCOUNT, first["hold"], 3)
    assert list(results) == list(BASELINES)
    assert all(len(runs) == 2 for runs in results.values())
    assert results["hold"][0].metrics == first["hold"][0].metrics
    blind = replace(market, truth=None)
    assert list(baselines(["oracle", "flat"], blind, windows, ACCOUNT, [], 3)) == ["flat"]
    assert baselines([], market, windows, ACCOUNT, [], 3) == {}


def test_teams_and_baselines_trade_under_the_same_costs_and_rules() -> None:
    market, windows = small_market(), split_windows(150, 390, 2, 4, 6)
    rules = {"AAAUSDT": SymbolRules(lot=0.5, taker_fee=0.004)}
    ruled = replace(ACCOUNT, venue=Venue(rules=rules))
    episodes = play_windows(scripted_team(TeamConfig()), market, windows, ruled, guard_limits(), 3, lambda *args: None)
    held = baselines(["hold"], market, windows, ruled, [], 3)["hold"]
    fills = [fill for run in [*held, *(one.result for one in episodes)] for fill in run.fills]
    assert all(run.fills for run in held)
    for fill in fills:
        assert fill.fee == pytest.approx(0.004 * abs(fill.quantity) * fill.price)
        assert fill.quantity % 0.5 == pytest.approx(0.0, abs=1e-9)


def found(mean: float, low: float, high: float) -> dict[str, Any]:
    return {"difference": {"mean": mean, "ci95": [low, high], "costs_saved": 0.004}}


@pytest.mark.parametrize(
    ("held_out", "says", "never"),
    [
        (found(0.02, 0.01, 0.03), "earns more", "less"),
        (found(-0.02, -0.03, -0.01), "earns less", "more"),
        (found(0.02, -0.01, 0.05), "No measurable difference", "earns"),
        (found(0.02, 0.0, 0.03), "No measurable difference", "earns"),
    ],
)
def test_the_verdict_says_what_the_interval_says(held_out: dict[str, Any], says: str, never: str) -> None:
    sentence = verdict(held_out)
    assert says in sentence and never not in sentence
    assert sentence.endswith(".") and "\n" not in sentence
    assert f"{100 * held_out['difference']['mean']:+.2f}" in sentence
    assert verdict(held_out, answer="Training worked.") == "Training worked."


def test_the_verdict_tells_what_training_did_not_score() -> None:
    measured = {**found(0.02, 0.01, 0.03), "unknown_to_training": ["price impact", "finer bars"]}
    sentence = verdict(measured, ["taker_fee 0.001 instead of 0.0005"])
    assert "Measured with price impact, finer bars, which training does not score." in sentence
    assert "other costs than it was trained with: taker_fee 0.001 instead of 0.0005." in sentence
    assert "Measured with" not in verdict({**measured, "unknown_to_training": []})


def decision(orders: int, roles: list[str], clamps: int, earned: float) -> StoredDecision:
    clamp = {"rule": "r", "symbol": "A", "asked": 1.0, "allowed": 0.0, "detail": ""}
    document = decision_of(
        orders=[{"symbol": "A", "quantity": 1.0}] * orders,
        conversations=[{"role": role} for role in roles],
        clamps=[clamp] * clamps,
        net_return=earned,
    )
    return StoredDecision("run", "b", 0, 0, document)


def test_the_example_has_orders_many_roles_and_consequences() -> None:
    quiet = decision(0, ["manager", "market_analyst", "risk_analyst", "trader"], 3, 0.5)
    lone = decision(1, ["manager", "manager"], 3, 0.5)
    full = decision(1, ["manager", "market_analyst", "trader"], 0, 0.01)
    clamped = decision(1, ["manager", "market_analyst", "trader"], 1, 0.0)
    loss = decision(1, ["manager", "market_analyst", "trader"], 1, -0.03)
    ranked = [quiet, lone, full, clamped, loss]
    for best in range(len(ranked), 0, -1):
        assert choose_example(ranked[:best]) is ranked[best - 1]
    assert choose_example([]) is None
