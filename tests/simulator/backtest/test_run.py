"""Runs through a window: the clock, the shape and the storage of results, orders from exposures."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.arrays import FloatArray
from simulator.backtest.run import BacktestResult, BacktestRun, Window, orders_for_target, run_backtest
from simulator.errors import DataError, LookAheadError
from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Order
from simulator.market.market import Bars, Market, MarketView
from tests.examples import tried
from tests.markets import HOUR, bars_of
from tests.simulator.backtest.test_scenarios import market_of


def random_market(seed: int, absent: float = 0.1) -> Market:
    return market_of(seed, 60, absent=absent)


class Scripted:
    """Seeded random target exposures; notes what it was shown."""

    name = "scripted"

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.seen: list[int] = []

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
        self.seen.append(view.index)
        orders: list[Order] = [Order("A", float("nan"))] if self.rng.random() < 0.1 else []
        for symbol in view.symbols:
            if self.rng.random() < 0.4:
                exposure = float(self.rng.choice([0.0, *self.rng.uniform(-0.6, 0.6, 3)]))
                orders += orders_for_target(view, account, symbol, exposure, 0.02, 0.03, (0, 1, 2))
        return orders


@pytest.mark.parametrize(
    ("window", "decisions"),
    [
        (Window(3, 4), [3]),
        (Window(3, 9, 2), [3, 5, 7]),
        (Window(3, 10, 2), [3, 5, 7, 9]),
        (Window(0, 5, 100), [0]),
    ],
)
def test_decisions_come_at_the_windows_rhythm(window: Window, decisions: list[int]) -> None:
    strategy = Scripted(0)
    result = run_backtest(random_market(0), strategy, window)
    assert strategy.seen == decisions
    assert result.decisions == window.decisions == len(decisions)
    assert len(result.equity) == len(result.times) == len(result.exposure) == window.stop - window.start + 1
    assert result.times[0] == (window.start + 1) * HOUR


@tried(60)
@given(seed=st.integers(0, 2**32 - 1), every=st.integers(1, 5))
def test_a_result_adds_up_and_survives_storage(seed: int, every: int) -> None:
    market = random_market(seed)
    result = run_backtest(market, Scripted(seed), Window(5, 55, every), 10_000.0, Costs(0.001), 1.5)

    assert sum(trade.pnl for trade in result.trades) == pytest.approx(result.equity[-1] - 10_000.0, abs=1e-6)
    assert sum(trade.fees for trade in result.trades) == pytest.approx(result.costs["fees"], abs=1e-9)
    assert sum(trade.funding for trade in result.trades) == pytest.approx(result.costs["funding"], abs=1e-9)
    assert all(trade.entry_bar <= trade.exit_bar for trade in result.trades)
    assert result.absent_bars == int((~market.present[6:56]).sum())

    text = json.dumps(result.to_dict(), allow_nan=False)
    again = BacktestResult.from_dict(json.loads(text))
    assert json.dumps(again.to_dict(), allow_nan=False) == text
    for item in fields(BacktestResult):
        old, new = getattr(result, item.name), getattr(again, item.name)
        if isinstance(old, np.ndarray):
            assert old.tobytes() == new.tobytes() and old.shape == new.shape
        elif item.name == "rejections":
            assert repr(old) == repr(new)  # an order's NaN equals itself only in print
        else:
            assert old == new


@tried(60)
@given(seed=st.integers(0, 2**32 - 1), every=st.integers(1, 5))
def test_taking_bars_only_when_somebody_looks_changes_nothing(seed: int, every: int) -> None:
    """`run_backtest` puts bars off; a run that takes each one when its turn comes gives the same bytes."""
    market, window = random_market(seed), Window(5, 55, every)
    put_off = run_backtest(market, Scripted(seed), window, costs=Costs(0.001))
    run, strategy = BacktestRun(market, window, costs=Costs(0.001)), Scripted(seed)
    while not run.done:
        run.apply(strategy.decide(run.view(), run.account()))
    assert repr(run.result().to_dict()) == repr(put_off.to_dict())


class Keeper:
    """Keeps all views and accounts that it is given, and trades now and then without looking at them."""

    name = "keeper"

    def __init__(self) -> None:
        self.views: list[MarketView] = []
        self.accounts: list[AccountView] = []

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
        self.views.append(view)
        self.accounts.append(account)
        return [Order("A", 1.0)] if view.index % 7 == 0 else ()


def closes(bars: Bars) -> FloatArray:
    return bars.close


def test_a_view_that_is_kept_stays_at_its_bar() -> None:
    market, keeper = random_market(3), Keeper()
    run_backtest(market, keeper, Window(2, 50))
    for index, view in enumerate(keeper.views, start=2):
        assert view.now == int(market.open_time[index]) + HOUR
        assert len(view.bars("A", 1_000)) == index + 1
        assert view.computed("A", closes).tobytes() == market.close[: index + 1, 0].tobytes()
        newest = view.latest("A", closes)
        assert isinstance(newest, float)
        assert newest == pytest.approx(market.close[index, 0], nan_ok=True)
        with pytest.raises(LookAheadError):
            view.bar("A", index + 1)


def test_an_account_that_is_kept_is_not_that_of_a_later_bar() -> None:
    keeper = Keeper()
    run_backtest(random_market(3, absent=0.0), keeper, Window(2, 50))
    for account in keeper.accounts:
        with pytest.raises(DataError, match="kept and looked at in a later bar"):
            _ = account.equity


def test_trades_by_hand() -> None:
    """Buy 2, buy 2, sell 6 (turns), stopped; then a position that stays open."""
    close = np.array([100, 100, 110, 120, 130, 90, 90], np.float64)
    market = bars_of(close, open=close)
    run = BacktestRun(market, Window(0, 6), 10_000.0, Costs(0.01, borrow_rate=0.0))
    for orders in (
        [Order("A", 2.0)],
        [Order("A", 2.0)],
        [Order("A", -6.0, stop=125.0)],
        [],
        [Order("A", 3.0)],
        [],
    ):
        run.apply(orders)
    long, short, rest = run.result().trades
    assert (long.quantity, long.entry_price, long.exit_price, long.reason) == (4.0, 105.0, 120.0, "order")
    assert long.fees == pytest.approx(0.01 * (200 + 220 + 480))
    assert long.pnl == pytest.approx(60 - long.fees)
    assert (short.quantity, short.entry_price, short.exit_price, short.reason) == (-2.0, 120.0, 130.0, "stop")
    assert short.pnl == pytest.approx(-20 - 0.01 * (240 + 260))
    assert (rest.quantity, rest.entry_bar, rest.exit_bar, rest.exit_price, rest.reason) == (3.0, 5, 6, 90.0, "open")
    assert rest.pnl == pytest.approx(-0.01 * 270)
    assert run.result().metrics["hit_rate"] == pytest.approx(1 / 3)
    assert run.result().metrics["trades"] == 3
    assert [trade.bars_held for trade in (long, short, rest)] == [2, 2, 2]
    assert run.result().metrics["bars_held"] == 2.0


def test_a_run_that_only_won_has_an_infinite_profit_factor_that_survives_storage() -> None:
    run = BacktestRun(bars_of([100, 100, 110, 120]), Window(0, 3), costs=Costs(0.0, borrow_rate=0.0))
    run.apply([Order("A", 2.0)])
    run.catch_up(3)
    result = run.result()
    assert result.metrics["profit_factor"] == math.inf
    document = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert document["metrics"]["profit_factor"] is None
    assert BacktestResult.from_dict(document).metrics == result.metrics


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda market: Window(-1, 5), "first bar is 0"),
        (lambda market: Window(5, 5), "too short"),
        (lambda market: Window(1, 5, 0), "decide_every is 0"),
        (lambda market: BacktestRun(market, Window(0, 60)), r"bars 0\.\.59"),
        (lambda market: BacktestRun(market, Window(0, 5), cash=0.0), "starting cash"),
        (lambda market: BacktestRun(market, Window(0, 5), max_leverage=math.nan), "max_leverage"),
        (lambda market: Costs(taker_fee=-0.1), "taker_fee"),
        (lambda market: Costs(spread_multiplier=math.inf), "spread_multiplier"),
        (lambda market: Exchange(market, 0, stop=60), r"bars 0\.\.60"),
        (lambda market: replace(market, half_spread=np.nan * market.close), "half_spread"),
    ],
)
def test_what_cannot_be_run_is_refused(make: Callable[[Market], object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        run_backtest(cast(Market, make(random_market(1))), Scripted(0), Window(0, 50))


@tried(150)
@given(
    seed=st.integers(0, 2**32 - 1),
    first=st.floats(-1.0, 1.0),
    then=st.floats(-1.0, 1.0) | st.just(0.0),
    parts=st.integers(1, 4),
)
def test_orders_for_target_reach_the_exposure(seed: int, first: float, then: float, parts: int) -> None:
    """At a constant price without costs the account ends at the wanted exposure, with the bracket around the price."""
    price = float(np.random.default_rng(seed).uniform(0.1, 5_000.0))
    run = BacktestRun(bars_of(np.full(12, price)), Window(0, 11, 5), costs=Costs(0.0, borrow_rate=0.0))
    run.apply(orders_for_target(run.view(), run.account(), "A", first, delays=tuple(range(parts))))
    if abs(then) < 0.005:
        then = 0.0  # documented: too small to hold
    before = run.account()
    orders = orders_for_target(run.view(), before, "A", then, 0.1, 0.2, tuple(range(parts)))
    assert len(orders) in (0, parts)
    if not orders:
        assert abs(then - before.exposure["A"]) <= 0.005
        return
    run.apply(orders)
    after = run.account()
    assert after.exposure["A"] == pytest.approx(then, abs=1e-9)
    assert run.result().rejections == ()
    if then == 0.0:
        assert after.positions["A"] == 0.0
        assert after.entry_price["A"] is None
    else:
        side = 1.0 if then > 0.0 else -1.0
        assert after.stop["A"] == pytest.approx(price * (1 - 0.1 * side))
        assert after.target["A"] == pytest.approx(price * (1 + 0.2 * side))


def test_account_view_by_hand() -> None:
    close = np.array([[100.0, np.nan], [100.0, np.nan], [80.0, 10.0]])
    run = BacktestRun(bars_of(close, open=close), Window(0, 2), 1_000.0, Costs(0.0, borrow_rate=0.0))
    run.apply([Order("A", 4.0, stop=50.0), Order("A", 1.0, delay=3)])
    (waiting,) = run.account().pending
    assert waiting.delay == 2
    assert run.account().mark["A"] == 100.0
    assert np.isnan(run.account().mark["B"])
    run.apply([])
    account = run.account()
    assert (account.equity, account.cash, account.initial_cash) == (920.0, 600.0, 1_000.0)
    assert account.positions == {"A": 4.0, "B": 0.0}
    assert account.exposure == {"A": pytest.approx(320 / 920), "B": 0.0}
    assert account.entry_price == {"A": 100.0, "B": None}
    assert account.stop == {"A": 50.0, "B": None}
    assert account.target == {"A": None, "B": None}
    assert account.drawdown == pytest.approx(0.08)
    assert not account.liquidated
