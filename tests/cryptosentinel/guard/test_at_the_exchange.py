"""The guard before a real exchange: whatever is asked, bar after bar, on a market with jumps and gaps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cryptosentinel.guard.guard import Guard
from cryptosentinel.guard.pending import OrderSchedule
from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.orders import Order, OrderKind, OrderRequest
from simulator.market.market import Market
from tests.cryptosentinel.guard.hostile import RULES, Summary, episode, jumpy
from tests.markets import without_places
from tests.standard_limits import guard_limits
from tests.team_scenes import COINS, synthetic

FIRST = 100
LIMITS = guard_limits(
    max_exposure=0.8,
    max_gross_exposure=1.5,
    max_drawdown=0.4,
    daily_loss=0.1,
)


def gross(exposure: dict[str, float]) -> float:
    return math.fsum(map(abs, exposure.values()))


def submit(exchange: Exchange, requests: Sequence[OrderRequest]) -> None:
    for request in requests:
        exchange.submit(request)


@pytest.mark.parametrize(
    "episodes", [pytest.param(range(60), id="60"), pytest.param(range(10_000), id="10000", marks=pytest.mark.slow)]
)
def test_whatever_is_asked_the_limits_hold(episodes: range) -> None:
    """Hostile orders of every kind, with gaps, lots, partial fills, latency and limits that rest: exposures measured at
    the prices and the equity at which the orders were let through are never beyond a limit."""
    summary = Summary()
    for seed in episodes:
        episode(seed, summary)
    assert not summary.breaches[:10]
    assert min(summary.fills, summary.partly, summary.absent) > 0
    assert len(episodes) < 1_000 or min(summary.flattened, summary.released) > 100
    assert all(summary.closest[rule] > 0.999 for rule in RULES), "the limits were reached"


def test_a_shutdown_empties_the_account_and_keeps_it_so() -> None:
    market = jumpy(0, gaps=False)
    fall = np.where(np.arange(len(market))[:, None] > FIRST + 3, 0.4, 1.0)
    arrays: dict[str, Any] = {name: getattr(market, name) * fall for name in ("open", "high", "low", "close")}
    crash = replace(market, **arrays)
    exchange, guard = Exchange(crash, FIRST, max_leverage=2.0), Guard(replace(LIMITS, daily_loss=1.0))
    for number in range(12):
        view, account = crash.view(exchange.index), exchange.account()
        close = {coin: view.last_close(coin) for coin in COINS}
        orders = [Order(coin, 5e3 / close[coin], id=f"{number}{coin}") for coin in COINS]
        resting = [
            Order(coin, 3e3 / close[coin], kind="limit", limit=0.905 * close[coin], id=f"r{number}{coin}")
            for coin in COINS
        ]
        passed, clamps = guard.review(view, account, [*orders, *resting] if number < 3 else orders)
        submit(exchange, [*guard.withdrawals(account), *passed])
        exchange.step()
        if number >= 5:
            assert not any(exchange.account().positions.values()) and exchange.account().pending == ()
            assert {clamp.rule for clamp in clamps} == {"max_drawdown"}
    assert guard.state()["flat_rule"] == "max_drawdown"


# Nothing but prices and fills changes the equity.
FREE = Costs(0.0, 0.0, borrow_rate=0.0, missing_funding_rate=0.0)


def flat_market(**columns: Any) -> Market:
    """A price of 100 that does not move, so that whatever lies beyond a limit is no move of the price. `columns` by
    name; volumes are in base units."""
    market = synthetic()
    shape = market.close.shape
    arrays: dict[str, Any] = {name: np.full(shape, 100.0) for name in ("open", "high", "low", "close")}
    arrays |= {"volume": np.full(shape, 1e6), "half_spread": np.zeros(shape)} | columns
    return replace(market, **arrays, truth=None, funding={}, news=())


def rotated(market: Market, limits: Any, costs: Costs, bars: int = 40) -> tuple[list[float], dict[str, float]]:
    """Gross exposure bar by bar after a rotation out of the first coin into the second, and the last exposures."""
    exchange, guard = Exchange(market, FIRST, costs=costs, max_leverage=10.0), Guard(limits)
    a, b = COINS[:2]
    exchange.submit(Order(a, limits.max_gross_exposure * 100.0))
    while abs(exchange.account().exposure[a]) < limits.max_gross_exposure * 0.999:
        exchange.step()
    course = []
    for number in range(bars):
        view, account = market.view(exchange.index), exchange.account()
        if number == 0:
            orders = [Order(a, -account.positions[a]), Order(b, limits.max_gross_exposure * 100.0)]
            submit(exchange, guard.review(view, account, orders, (), COINS)[0])
        else:
            submit(exchange, guard.watch(view, account)[0])
        exchange.step()
        course.append(gross(exchange.account().exposure))
    return course, exchange.account().exposure


@pytest.mark.parametrize("out_of", ["a thin coin", "a coin whose next bars are absent"])
def test_a_rotation_waits_for_its_fills(out_of: str) -> None:
    """The sale takes many bars under a participation of 0.1; the purchase follows it and never goes before."""
    volume = np.full(synthetic().close.shape, 1e6)
    volume[:, 0] = 40.0 if out_of == "a thin coin" else 1e6
    market = flat_market(volume=volume)
    if out_of != "a thin coin":
        market = without_places(market, (slice(FIRST + 2, FIRST + 5), 0))
    limits = guard_limits(max_exposure=1.0, max_gross_exposure=1.0, max_daily_turnover=math.inf)
    course, last = rotated(market, limits, replace(FREE, participation=0.1))
    assert max(course) <= 1.0 + 1e-9
    assert last[COINS[0]] == pytest.approx(0.0) and last[COINS[1]] == pytest.approx(1.0)


@pytest.mark.parametrize("kind", ["market", "limit"])
def test_a_market_order_that_reuses_an_id_in_use_makes_no_room(kind: OrderKind) -> None:
    """The exchange refuses it, so the order that waits stays: all of the gross exposure is taken."""
    market = synthetic()
    exchange, guard = (
        Exchange(market, FIRST, costs=FREE, max_leverage=10.0),
        Guard(guard_limits(max_exposure=1.0, max_gross_exposure=1.0)),
    )
    close = {symbol: market.view(FIRST).last_close(symbol) for symbol in COINS}
    level: dict[str, Any] = {"limit": close[COINS[0]] * 0.99} if kind == "limit" else {}
    for requests in (
        [Order(COINS[0], 1e4 / close[COINS[0]], delay=3, id="x", kind=kind, **level)],
        [Order(COINS[0], 1e-3 / close[COINS[0]], id="x"), Order(COINS[1], 1e4 / close[COINS[1]])],
    ):
        view, account = market.view(exchange.index), exchange.account()
        for order in guard.review(view, account, requests)[0]:
            exchange.submit(order)
        exchange.step()
    assert [rejection.reason for rejection in exchange.rejections] == ["duplicate_id"]
    reach = OrderSchedule(market.view(exchange.index), exchange.account()).reaches()
    assert math.fsum(one.largest for one in reach.values()) <= 1.05, "what moved since then included"


SLIDE = 0.07


def slide(bars: int) -> Market:
    """From `FIRST` on the price falls by 7 % a bar."""
    steps = np.clip(np.arange(len(synthetic())) - FIRST, 0, bars)
    close = np.repeat(100.0 * (1.0 - SLIDE) ** steps[:, None], len(COINS), axis=1)
    opens = np.vstack([close[:1], close[:-1]])
    return flat_market(close=close, open=opens, high=np.maximum(opens, close), low=np.minimum(opens, close))


def long_through(market: Market, limits: Any, bars: int = 60, every: int = 6, **costs: Any) -> Exchange:
    """An account whose owner wants to be fully long, asked every few bars."""
    exchange, guard = Exchange(market, FIRST, costs=replace(FREE, **costs), max_leverage=10.0), Guard(limits)
    for number in range(bars):
        view, account = market.view(exchange.index), exchange.account()
        if number % every == 0:
            wanted = account.equity / view.last_close(COINS[0]) - account.positions[COINS[0]]
            passed, _ = guard.review(view, account, [Order(COINS[0], wanted)] if wanted else [], (), COINS)
            submit(exchange, [*guard.withdrawals(account), *passed])
        else:
            submit(exchange, guard.watch(view, account)[0])
        exchange.step()
    return exchange


def test_a_slide_costs_no_more_than_the_loss_limits_and_what_the_prices_do_until_the_close_is_filled() -> None:
    """Long through 7 % a bar, 60 bars: the loss of a day is seen at a bar that is no decision, and all is sold."""
    limits = guard_limits(max_exposure=1.0, max_gross_exposure=1.0, daily_loss=0.2, max_drawdown=0.3)
    exchange = long_through(slide(60), limits)
    curve = exchange.equity_curve()
    assert curve[-1] / curve[0] > (1.0 - 0.3) * (1.0 - SLIDE) ** 2
    assert exchange.account().positions[COINS[0]] == 0.0


def test_closing_goes_on_where_the_volume_allows_a_part() -> None:
    market = replace(slide(8), volume=np.full(synthetic().close.shape, 60.0))
    limits = guard_limits(max_drawdown=0.1)
    exchange = long_through(market, limits, 40, participation=0.25)
    assert exchange.account().positions[COINS[0]] == 0.0
    closings = [fill for fill in exchange.fills if fill.quantity < 0.0]
    assert len(closings) > 2, "in parts"


def test_after_a_day_s_loss_the_account_is_flat_for_a_while_and_trades_again() -> None:
    limits = guard_limits(daily_loss=0.1, max_drawdown=1.0)
    exchange = long_through(slide(4), limits, bars=30, every=1)
    exposure = exchange.exposure_curve()[:, 0]
    sold = int(np.argmax(exchange.equity_curve() < 0.9 * exchange.initial_cash)) + 1
    assert (exposure[sold : sold + 6] == 0.0).all(), "24 hours are six bars"
    assert exposure[-1] == pytest.approx(1.0)


def test_turnover_in_a_day_has_a_limit() -> None:
    """All in and all out at each bar would trade six times the equity in a day of bars of 4 hours."""
    market, most = flat_market(), 4.0
    exchange, guard = Exchange(market, FIRST, costs=FREE), Guard(guard_limits(max_daily_turnover=most))
    rules: set[str] = set()
    for number in range(60):
        view, account = market.view(exchange.index), exchange.account()
        wanted = 100.0 * (1 - number % 2) - account.positions[COINS[0]]
        passed, clamps = guard.review(view, account, [Order(COINS[0], wanted)] if wanted else [])
        rules |= {clamp.rule for clamp in clamps}
        submit(exchange, passed)
        exchange.step()
    assert rules == {"max_daily_turnover"}
    bars = [fill.bar for fill in exchange.fills]
    worth = np.bincount(bars, [abs(fill.quantity) * fill.price / 1e4 for fill in exchange.fills])
    assert max(worth[begin : begin + 6].sum() for begin in range(len(worth))) <= most + 1e-9
    assert worth.sum() >= 0.8 * most * 10, "ten days"
