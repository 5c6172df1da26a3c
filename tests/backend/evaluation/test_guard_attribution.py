"""What an intervention was worth: by hand on plain prices, and on what really followed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.decisions.backtest_document import BacktestDocument
from backend.decisions.document import StoredDecision
from backend.evaluation.guard_attribution import GUARD, RISK_ANALYST, by_rule, interventions
from backend.reporting.backtest_sections import sections
from backend.reporting.blocks import Missing, Table
from backend.reporting.market_reload import MarketReload
from backend.reporting.run_summary import WindowResult
from backend.reporting.trade_sections import withheld_block, withheld_of
from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.orders import Order
from simulator.market.market import Market
from tests.stored_runs import SYMBOLS, decision_of, episode, small_market

A, B = SYMBOLS
FREE = Costs(0.0, 0.0, borrow_rate=0.0, missing_funding_rate=0.0)
FIRST = 200
EVERY = 6


def priced(opens: list[float], closes: list[float]) -> Market:
    """The small market with these prices of A in the bars after `FIRST`, without a spread or funding."""
    market = small_market()
    arrays: dict[str, Any] = {name: getattr(market, name).copy() for name in ("open", "high", "low", "close")}
    rows = slice(FIRST + 1, FIRST + 1 + len(opens))
    arrays["open"][rows, 0], arrays["close"][rows, 0] = opens, closes
    arrays["high"][rows, 0], arrays["low"][rows, 0] = np.maximum(opens, closes), np.minimum(opens, closes)
    arrays["half_spread"] = np.zeros_like(market.half_spread)
    arrays["funding"] = {}
    return replace(market, **arrays, truth=None)


def time_of(bar: int) -> int:
    return int(small_market().open_time[bar]) + small_market().interval


def record(number: int, bar: int, clamps: list[Any] | None = None, rulings: list[Any] | None = None) -> StoredDecision:
    document = decision_of(clamps=clamps or [], rulings=rulings or [], equity_before=10_000.0)
    return StoredDecision("run", "scripted", number, time_of(bar), document)


def clamp(symbol: str, asked: float | None, allowed: float, rule: str = "max_exposure") -> dict[str, Any]:
    return {"rule": rule, "symbol": symbol, "asked": asked, "allowed": allowed, "detail": "why"}


@pytest.mark.parametrize(
    ("asked", "allowed", "saved"),
    [
        (10.0, 4.0, 60.0),  # 6 coins that would have fallen from 100 to 90
        (-10.0, -4.0, -60.0),
        (10.0, 0.0, 100.0),
        (0.0, -5.0, 50.0),  # the guard's own closing of 5 coins
        (-8.0, 0.0, -80.0),
    ],
)
@pytest.mark.parametrize("fee", [0.0, 0.001])
def test_by_hand(asked: float, allowed: float, saved: float, fee: float) -> None:
    market = priced([100.0, 95.0, 93.0], [95.0, 93.0, 90.0])
    [one] = interventions(
        [record(0, FIRST, [clamp(A, asked, allowed)])], market, replace(FREE, taker_fee=fee), time_of(FIRST + 3)
    )
    # Less traded is less paid: the fee is on what fills at 100.
    assert one.saved == pytest.approx(saved + fee * 100.0 * (abs(asked) - abs(allowed)))
    assert (one.by, one.rule, one.asked, one.allowed) == (GUARD, "max_exposure", asked, allowed)


def test_the_next_decision_ends_it() -> None:
    market = priced([100.0, 95.0, 93.0, 80.0], [95.0, 93.0, 80.0, 200.0])
    records = [record(0, FIRST, [clamp(A, 1.0, 0.0)]), record(1, FIRST + 2, [clamp(A, 1.0, 0.0)])]
    found = interventions(records, market, FREE, time_of(FIRST + 4))
    assert [one.saved for one in found] == pytest.approx([7.0, 93.0 - 200.0])


@pytest.mark.parametrize(("side", "sign"), [("long", 1.0), ("short", -1.0)])
@pytest.mark.parametrize(("allowed", "rule"), [(0.0, "veto"), (0.25, "reduce")])
def test_rulings_are_parts_of_the_equity_of_a_coin(side: str, sign: float, allowed: float, rule: str) -> None:
    market = priced([100.0], [90.0])
    close = market.view(FIRST).last_close(A)
    ruling = {"symbol": A, "side": side, "asked": 0.5, "allowed": allowed}
    # Two decisions at one bar: each has half of the equity.
    records = [record(0, FIRST, rulings=[ruling]), record(1, FIRST)]
    [one] = interventions(records, market, FREE, time_of(FIRST + 1))
    assert (one.by, one.rule) == (RISK_ANALYST, rule)
    assert one.asked == pytest.approx(sign * 0.5 * 5_000.0 / close)
    assert one.saved == pytest.approx(sign * (0.5 - allowed) * 5_000.0 / close * 10.0)


@settings(max_examples=40, deadline=None)
@given(bar=st.integers(180, 350), quantity=st.floats(0.1, 50.0), short=st.booleans(), symbol=st.sampled_from(SYMBOLS))
def test_it_is_what_the_exchange_would_have_made(bar: int, quantity: float, short: bool, symbol: str) -> None:
    """A dropped order saved what an account that trades nothing else loses by it: fee, spread and funding included."""
    market, costs = small_market(), Costs()
    asked = -quantity if short else quantity
    stop = min(bar + EVERY, len(market) - 1)
    [one] = interventions([record(0, bar, [clamp(symbol, asked, 0.0)])], market, costs, time_of(stop))
    exchange = Exchange(market, bar, cash=1e7, costs=costs)
    exchange.submit(Order(symbol, asked))
    exchange.step(stop - bar)
    assert one.saved == pytest.approx(1e7 - exchange.account().equity, abs=1e-6)


@pytest.mark.parametrize(
    ("entry", "bar", "end"),
    [
        (clamp(A, None, 0.0), FIRST, FIRST + 6),  # it was no number
        (clamp("GONEUSDT", 1.0, 0.0), FIRST, FIRST + 6),
        (clamp(A, 1.0, 1.0), FIRST, FIRST + 6),  # nothing was withheld
        (clamp(A, 1.0, 0.0), FIRST, FIRST),  # the run ended there
        (clamp(A, 1.0, 0.0), 359, 365),  # the data ends there
    ],
)
def test_what_cannot_be_valued_is_counted(entry: dict[str, Any], bar: int, end: int) -> None:
    interval = small_market().interval
    stop = time_of(0) + end * interval
    found = interventions([record(0, bar, [entry])], small_market(), FREE, stop)
    assert [one.saved for one in found] == [None]
    [worth] = by_rule(found)
    assert (worth.count, worth.valued, worth.saved) == (1, 0, 0.0)


def test_without_a_bar_nothing_would_have_been_traded() -> None:
    market = small_market()
    arrays: dict[str, Any] = {}
    for name in ("open", "high", "low", "close", "volume", "half_spread"):
        arrays[name] = getattr(market, name).copy()
        arrays[name][FIRST + 1 : FIRST + 7, 0] = np.nan
    gone = replace(market, **arrays, truth=None)
    [one, other] = interventions(
        [record(0, FIRST, [clamp(A, 1.0, 0.0), clamp(B, 1.0, 0.0)])], gone, FREE, time_of(FIRST + 6)
    )
    assert one.saved is None and other.saved is not None


def scene(decisions: list[StoredDecision]) -> WindowResult:
    results = {"scripted": BacktestDocument.of(episode().result)}
    return WindowResult("", "scripted", ("scripted",), results, {"scripted": decisions})


RECORDS = [
    record(0, 200, [clamp(A, 2.0, 1.0), clamp(B, -3.0, 0.0, "daily_loss")]),
    record(1, 206, [clamp(A, -2.0, 0.0)], [{"symbol": B, "side": "long", "asked": 0.8, "allowed": 0.0}]),
]


def test_the_report_says_what_each_rule_was_worth() -> None:
    window, here = scene(RECORDS), MarketReload(small_market())
    part = withheld_block(window, {"costs": {"taker_fee": 0.0}}, here)
    assert isinstance(part, Table) and "counterfactual of each order alone" in part.caption
    assert [row.label for row in part.rows] == ["RiskAnalyst: veto", "Guard: max_exposure", "Guard: daily_loss"]
    assert [row.values["count"] for row in part.rows] == [1, 2, 1]
    for row in part.rows:
        assert all(row.values[column.key] is not None for column in part.columns)
        assert row.values["share"] == pytest.approx(row.values["saved"] / 10_000.0)
        assert row.values["saved"] == pytest.approx(row.values["losses_avoided"] - row.values["gains_missed"])
    dearer = withheld_block(window, {"costs": {"taker_fee": 0.01}}, here)
    assert isinstance(dearer, Table)
    assert all(one.values["saved"] > other.values["saved"] for one, other in zip(dearer.rows, part.rows, strict=True))
    facts = withheld_of(window, {"costs": {"taker_fee": 0.0}}, here)
    assert not isinstance(facts, str) and [one.saved for one in facts] == [row.values["saved"] for row in part.rows]
    assert part in [one for section in sections(window, {"costs": {"taker_fee": 0.0}}, here) for one in section.blocks]
    json.dumps([vars(one) for one in facts], allow_nan=False)


@pytest.mark.parametrize(
    ("records", "config", "market", "said"),
    [
        ([], {}, small_market(), "only a team's decisions"),
        ([record(0, FIRST)], {}, None, "nothing was withheld"),
        (RECORDS, {}, None, "needs the run's data again: it is gone"),
        (RECORDS, {"costs": {"tribute": 1}}, small_market(), "no costs that this version can read"),
    ],
)
def test_where_it_is_not_known_it_is_said(
    records: list[StoredDecision], config: dict[str, Any], market: Market | None, said: str
) -> None:
    part = withheld_block(scene(records), config, MarketReload(market, "it is gone"))
    assert isinstance(part, Missing) and said in part.reason
