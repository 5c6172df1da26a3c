"""Regimes: known at the close, named rightly, and nothing of a run is lost between them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.backtest import metrics
from simulator.backtest.regimes import RegimeRow, Regimes, by_regime, trend_regimes, true_regimes, volatility_regimes
from simulator.backtest.run import BacktestResult, Window, run_backtest
from simulator.errors import DataError
from simulator.exchange.costs import Costs
from simulator.market.events import FundingEvent
from simulator.market.market import Market
from simulator.strategies import Hold, MatchedRandom
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from simulator.synthetic.truth import truth_of
from tests.examples import tried
from tests.lookahead_scenes import other_future
from tests.markets import HOUR, NAMES, bars_of

SEEDS = st.integers(0, 2**32 - 1)
LABELLINGS = (lambda market: trend_regimes(market, 10), lambda market: volatility_regimes(market, 10))


def market_of(moves: np.ndarray) -> Market:
    """Bars without a wick from log returns (T, S); a NaN makes an absent bar. Funding every 8 bars."""
    close = np.where(np.isnan(moves), np.nan, 100.0 * np.exp(np.cumsum(np.nan_to_num(moves), axis=0)))
    symbols = NAMES[: close.shape[1]]
    paid = tuple(FundingEvent(hour * HOUR, 1e-4) for hour in range(8, len(close), 8))
    return bars_of(close, half_spread=2e-4, funding=dict.fromkeys(symbols, paid))


def walk(seed: int, bars: int = 300, symbols: int = 2, absent: float = 0.0) -> Market:
    rng = np.random.default_rng(seed)
    moves = rng.normal(0.0, 0.01, (bars, symbols))
    moves[rng.random(moves.shape) < absent] = np.nan
    return market_of(moves)


def random_run(market: Market, seed: int, start: int = 20, stop: int = 280) -> BacktestResult:
    strategy = MatchedRandom(np.array([0.0, 0.3, 0.5]), 0.6, 0.2, seed)
    return run_backtest(market, strategy, Window(start, stop), costs=Costs())


@tried(25)
@given(seed=SEEDS, absent=st.sampled_from([0.0, 0.1]))
def test_the_regimes_of_a_kind_sum_to_the_run(seed: int, absent: float) -> None:
    market = walk(seed, absent=absent)
    result = random_run(market, seed)
    kinds = [make(market) for make in LABELLINGS]
    rows = by_regime(result, market, kinds)
    for kind in ("trend", "volatility"):
        own = [row for row in rows if row.kind == kind]
        assert len({row.regime for row in own}) == len(own) > 1
        assert sum(row.bars for row in own) == len(result.times) - 1
        assert sum(row.share for row in own) == pytest.approx(1.0)
        assert sum(row.total_return for row in own) == pytest.approx(result.metrics["total_return"], abs=1e-12)
        assert sum(row.trades for row in own) == len(result.trades)
        hits = sum(row.hit_rate * row.trades for row in own)
        assert hits == pytest.approx(result.metrics["hit_rate"] * len(result.trades))
        for name in ("fees", "spread", "funding"):
            assert sum(getattr(row, name) for row in own) == pytest.approx(result.costs[name], abs=1e-9), name
        assert all(math.isfinite(value) for row in own for value in (row.sharpe, row.hit_rate))


@tried(25)
@given(seed=SEEDS, cut=st.integers(5, 290), absent=st.sampled_from([0.0, 0.1]))
def test_a_label_is_known_at_its_close(seed: int, cut: int, absent: float) -> None:
    market = walk(seed, absent=absent)
    mixed = other_future(market, cut - 1, seed)
    for make in LABELLINGS:
        assert (make(market).labels[:cut] == make(mixed).labels[:cut]).all()


@tried(25)
@given(seed=SEEDS, factor=st.sampled_from([0.25, 1024.0]))
def test_neither_the_unit_of_the_price_nor_the_order_of_the_symbols_matters(seed: int, factor: float) -> None:
    market = walk(seed)
    columns: dict[str, Any] = {name: getattr(market, name) * factor for name in ("open", "high", "low", "close")}
    for make in LABELLINGS:
        assert (make(market).labels == make(replace(market, **columns)).labels).all()
        assert (make(market).labels == make(market.select(["B", "A"])).labels).all()


def test_each_trend_has_its_name() -> None:
    """100 bars up, sideways and down, each with the same noise."""
    noise = 0.002 * np.where(np.arange(300) % 2, 1.0, -1.0)
    drift = np.repeat([0.004, 0.0, -0.004], 100)
    regimes = trend_regimes(market_of((noise + drift)[:, None]), 20)
    named = np.array(regimes.names)[regimes.labels]
    assert set(named[:20]) == {"unknown"}
    assert set(named[21:100]) == {"bull"}
    assert set(named[125:200]) == {"range"}
    assert set(named[225:]) == {"bear"}


def test_volatility_is_ranked_among_what_was_seen() -> None:
    rng = np.random.default_rng(0)
    size = np.repeat([0.01, 0.03, 0.001], 200)
    regimes = volatility_regimes(market_of((rng.normal(0.0, 1.0, 600) * size)[:, None]), 20)
    named = np.array(regimes.names)[regimes.labels]
    assert set(named[:59]) == {"unknown"} and named[60] != "unknown"
    assert set(named[230:300]) == {"wild"}
    assert set(named[430:]) == {"calm"}
    shares = [float(np.mean(named[100:200] == name)) for name in ("calm", "normal", "wild")]
    assert min(shares) > 0.1  # steady volatility is spread over the terciles


def test_each_bar_is_booked_under_the_label_of_the_close_before() -> None:
    market = market_of(np.log([[1.0], [1.1], [0.9], [1.2], [1.0]]))
    result = run_backtest(market, Hold(0.5), Window(0, 4), costs=Costs(0.001))
    labelled = Regimes("own", ("quiet", "loud"), np.array([0, 1, 0, 1, 1], dtype=np.int64))
    result = replace(result, fills=tuple(replace(fill, impact_cost=3.0) for fill in result.fills))
    quiet, loud = by_regime(result, market, [labelled])
    assert (quiet.impact, loud.impact) == (3.0, 0.0)
    change = np.diff(result.equity) / result.equity[0]
    assert (quiet.bars, loud.bars, quiet.share) == (2, 2, 0.5)
    assert (quiet.total_return, loud.total_return) == pytest.approx((change[0] + change[2], change[1] + change[3]))
    assert (quiet.trades, loud.trades) == (1, 0)
    assert (quiet.fees, loud.fees) == (result.fills[0].fee, 0.0)  # filled in bar 1, decided at the close of bar 0
    assert (quiet.spread, loud.spread) == (result.fills[0].spread_cost, 0.0)
    returns = metrics.returns_of(result.equity)
    assert quiet.sharpe == pytest.approx(metrics.sharpe(returns[[0, 2]], 365 * 24))


def test_the_truth_of_a_synthetic_market_is_used_where_it_is_there() -> None:
    market = generate(SyntheticConfig(bars=600, seed=1))
    result = run_backtest(market, Hold(), Window(100, 599))
    rows = by_regime(result, market)
    assert {row.kind for row in rows} == {"trend", "volatility", "truth"}
    one = market.select(market.symbols[:1])
    regimes = true_regimes(one)
    assert [regimes.names[label] for label in regimes.labels] == [
        {-1: "bear", 0: "range", 1: "bull"}[regime] for regime in truth_of(market).regime[:, 0].tolist()
    ]

    def of(name: str) -> RegimeRow:
        run = run_backtest(one, Hold(), Window(0, 599), costs=Costs(0.0, 0.0))
        return next(row for row in by_regime(run, one, [regimes]) if row.regime == name)

    assert of("bull").total_return > of("bear").total_return


def test_a_market_that_is_not_the_run_s_is_refused() -> None:
    market = walk(0)
    result = random_run(market, 0)
    for other in (market.select(["A"]), replace(market, open_time=market.open_time + HOUR)):
        with pytest.raises(DataError, match="not the market of the result"):
            by_regime(result, other)
    with pytest.raises(DataError, match="label 3 bars of 300"):
        by_regime(result, market, [Regimes("own", ("a",), np.zeros(3, np.int64))])
    with pytest.raises(DataError, match="true regimes are not known"):
        true_regimes(market)
