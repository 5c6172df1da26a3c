"""The synthetic market has the properties it is said to have, and its twin none of the information."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from simulator.errors import DataError
from simulator.market.market import Market
from simulator.market.timeframes import BAR_COLUMNS
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import NEGATIVE, NEUTRAL, POSITIVE, generate
from simulator.synthetic.truth import STATE_COLUMNS, truth_of

DAY = 6  # bars
TONES = dict.fromkeys(POSITIVE, 1) | dict.fromkeys(NEGATIVE, -1) | dict.fromkeys(NEUTRAL, 0)


@cache
def long_market(*, edge: bool) -> Market:
    return generate(SyntheticConfig(bars=12_000, seed=11, edge=edge))


def log_returns(market: Market) -> npt.NDArray[np.float64]:
    """(T - 1, S): row i is the return of bar i + 1, which row i of the truth governs."""
    logs = np.log(market.close)
    return logs[1:] - logs[:-1]


def test_the_same_recipe_gives_the_same_market_and_another_seed_another() -> None:
    config = SyntheticConfig(bars=300, seed=5)
    assert generate(config).content_hash == generate(config).content_hash
    assert generate(config).content_hash != generate(SyntheticConfig(bars=300, seed=6)).content_hash


@pytest.mark.parametrize("edge", [True, False])
def test_a_longer_market_begins_with_the_shorter_one(edge: bool) -> None:
    short, long = (generate(SyntheticConfig(bars=bars, seed=5, edge=edge)) for bars in (200, 331))
    for name in BAR_COLUMNS:
        np.testing.assert_array_equal(getattr(long, name)[:200], getattr(short, name))
    for name in (*STATE_COLUMNS, "storm"):
        np.testing.assert_array_equal(getattr(truth_of(long), name)[:200], getattr(truth_of(short), name))
    now = short.view(199).now
    assert tuple(item for item in long.news if item.known_at <= now) == short.news
    for symbol in short.symbols:
        assert tuple(event for event in long.funding[symbol] if event.time <= now) == short.funding[symbol]


@pytest.mark.parametrize("timeframe", ["15m", "1h", "4h", "1d"])
def test_bars_are_possible_and_join(timeframe: str) -> None:
    market = generate(SyntheticConfig(bars=500, seed=2, timeframe=timeframe))
    assert (market.low > 0).all()
    assert (market.low <= np.minimum(market.open, market.close)).all()
    assert (market.high >= np.maximum(market.open, market.close)).all()
    assert (market.high > market.low).all() and (market.volume > 0).all()
    np.testing.assert_array_equal(market.open[1:], market.close[:-1])
    assert (market.open[0] == 100.0).all()
    assert (np.diff([event.time for event in market.funding["AAAUSDT"]]) == 28_800_000).all()


def test_the_law_does_not_depend_on_the_timeframe() -> None:
    day, hours = (generate(SyntheticConfig(bars=n, seed=8, timeframe=t)) for n, t in ((6000, "1d"), (36_000, "4h")))
    for market in (day, hours):
        bars_per_day = 86_400_000 / market.interval
        truth = truth_of(market)
        mean_daily = np.sqrt((truth.vol**2).mean() * bars_per_day)
        assert mean_daily == pytest.approx(0.025 * np.sqrt(1 + 0.2**2 * 5 / 9), rel=0.07)
        spells = (truth.regime[1:] != truth.regime[:-1]).sum() + len(market.symbols)
        # Every state is left at a rate q (1 - w), with q = 1 / (15 days * 0.65).
        rate = sum(w * (1 - w) for w in (0.35, 0.3, 0.35)) / (15 * 0.65)
        assert truth.regime.size / bars_per_day / spells == pytest.approx(1 / rate, rel=0.1)


def test_fat_tails_and_clusters_of_volatility() -> None:
    returns = log_returns(long_market(edge=True))
    centred = returns - returns.mean(axis=0)
    kurtosis = (centred**4).mean(axis=0) / returns.var(axis=0) ** 2
    assert (kurtosis > 5).all(), kurtosis
    size = np.abs(returns) - np.abs(returns).mean(axis=0)
    for lag, least in ((1, 0.1), (DAY, 0.07), (5 * DAY, 0.02)):
        clustering = (size[lag:] * size[:-lag]).mean(axis=0) / size.var(axis=0)
        assert (clustering > least).all(), (lag, clustering)
    memory = (centred[1:] * centred[:-1]).mean(axis=0) / returns.var(axis=0)
    assert (np.abs(memory) < 0.05).all(), "returns themselves should hardly be correlated"


def test_coins_move_together_as_configured() -> None:
    pairs = np.asarray(np.corrcoef(log_returns(long_market(edge=True)).T))[np.triu_indices(4, 1)]
    assert ((pairs > 0.4) & (pairs < 0.6)).all(), pairs
    regimes = np.asarray(np.corrcoef(truth_of(long_market(edge=True)).regime.T))[np.triu_indices(4, 1)]
    assert regimes.mean() > 0.15, "the market-wide factor should align regimes"


def test_standardised_returns_have_mean_zero_and_deviation_one() -> None:
    for edge in (True, False):
        market = long_market(edge=edge)
        truth = truth_of(market)
        shock = (log_returns(market) - truth.drift[:-1] + truth.vol[:-1] ** 2 / 2) / truth.vol[:-1]
        assert abs(shock.mean()) < 4 / np.sqrt(len(shock))
        assert shock.std() == pytest.approx(1, abs=0.02)


def test_regimes_are_persistent_and_drift_follows_them() -> None:
    market = long_market(edge=True)
    truth = truth_of(market)
    assert (truth.regime[DAY:] == truth.regime[:-DAY]).mean() > 0.9
    daily = 0.30 * 0.025 / DAY * np.linspace(0.8, 1.2, 4)
    np.testing.assert_allclose(truth.drift, truth.regime * daily)
    returns = log_returns(market)
    assert returns[truth.regime[:-1] > 0].mean() > 0 > returns[truth.regime[:-1] < 0].mean()


def test_the_twin_has_the_same_volatility_shocks_and_spreads_and_no_drift() -> None:
    edge, twin = long_market(edge=True), long_market(edge=False)
    truth, twin_truth = truth_of(edge), truth_of(twin)
    assert (twin_truth.drift == 0).all()
    np.testing.assert_array_equal(twin_truth.vol, truth.vol)
    np.testing.assert_array_equal(twin_truth.regime, truth.regime)
    np.testing.assert_array_equal(twin.half_spread, edge.half_spread)
    np.testing.assert_allclose(log_returns(edge) - truth.drift[:-1], log_returns(twin), atol=1e-12)
    # Headlines come at the same times, with other words.
    assert [(item.known_at, item.symbol) for item in twin.news] == [(item.known_at, item.symbol) for item in edge.news]
    assert [item.text for item in twin.news] != [item.text for item in edge.news]


def test_spread_spikes_are_high_short_and_as_frequent_as_configured() -> None:
    half_spread = long_market(edge=True).half_spread
    spike = half_spread >= 12e-4
    assert spike.mean() == pytest.approx(0.15, abs=0.015)
    assert half_spread[spike].max() <= 30e-4
    assert half_spread[~spike].mean() == pytest.approx(2e-4, rel=0.05)
    after = spike[1:][spike[:-1]].mean()
    assert 0.6 < after < 0.8, "a spike lasts 2 to 4 bars, so the next bar is mostly in it too"


def governing(market: Market) -> npt.NDArray[np.int8]:
    """(T - 1, S): the regime in force during bars 1 and on."""
    return truth_of(market).regime[:-1]


def tone_against_regime(market: Market) -> npt.NDArray[np.int64]:
    """(n, 2): tone of each headline, and the regime in force when it appeared."""
    pairs = []
    for item in market.news:
        bar = (item.time - int(market.open_time[0])) // market.interval
        if bar:
            assert item.symbol is not None
            pairs.append((TONES[item.text], governing(market)[bar - 1, market.column(item.symbol)]))
    return np.array(pairs)


def test_headlines_agree_with_the_regime_only_under_edge() -> None:
    for edge, expected in ((True, 0.75), (False, 0.5)):
        tone, regime = tone_against_regime(long_market(edge=edge)).T
        telling = (tone != 0) & (regime != 0)
        # The twin's headlines follow a persistent chain of their own, which widens the interval around one half.
        assert (tone == regime)[telling].mean() == pytest.approx(expected, abs=0.03 if edge else 0.08)
        assert (tone == 0).mean() == pytest.approx(0.25, abs=0.03)
        assert len(tone) / 4 / 2000 == pytest.approx(1 / 1.5, rel=0.1)


def test_headlines_are_known_after_they_happened_and_name_no_coin() -> None:
    market = long_market(edge=True)
    delays = np.array([item.known_at - item.time for item in market.news]) / 60_000
    assert delays.min() >= 1 and delays.max() <= 30
    for bars in range(1, 30):
        busy = generate(SyntheticConfig(bars=bars, seed=11, news_days=0.02))
        assert all(item.known_at <= busy.view(bars - 1).now for item in busy.news)
    assert not any(symbol[:3].lower() in text.split() for symbol in market.symbols for text in TONES)
    assert len(TONES) == 24


def test_funding_speaks_of_the_regime_only_under_edge() -> None:
    for edge in (True, False):
        market = long_market(edge=edge)
        correlations = []
        for column, symbol in enumerate(market.symbols):
            bar = [(event.time - 1 - int(market.open_time[0])) // market.interval for event in market.funding[symbol]]
            regime = np.concatenate([[0], governing(market)[:, column]])[bar]
            correlations.append(np.corrcoef(regime, [event.rate for event in market.funding[symbol]])[0, 1])
        mean = float(np.mean(correlations))
        assert 0.4 < mean < 0.8 if edge else abs(mean) < 0.15, (edge, mean)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bars": 0}, "bars is 0; it must be above 0"),
        ({"seed": -1}, "seed is -1"),
        ({"timeframe": "7h"}, "unknown timeframe"),
        ({"start": 1}, "the open of a bar of 4h"),
        ({"news_accuracy": 1.5}, "between 0 and 1"),
        ({"storm_variance": 5.0}, "storm_share"),
        ({"spike_bars": (3, 2)}, "spike_bars"),
        ({"drift_ratio": float("nan")}, "drift_ratio"),
    ],
)
def test_recipes_out_of_range_are_refused(change: dict[str, Any], message: str) -> None:
    recipe: dict[str, Any] = {"bars": 10, "seed": 1} | change
    with pytest.raises(DataError, match=message):
        SyntheticConfig(**recipe)
