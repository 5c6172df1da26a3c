"""In a market of private knowledge no role's texts know anything of what another role alone can see.

Each test makes a twin market that differs in one role's knowledge over its whole history, and in nothing else. What all
the other roles read is the same, token for token, and what that role reads is not.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.training.curriculum.queries import account_holding
from cryptosentinel.agents.instructions import opening
from cryptosentinel.agents.registry import ROLES, team_of
from cryptosentinel.agents.role import Role
from cryptosentinel.protocol.tool_calls import NoArguments
from cryptosentinel.tools.context import ToolContext
from cryptosentinel.tools.market import news
from cryptosentinel.tools.portfolio import WhatIfBook
from simulator.arrays import FloatArray
from simulator.errors import LookAheadError
from simulator.market.events import FundingEvent, NewsItem
from simulator.market.market import Market
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.team_scenes import context_at

SYMBOLS = ("AAAUSDT", "BBBUSDT")
BOOK = WhatIfBook.model_validate({"positions": [{"symbol": "C1", "exposure": 0.5}, {"symbol": "C2", "exposure": -0.5}]})


@cache
def market() -> Market:
    return generate(SyntheticConfig(bars=700, seed=8, symbols=SYMBOLS, kind="private"))


def other_direction() -> Market:
    """Every move, headline's tone, its worth and funding rate the other way round."""
    one = market()

    def mirrored(prices: FloatArray) -> FloatArray:
        return one.open[0] ** 2 / prices

    assert one.signs is not None
    return replace(
        one,
        open=mirrored(one.open),
        high=mirrored(one.low),
        low=mirrored(one.high),
        close=mirrored(one.close),
        funding={
            symbol: tuple(FundingEvent(event.time, -event.rate) for event in events)
            for symbol, events in one.funding.items()
        },
        news=tuple(NewsItem(item.time, item.known_at, item.symbol, "large holders keep selling") for item in one.news),
        signs=replace(one.signs, confirmed=~one.signs.confirmed),
    )


def other_crowding() -> Market:
    signs = market().signs
    assert signs is not None
    return replace(market(), signs=replace(signs, crowded=~signs.crowded))


def other_spreads() -> Market:
    return replace(market(), half_spread=market().half_spread[::-1] * 3.0)


def read_by(role: Role, seen: Market, bar: int, held: float, side: str) -> list[str]:
    """All that a role could read in a decision: the opening of either prompt and every tool's result."""
    account = account_holding(seen.view(bar), {SYMBOLS[0]: held, SYMBOLS[1]: -held / 2})
    more: dict[str, Any] = {"side": side, "exposure": 0.5, "portfolio": role.key == "manager"}
    context = context_at(seen, bar, account=account, **more)
    said = [role.brief(context), opening(role, context)]
    for tool in role.tools:
        if tool.run is not None:
            arguments = BOOK if tool.arguments is WhatIfBook else tool.arguments()
            said.append(json.dumps([tool.name, tool.run(context, arguments)]))
    return said


PORTFOLIO_MANAGER, _ = team_of(("market_analyst", "risk_analyst", "trader"), portfolio=True)
TEAM = {**ROLES, "manager": PORTFOLIO_MANAGER}


@pytest.mark.parametrize(
    ("knows", "twin"),
    [("market_analyst", other_direction), ("risk_analyst", other_crowding), ("trader", other_spreads)],
)
@settings(max_examples=12)
@given(
    bar=st.integers(200, 699), held=st.sampled_from([0.0, 0.5, -1.0]), side=st.sampled_from(["long", "short", "flat"])
)
def test_what_one_role_sees_is_in_no_other_roles_texts(
    knows: str, twin: Callable[[], Market], bar: int, held: float, side: str
) -> None:
    changed = twin()
    for key, role in TEAM.items():
        mine, theirs = (read_by(role, one, bar, held, side) for one in (market(), changed))
        if key == knows:
            assert mine != theirs
        else:
            assert mine == theirs, key


def test_the_roles_see_their_own_signs() -> None:
    """The crowding, the lasting spread and the worth of the headlines are said in a word each, as they are."""
    one = market()
    assert one.signs is not None
    for bar in range(200, 700, 7):
        context = context_at(one, bar, side="long")

        def told(role: str, tool: str, seen: ToolContext = context) -> dict[str, object]:
            run = ROLES[role].tool(tool)
            assert run.run is not None
            return run.run(seen, run.arguments())

        crowded, confirmed = bool(one.signs.crowded[bar, 0]), bool(one.signs.confirmed[bar, 0])
        assert told("risk_analyst", "get_risk")["crowding"] == ("high" if crowded else "low")
        news = told("market_analyst", "get_news")
        assert news.get("press", "none") in ("none", "confirmed" if confirmed else "rumours")
        state = told("trader", "preview_order")["state"]
        half = 1e4 * one.half_spread[bar, 0]
        assert state == ("very wide" if half > 50 else "wide" if half > 10 else "normal")
    assert np.unique(one.signs.crowded).size == np.unique(one.signs.confirmed).size == 2


def test_the_tone_is_of_headlines_that_were_confirmed_when_they_came_and_fades() -> None:
    base, bar = market(), 400
    now, symbol = base.view(bar).now, SYMBOLS[0]
    bars_old = {12: "large holders keep buying", 9: "large holders keep selling", 6: "large holders keep buying"}
    times = [now - old * base.interval for old in bars_old]
    items = tuple(NewsItem(time, time, symbol, text) for time, text in zip(times, bars_old.values(), strict=True))

    def news_with(rumours: set[int], at: int = bar) -> tuple[object, ...]:
        """The answer where headlines were rumours at the closes of these bars."""
        confirmed = np.ones((700, 2), np.bool_)
        confirmed[list(rumours)] = False
        assert base.signs is not None
        told = replace(base, news=items, signs=replace(base.signs, confirmed=confirmed))
        answer = news(context_at(told, at), NoArguments())
        return answer["tone"], answer.get("press"), answer["balance"]

    assert news_with(set()) == ("good", "confirmed", round(0.5**2 - 0.5**1.5 + 0.5, 1))
    assert news_with({388}) == ("good", "confirmed", round(0.5 - 0.5**1.5, 1))
    assert news_with({391, 400}) == ("very good", "rumours", round(0.5**2 + 0.5, 1))
    assert news_with({388, 394}) == ("bad", "confirmed", round(-(0.5**1.5), 1))
    assert news_with({388, 391, 394}) == news_with(set(), at=bar + 24) == ("mixed", "confirmed", 0.0)
    with pytest.raises(LookAheadError):
        base.view(bar).confirmed(symbol, published=now + 1)
