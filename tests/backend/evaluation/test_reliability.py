"""How well stated probabilities fit what came: who is right is said to be, and who is too sure is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.decisions.recording import episode_decisions
from backend.evaluation.reliability import FEWEST, JudgedForecast, Reliability, judged_forecasts, reliability_of
from cryptosentinel.agents.market_analyst import FLAT_BAND
from cryptosentinel.tools.context import horizon_volatility
from simulator.arrays import FloatArray
from tests.stored_runs import codec, episode, small_market

HOUR = 3_600_000


def forecasts(count: int, seed: int, sharpness: float = 0.0) -> list[JudgedForecast]:
    """Forecasts whose outcome comes with the true probabilities. What is stated are those, or with a `sharpness` above
    0 sharper ones."""
    rng = np.random.default_rng(seed)
    true = rng.dirichlet([1.5, 1.5, 1.5], count)
    stated = true ** (1.0 + sharpness)
    stated /= stated.sum(axis=1, keepdims=True)
    return [
        JudgedForecast(number * HOUR, "A", _three(stated[number]), int(rng.choice(3, p=true[number])), 2)
        for number in range(count)
    ]


def _three(row: FloatArray) -> tuple[float, float, float]:
    down, flat, up = row.tolist()
    return down, flat, up


def fit_of(judged: list[JudgedForecast]) -> Reliability:
    fit = reliability_of(judged, HOUR)
    assert fit is not None
    return fit


def test_who_states_the_truth_lies_on_the_line_and_who_is_too_sure_does_not() -> None:
    honest, sure = fit_of(forecasts(3_000, 1)), fit_of(forecasts(3_000, 1, sharpness=2.0))
    assert honest.skill.low > 0.1 and honest.gap < 0.03
    assert sum(one.came.low <= one.stated <= one.came.high for one in honest.bins) >= len(honest.bins) - 2
    assert sure.gap > 3 * honest.gap and sure.brier > honest.brier
    assert sure.bins[-1].came.high < sure.bins[-1].stated, "too sure: below the line on the right"


def test_who_always_states_the_shares_has_no_skill() -> None:
    judged = forecasts(600, 2)
    shares = np.bincount([one.came for one in judged], minlength=3) / len(judged)
    same = fit_of([replace(one, stated=_three(shares)) for one in judged])
    assert same.skill.value == pytest.approx(0.0, abs=1e-12) and same.gap < 0.01


def test_forecasts_that_overlap_make_wider_intervals() -> None:
    apart = forecasts(400, 3)
    doubled = [replace(one, time=10 * one.time + place) for one in apart for place in range(4)]  # the same four times
    first, many = fit_of(apart).skill, fit_of(doubled).skill
    assert many.high - many.low > 0.7 * (first.high - first.low), "four copies are no more evidence"


@settings(max_examples=25, deadline=None)
@given(st.integers(FEWEST, 60), st.integers(0, 10_000), st.floats(0.0, 5.0))
def test_every_number_is_what_it_says(count: int, seed: int, sharpness: float) -> None:
    fit = fit_of(forecasts(count, seed, sharpness))
    assert fit.forecasts == count and 0.0 <= fit.brier <= 1.0 and 0.0 <= fit.gap <= 1.0
    for one in fit.bins:
        assert 0.0 <= one.came.low <= one.came.high <= 1.0 and one.count >= FEWEST
    assert sum(one.count for one in fit.bins) <= 3 * count


def test_too_few_say_nothing() -> None:
    assert reliability_of(forecasts(FEWEST - 1, 1), HOUR) is None


def test_a_teams_forecasts_are_judged_as_in_training() -> None:
    market = small_market()
    decisions = episode_decisions("run", "scripted", codec(), episode())
    judged = judged_forecasts(decisions, market, 5)
    assert judged and {one.bars for one in judged} == {18}, "the question says its own horizon"
    close = {int(time) + market.interval: bar for bar, time in enumerate(market.open_time)}
    for one in judged:
        bar = close[one.time]
        view, prices = market.view(bar), market.close[:, market.column(one.symbol)]
        volatility = horizon_volatility(view, one.symbol, 18)
        assert volatility is not None
        move = prices[bar + 18] / prices[bar] - 1.0
        assert one.came == (0 if move < -FLAT_BAND * volatility else 2 if move > FLAT_BAND * volatility else 1)
        assert sum(one.stated) == pytest.approx(1.0)
    last = max(one.time for one in judged)
    assert last <= int(market.open_time[-1]) + market.interval - 18 * market.interval, "what has not come is left out"
