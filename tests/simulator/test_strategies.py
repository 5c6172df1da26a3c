"""Baselines: what they hold and when, what must not matter to them, and that the random one is matched."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.backtest.run import BacktestResult, BacktestRun, Strategy, Window, run_backtest
from simulator.errors import UserError
from simulator.exchange.costs import Costs
from simulator.market.market import Market
from simulator.strategies import (
    AlwaysShort,
    DonchianBreakout,
    EmaCross,
    EqualWeight,
    Hold,
    MatchedRandom,
    Oracle,
    RsiReversion,
    SmaCross,
    VolatilityTarget,
)
from simulator.strategies.signals import recent
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from simulator.synthetic.oracle import solve
from simulator.synthetic.truth import truth_of
from tests.markets import HOUR, bars_of


def walk(seed: int, bars: int = 400, symbols: int = 2, step: float = 0.01) -> Market:
    moves = np.random.default_rng(seed).normal(0.0, step, (bars, symbols))
    return bars_of(100.0 * np.exp(np.cumsum(moves, axis=0)), half_spread=2e-4)


@pytest.mark.parametrize(("strategy", "side"), [(Hold(), 1.0), (AlwaysShort(), -1.0)])
def test_hold_and_always_short_enter_once(strategy: Strategy, side: float) -> None:
    close = np.array([[100.0, np.nan], [100.0, np.nan], [110.0, 50.0], [120.0, 50.0], [130.0, 40.0]])
    free = Costs(0.0, borrow_rate=0.0, missing_funding_rate=0.0)
    result = run_backtest(bars_of(close), strategy, Window(0, 4), costs=free, max_leverage=2.0)
    assert [(f.bar, f.symbol) for f in result.fills] == [(1, "A"), (3, "B")]
    assert result.fills[0].quantity == pytest.approx(side * 5_000 / 100)
    assert result.fills[1].quantity == pytest.approx(side * (10_000 + side * 50 * 10) / 2 / 50)
    assert result.metrics["long_share"] == (1.0 if side > 0 else 0.0)


def test_sma_cross_follows_the_averages() -> None:
    close = np.array([10, 10, 10, 9, 8, 9, 12, 14, 14, 9, 5, 5, 5, 5], dtype=np.float64).reshape(-1, 1)
    result = run_backtest(bars_of(close), SmaCross(2, 4), Window(0, 13), costs=Costs(0.0))
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


def test_the_oracle_earns_what_knowledge_is_worth_and_nothing_without_an_edge() -> None:
    window, costs = Window(50, 1_450, 6), Costs()
    gains = {}
    for edge in (True, False):
        market = generate(SyntheticConfig(bars=1_500, seed=5, edge=edge))
        share = 1.0 / len(market.symbols)
        policy = solve(truth_of(market), costs, [-share, 0.0, share], decide_every=6)
        gains[edge] = run_backtest(market, Oracle(policy), window, costs=costs)
    hold = run_backtest(generate(SyntheticConfig(bars=1_500, seed=5)), Hold(), window, costs=costs)
    assert gains[True].metrics["sharpe"] > max(1.0, hold.metrics["sharpe"])
    assert gains[False].fills == ()


# Short, so that a few hundred bars hold many decisions; with the bars that must be known before the first one.
MAKERS: dict[str, tuple[Callable[[], Strategy], int]] = {
    "hold": (Hold, 1),
    "always_short": (AlwaysShort, 1),
    "equal_weight": (lambda: EqualWeight(0.9, band=0.02), 1),
    "volatility_target": (lambda: VolatilityTarget(0.5, 20), 21),
    "sma_cross": (lambda: SmaCross(3, 10), 10),
    "ema_cross": (lambda: EmaCross(3, 8), 32),
    "donchian_breakout": (lambda: DonchianBreakout(12, 6), 13),
    "rsi_reversion": (lambda: RsiReversion(4), 33),
}
SIGNALS = [name for name in MAKERS if name not in ("hold", "always_short", "volatility_target", "sma_cross")]
PROPERTY = settings(max_examples=6, deadline=None)
SEEDS = st.integers(0, 2**32 - 1)


def fills_of(market: Market, name: str, start: int, stop: int) -> list[tuple[int, str, float]]:
    """Time, symbol and signed value at the fill's price of everything that was bought and sold."""
    result = run_backtest(market, MAKERS[name][0](), Window(start, stop), max_leverage=3.0)
    return [(fill.time, fill.symbol, fill.quantity * fill.price) for fill in result.fills]


def same(one: list[tuple[int, str, float]], other: list[tuple[int, str, float]]) -> bool:
    """Equal but for rounding."""
    return [fill[:2] for fill in one] == [fill[:2] for fill in other] and bool(
        np.allclose([fill[2] for fill in one], [fill[2] for fill in other], rtol=1e-6, atol=0.0)
    )


@pytest.mark.parametrize("name", MAKERS)
@PROPERTY
@given(seed=SEEDS, factor=st.sampled_from([2.0**-30, 0.001, 64.0]), cut=st.integers(1, 60))
def test_neither_unit_nor_order_nor_date_nor_older_history_matters(
    name: str, seed: int, factor: float, cut: int
) -> None:
    """Bars before the look-back are cut off, and the clock is set to another year."""
    market, later = walk(seed, 220, 3), 8_760 * HOUR
    first = cut + MAKERS[name][1]
    plain = fills_of(market, name, first, 219)
    assert plain
    assert same(plain, fills_of(bars_of(market.close * factor, half_spread=2e-4), name, first, 219))
    assert same(sorted(plain), sorted(fills_of(market.select(["C", "A", "B"]), name, first, 219)))
    # The first bar of the shorter history opens at its own close; no decision may be made from it.
    moved = bars_of(market.close[cut:], half_spread=2e-4, start=cut * HOUR + later)
    got = fills_of(moved, name, first - cut, 219 - cut)
    assert same([(time + later, symbol, value) for time, symbol, value in plain], got)


@pytest.mark.parametrize("name", MAKERS)
def test_too_little_history_gives_no_order(name: str) -> None:
    make, needed = MAKERS[name]
    # A fall, a rise and a fall again, so that every strategy has something to do at once.
    moves = np.random.default_rng(0).normal(0.0, 0.005, (120, 2)) + 0.03 * np.sin(np.arange(120) / 4.0)[:, None]
    market = bars_of(100.0 * np.exp(np.cumsum(moves, axis=0)))
    result = run_backtest(market, make(), Window(0, 119), max_leverage=3.0)
    assert result.fills
    assert min(fill.bar for fill in result.fills) >= needed


@pytest.mark.parametrize("name", SIGNALS)
def test_no_order_at_an_absent_bar(name: str) -> None:
    market = walk(0, 300, 1, 0.02)
    close = market.close.copy()
    gone = np.random.default_rng(0).random(300) < 0.2
    gone[0] = False
    close[gone] = np.nan
    holed = bars_of(close)
    run = BacktestRun(holed, Window(0, 299), max_leverage=3.0)
    strategy, ordered = MAKERS[name][0](), 0
    while not run.done:
        orders = strategy.decide(run.view(), run.account())
        assert not (orders and gone[run.index])
        ordered += len(orders)
        run.apply(orders)
    assert ordered  # the bars that are left are enough to act on


@pytest.mark.parametrize(
    ("strategy", "close", "fills"),
    [
        # 13 above the highs before it (12); 9 below the lowest low of the two bars before it (11).
        (DonchianBreakout(3, 2), [10, 11, 12, 11, 13, 14, 12, 13, 9, 9, 9], [(5, True), (9, False)]),
        # 14.5 is below the lows of the two bars before it (15), not below those of four (12).
        (DonchianBreakout(4, 2), [10, 11, 12, 13, 15, 16, 17, 14.5, 14.5, 14.5], [(5, True), (8, False)]),
        # After a long fall the averages of gain and loss are (0, 1); then (0, 1/2), (1/2, 1/4) and (3/4, 1/8): 86.
        (RsiReversion(2), [*range(40, 20, -1), *range(21, 40)], [(17, True), (23, False)]),
        (EmaCross(1, 2), [10, 9, 8, 7, 6, 5, 4, 6, 8, 9, 5, 4, 3, 3], [(8, True), (11, False)]),
    ],
)
def test_signals_by_hand(strategy: Strategy, close: list[float], fills: list[tuple[int, bool]]) -> None:
    market = bars_of(np.array(close, dtype=np.float64).reshape(-1, 1))
    result = run_backtest(market, strategy, Window(0, len(close) - 1), costs=Costs(0.0))
    assert [(fill.bar, fill.quantity > 0) for fill in result.fills] == fills


@pytest.mark.parametrize(
    ("present", "enough"),
    [
        ("111", True),
        ("0111", True),
        ("110101", True),
        ("100011", True),
        ("1000011", False),
        ("1110", False),
        ("11", False),
    ],
)
def test_three_present_bars_are_looked_for_among_the_last_six(present: str, enough: bool) -> None:
    close = np.array([[50.0 if bar == "1" else np.nan] for bar in present])
    bars = recent(bars_of(close).view(len(present) - 1), "A", 3)
    assert (bars is not None) == enough
    assert bars is None or bars.present.sum() >= 3


@PROPERTY
@given(seed=SEEDS, symbols=st.integers(1, 4), exposure=st.floats(0.2, 1.0), band=st.floats(0.02, 0.3))
def test_equal_weight_stays_within_its_band(seed: int, symbols: int, exposure: float, band: float) -> None:
    market, share = walk(seed, 150, symbols), exposure / symbols
    result = run_backtest(market, EqualWeight(exposure, band), Window(0, 149), costs=Costs(0.0))
    # A weight was inside the band at the close before, or brought back at the open after it; one bar moves it on.
    slack = 2.5 * float(np.abs(np.diff(market.close, axis=0) / market.close[:-1]).max()) + 2e-3
    assert (np.abs(result.exposure[1:] / share - 1.0) <= band + slack).all()
    lazy = run_backtest(market, EqualWeight(exposure, 0.9), Window(0, 149), costs=Costs(0.0))
    assert len(lazy.fills) == symbols


@pytest.mark.parametrize(
    "make",
    [
        lambda: EmaCross(0, 5),
        lambda: DonchianBreakout(5, 6),
        lambda: RsiReversion(1),
        lambda: RsiReversion(5, 70.0, 30.0),
        lambda: RsiReversion(5, 30.0, 100.0),
        lambda: EqualWeight(exposure=float("inf")),
        lambda: EqualWeight(band=-0.1),
        lambda: EqualWeight(band=1.0),
        lambda: SmaCross(exposure=0.0),
    ],
)
def test_arguments_that_mean_nothing_are_refused(make: Callable[[], Strategy]) -> None:
    with pytest.raises(UserError, match=r"\(.*=.*\): give .+\."):
        make()
