"""Whatever is submitted the account stays consistent, and damaged saved states are refused."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import DataError
from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.orders import PRICES, Cancel, Order, Replace, Target
from simulator.exchange.rules import MarginTier, SymbolRules
from simulator.exchange.venue import Venue
from simulator.market.market import Market
from tests.examples import tried

HOUR = 3_600_000
CASH = 10_000.0


def market(bars: int = 12, seed: int = 0, level: float = 100.0) -> Market:
    """Two symbols that wander around `level`."""
    rng = np.random.default_rng(seed)
    close = level * np.exp(np.cumsum(rng.normal(0.0, 0.03, (bars, 2)), axis=0))
    first = np.concatenate([close[:1], close[:-1]])
    high, low = np.maximum(first, close) * 1.01, np.minimum(first, close) * 0.99
    times = np.arange(bars, dtype=np.int64) * HOUR
    return Market(("A", "B"), "1h", times, first, high, low, close, close * 0.0 + 50.0, close * 0.0 + 0.001)


any_number = st.one_of(
    st.floats(),
    st.sampled_from([0.0, -0.0, 1e-320, 1e308, -1e308, math.inf, -math.inf, math.nan, 1e16, 1e-12]),
    st.floats(-200.0, 200.0),
)
perhaps = st.one_of(st.none(), any_number)
counts = st.integers(-2, 4)
names = st.sampled_from(["", "a", "b"])
orders = st.builds(
    Order,
    symbol=st.sampled_from(["A", "B", "", "unknown"]),
    quantity=any_number,
    stop=perhaps,
    target=perhaps,
    delay=counts,
    reduce_only=st.booleans(),
    kind=st.sampled_from(["market", "limit", "stop", "stop_limit", "take_profit", "trailing_stop"]),
    limit=perhaps,
    trigger=perhaps,
    trail=perhaps,
    in_force=st.sampled_from(["gtc", "ioc", "fok", "post_only"]),
    hold_bars=st.one_of(st.none(), counts),
    expire_bars=st.one_of(st.none(), counts),
    group=names,
    id=names,
)
sizes = st.one_of(any_number, st.sampled_from([-0.01, 0.02, 1.5, 20.0, -70.0]))
near = st.one_of(any_number, st.floats(90.0, 110.0), st.sampled_from([95.0, 97.5, 99.99, 100.01, 103.0]))


@st.composite
def shaped(draw: st.DrawFn) -> Order:
    """An order that has the prices of its kind, so that more of them reach the kernel."""
    kind = draw(st.sampled_from(["market", "limit", "stop", "stop_limit", "take_profit", "trailing_stop"]))
    prices: dict[str, Any] = {name: draw(st.floats(0.0, 1.0) if name == "trail" else near) for name in PRICES[kind]}
    prices |= {name: draw(near) for name in ("stop", "target") if draw(st.integers(0, 3)) == 0}
    if "limit" in prices:
        prices["in_force"] = draw(st.sampled_from(["gtc", "ioc", "fok", "post_only"]))
    return Order(draw(st.sampled_from("AB")), draw(sizes), kind=kind, id=draw(names), **prices)  # type: ignore[arg-type]  # text


requests = st.one_of(
    shaped(),
    shaped(),
    orders,
    st.builds(Target, symbol=st.sampled_from(["A", "B", "unknown"]), exposure=any_number, delay=counts),
    st.builds(Cancel, id=names),
    st.builds(Replace, id=names, quantity=perhaps, limit=perhaps, trigger=perhaps),
)
scripts = st.lists(st.lists(requests, max_size=4), min_size=1, max_size=11)


@given(
    script=scripts,
    seed=st.integers(0, 50),
    level=st.sampled_from([1e-9, 1.0, 100.0, 1e9]),
    participation=st.sampled_from([None, 0.1]),
    tick=st.sampled_from([None, 0.01]),
)
@tried(300)
def test_no_request_breaks_the_account(
    script: list[list[Any]], seed: int, level: float, participation: float | None, tick: float | None
) -> None:
    rules = {"A": SymbolRules(tiers=(MarginTier(0.0, 0.01, 20.0),), liquidation_fee=0.002)}
    if tick is not None:
        rules["B"] = SymbolRules(tick=tick, lot=0.001, min_notional=5.0)
    costs = Costs(participation=participation, impact=0.0 if participation is None else 1.0)
    exchange = Exchange(market(seed=seed, level=level), 0, CASH, costs, 5.0, venue=Venue(rules))
    for requests_of_bar in script:
        for request in requests_of_bar:
            exchange.submit(request)
        exchange.step()
        account = exchange.account()
        marks = np.array([account.mark[symbol] for symbol in ("A", "B")])
        held = np.array([account.positions[symbol] for symbol in ("A", "B")])
        assert np.isfinite([account.equity, account.cash, *held]).all()
        assert account.equity == pytest.approx(account.cash + float(held @ marks), rel=1e-9, abs=1e-6)
        assert all(math.isfinite(value) for value in exchange.paid().values())
        assert account.equity > 0.0 or account.liquidated
        for fill in exchange.fills:
            assert math.isfinite(fill.fee) and math.isfinite(fill.price) and fill.price > 0.0
    exchange.step(20)
    assert not exchange.account().pending
    assert all(entry.reason and entry.detail for entry in exchange.rejections)


def grouped(exchange: Exchange) -> None:
    """Fifteen orders in pairs, and one alone that a replacement takes into a group although it cannot be used."""
    for number in range(15):
        exchange.submit(Order("A", 1.0, kind="limit", limit=50.0 - number, group=f"{number // 2}", id=f"{number}"))
    exchange.submit(Order("A", 1.0, kind="limit", limit=60.0, target=70.0, id="alone"))
    exchange.submit(Replace("alone", limit=71.0))


def test_a_replacement_that_is_refused_leaves_room_in_the_log() -> None:
    exchange = Exchange(market(), 0)
    grouped(exchange)
    assert exchange.rejections[-1].reason == "target_side"
    assert exchange.step() == 1
    assert exchange.index == 1


@pytest.fixture
def saved() -> dict[str, Any]:
    exchange = Exchange(market(), 1)
    grouped(exchange)
    exchange.submit(Target("B", 0.5))
    exchange.step(3)
    return json.loads(json.dumps(exchange.save(), allow_nan=False))


def test_a_saved_exchange_goes_on_where_the_market_has_grown(saved: dict[str, Any]) -> None:
    exchange = Exchange.resume(saved, market(40))
    assert exchange.index == 4
    assert exchange.step(100) == 35


DAMAGES: dict[str, tuple[Any, str]] = {
    "another format": (lambda data: data.update(format=99), "format 99"),
    "no state": (lambda data: data.pop("state"), "damaged"),
    "an array of another shape": (lambda data: data["state"]["accounts"].update(shape=[2, 3]), "damaged"),
    "an array that is no base64": (lambda data: data["state"]["accounts"].update(data="!"), "damaged"),
    "a record of no known kind": (lambda data: data["ledger"].append({"kind_of_record": "Path"}), "no known kind"),
    "a record with a field too many": (lambda data: data["ledger"][0].update(colour=1), "cannot be read"),
    "a record with text for a number": (lambda data: data["ledger"][0].update(price="much"), "cannot be read"),
    "a bar outside the market": (lambda data: data.update(index=77), "stands at bar 77"),
    "a bar that is none": (lambda data: data.update(index="x"), "damaged"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_saved_exchange_is_refused(saved: dict[str, Any], name: str) -> None:
    damage, message = DAMAGES[name]
    data = copy.deepcopy(saved)
    damage(data)
    with pytest.raises(DataError, match=message):
        Exchange.resume(data, market())


def test_a_saved_exchange_does_not_go_on_elsewhere(saved: dict[str, Any]) -> None:
    for other, said in (
        ({"market": market(seed=1)}, "other market's bars so far"),
        ({"market": market(), "costs": Costs(taker_fee=0.0)}, "other costs"),
        ({"market": market(), "max_leverage": 2.0}, "other max_leverage"),
        ({"market": market(), "venue": Venue({"A": SymbolRules(tick=0.1)})}, "other venue"),
    ):
        with pytest.raises(DataError, match=said):
            Exchange.resume(saved, **other)
