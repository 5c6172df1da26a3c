"""No attribute of what a strategy is handed, and no base of an array, leads to what comes later."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from cryptosentinel.conversation.masking import Mask
from cryptosentinel.tools.context import ToolContext
from simulator.arrays import FloatArray
from simulator.backtest.run import BacktestRun, Window, run_backtest
from simulator.env.trading_env import EnvConfig, TradingEnv
from simulator.errors import DataError, LookAheadError
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Order
from simulator.market.market import Bars, Market, MarketView
from tests.lookahead_scenes import rich_market

PLAIN = (str, bytes, int, float, bool, type(None), type, np.generic)


def reachable(start: Any, most: int = 20_000) -> list[Any]:
    """All objects that attributes, items and bases of arrays lead to from `start`; methods and modules are not
    followed."""
    found: dict[int, Any] = {}
    waiting = [start]
    while waiting and len(found) < most:
        one = waiting.pop()
        if isinstance(one, PLAIN) or id(one) in found:
            continue
        found[id(one)] = one
        if isinstance(one, np.ndarray):
            waiting.append(one.base)
            continue
        if isinstance(one, Mapping):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, Sequence | set):
            waiting += list(one)
        for name in dir(one):
            if name.startswith("__") and name.endswith("__") and name != "__dict__":
                continue
            try:
                value = getattr(one, name)
            except Exception:  # noqa: BLE001 - a property that raises leads nowhere
                continue
            if not callable(value):
                waiting.append(value)
    return list(found.values())


def closes(bars: Bars) -> FloatArray:
    return bars.close


def no_later(objects: Sequence[Any], view: MarketView) -> None:
    """No market, and no array or event of later than the view."""
    later = rich_market().close[view.index + 1 :]
    for one in objects:
        assert not isinstance(one, Market)
        if isinstance(one, np.ndarray) and one.dtype == np.float64 and one.size:
            assert not np.isin(one, later[~np.isnan(later)]).any()
        for name in ("known_at", "time"):
            told = getattr(one, name, None)
            assert not isinstance(told, int) or told <= view.now


class Walks:
    """Follows everything that it is handed, at each decision."""

    name = "walks"

    def __init__(self) -> None:
        self.decisions = 0

    def fit(self, view: MarketView) -> None:
        no_later(reachable(view), view)

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
        self.decisions += 1
        given = [
            view,
            account,
            view.bars("AAAUSDT", 10**6),
            view.bars("AAAUSDT", 10**6, "1d"),
            view.computed("AAAUSDT", closes),
            view.funding("AAAUSDT", 9),
            view.news("AAAUSDT", 9),
            view.series("onchain/fees", 9),
        ]
        no_later(reachable(given), view)
        return [Order("AAAUSDT", 0.1)]


def test_nothing_that_a_strategy_is_handed_leads_to_later_data() -> None:
    walks = Walks()
    run_backtest(rich_market(), walks, Window(150, 310, 20))
    assert walks.decisions == 8
    assert any(isinstance(one, Market) for one in reachable([{"hidden": rich_market()}])), "the walk finds a market"
    with pytest.raises(AssertionError):
        no_later(reachable([rich_market().close[:, 0][:200]]), rich_market().view(200))


def test_an_array_of_an_indicator_has_a_base_without_values() -> None:
    market = rich_market()
    values = market.view(200).computed("AAAUSDT", closes)
    assert values.tobytes() == market.close[:201, 0].tobytes() and not values.flags.writeable
    assert not isinstance(values.base, np.ndarray)
    assert np.asarray(values.base).shape == (201,)
    # The memory is that of the market, which must live as long as the array.
    early = np.asarray(market.without_indicators().view(9).computed("BBBUSDT", closes))
    assert early.tobytes() == market.close[:10, 1].tobytes()


def test_a_view_cannot_be_moved() -> None:
    view = rich_market().view(200)
    for name in ("index", "_history", "other"):
        with pytest.raises(AttributeError, match="cannot be changed"):
            setattr(view, name, 300)
    assert view.index == 200 and not hasattr(view, "_market") and not hasattr(view, "_history")
    with pytest.raises(LookAheadError):
        view.bar("AAAUSDT", 201)
    for copied in (copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))):
        with pytest.raises(AttributeError):
            copied(view).bars("AAAUSDT", 5)


def test_an_indicator_must_return_a_number_a_bar() -> None:
    view = rich_market().view(200)
    wrong: list[Any] = [lambda bars: bars.close[:-1], lambda bars: np.array(["a"] * len(bars)), lambda bars: 1.0]
    for indicator in wrong:
        with pytest.raises(DataError, match="expected"):
            view.computed("AAAUSDT", indicator)
    whole: Any = lambda bars: np.arange(len(bars))  # noqa: E731 - a lambda says best what it is
    assert view.computed("AAAUSDT", whole).dtype.kind == "i"


def test_an_observation_of_an_environment_leads_nowhere() -> None:
    env = TradingEnv(rich_market(), EnvConfig(window=5, length=50))
    seen, info = env.reset(seed=3)
    for _ in range(3):
        arrays = [one for one in reachable([seen, info]) if isinstance(one, np.ndarray)]
        assert max(one.size for one in arrays) == seen.size
        seen, _, _, _, info = env.step(np.array([1, 1]))


def test_the_input_of_a_tool_leads_to_no_market() -> None:
    view = rich_market().view(200)
    run = BacktestRun(rich_market(), Window(200, 300))
    context = ToolContext(view, run.account(), Mask(view.symbols, True), view.symbols, 18, 1.0, "AAAUSDT")
    no_later(reachable(context), view)
