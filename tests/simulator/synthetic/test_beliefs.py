"""What could be known of the regimes: calibrated, never ahead of its time, and the same on average as the truth."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import DataError
from simulator.market.market import Market
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from simulator.synthetic.oracle import REGIMES, regime_beliefs
from simulator.synthetic.truth import Truth, _spread, truth_of

CONFIG = SyntheticConfig(bars=40_000, seed=4, symbols=("AAAUSDT", "BBBUSDT"), drift_ratio=0.45, news_accuracy=0.85)


@cache
def market() -> Market:
    return generate(CONFIG)


@cache
def believed() -> npt.NDArray[np.float64]:
    return regime_beliefs(market())


def truth() -> Truth:
    return truth_of(market())


def test_beliefs_are_those_of_the_law() -> None:
    """Calibrated, as only what follows from the law is: of the bars with a belief of about p in a bull market a share
    of about p are in one. And nothing later is known: a longer history changes none of them."""
    assert believed().sum(axis=2) == pytest.approx(1.0)
    shorter = generate(replace(CONFIG, bars=500))
    assert regime_beliefs(shorter)[:-1] == pytest.approx(believed()[:499], abs=1e-9)
    for place, sign in enumerate(REGIMES):
        belief, came = believed()[200:, :, place].ravel(), (truth().regime[200:] == sign).ravel()
        for low in (0.0, 0.2, 0.4, 0.6, 0.8):
            near = (belief >= low) & (belief < low + 0.2)
            assert came[near].mean() == pytest.approx(belief[near].mean(), abs=0.05), (sign, low)


def test_a_market_without_a_law_or_with_too_many_coins_is_refused() -> None:
    with pytest.raises(DataError, match="its hidden state is not known"):
        regime_beliefs(replace(market(), truth=None))
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
    sure = np.eye(3)[truth().regime[700] + 1]
    plain, same = (truth().scenarios(market(), 700, 8, 6, 3, belief) for belief in (None, sure))
    for name in ("open", "high", "low", "close", "half_spread", "funding_rate"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(same, name))
    other = truth().scenarios(market(), 700, 8, 6, 3, sure[:, ::-1])
    assert np.array_equal(other.close, plain.close) == bool(np.all(truth().regime[700] == 0))
    [second] = [truth().scenarios(market().select(("BBBUSDT",)), 700, 8, 6, 3, sure[1:])]
    np.testing.assert_array_equal(second.close, truth().scenarios(market().select(("BBBUSDT",)), 700, 8, 6, 3).close)


def test_scenarios_that_are_believed_in_are_the_same_on_average_and_differ_less() -> None:
    """The tower property, and what it is for."""
    rng = np.random.default_rng(0)
    one = market().select(("AAAUSDT",))
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
