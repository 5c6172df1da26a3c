"""Baselines: what they hold and when, and that the random one is matched."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.backtest import BacktestResult, Strategy, Window, run_backtest
from simulator.errors import UserError
from simulator.market import Market
from simulator.orders import Costs
from simulator.strategies import AlwaysShort, Flat, Hold, MatchedRandom, Oracle, SmaCross, VolatilityTarget
from simulator.synthetic import SyntheticConfig, generate

HOUR = 3_600_000


def market_of(close: np.ndarray, half_spread: float = 0.0) -> Market:
    """Bars that open at the close before, with no wick; `close` is (T, S)."""
    close = close.astype(np.float64)
    first = np.vstack([close[:1], close[:-1]])
    high, low = np.fmax(first, close), np.fmin(first, close)
    first, high, low = (np.where(np.isnan(close), np.nan, a) for a in (first, high, low))
    first = np.where(np.isnan(first), close, first)
    return Market(
        tuple("ABCD"[: close.shape[1]]),
        "1h",
        np.arange(len(close), dtype=np.int64) * HOUR,
        first,
        high,
        low,
        close,
        np.ones_like(close),
        np.full_like(close, half_spread),
    )


def walk(seed: int, bars: int = 400, symbols: int = 2, step: float = 0.01) -> Market:
    moves = np.random.default_rng(seed).normal(0.0, step, (bars, symbols))
    return market_of(100.0 * np.exp(np.cumsum(moves, axis=0)), 2e-4)


def test_flat_does_nothing() -> None:
    result = run_backtest(walk(0), Flat(), Window(0, 100))
    assert result.fills == () and (result.equity == 10_000.0).all()


@pytest.mark.parametrize(("strategy", "side"), [(Hold(), 1.0), (AlwaysShort(), -1.0)])
def test_hold_and_always_short_enter_once(strategy: Strategy, side: float) -> None:
    close = np.array([[100.0, np.nan], [100.0, np.nan], [110.0, 50.0], [120.0, 50.0], [130.0, 40.0]])
    result = run_backtest(market_of(close), strategy, Window(0, 4), costs=Costs(0.0), max_leverage=2.0)
    assert [(f.bar, f.symbol) for f in result.fills] == [(1, "A"), (3, "B")]
    assert result.fills[0].quantity == pytest.approx(side * 5_000 / 100)
    assert result.fills[1].quantity == pytest.approx(side * (10_000 + side * 50 * 10) / 2 / 50)
    assert result.metrics["long_share"] == (1.0 if side > 0 else 0.0)


def test_sma_cross_follows_the_averages() -> None:
    close = np.array([10, 10, 10, 9, 8, 9, 12, 14, 14, 9, 5, 5, 5, 5], dtype=np.float64).reshape(-1, 1)
    result = run_backtest(market_of(close), SmaCross(2, 4), Window(0, 13), costs=Costs(0.0))
    # By hand: fast above slow first at bar 6 (10.5 > 9.5), below again at bar 9 (11.5 < 12.25).
    assert [(f.bar, f.quantity > 0) for f in result.fills] == [(7, True), (10, False)]
    with pytest.raises(UserError, match="fast < slow"):
        SmaCross(5, 5)


def test_volatility_target_holds_the_wanted_volatility() -> None:
    market = walk(1, bars=2_000, symbols=1, step=0.01)
    result = run_backtest(
        market, VolatilityTarget(target=0.2, lookback=100, band=0.05), Window(100, 1_999), costs=Costs(0.0)
    )
    assert result.metrics["volatility"] == pytest.approx(0.2, rel=0.1)
    assert result.metrics["long_share"] == 1.0
    capped = run_backtest(market, VolatilityTarget(target=5.0, max_exposure=0.4), Window(100, 1_999))
    assert capped.exposure.max() == pytest.approx(0.4, rel=0.25)
    with pytest.raises(UserError, match="target > 0"):
        VolatilityTarget(target=0.0)


def pooled(results: list[BacktestResult]) -> tuple[float, float, float]:
    """Mean gross exposure a symbol, long share, changes a decision and symbol."""
    held = np.concatenate([r.exposure[1:].ravel() for r in results])
    changes = sum(len({(f.bar, f.symbol) for f in r.fills}) for r in results)
    chances = sum(r.decisions * len(r.symbols) for r in results)
    return float(np.abs(held).mean()), float(held[held > 0].sum() / np.abs(held).sum()), changes / chances


@pytest.mark.parametrize(
    ("exposures", "long_share"), [((0.0, 0.3), 0.8), ((0.1, 0.2, 0.4), 0.3), ((0.0, 0.0, 0.5), 0.0)]
)
def test_matched_random_is_matched(exposures: tuple[float, ...], long_share: float) -> None:
    """It matches itself and another random trader, over many windows, in exposure, long share and changes."""
    market = walk(2, bars=3_000)
    windows = [Window(start, start + 240, 6) for start in range(0, 2_700, 250)]
    model = [
        run_backtest(market, MatchedRandom(np.array(exposures), long_share, 0.15, seed), window)
        for seed, window in enumerate(windows)
    ]
    again = [
        run_backtest(market, MatchedRandom.matched_to(model, 1_000 * k + seed), window)
        for k in range(4)
        for seed, window in enumerate(windows)
    ]
    wanted, got = pooled(model), pooled(again)
    assert wanted[0] == pytest.approx(float(np.mean(exposures)), rel=0.25)
    assert wanted[1] == pytest.approx(long_share, abs=0.12)
    assert got[0] == pytest.approx(wanted[0], rel=0.15)
    assert got[1] == pytest.approx(wanted[1], abs=0.1)
    assert got[2] == pytest.approx(wanted[2], rel=0.2)


def test_matched_random_depends_on_its_seed_only() -> None:
    market = walk(3)
    sizes = np.array([0.0, 0.4])
    runs = [run_backtest(market, MatchedRandom(sizes, 0.5, 0.2, seed), Window(0, 300)) for seed in (1, 1, 2)]
    assert runs[0].fills == runs[1].fills
    assert runs[0].fills != runs[2].fills
    with pytest.raises(UserError, match="at least one result"):
        MatchedRandom.matched_to([], 0)
    with pytest.raises(UserError, match="long_share"):
        MatchedRandom(sizes, 1.5, 0.1, 0)


def test_matched_to_nothing_does_nothing() -> None:
    market = walk(4)
    idle = run_backtest(market, Flat(), Window(0, 100))
    assert run_backtest(market, MatchedRandom.matched_to([idle], 0), Window(0, 100)).fills == ()


def test_the_oracle_earns_what_knowledge_is_worth_and_nothing_without_an_edge() -> None:
    window, costs = Window(50, 1_450, 6), Costs()
    gains = {}
    for edge in (True, False):
        market = generate(SyntheticConfig(bars=1_500, seed=5, edge=edge))
        assert market.truth is not None
        share = 1.0 / len(market.symbols)
        policy = market.truth.oracle(costs, [-share, 0.0, share], decide_every=6)
        gains[edge] = run_backtest(market, Oracle(policy), window, costs=costs)
    hold = run_backtest(generate(SyntheticConfig(bars=1_500, seed=5)), Hold(), window, costs=costs)
    assert gains[True].metrics["sharpe"] > max(1.0, hold.metrics["sharpe"])
    assert gains[False].fills == ()
