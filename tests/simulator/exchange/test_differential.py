"""The exchange beside backtesting.py: the same random orders on the same random bars, and every known difference.

Where the two mean the same, fills, fees and the equity at every close are equal. Where they differ by design, a small
scene shows the answers of both; the random scenes avoid those.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import backtesting
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.backtest.run import BacktestResult, Window, run_backtest
from simulator.exchange.costs import Costs
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Cancel, Order, OrderRequest
from simulator.market.market import Market, MarketView
from tests.examples import tried

CASH = 100_000.0
MINUTE = 60_000


@dataclass(frozen=True)
class Action:
    """Something to do, in words that both engines understand. `size` is signed; "reduce" closes half."""

    kind: Literal["market", "limit", "stop", "stop_limit", "close", "reduce", "cancel"]
    size: int = 0
    limit: float | None = None
    trigger: float | None = None
    sl: float | None = None
    tp: float | None = None


@dataclass(frozen=True)
class State:
    """What an engine tells at a close."""

    bar: int
    position: float
    resting: int
    bracketed: bool
    close: float


Rule = Callable[[State], Sequence[Action]]


@dataclass
class Outcome:
    """What an engine did. fills: quantity by bar and price; a pair that cancels out is left away."""

    fills: dict[tuple[int, float], float]
    fees: float
    equity: list[float]  # at the closes from bar 1 on
    seen: list[State] = field(default_factory=list)


def bars_of(rows: Sequence[tuple[float, float, float, float]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["Open", "High", "Low", "Close"], dtype=float)
    frame.index = pd.to_datetime(np.arange(len(frame)) * MINUTE, unit="ms")
    return frame


def random_bars(seed: int, count: int = 80) -> pd.DataFrame:
    """Bars with gaps and wicks around a random walk from 100."""
    rng = np.random.default_rng(seed)
    close = 100.0 * np.exp(np.cumsum(rng.normal(0.0, 0.01, count)))
    before = np.concatenate([[100.0], close[:-1]])
    first = before * np.exp(rng.normal(0.0, 0.006, count) * (rng.random(count) < 0.5))
    high = np.maximum(first, close) * np.exp(rng.exponential(0.006, count))
    low = np.minimum(first, close) * np.exp(-rng.exponential(0.006, count))
    return bars_of(list(zip(first, high, low, close, strict=True)))


def ours(
    bars: pd.DataFrame, rule: Rule, fee: float = 0.0, half_spread: float = 0.0, leverage: float = 1.0,
    fill: Literal["next_open", "close"] = "next_open",
) -> tuple[Outcome, BacktestResult]:  # fmt: skip
    columns: dict[str, Any] = {
        name.lower(): bars[name].to_numpy()[:, None] for name in ("Open", "High", "Low", "Close")
    }
    shape = (len(bars), 1)
    market = Market(
        ("X",), "1m", np.arange(len(bars)) * MINUTE, volume=np.ones(shape), half_spread=np.full(shape, half_spread),
        **columns,
    )  # fmt: skip
    seen: list[State] = []

    class Ours:
        name = "ours"

        def decide(self, view: MarketView, account: AccountView) -> Sequence[OrderRequest]:
            held = account.positions["X"]
            bracketed = account.stop["X"] is not None or account.target["X"] is not None
            state = State(view.index, held, len(account.pending), bracketed, view.last_close("X"))
            seen.append(state)
            requests: list[OrderRequest] = []
            for action in rule(state):
                if action.kind == "cancel":
                    requests += [Cancel(order.id) for order in account.pending]
                elif action.kind == "close" or action.kind == "reduce":
                    part = abs(held) if action.kind == "close" else max(1, round(abs(held) * 0.5))
                    requests.append(Order("X", -np.sign(held) * part, reduce_only=True))
                else:
                    prices: dict[str, Any] = {"limit": action.limit, "trigger": action.trigger}
                    requests.append(Order("X", action.size, action.sl, action.tp, kind=action.kind, **prices))
            return requests

    costs = Costs(taker_fee=fee, maker_fee=fee, fill=fill, borrow_rate=0.0)  # the other engine lends for nothing
    result = run_backtest(market, Ours(), Window(1, len(bars) - 1), CASH, costs, leverage)
    fills: dict[tuple[int, float], float] = defaultdict(float)
    for one in result.fills:
        fills[one.bar, round(one.price, 8)] += one.quantity
    traded = {key: quantity for key, quantity in fills.items() if quantity != 0.0}
    return Outcome(traded, result.costs["fees"], result.equity.tolist(), seen), result


def theirs(bars: pd.DataFrame, rule: Rule, fee: float = 0.0, **options: Any) -> Outcome:
    seen: list[State] = []

    class Theirs(backtesting.Strategy):
        def init(self) -> None:
            pass

        def next(self) -> None:
            resting = [order for order in self.orders if not order.is_contingent]
            bracketed = any(trade.sl or trade.tp for trade in self.trades)
            close = float(self.data.Close[-1])
            state = State(len(self.data) - 1, float(self.position.size), len(resting), bracketed, close)
            seen.append(state)
            for action in rule(state):
                if action.kind == "cancel":
                    for order in resting:
                        order.cancel()
                elif action.kind in ("close", "reduce"):
                    self.position.close(1.0 if action.kind == "close" else 0.5)
                else:
                    submit = self.buy if action.size > 0 else self.sell
                    submit(size=abs(action.size), limit=action.limit, stop=action.trigger, sl=action.sl, tp=action.tp)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stats = backtesting.Backtest(bars, Theirs, cash=CASH, commission=fee, **options).run()
    fills: dict[tuple[int, float], float] = defaultdict(float)
    fees = float(stats["_trades"]["Commission"].sum())
    for _, trade in stats["_trades"].iterrows():
        fills[trade["EntryBar"], round(trade["EntryPrice"], 8)] += trade["Size"]
        fills[trade["ExitBar"], round(trade["ExitPrice"], 8)] -= trade["Size"]
    for trade in stats["_strategy"].trades:  # still open
        fills[trade.entry_bar, round(trade.entry_price, 8)] += trade.size
        fees += abs(trade.size) * trade.entry_price * fee
    traded = {key: quantity for key, quantity in fills.items() if quantity != 0.0}
    return Outcome(traded, fees, stats["_equity_curve"]["Equity"].tolist()[1:], seen[:-1])


def wanderer(seed: int) -> Rule:
    """Random orders of every kind that both engines mean alike. Only market orders carry brackets, a position with one
    is not enlarged, and one order rests at a time: what else they would do, the scenes below show."""

    def rule(state: State) -> list[Action]:
        rng = np.random.default_rng([seed, state.bar])
        dice, side = rng.random(), int(rng.choice([-1, 1]))
        size = side * int(rng.integers(1, 150))
        level = state.close * float(np.exp(rng.normal(0.0, 0.01)))
        below, above = (state.close * float(np.exp(sign * rng.uniform(0.002, 0.03))) for sign in (-1, 1))
        sl, tp = (below, above) if side > 0 else (above, below)
        entries = [
            Action("market", size),
            Action("market", size, sl=sl),
            Action("market", size, tp=tp),
            Action("market", size, sl=sl, tp=tp),
            Action("limit", size, limit=level),
            Action("stop", size, trigger=level),
        ]
        if state.resting:
            return [Action("cancel"), Action("market", size)] if dice < 0.1 else []
        if state.position == 0.0:
            return [entries[int(rng.integers(len(entries)))]] if dice < 0.5 else []
        if dice < 0.1:
            return [Action("close")]
        if dice < 0.2 and state.bracketed:  # several entries would be halved, and rounded, one by one
            return [Action("reduce")]
        if state.bracketed or dice > 0.5 or abs(state.position) > 300:
            return []
        # More of it, less of it or through to the other side, at the market or resting.
        return [entries[int(rng.choice([0, 4, 5]))]]

    return rule


def assert_same(mine: Outcome, its: Outcome) -> None:
    for ahead, (here, there) in enumerate(zip(mine.seen, its.seen, strict=True)):
        assert here == there, f"after {mine.seen[max(0, ahead - 2) : ahead]}"
    assert mine.fills == its.fills
    assert mine.fees == pytest.approx(its.fees, abs=1e-6)
    assert mine.equity == pytest.approx(its.equity, abs=1e-6)


@tried(200)
@given(seed=st.integers(0, 2**32 - 1), fee=st.sampled_from([0.0, 0.001, 0.02]))
def test_the_same_random_orders_do_the_same(seed: int, fee: float) -> None:
    bars, rule = random_bars(seed), wanderer(seed)
    assert_same(ours(bars, rule, fee)[0], theirs(bars, rule, fee))


def test_the_random_orders_meet_every_kind_of_fill() -> None:
    """What the property above compares is not empty: all reasons of fills, both sides, gaps through stops."""
    reasons: defaultdict[str, int] = defaultdict(int)
    for seed in range(20):
        _, result = ours(random_bars(seed), wanderer(seed), 0.001)
        for fill in result.fills:
            at_open = fill.time == fill.bar * MINUTE
            reasons[f"{fill.reason} {'open' if at_open else 'inside'} {fill.quantity > 0.0}"] += 1
    for kind in ("order open", "order inside", "stop inside", "target inside"):
        assert min(reasons[f"{kind} {side}"] for side in (True, False)) > 5, dict(reasons)


@tried(25)
@given(seed=st.integers(0, 2**32 - 1))
def test_fills_at_the_close_are_trade_on_close(seed: int) -> None:
    """Market orders under `Costs(fill="close")`: the same prices; ours are booked one bar later, after the decision."""

    def rule(state: State) -> list[Action]:
        rng = np.random.default_rng([seed, state.bar])
        size = int(rng.integers(-150, 150)) - int(state.position > 150) * 150 + int(state.position < -150) * 150
        return [Action("market", size)] if size and rng.random() < 0.3 else []

    bars = random_bars(seed)
    mine, its = ours(bars, rule, 0.001, fill="close")[0], theirs(bars, rule, 0.001, trade_on_close=True)
    assert {(bar - 1, price): quantity for (bar, price), quantity in mine.fills.items()} == its.fills
    assert mine.equity == pytest.approx(its.equity, abs=1e-6)


# The differences, each as (what the bars after the first two do, what is done at which close, the fills of both).
CALM = (100.0, 101.0, 99.0, 100.0)
Fills = dict[tuple[int, float], float]
SCENES: dict[str, tuple[list[tuple[float, float, float, float]], dict[int, list[Action]], Fills, Fills]] = {
    "a limit that is only touched": (
        [(100.0, 101.0, 98.0, 100.0), CALM],
        {1: [Action("limit", 10, limit=98.0)]},
        {},
        {(2, 98.0): 10},
    ),
    "a target that is only touched": (
        [CALM, (100.0, 103.0, 99.0, 100.0), CALM],
        {1: [Action("market", 10, tp=103.0)]},
        {(2, 100.0): 10},
        {(2, 100.0): 10, (3, 103.0): -10},
    ),
    # Ours is stopped in that bar; theirs looks at the stop from the next bar on, where it is a worse open.
    "a stop behind a resting entry in the same bar": (
        [(100.0, 101.0, 95.0, 95.5), (95.0, 96.0, 94.5, 95.0), CALM],
        {1: [Action("limit", 10, limit=98.0, sl=96.0)]},
        {(2, 98.0): 10, (2, 96.0): -10},
        {(2, 98.0): 10, (3, 95.0): -10},
    ),
    # The price may have been at the target before the entry; ours waits for another bar to reach it.
    "a target behind a stop entry in the same bar": (
        [(100.0, 106.0, 99.5, 103.0), CALM],
        {1: [Action("stop", 10, trigger=102.0, sl=98.0, tp=105.0)]},
        {(2, 102.0): 10},
        {(2, 102.0): 10, (2, 105.0): -10},
    ),
    # At the open ours sells what it is told and the stop closes the rest. Theirs looks at the stop first, whose moment
    # is later, and the order then opens a short.
    "a market order in a bar that meets the stop": (
        [CALM, (99.5, 100.0, 95.0, 96.0), CALM],
        {1: [Action("market", 10, sl=98.0)], 2: [Action("market", -4)]},
        {(2, 100.0): 10, (3, 99.5): -4, (3, 98.0): -6},
        {(2, 100.0): 10, (3, 98.0): -10, (3, 99.5): -4},
    ),
    # Theirs fills at the trigger, a price that the bar never had.
    "a stop-limit that opens between its prices": (
        [(100.5, 103.0, 100.4, 102.0), CALM],
        {1: [Action("stop_limit", 10, limit=101.0, trigger=100.2)]},
        {(2, 100.5): 10},
        {(2, 100.2): 10},
    ),
    # One position has one bracket, the newer; theirs keeps a bracket for each trade.
    "two entries with brackets": (
        [CALM, CALM, (99.5, 100.0, 97.5, 99.0), CALM],
        {1: [Action("market", 10, sl=98.0)], 2: [Action("market", 10, sl=97.0)]},
        {(2, 100.0): 10, (3, 100.0): 10},
        {(2, 100.0): 10, (3, 100.0): 10, (4, 98.0): -10},
    ),
}


def scene(*rows: tuple[float, float, float, float]) -> pd.DataFrame:
    return bars_of([CALM, CALM, *rows])


def at(script: dict[int, list[Action]]) -> Rule:
    return lambda state: script.get(state.bar, [])


@pytest.mark.parametrize("name", SCENES)
def test_where_the_two_differ(name: str) -> None:
    rows, script, mine, its = SCENES[name]
    bars = scene(*rows)
    assert (ours(bars, at(script))[0].fills, theirs(bars, at(script)).fills) == (mine, its)


def test_an_order_beyond_the_margin() -> None:
    """Ours trades what fits and records the rest; theirs drops the whole order."""
    bars, rule = scene(CALM, CALM), at({1: [Action("market", 1_500)]})
    mine, result = ours(bars, rule)
    assert (mine.fills, theirs(bars, rule).fills) == ({(2, 100.0): 1_000.0}, {})
    assert [rejection.reason for rejection in result.rejections] == ["leverage_cap"]


def test_a_spread() -> None:
    """Ours pays half of it at each trade; theirs pays the whole of it when a trade opens and none when it closes."""
    bars, rule = scene(CALM, CALM, CALM), at({1: [Action("market", 10)], 2: [Action("close")]})
    mine, its = ours(bars, rule, half_spread=0.005)[0], theirs(bars, rule, spread=0.01)
    assert mine.fills == {(2, 100.5): 10, (3, 99.5): -10}
    assert its.fills == {(2, 101.0): 10, (3, 100.0): -10}
    assert mine.equity[-1] == pytest.approx(its.equity[-1])


def test_exclusive_orders() -> None:
    """Orders add up; under `exclusive_orders` theirs closes what there is before each new one."""
    bars, rule = scene(CALM, CALM, CALM), at({1: [Action("market", 10)], 2: [Action("market", 20)]})
    mine, its = ours(bars, rule)[0].fills, theirs(bars, rule, exclusive_orders=True).fills
    assert (sum(mine.values()), sum(its.values())) == (30, 20)


def test_a_loss_of_everything() -> None:
    """Short 900 at 100 with 100,000: all is lost at 211.1. Ours is closed there; theirs at the close, at any loss,
    which it then forgets."""
    bars, rule = scene(CALM, (100.0, 400.0, 100.0, 300.0), CALM), at({1: [Action("market", -900)]})
    mine, result = ours(bars, rule)
    its = theirs(bars, rule)
    assert [fill.reason for fill in result.fills] == ["order", "liquidation"]
    assert result.fills[1].price == pytest.approx(100.0 + CASH / 900)
    assert mine.equity[2:] == pytest.approx([0.0, 0.0], abs=1e-6)
    assert its.fills == {(2, 100.0): -900, (3, 300.0): 900}
    assert its.equity[2:] == [0.0, 0.0]
