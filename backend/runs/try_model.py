"""The use case try: the first contact with a model, and one decision with it, before anything larger.

It works with every engine. The first contact asks for one call of a small tool: it shows whether the model calls tools
at all, how its server writes a call, and what it refuses. Then the team takes one decision on a market.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pydantic import Field

from backend.builders.loaded_team import LoadedTeam
from backend.builders.market import account_of, limits_of, load_market
from backend.builders.teams import configured_team
from backend.config.schema import PROMPTED, Config
from backend.decisions.recording import conversation_messages
from backend.runs.backtest import market_settings
from backend.runs.requests import TryRequest
from backend.runs.window import requested_window
from cryptosentinel.conversation.budget import Ledger, Spending
from cryptosentinel.conversation.transcript import Transcript
from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.engine import Request, Usage, engine_notes
from cryptosentinel.protocol.tool_calls import Arguments, MalformedCall, read_call, tool_schema
from cryptosentinel.protocol.untrusted import clean
from cryptosentinel.scheduler import run_all
from cryptosentinel.team import TeamDecision
from simulator.backtest.run import BacktestRun, Window

if TYPE_CHECKING:
    from cryptosentinel.llm.endpoint.engine import EndpointEngine
    from cryptosentinel.llm.endpoint.messages import Answer

_SHOWN_CHARS = 160  # of a turn
_PRICE = 64250.5
_SYSTEM = "You report what you are told by calling the function that fits. You never answer in prose."
_ASKED = f"BTC was last traded at {_PRICE}. Report it."


class ReportPrice(Arguments):
    """The arguments of the first contact's tool."""

    symbol: str = Field(description="the coin, such as BTC")
    price: float = Field(description="the price, in USD")


_TOOL = "report_price"


@dataclass(frozen=True)
class Contact:
    """What a model answered to the first request.

    Attributes:
        called: whether it was the call that was asked for, with the right values.
        said: its answer, or why there is none, in one line.
        usage, money: what it took; the money is None where the price is not known.
        answer: the answer as the endpoint wrote it; None for an engine without one.
        notes: what an endpoint refuses or does otherwise, and how that was met.
    """

    called: bool
    said: str
    usage: Usage
    money: float | None
    answer: Answer | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class TrialDecision:
    """One decision of the team.

    Attributes:
        valid: whether the manager answered, so that the team would have traded on it.
        lines: the conversations, a line each turn.
        events: answers that could not be used, each with its reason.
        orders: what it would have sent, a line each.
        spent, seconds: what it took in all, and how long one waited.
        priced: whether the model's price is known; else the money of `spent` says nothing.
        notes: as in `Contact`, after it.
        of_backtest: decisions of a backtest over the market's last 90 days, one a day.
        max_cost: money that a backtest's requests may cost; 0: any amount.
    """

    valid: bool
    lines: tuple[str, ...]
    events: tuple[str, ...]
    orders: tuple[str, ...]
    spent: Spending
    usage: Usage
    seconds: float
    priced: bool
    notes: tuple[str, ...]
    of_backtest: int
    max_cost: float


def try_model(
    request: TryRequest,
    on_contact: Callable[[Config, Contact], None] = lambda config, contact: None,
    on_notes: Callable[[Sequence[str]], None] = lambda notes: None,
) -> TrialDecision | None:
    """Ask the model for one call, then let the team take one decision with it. Nothing is stored.

    `on_notes` hears what was chosen for the model, `on_contact` of the first answer before the decision begins. Where
    there was no answer at all, there is no decision, and None is returned. Raises `UserError` for a model that
    cannot be asked.
    """
    config = market_settings(request)
    market = load_market(config.market, config.costs)
    window = requested_window(market, request)
    loaded = configured_team(PROMPTED, config)
    on_notes(loaded.notes)
    try:
        contact = _contact(loaded, request.seed)
        on_contact(config, contact)
        if contact.usage == Usage(seconds=contact.usage.seconds) and not contact.called:
            return None
        account = account_of(config, market)
        one = Window(window.start, min(window.stop, window.start + window.decide_every), window.decide_every)
        run, ledger = BacktestRun(market, one, **account.terms), Ledger(loaded.price)
        view = run.view()
        portfolio = loaded.team.settings.portfolio
        symbols = view.symbols if portfolio else view.symbols[:1]
        task = loaded.team.decide(
            view,
            run.account(),
            symbols,
            Guard(limits_of(config.guard)),
            request.seed,
            share=1.0 if portfolio else 1.0 / len(view.symbols),
            ledger=ledger,
        )
        began = time.perf_counter()
        [decision] = run_all([task], loaded.engine)
        seconds = time.perf_counter() - began
        coins = 1 if portfolio else len(view.symbols)
        return _shown(loaded, decision, ledger, seconds, window.decisions * coins, config.budget.max_cost)
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


def _contact(loaded: LoadedTeam, seed: int) -> Contact:
    engine, codec, settings = loaded.engine, loaded.team.codec, loaded.team.settings
    tool = tool_schema(_TOOL, "Report the last price of a coin.", ReportPrice)
    endpoint = _endpoint(loaded)
    ids = codec.start(_SYSTEM, _ASKED, [tool] if endpoint is None else None)
    asked = Request(loaded.team.manager.key, tuple(ids), replace(settings.sampling, temperature=0.0), seed, (tool,))
    [completion] = engine.generate([asked])
    text = codec.decode_answer(completion.ids[completion.thought :])
    call = codec.parse(text, {_TOOL: ReportPrice})
    price = loaded.price
    right = not isinstance(call, MalformedCall) and call.arguments == ReportPrice(symbol="BTC", price=_PRICE)
    return Contact(
        called=right and completion.finished,
        said=completion.failure or _line(text),
        usage=completion.usage,
        money=None if price is None else price.of(completion.usage),
        answer=None if endpoint is None else endpoint.latest,
        notes=engine_notes(engine),
    )


def _shown(
    loaded: LoadedTeam, decision: TeamDecision, ledger: Ledger, seconds: float, of_backtest: int, max_cost: float
) -> TrialDecision:
    lines = [line for transcript in decision.transcripts for line in _conversation(loaded, transcript)]
    orders = [
        f"{order.symbol} {'buy' if order.quantity > 0 else 'sell'} {abs(order.quantity):.6g} ({order.kind})"
        for order in decision.orders
    ]
    return TrialDecision(
        valid=decision.manager.valid,
        lines=tuple(lines),
        events=tuple(_line(event) for event in decision.events),
        orders=tuple(orders),
        spent=ledger.run,
        usage=decision.usage,
        seconds=seconds,
        priced=loaded.price is not None,
        notes=engine_notes(loaded.engine),
        of_backtest=of_backtest,
        max_cost=max_cost,
    )


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
        elif isinstance(said, MalformedCall):
            lines.append(f"{who}: {_line(turn.content)}")
        else:
            lines.append(f"{who}: {_line(f'{said[0]} {said[1]}')}")
    if transcript.thoughts_cut:
        lines.append(f"{who}   thoughts cut off at team.thinking_tokens: {transcript.thoughts_cut}")
    return lines


def _line(text: str) -> str:
    """Text of a model for people: one short line."""
    return clean(text, _SHOWN_CHARS) or "nothing"
