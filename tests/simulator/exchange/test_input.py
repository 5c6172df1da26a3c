"""Whatever is submitted the account stays consistent, and records come back from JSON or are refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import DataError
from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.exchange_records import (
    Rejection,
    array_from_json,
    array_to_json,
    record_from_json,
    record_to_json,
)
from simulator.exchange.orders import PRICES, Cancel, Order, Target
from simulator.exchange.rules import MarginTier, SymbolRules
from simulator.exchange.venue import Venue
from simulator.market.market import Market
from tests.examples import tried
from tests.markets import random_market

CASH = 10_000.0


def market(seed: int, level: float) -> Market:
    """Two symbols that wander around `level`, at which nothing is settled."""
    one = random_market(np.random.default_rng(seed), 12, ("A", "B"), 0.03, volume=(50.0, 50.0), rate=0.0)
    prices: dict[str, Any] = {name: getattr(one, name) * level / 100.0 for name in ("open", "high", "low", "close")}
    return replace(one, **prices)


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


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"kind_of_record": "Path"}, "no known kind"),
        ([1], "no known kind"),
        ({"kind_of_record": "Cancel", "id": "x", "colour": 1}, "cannot be read"),
        ({"kind_of_record": "Target", "symbol": "A", "exposure": "much"}, "cannot be read"),
    ],
)
def test_a_damaged_record_is_refused(value: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        record_from_json(value)


@pytest.mark.parametrize("change", [{"shape": [2, 3]}, {"data": "!"}, {"data": None}, {"shape": None}])
def test_a_damaged_array_is_refused(change: dict[str, Any]) -> None:
    array = np.array([[1.0, math.nan], [math.inf, -0.0]])
    written = json.loads(json.dumps(array_to_json(array), allow_nan=False))
    assert array_from_json(written, (None, 2)).tobytes() == array.tobytes()
    for value, shape in ((written | change, (None, 2)), (written, (3, 2))):
        with pytest.raises(DataError, match="what holds it was changed"):
            array_from_json(value, shape)


@given(request=requests, bar=st.integers(0, 9))
@tried(200)
def test_a_record_comes_back_from_json_as_it_was(request: Any, bar: int) -> None:
    for record in (request, Rejection(bar, request, "cancelled", "x", math.nan)):
        again = record_from_json(json.loads(json.dumps(record_to_json(record), allow_nan=False)))
        assert repr(again) == repr(record)  # as text, because a NaN equals nothing
