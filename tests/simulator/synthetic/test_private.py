"""The market of private knowledge: its chains have the law that they are said to have, what is shown says nothing of
what came before, and each source of knowledge is worth something, but for the twin without edge."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.arrays import FloatArray
from simulator.data.archive import write_market
from simulator.errors import DataError
from simulator.exchange.costs import Costs
from simulator.market.market import Market
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from simulator.synthetic.information import SOURCES, DecisionValues, decision_values
from simulator.synthetic.oracle import regime_beliefs, solve
from simulator.synthetic.private import (
    CROWD_BARS,
    CROWD_SHARE,
    JUMP_CHANCE,
    JUMP_SIZE,
    WIDE_SHARE,
    WIDE_SPREAD,
    evolve_private,
    jump_variance,
)
from simulator.synthetic.truth import truth_of

CONFIG = SyntheticConfig(
    bars=1_500, seed=6, symbols=("AAAUSDT", "BBBUSDT"), kind="private", drift_ratio=0.35, daily_volatility=0.02
)
HORIZON = 9


@cache
def market(edge: bool = True) -> Market:
    return generate(replace(CONFIG, edge=edge))


def test_the_law_of_the_present_kind_is_under_it() -> None:
    """Same seed, same hidden drift, volatility and funding; and a longer market begins with the shorter one."""
    plain, private = generate(replace(CONFIG, kind="trend")), market()
    assert np.array_equal(truth_of(plain).regime, truth_of(private).regime)
    assert np.array_equal(truth_of(plain).vol, truth_of(private).vol)
    assert plain.funding == private.funding
    jump = truth_of(private).private.jump  # type: ignore[union-attr]  # a private market has it
    assert np.allclose(plain.close * np.cumprod(jump, axis=0), private.close)
    longer = generate(replace(CONFIG, bars=1_700))
    assert np.array_equal(longer.close[:1_500], private.close)
    assert np.array_equal(longer.half_spread[:1_500], private.half_spread)
    assert (private.low <= np.minimum(private.open, private.close)).all()
    assert (private.high >= np.maximum(private.open, private.close)).all()
    assert np.array_equal(private.open[1:], private.close[:-1])


def test_the_past_says_nothing_of_the_crowding_and_the_crowding_of_jumps_to_come() -> None:
    """Of a long history: a crowded time is as likely after a jump, after none for long, and at all."""
    course = evolve_private(np.random.default_rng(3), (1, 60_000, 4), True)
    crowded, jumps = course.crowded[0], course.jump[0] != 1.0
    assert crowded.mean() == pytest.approx(CROWD_SHARE, abs=0.02)
    seen = np.cumsum(jumps, axis=0)
    for past in (1, 9, 60):
        lately = seen[past:] - seen[:-past] > 0
        for group in (lately, ~lately):
            assert crowded[past:][group].mean() == pytest.approx(CROWD_SHARE, abs=0.04)
    coming = seen[HORIZON:] - seen[:-HORIZON] > 0
    expected = JUMP_CHANCE * (1.0 - (1.0 - 1.0 / CROWD_BARS) ** HORIZON)
    assert coming[crowded[:-HORIZON]].mean() == pytest.approx(expected, abs=0.04)
    assert coming[~crowded[:-HORIZON]].mean() < 0.2 * expected
    wide = course.wide[0]
    assert (wide > 0.0).mean() == pytest.approx(WIDE_SHARE, abs=0.03)
    assert wide[wide > 0.0].min() >= WIDE_SPREAD[0] and wide.max() <= WIDE_SPREAD[1]
    assert set(np.unique(course.jump)) == {1.0 - JUMP_SIZE, 1.0, 1.0 + JUMP_SIZE}


def test_scenarios_begin_with_what_is_hidden() -> None:
    """Crowded states lead to jumps, wide ones to wide spreads; the variance of jumps is the law's."""
    truth = truth_of(market())
    assert truth.private is not None
    bar = int(np.flatnonzero(truth.private.wide[:, 0] > 0.0)[5])
    states = [
        replace(truth, private=replace(truth.private, crowded=np.full_like(truth.private.crowded, one)))
        for one in (False, True)
    ]
    calm, crowd = (one.scenarios(market(), bar, 4_000, HORIZON, 1) for one in states)
    assert (calm.half_spread[:, 0, 0] == truth.private.wide[bar, 0]).mean() > 0.9
    one, other = (paths.close[:, -1, 0] / market().close[bar, 0] for paths in (calm, crowd))
    assert other.var() - one.var() == pytest.approx(
        jump_variance(True, HORIZON) - jump_variance(False, HORIZON), rel=0.2
    )
    without = truth.scenarios(market(), bar, 4_000, HORIZON, 1, jumps=False).close[:, -1, 0] / market().close[bar, 0]
    assert one.var() - without.var() == pytest.approx(jump_variance(False, HORIZON), rel=0.4)
    assert other.mean() == pytest.approx(one.mean(), abs=0.006)  # a jump has no drift


def values(edge: bool, count: int = 60) -> list[DecisionValues]:
    one = market(edge)
    beliefs, rng, found = regime_beliefs(one), np.random.default_rng(1), []
    for bar in rng.choice(np.arange(200, 1_480), count, replace=False):
        alone = one.select(("AAAUSDT",))

        def utility(net: FloatArray) -> FloatArray:
            penalty = np.clip((-net - 0.05) / 0.05, 0.0, 1.0)
            mean: FloatArray = (0.35 * (1.0 + np.tanh(net / 0.03)) + 0.3 * (1.0 - penalty)).mean(axis=1)
            return mean

        state = _State(alone, int(bar), float(rng.choice([0.0, 0.5, -1.0])))
        belief = beliefs[bar, 0].tolist()
        found.append(decision_values(state, belief, Costs(), utility, horizon=HORIZON, paths=64, seed=int(bar)))
    return found


class _State:
    def __init__(self, market: Market, bar: int, exposure: float) -> None:
        self.market, self.bar, self.exposure = market, bar, exposure


def test_each_source_is_worth_something_and_nothing_on_the_twin() -> None:
    """The private value of each source is above 0, two standard errors away; on the twin it is 0 in every state."""
    seen, twin = values(edge=True), values(edge=False, count=5)
    for source in SOURCES:
        private = np.array([one.private(source) for one in seen])
        assert private.mean() > 2.0 * private.std() / np.sqrt(len(private)), source
        assert all(one.private(source) == 0.0 for one in twin)
    assert np.mean([one.all - max(one.hold, one.none) for one in seen]) > 0.0
    assert np.mean([one.oracle - one.came for one in seen]) > 0.0


@settings(max_examples=10)
@given(st.integers(0, 1_400))
def test_the_oracle_trades_less_where_it_costs_more(bar: int) -> None:
    policy = solve(truth_of(market()), Costs(), [-1.0, -0.5, 0.0, 0.5, 1.0], 3)
    truth = policy.truth
    assert truth.private is not None
    dear = replace(truth.private, wide=np.full_like(truth.private.wide, 0.2))
    risky = replace(truth.private, crowded=np.ones_like(truth.private.crowded))
    wanted = policy.exposure(bar, 0, 0.0)
    assert replace(policy, truth=replace(truth, private=dear)).exposure(bar, 0, 0.0) == 0.0
    assert abs(replace(policy, truth=replace(truth, private=risky)).exposure(bar, 0, 0.0)) <= abs(wanted)


def test_what_cannot_be_is_refused(tmp_path: object) -> None:
    with pytest.raises(DataError, match="no coarser bars; generate it at 1d"):
        market().resample("1d")
    with pytest.raises(DataError, match="has no files; its recipe makes it each time"):
        write_market(market(), str(tmp_path))
    with pytest.raises(DataError, match="kind is 'secret'; it must be one of trend, private"):
        replace(CONFIG, kind="secret")  # type: ignore[arg-type]  # what a user may write
    plain = generate(replace(CONFIG, kind="trend", bars=300)).select(("AAAUSDT",))
    with pytest.raises(DataError, match="its knowledge is not private"):
        decision_values(
            _State(plain, 200, 0.0), (0.3, 0.4, 0.3), Costs(), lambda net: net.mean(axis=1), horizon=3, paths=2, seed=1
        )
