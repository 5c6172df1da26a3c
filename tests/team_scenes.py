"""Small scenes for tests of the team: a market, an account in it, and engines that say what a test tells them to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from backend.builders.loaded_team import team_settings
from cryptosentinel.conversation.masking import Mask
from cryptosentinel.guard.guard import Guard
from cryptosentinel.guard.limits import GuardLimits
from cryptosentinel.llm.chat_codec import ChatCodec, make_byte_codec
from cryptosentinel.llm.chat_format import ChatMessages
from cryptosentinel.llm.engine import Completion, Engine, Request
from cryptosentinel.llm.scripted import ScriptedPolicy
from cryptosentinel.protocol.tool_calls import render_call
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import expert_policies, novice_policies
from cryptosentinel.team import Team, TeamDecision
from cryptosentinel.team_settings import TeamConfig, TeamSettings
from cryptosentinel.tools.context import ToolContext
from simulator.exchange.exchange import Exchange
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Order
from simulator.exchange.rules import SymbolRules
from simulator.market.market import Market, MarketView
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.standard_limits import guard_limits

COINS = ("AAAUSDT", "BBBUSDT", "CCCUSDT")


@cache
def codec() -> ChatCodec:
    """Every byte is a token."""
    return make_byte_codec()


@cache
def synthetic(bars: int = 320, seed: int = 3, coins: int = 3) -> Market:
    """A few coins in 4h bars; 320 of them are 53 days."""
    return generate(SyntheticConfig(bars=bars, seed=seed, symbols=COINS[:coins]))


def standard_team(**changes: Any) -> TeamSettings:
    """The configuration's settings of a team, with a horizon of 12 bars and answers of 96 tokens."""
    settings = team_settings(TeamConfig(horizon_bars=12, max_tokens=96), 1.0)
    return settings.model_copy(update=changes)


def make_team(**settings: Any) -> Team:
    """A team over the byte codec; its policy versions say whose they are."""
    return Team(codec(), lambda role: f"{role}-v1", standard_team(**settings))


def account_in(
    market: Market, bar: int, exposures: dict[str, float] | None = None, max_leverage: float = 3.0
) -> AccountView:
    """The account at the close of `bar` of one that bought `exposures` (of its equity) at the open of that bar."""
    exchange = Exchange(market, bar - 1, max_leverage=max_leverage)
    for symbol, exposure in (exposures or {}).items():
        exchange.submit(Order(symbol, exposure * exchange.initial_cash / market.view(bar - 1).last_close(symbol)))
    exchange.step()
    return exchange.account()


def hand_made_account(
    view: MarketView, exposures: dict[str, float], equity: float = 10_000.0, drawdown: float = 0.0
) -> AccountView:
    """An account that holds exactly `exposures` of its equity at the last closes."""
    marks = {symbol: view.last_close(symbol) for symbol in view.symbols}
    held = {symbol: exposures.get(symbol, 0.0) for symbol in view.symbols}
    return AccountView(
        equity=equity,
        cash=equity * (1.0 - math.fsum(held.values())),
        initial_cash=10_000.0,
        positions={symbol: held[symbol] * equity / marks[symbol] if held[symbol] else 0.0 for symbol in held},
        exposure=held,
        entry_price={symbol: marks[symbol] if held[symbol] else None for symbol in held},
        stop=dict.fromkeys(view.symbols),
        target=dict.fromkeys(view.symbols),
        mark=marks,
        drawdown=drawdown,
    )


def course_of(view: MarketView, account: AccountView, orders: Sequence[Order]) -> list[dict[str, float]]:
    """Exposures now and after each bar in which orders fill, those that wait among them, at the last closes."""
    superseded = {order.symbol for order in orders}
    live = [*(order for order in account.pending if order.symbol not in superseded), *orders]
    held = {symbol: account.exposure[symbol] for symbol in view.symbols}
    course = [dict(held)]
    for moment in sorted({order.delay for order in live}):
        for order in live:
            if order.delay == moment:
                change, before = order.quantity * view.last_close(order.symbol) / account.equity, held[order.symbol]
                if order.reduce_only:
                    change = min(max(change, -max(before, 0.0)), max(-before, 0.0))
                held[order.symbol] += change
        course.append(dict(held))
    return course


def context_at(market: Market, bar: int = -1, exposures: dict[str, float] | None = None, **more: Any) -> ToolContext:
    """What a tool is given at a bar, about the first coin, by default masked and of an account without positions."""
    view = market.view(bar % len(market))
    given: dict[str, Any] = {
        "view": view, "account": hand_made_account(view, exposures or {}), "mask": Mask(market.symbols, True),
        "symbols": market.symbols, "horizon_bars": 6, "share": 1.0, "symbol": market.symbols[0],
    }  # fmt: skip
    return ToolContext(**(given | more))


def half_taught_policies() -> dict[str, ScriptedPolicy]:
    """Each turn is the teacher's or a random one, as its seed falls: varied conversations that get somewhere."""
    experts, novices = expert_policies(), novice_policies()

    def half(role: str) -> ScriptedPolicy:
        def policy(messages: ChatMessages, seed: int) -> str:
            return (experts if seed // 7 % 2 else novices)[role](messages, seed)

        return policy

    return {role: half(role) for role in experts}


@dataclass(frozen=True)
class CutOff:
    """A completion that reaches its token limit before its end of turn."""

    text: str


class SayingEngine:
    """Says the texts it was given, each role's one after the other, and keeps the requests. Log-probs are all
    distinct and below 0, so that a shifted one is noticed."""

    name = "saying"

    def __init__(self, texts: Mapping[str, Sequence[str | CutOff]]) -> None:
        self.left = {role: list(said) for role, said in texts.items()}
        self.requests: list[Request] = []
        self.completions: list[Completion] = []

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return [self._say(request) for request in requests]

    def policy_version(self, role: str) -> str:
        return f"{role}-v1"

    def _say(self, request: Request) -> Completion:
        text = self.left[request.role].pop(0)
        ids = codec().encode_assistant(text.text if isinstance(text, CutOff) else text)
        if isinstance(text, CutOff):
            ids = ids[:-1]
        first = sum(len(completion.ids) for completion in self.completions)
        logps = tuple(-float(first + position + 1) / 1024 for position in range(len(ids)))
        completion = Completion(tuple(ids), logps, finished=not isinstance(text, CutOff))
        self.requests.append(request)
        self.completions.append(completion)
        return completion


def ask(role: str, symbol: str = "C1", **question: Any) -> str:
    """The manager's call of a sub-agent."""
    return render_call(f"consult_{role}", {"symbol": symbol, **question})


def submit(*positions: dict[str, Any]) -> str:
    """The manager's decision."""
    return render_call("submit_decision", {"positions": list(positions)})


def hold(symbol: str, side: str, exposure: float, **more: Any) -> dict[str, Any]:
    """A position of a decision."""
    return {"symbol": symbol, "side": side, "exposure": exposure, **more}


def verdict(kind: str, to: float | None = None) -> str:
    """RiskAnalyst's answer."""
    return render_call("submit_verdict", {"verdict": kind, "loss": 5.0, **({} if to is None else {"to": to})})


def analysis(up: float = 0.6, flat: float = 0.2, down: float = 0.2) -> str:
    """MarketAnalyst's answer."""
    return render_call("submit_analysis", {"up": up, "flat": flat, "down": down})


def execution(wait: int = 0, slices: int = 1) -> str:
    """Trader's answer."""
    return render_call("submit_orders", {"type": "market", "wait": wait, "slices": slices})


def decide(
    engine: Engine,
    *,
    market: Market | None = None,
    bar: int = 200,
    exposures: dict[str, float] | None = None,
    symbols: tuple[str, ...] | None = None,
    limits: GuardLimits | None = None,
    seed: int = 1,
    share: float = 1.0,
    rules: Mapping[str, SymbolRules] | None = None,
    **settings: Any,
) -> TeamDecision:
    """One decision on a synthetic market; by default a flat account, all coins and a guard that clamps nothing."""
    market = market or synthetic()
    view = market.view(bar)
    account = replace(hand_made_account(view, exposures or {}), rules=rules or {})
    guard = Guard(limits or guard_limits(max_exposure=100.0, max_gross_exposure=1000.0))
    team = make_team(**settings)
    return run_all([team.decide(view, account, symbols or market.symbols, guard, seed, share=share)], engine)[0]


def held_after(
    orders: Sequence[Order], market: Market | None = None, bar: int = 200, exposures: dict[str, float] | None = None
) -> dict[str, float]:
    """Signed exposure of each coin once all `orders` are filled at the last close, of an account with `exposures`."""
    view = (market or synthetic()).view(bar)
    account = hand_made_account(view, exposures or {})
    held = dict(account.positions)
    for order in orders:
        held[order.symbol] += order.quantity
    return {symbol: quantity * view.last_close(symbol) / account.equity for symbol, quantity in held.items()}
