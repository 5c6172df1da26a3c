"""The use case try: the first contact with a model, and one decision with it, before anything larger.

It works with every engine. The first contact asks for one call of a small tool: it shows whether the model calls tools
at all, how its server writes a call, and what it refuses. Then the team takes one decision on a market.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import Field

from backend.builders.loaded_team import LoadedTeam
from backend.builders.market import account_of, limits_of, load_market
from backend.builders.teams import configured_team
from backend.config.prices import prices_date
from backend.config.schema import PROMPTED, Config
from backend.decisions.recording import conversation_messages
from backend.runs.backtest import market_settings
from backend.runs.requests import WindowRequest
from backend.runs.window import requested_window
from cryptosentinel.conversation.budget import Ledger
from cryptosentinel.conversation.transcript import Transcript
from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.engine import Request, Usage, engine_notes
from cryptosentinel.protocol.tool_calls import Arguments, MalformedCall, read_call, tool_schema
from cryptosentinel.protocol.untrusted import clean
from cryptosentinel.scheduler import run_all
from simulator.backtest.run import BacktestRun, Window
from simulator.market.market import Market

if TYPE_CHECKING:
    from cryptosentinel.llm.endpoint.engine import EndpointEngine

Say = Callable[[str], None]
_SHOWN_CHARS = 160  # of a turn
_PRICE = 64250.5
_SYSTEM = "You report what you are told by calling the function that fits. You never answer in prose."
_ASKED = f"BTC was last traded at {_PRICE}. Report it."
_TOOL = "report_price"


class ReportPrice(Arguments):
    """The arguments of the first contact's tool."""

    symbol: str = Field(description="the coin, such as BTC")
    price: float = Field(description="the price, in USD")


def try_model(request: WindowRequest, say: Say) -> bool:
    """Ask the model for one call, then let the team take one decision with it; `say` shows a line. Nothing is stored.

    Returns whether the team could have traded on the decision; without any answer there is none. Raises `UserError`
    for a model that cannot be asked.
    """
    config = market_settings(request)
    market = load_market(config.market, config.costs)
    window = requested_window(market, request)
    loaded = configured_team(PROMPTED, config)
    for note in loaded.notes:
        say(f"note: {note}")
    try:
        return _contact(loaded, config, request.seed, say) and _decide(
            loaded, config, market, window, request.seed, say
        )
    finally:
        endpoint = _endpoint(loaded)
        if endpoint is not None:
            endpoint.close()


def _endpoint(loaded: LoadedTeam) -> EndpointEngine | None:
    """The team's engine where it is before an endpoint."""
    if loaded.engine.name != "openai_api":
        return None
    from cryptosentinel.llm.endpoint.engine import EndpointEngine  # of the extra `llm`

    return loaded.engine if isinstance(loaded.engine, EndpointEngine) else None


def _contact(loaded: LoadedTeam, config: Config, seed: int, say: Say) -> bool:
    """The first request, and how its server wrote the answer; whether there was any answer."""
    engine, codec, settings = loaded.engine, loaded.team.codec, loaded.team.settings
    tool = tool_schema(_TOOL, "Report the last price of a coin.", ReportPrice)
    connected = _endpoint(loaded)
    ids = codec.start(_SYSTEM, _ASKED, [tool] if connected is None else None)
    asked = Request(loaded.team.manager.key, tuple(ids), replace(settings.sampling, temperature=0.0), seed, (tool,))
    [completion] = engine.generate([asked])
    text = codec.decode_answer(completion.ids[completion.thought :])
    call = codec.parse(text, {_TOOL: ReportPrice})
    right = not isinstance(call, MalformedCall) and call.arguments == ReportPrice(symbol="BTC", price=_PRICE)
    called, usage, price = right and completion.finished, completion.usage, loaded.price
    endpoint = config.engine.endpoint
    where = config.engine.url or (config.engine.kind if endpoint is None else f"{endpoint.title}, {endpoint.url}")
    say(f"{config.engine.model} ({where})")
    judged = "a sound call" if called else "not the call that was asked for"
    say(f"first contact: {judged}: {completion.failure or _line(text)}")
    if connected is not None and connected.latest is not None:
        form = {"tool_calls": "as a tool call", "text": "as text", "none": "without a call"}[connected.latest.form]
        say(f"  written {form}; it ended with {connected.latest.finish or 'no reason'}")
        if not called:
            hint = f" ({endpoint.title}: {endpoint.hint})" if endpoint is not None and endpoint.hint else ""
            say(f"  try a model that calls tools, or start its server so that it does{hint}")
    for note in engine_notes(engine):
        say(f"  adapted: {note}")
    say(f"  {_took(usage, usage.seconds, None if price is None else price.of(usage))}")
    return called or usage != Usage(seconds=usage.seconds)


def _decide(loaded: LoadedTeam, config: Config, market: Market, window: Window, seed: int, say: Say) -> bool:
    """One decision of the team, what it took, and what a backtest would take; whether the manager answered."""
    account = account_of(config, market)
    one = Window(window.start, min(window.stop, window.start + window.decide_every), window.decide_every)
    run, ledger = BacktestRun(market, one, **account.terms), Ledger(loaded.price)
    view, portfolio = run.view(), loaded.team.settings.portfolio
    coins = 1 if portfolio else len(view.symbols)
    task = loaded.team.decide(
        view, run.account(), view.symbols if portfolio else view.symbols[:1], Guard(limits_of(config.guard)), seed,
        share=1.0 / coins, ledger=ledger,
    )  # fmt: skip
    began = time.perf_counter()
    [decision] = run_all([task], loaded.engine)
    seconds = time.perf_counter() - began
    say("one decision:")
    for line in (line for transcript in decision.transcripts for line in _conversation(loaded, transcript)):
        say(f"  {line}")
    for event in decision.events:
        say(f"  not usable: {_line(event)}")
    for note in engine_notes(loaded.engine):
        say(f"  adapted: {note}")
    orders = [
        f"{order.symbol} {'buy' if order.quantity > 0 else 'sell'} {abs(order.quantity):.6g} ({order.kind})"
        for order in decision.orders
    ]
    say(f"  orders: {'; '.join(orders) or 'none'}")
    spent, count, most = ledger.run, window.decisions * coins, config.budget.max_cost
    money = None if loaded.price is None else spent.money
    say(f"  {spent.calls} requests, {_took(decision.usage, seconds, money)}")
    cost = "at a price that is not known" if money is None else f"for {count * money:,.4g}"
    say(
        f"a backtest of the last 90 days with a decision a day takes about {count} of these: "
        f"{count * spent.tokens:,} tokens in {count * seconds / 60:,.0f} minutes {cost}"
    )
    if money and 0 < most < count * money:
        say(f"that is more than budget.max_cost = {most:g}, where it would end: raise it before")
    if money:
        say(f"prices: your own in budget.prices, or the table of {prices_date()}; check your provider's")
    valid = decision.manager.valid
    say("the team can trade with it" if valid else "the team could not have traded on this decision")
    return valid


def _conversation(loaded: LoadedTeam, transcript: Transcript) -> list[str]:
    """The turns after the beginning of a conversation, a line each."""
    who = f"{transcript.role}#{transcript.ordinal}"
    lines = []
    for turn in conversation_messages(loaded.team.codec, transcript)[2:]:
        said = read_call(turn.content) if turn.role == "assistant" else None
        if turn.thought:
            lines.append(f"{who} thinks: {_line(turn.thought)}")
        if said is None:
            lines.append(f"{who}   {_line(turn.content)}")
        else:
            text = turn.content if isinstance(said, MalformedCall) else f"{said[0]} {said[1]}"
            lines.append(f"{who}: {_line(text)}")
    if transcript.thoughts_cut:
        lines.append(f"{who}   thoughts cut off at team.thinking_tokens: {transcript.thoughts_cut}")
    return lines


def _took(usage: Usage, seconds: float, money: float | None) -> str:
    """Tokens, seconds and money in words."""
    thoughts = f" ({usage.reasoning:,} of them thoughts)" if usage.reasoning else ""
    cached = f" ({usage.cached:,} from the cache)" if usage.cached else ""
    price = "price unknown" if money is None else f"cost {money:,.4g}" if money else "cost nothing"
    return f"{usage.prompt:,} tokens read{cached}, {usage.sampled:,} sampled{thoughts}, {seconds:,.1f} s, {price}"


def _line(text: str) -> str:
    """Text of a model for people: one short line."""
    return clean(text, _SHOWN_CHARS) or "nothing"
