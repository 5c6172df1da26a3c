"""Scenarios continue the history by its law, from what is there or is believed; the oracle earns what it should."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import DataError
from simulator.exchange.costs import Costs
from simulator.market.market import Market
from simulator.market.price_paths import PricePaths
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from simulator.synthetic.oracle import REGIMES, OraclePolicy, regime_beliefs, solve
from simulator.synthetic.truth import Truth, _spread, truth_of

COSTS = Costs(taker_fee=5e-4, spread_multiplier=1.0)
FIELDS = ("open", "high", "low", "close", "half_spread", "funding_rate")


@cache
def market(*, edge: bool = True) -> Market:
    return generate(SyntheticConfig(bars=3000, seed=21, edge=edge))


def truth(*, edge: bool = True) -> Truth:
    return truth_of(market(edge=edge))


def scenarios(index: int, paths: int, bars: int, seed: int = 0, *, edge: bool = True) -> PricePaths:
    return truth(edge=edge).scenarios(market(edge=edge), index, paths, bars, seed)


def test_the_same_call_gives_the_same_paths_and_another_seed_or_bar_others() -> None:
    first = scenarios(50, 4, 9, seed=1)
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(first, name), getattr(scenarios(50, 4, 9, seed=1), name))
    assert (first.close != scenarios(50, 4, 9, seed=2).close).all()

    def shocks(index: int) -> list[float]:
        paths, vol = scenarios(index, 4, 1, seed=1, edge=False), truth(edge=False).vol[index]
        standard = np.log(paths.close[:, 0] / paths.open[:, 0]) / vol + vol / 2
        return [round(float(shock), 9) for shock in standard.ravel()]

    assert set(shocks(50)).isdisjoint(shocks(51)), "the same seed at another bar is other noise"


def test_paths_start_at_the_last_close_and_join() -> None:
    paths = scenarios(700, 16, 18)
    assert paths.shape == (16, 18, 4)
    np.testing.assert_array_equal(paths.open[:, 0], np.broadcast_to(market().close[700], (16, 4)))
    np.testing.assert_array_equal(paths.open[:, 1:], paths.close[:, :-1])
    assert (paths.low <= np.minimum(paths.open, paths.close)).all()
    assert (paths.high >= np.maximum(paths.open, paths.close)).all()
    assert len({float(price) for price in paths.close[:, -1, 0]}) == 16, "paths are independent"


def test_funding_is_settled_at_the_closes_that_fall_on_eight_hours() -> None:
    for index in (300, 301):
        paths = scenarios(index, 3, 7)
        closes = market().open_time[index] + market().interval * np.arange(2, 9)
        np.testing.assert_array_equal((paths.funding_rate != 0).any(axis=(0, 2)), closes % 28_800_000 == 0)


def test_all_settlements_of_a_daily_bar_count() -> None:
    daily = generate(SyntheticConfig(bars=400, seed=4, timeframe="1d", funding_noise=0.0, funding_memory=0.0))
    hidden = truth_of(daily)
    paths = hidden.scenarios(daily, 200, 5, 1, 0)
    # Without noise and memory each of the three settlements pays the scale times the regime's sign.
    np.testing.assert_allclose(paths.funding_rate[:, 0], np.tile(3e-4 * hidden.signal[200], (5, 1)), atol=1e-15)


@pytest.mark.parametrize("index", [100, 1234, 2999])
@pytest.mark.parametrize("edge", [True, False])
def test_the_next_bar_has_the_drift_and_volatility_of_the_truth(index: int, edge: bool) -> None:
    paths = scenarios(index, 20_000, 1, edge=edge)
    simple = paths.close[:, 0] / paths.open[:, 0] - 1
    logs = np.log1p(simple)
    drift, vol = truth(edge=edge).drift[index], truth(edge=edge).vol[index]
    assert (np.abs(simple.mean(axis=0) - drift) < 4.5 * vol / np.sqrt(20_000)).all()
    np.testing.assert_allclose(logs.std(axis=0), vol, rtol=0.06)
    assert (((logs - logs.mean(axis=0)) ** 4).mean(axis=0) > 4 * vol**4).all(), "shocks have fat tails"
    off_diagonal = np.corrcoef(logs.T)[np.triu_indices(4, 1)]
    np.testing.assert_allclose(off_diagonal, 0.5, atol=0.07)


def test_without_edge_prices_are_fair_however_volatile() -> None:
    """The expected simple return is 0, not the expected log return: standing long must not pay."""
    wild = generate(SyntheticConfig(bars=50, seed=3, timeframe="1d", edge=False, daily_volatility=0.2))
    paths = truth_of(wild).scenarios(wild, 40, 20_000, 1, 0)
    simple = paths.close[:, 0] / paths.open[:, 0] - 1
    # Half of the variance, by which the two differ, is far above the noise; fat tails add a little to it.
    error, half = simple.std(axis=0) / np.sqrt(20_000), truth_of(wild).vol[40] ** 2 / 2
    assert (half > 6 * error).all()
    assert (np.abs(simple.mean(axis=0)) < 4 * error + 0.15 * half).all()


def test_drift_fades_as_the_regime_is_forgotten() -> None:
    """E[regime after n bars | regime] = (1-q)^n regime, as the long-run mean regime is 0."""
    index = int(np.flatnonzero((truth().regime == 1).any(axis=1))[40])
    column = int(np.flatnonzero(truth().regime[index] == 1)[0])
    bars = 90
    paths = scenarios(index, 4000, bars)
    law = truth().law
    stay = (1 - law.redraw_market) * (1 - law.redraw_own)
    expected = law.bull_drift[column] * (1 - stay**bars) / (1 - stay)
    total = np.log(paths.close[:, -1, column] / paths.open[:, 0, column]) + 0.5 * bars * law.volatility[column] ** 2
    # The variance changes on the way; half of it, over the horizon, is known to a few percent only.
    assert total.mean() == pytest.approx(expected, abs=4 * total.std() / np.sqrt(4000) + 0.2 * expected)
    assert expected < 0.6 * bars * law.bull_drift[column], "the case must tell fading from none"


def test_scenarios_are_the_law_of_the_history() -> None:
    """One path of many bars has the history's volatility, spread and funding statistics."""
    paths = scenarios(0, 1, 12_000)
    returns = np.log(paths.close / paths.open)[0]
    np.testing.assert_allclose(returns.std(axis=0), truth().law.volatility, rtol=0.12)
    assert (paths.half_spread >= 12e-4).mean() == pytest.approx(0.15, abs=0.02)
    settled = paths.funding_rate[0, paths.funding_rate[0, :, 0] != 0]
    assert settled.std() == pytest.approx(1e-4 * np.sqrt(1 + 0.6), rel=0.15)


def test_a_running_spread_spike_goes_on() -> None:
    inside = np.argwhere(truth().spike_left == 2)
    index, column = (int(value) for value in inside[len(inside) // 2])
    paths = scenarios(index, 200, 3)
    height = truth().spike_height[index, column]
    assert (paths.half_spread[:, :2, column] == height).all()
    assert (paths.half_spread[:, 2, column] != height).all()


def test_scenarios_of_a_narrowed_market_need_no_narrowed_truth() -> None:
    narrow = market().select(["CCCUSDT"])
    own = truth_of(narrow).scenarios(narrow, 500, 8, 6, 3)
    np.testing.assert_array_equal(own.close, truth().scenarios(narrow, 500, 8, 6, 3).close)
    assert own.shape == (8, 6, 1) and (own.open[:, 0, 0] == market().close[500, 2]).all()


@pytest.mark.parametrize(
    "other",
    [
        lambda: generate(SyntheticConfig(bars=50, seed=1, start=0)),
        lambda: generate(SyntheticConfig(bars=50, seed=1, symbols=("AAAUSDT", "OTHER"))),
        lambda: market().resample("1d"),
    ],
)
def test_scenarios_of_another_market_are_refused(other: Callable[[], Market]) -> None:
    with pytest.raises(DataError, match="truth"):
        truth().scenarios(other(), 10, 2, 2, 0)


# The oracle


def policy_value(choose: Callable[[int, int, float], float], *, costs: Costs = COSTS, expected: bool = False) -> float:
    """Mean log growth a bar of a policy on the recorded path, net of fee, spread and funding, over all coins.

    `expected` takes the noise out: the drift and the variance of the truth stand in for the returns that happened.
    """
    m, total, start, stop = market(), 0.0, 60, 2900
    opens = int(m.open_time[0])
    for column, symbol in enumerate(m.symbols):
        rate = np.zeros(len(m) + 1)
        for event in m.funding[symbol]:
            rate[(event.time - 1 - opens) // m.interval] = event.rate
        held = 0.0
        for index in range(start, stop):
            wanted = choose(index, column, held)
            cost = abs(wanted - held) * (costs.taker_fee + m.half_spread[index + 1, column])
            if expected:
                gain = wanted * truth().drift[index, column] - (wanted * truth().vol[index, column]) ** 2 / 2
                total += gain - wanted * rate[index + 1] - cost
            else:
                gain = wanted * (m.close[index + 1, column] / m.close[index, column] - 1 - rate[index + 1])
                total += np.log1p(gain - cost)
            held = wanted
    return total / (stop - start) / len(m.symbols)


def momentum(index: int, column: int, held: float) -> float:
    close = market().close[:, column]
    return 1.0 if close[index] > close[index - 60] else -1.0


@cache
def oracle(*, edge: bool = True) -> OraclePolicy:
    return solve(truth(edge=edge), COSTS, [-1.0, -0.5, 0.0, 0.5, 1.0])


def test_the_oracle_beats_momentum_and_standing_still_net_of_costs() -> None:
    best = policy_value(oracle().exposure)
    assert best > 1.5 * policy_value(momentum)
    assert best * 6 > 0.002, "an informed policy should earn well: some 0.3 % a day"


@pytest.mark.parametrize(("fee", "ratio"), [(5e-3, 1.005), (2e-2, 1.1)])
def test_the_oracle_expects_more_than_following_the_regime_without_regard_for_costs(fee: float, ratio: float) -> None:
    def follow(index: int, column: int, held: float) -> float:
        return float(truth().regime[index, column])

    costs = Costs(taker_fee=fee, spread_multiplier=1.0)
    policy = solve(truth(), costs, [-1.0, 0.0, 1.0])
    gain = policy_value(policy.exposure, costs=costs, expected=True)
    assert gain > ratio * policy_value(follow, costs=costs, expected=True), (
        "the more expensive trading, the wider the lead"
    )


def test_without_edge_the_oracle_stands_still() -> None:
    flat = oracle(edge=False)
    for index in range(0, 2900, 97):
        for column in range(4):
            assert flat.exposure(index, column, 0.0) == 0.0


def test_the_values_solve_the_bellman_equation() -> None:
    """Checked against plain policy improvement by hand-written loops, for two bars a decision."""
    decide_every = 2
    policy = solve(truth(), COSTS, [-1.0, 0.0, 1.0], decide_every=decide_every)
    law, weights = truth().law, np.array([0.35, 0.3, 0.35])
    q = 1 - (1 - law.redraw_market) * (1 - law.redraw_own)
    step = np.array([[(1 - q) * (a == b) + q * weights[b] for b in range(3)] for a in range(3)])
    # Spike: 0 left -> starts with 1, 2 or 3 left; else counts down.
    p = law.spike_onset
    spike = np.array([[1 - p, p / 3, p / 3, p / 3], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]])
    mean_spike = 21e-4
    spread = [(1 - p) * 2e-4 + p * mean_spike] + [mean_spike] * 3
    column, levels = 1, [-1.0, 0.0, 1.0]

    def net(r: int, n: int, held: int, chosen: int) -> float:
        cost = abs(levels[held] - levels[chosen]) * (COSTS.taker_fee + spread[n])
        risk = decide_every * law.volatility[column] ** 2 * levels[chosen] ** 2 / 2
        return float(policy.ahead[column, r, n, chosen] - risk - cost)

    value = np.array([[[max(net(r, n, h, c) for c in range(3)) for h in range(3)] for n in range(4)] for r in range(3)])
    gap = []
    for r in range(3):
        for n in range(4):
            for c in range(3):
                # Two bars: the first in regime r, the second in the one that follows. Funding: 1e-4 every other bar.
                sign = (r - 1) + sum(step[r, b] * (b - 1) for b in range(3))
                gain = levels[c] * sign * (law.bull_drift[column] - 1e-4 / 2)
                later = np.einsum(
                    "q,m,qm->",
                    np.linalg.matrix_power(step, 2)[r],
                    np.linalg.matrix_power(spike, 2)[n],
                    value[:, :, c],
                )
                gap.append(gain + later - policy.ahead[column, r, n, c])
    # Relative values: the equation holds up to one constant, the gain of the policy a decision.
    assert np.ptp(gap) < 1e-8
    assert gap[0] > 0


@pytest.mark.parametrize(("levels", "every"), [([], 1), ([float("nan")], 1), ([0.0, 1.0], 0)])
def test_unusable_levels_are_refused(levels: list[float], every: int) -> None:
    with pytest.raises(DataError, match="oracle"):
        solve(truth(), COSTS, levels, every)


CONFIG = SyntheticConfig(bars=40_000, seed=4, symbols=("AAAUSDT", "BBBUSDT"), drift_ratio=0.45, news_accuracy=0.85)


@cache
def believed_market() -> Market:
    return generate(CONFIG)


@cache
def believed() -> npt.NDArray[np.float64]:
    return regime_beliefs(believed_market())


def believed_truth() -> Truth:
    return truth_of(believed_market())


def test_beliefs_are_those_of_the_law() -> None:
    """Calibrated, as only what follows from the law is: of the bars with a belief of about p in a bull market a share
    of about p are in one. And nothing later is known: a longer history changes none of them."""
    assert believed().sum(axis=2) == pytest.approx(1.0)
    shorter = generate(replace(CONFIG, bars=500))
    assert regime_beliefs(shorter)[:-1] == pytest.approx(believed()[:499], abs=1e-9)
    for place, sign in enumerate(REGIMES):
        belief, came = believed()[200:, :, place].ravel(), (believed_truth().regime[200:] == sign).ravel()
        for low in (0.0, 0.2, 0.4, 0.6, 0.8):
            near = (belief >= low) & (belief < low + 0.2)
            assert came[near].mean() == pytest.approx(belief[near].mean(), abs=0.05), (sign, low)


def test_a_market_without_a_law_or_with_too_many_coins_is_refused() -> None:
    with pytest.raises(DataError, match="its hidden state is not known"):
        regime_beliefs(replace(believed_market(), truth=None))
    many = SyntheticConfig(bars=10, seed=1, symbols=tuple(f"{letter * 3}USDT" for letter in "ABCDEFG"))
    with pytest.raises(DataError, match="use 6 coins at most"):
        regime_beliefs(generate(many))


@given(
    st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3).filter(lambda one: sum(one) > 0.01),
    st.integers(1, 200),
    st.integers(0, 9),
)
def test_paths_are_spread_as_the_belief_says(chances: list[float], paths: int, seed: int) -> None:
    belief = np.array([chances]) / sum(chances)
    regimes = _spread(belief, paths, np.random.default_rng(seed))
    assert regimes.shape == (paths, 1)
    for place, sign in enumerate(REGIMES):
        # Two bounds of a kind's interval, each rounded to the next path.
        assert abs(np.sum(regimes == sign) - paths * belief[0, place]) < 1.0 + 1e-9


def test_who_believes_in_what_was_there_sees_the_same_scenarios() -> None:
    sure = np.eye(3)[believed_truth().regime[700] + 1]
    plain, same = (believed_truth().scenarios(believed_market(), 700, 8, 6, 3, belief) for belief in (None, sure))
    for name in ("open", "high", "low", "close", "half_spread", "funding_rate"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(same, name))
    other = believed_truth().scenarios(believed_market(), 700, 8, 6, 3, sure[:, ::-1])
    assert np.array_equal(other.close, plain.close) == bool(np.all(believed_truth().regime[700] == 0))
    [second] = [believed_truth().scenarios(believed_market().select(("BBBUSDT",)), 700, 8, 6, 3, sure[1:])]
    np.testing.assert_array_equal(
        second.close, believed_truth().scenarios(believed_market().select(("BBBUSDT",)), 700, 8, 6, 3).close
    )


def test_scenarios_that_are_believed_in_are_the_same_on_average_and_differ_less() -> None:
    """The tower property, and what it is for."""
    rng = np.random.default_rng(0)
    one = believed_market().select(("AAAUSDT",))
    moves: dict[bool, list[float]] = {False: [], True: []}
    for bar in rng.choice(np.arange(200, 39_000), 400, replace=False):
        for known in moves:
            belief = believed()[bar, :1] if known else None
            paths = truth_of(one).scenarios(one, int(bar), 64, 12, int(bar), belief)
            moves[known].append(float(paths.close[:, -1, 0].mean() / one.close[bar, 0] - 1.0))
    plain, less = np.array(moves[False]), np.array(moves[True])
    difference = plain - less
    assert abs(difference.mean()) < 3.0 * difference.std() / len(difference) ** 0.5
    assert less.std() < 0.85 * plain.std()
