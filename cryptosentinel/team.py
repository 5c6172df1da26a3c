"""One decision of the team: the manager's conversation, the sub-agents' conversations, and the resulting orders.

A conversation is a generator (`AgentTask`): it yields a `Request` when it needs a model and is resumed with the
`Completion`. When several sub-agents are asked at once, it yields one request of each. So a decision reads as straight
code, while the scheduler runs hundreds of them side by side.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from cryptosentinel.agents.instructions import callable_tools, constrained_tools, instructions, listed_tools, opening
from cryptosentinel.agents.manager import (
    AskAboutPosition,
    AskAnalyst,
    AskSeveral,
    Decision,
    OfCoin,
    Position,
    Question,
)
from cryptosentinel.agents.registry import roles_of, team_of
from cryptosentinel.agents.risk_analyst import Verdict
from cryptosentinel.agents.role import Role, SubAgent
from cryptosentinel.agents.trader import Execution, in_words
from cryptosentinel.conversation.budget import Ledger
from cryptosentinel.conversation.masking import Mask
from cryptosentinel.conversation.transcript import CalledTurn, Conversation, Transcript
from cryptosentinel.guard.guard import Guard
from cryptosentinel.guard.limits import Clamp
from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.llm.engine import NOTHING, Completion, Request, Sampling, Usage
from cryptosentinel.protocol.tool_calls import MalformedCall, NoArguments, ToolCall
from cryptosentinel.team_settings import TeamSettings
from cryptosentinel.tools.context import ToolContext
from cryptosentinel.tools.portfolio import WhatIfBook
from simulator.backtest.run import orders_for_target
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Order
from simulator.exchange.rules import SymbolRules
from simulator.market.market import MarketView

_T = TypeVar("_T")
_R = TypeVar("_R", bound=Role)
# Yields the requests that it waits for and is resumed with their completions.
AgentTask = Generator[Sequence[Request], Sequence[Completion], _T]
TOKENS_PER_COIN = 64  # more for an answer on each further coin of a portfolio


@dataclass(frozen=True)
class Ruling:
    """A verdict of RiskAnalyst that made the manager's position smaller.

    Attributes:
        verdict: "approve", "reduce", "veto", or "invalid" where its answer was not valid.
        ordinal: number of its conversation.
        verdicts: how many were given on this symbol and side; the strictest holds.
    """

    symbol: str
    side: str
    asked: float
    allowed: float
    verdict: str
    ordinal: int
    verdicts: int


@dataclass(frozen=True)
class TeamDecision:
    """The result of one decision. `transcripts[0]` is the manager's; the others are in the order of their calls.

    Without a valid answer of the manager `orders` is empty: no change. `symbols` are the coins of the decision, in the
    order of the manager's brief. The orders reach the venue `thinking_ms` after the close that was decided at.
    `later` is what the guard did on its own between this decision and the next, each with
    the bar at whose close.
    """

    orders: list[Order]
    transcripts: list[Transcript]
    rulings: list[Ruling]
    clamps: list[Clamp]
    symbols: tuple[str, ...] = ()
    thinking_ms: int = 0
    later: list[tuple[int, Clamp]] = field(default_factory=list)

    @property
    def manager(self) -> Transcript:
        return self.transcripts[0]

    @property
    def events(self) -> list[str]:
        """Every answer that could not be used, with its reason."""
        return [f"{t.role}#{t.ordinal}: {t.reason}" for t in self.transcripts if t.reason is not None]

    @property
    def retries(self) -> int:
        """Malformed turns that were given another try."""
        return sum(transcript.retries for transcript in self.transcripts)

    @property
    def usage(self) -> Usage:
        """Tokens and seconds of all its requests."""
        return sum((transcript.usage for transcript in self.transcripts), NOTHING)

    @property
    def cost(self) -> float:
        """Inference cost, in quote currency."""
        return sum(transcript.cost for transcript in self.transcripts)


class Team:
    """A manager and its sub-agents over one codec. `roles` are their keys, the manager's first. Holds no state between
    decisions: the same inputs give the same decision.

    `advisory` are sub-agents whose answers are read and bind nobody: their verdicts cap no position, their plans time
    no order.
    """

    def __init__(
        self,
        codec: ChatFormat,
        version_of: Callable[[str], str],
        settings: TeamSettings,
        *,
        advisory: Collection[str] = (),
    ) -> None:
        self.codec = codec
        self.version_of = version_of
        self.settings = settings
        self.advisory = frozenset(advisory)
        self.manager, self.sub_agents = team_of(
            settings.roles,
            settings.portfolio,
            tools=settings.tools,
            inherits=settings.inherit_tools,
        )
        self.roles = roles_of(settings.roles)

    def decide(
        self,
        view: MarketView,
        account: AccountView,
        symbols: tuple[str, ...],
        guard: Guard,
        seed: int,
        *,
        share: float = 1.0,
        sent: Sequence[Order] = (),
        ledger: Ledger | None = None,
    ) -> AgentTask[TeamDecision]:
        """Decide on `symbols`, for which `share` of the equity is meant. `sent` are orders that other decisions have
        sent at this bar already; the guard counts them. `ledger` books the inference cost.
        `seed` fixes all sampling."""
        context = replace(self.context(view, account, symbols, share), limits=guard.limits.numbers())
        session = _DecisionSession(self, context, seed, ledger)
        manager = yield from session.converse(self.manager, context, {}, 0)
        orders, rulings = session.orders_of(manager)
        passed, clamps = guard.review(view, account, orders, sent, symbols)
        return TeamDecision(passed, [manager, *session.sub_transcripts], rulings, clamps, symbols)

    def consult(
        self, tool: str, question: Question, view: MarketView, account: AccountView, seed: int
    ) -> AgentTask[Transcript]:
        """Put a question to the sub-agent behind a consultation `tool`, without a manager: for its training."""
        # In a portfolio a coin has the same name here as in a decision on all of them.
        symbols = view.symbols if self.settings.portfolio else (question.symbol,)
        session = _DecisionSession(self, self.context(view, account, symbols, 1.0), seed)
        named = question.model_copy(update={"symbol": session.context.mask.alias(question.symbol)})
        yield from session.delegate(ToolCall(tool, named))
        return session.sub_transcripts[0]

    def context(self, view: MarketView, account: AccountView, symbols: tuple[str, ...], share: float) -> ToolContext:
        """The context of a decision on `symbols`, for which `share` of the equity is meant."""
        return ToolContext(
            view=view,
            account=account,
            # The coins of this decision come first: a small model decides on "C1" whichever coin that is.
            mask=Mask(
                (*symbols, *(one for one in view.symbols if one not in symbols)),
                self.settings.mask_symbols,
            ),
            symbols=symbols,
            horizon_bars=self.settings.horizon_bars,
            share=share,
            symbol=symbols[0],
            portfolio=self.settings.portfolio,
            question_price_bps=self.settings.question_price,
            pooled_trend=self.settings.pooled_trend,
        )


class _DecisionSession:
    """The state of one decision: the finished sub-conversations, RiskAnalyst's caps and Trader's plans."""

    def __init__(self, team: Team, context: ToolContext, seed: int, ledger: Ledger | None = None) -> None:
        self.team = team
        self.context = context
        self.seed = seed
        self.ledger = ledger
        self.sub_transcripts: list[Transcript] = []
        self._calls: dict[str, int] = {}
        self._caps: dict[tuple[str, str], list[_Cap]] = {}  # (symbol, side) -> what RiskAnalyst allows, call by call
        self._plans: dict[tuple[str, str], Execution] = {}

    def converse(
        self, role: Role, context: ToolContext, asked: dict[str, Any], ordinal: int, more: str = ""
    ) -> AgentTask[Transcript]:
        """Hold one conversation until its typed answer, a malformed turn, or the last turn. It begins with the role's
        brief, and `more` below that."""
        team = self.team
        full = team.settings.prompts == "full"
        coins = tuple(map(context.mask.alias, context.symbols))
        tools = role.schemas
        if full:  # a grammar needs the whole schema, and an endpoint is to read the short one
            tools = (callable_tools if team.settings.schemas_in_prompt else listed_tools)(role, coins)
        elif team.settings.sampling.constrained:
            tools = constrained_tools(role, coins)
        conversation = Conversation(
            team.codec,
            role.key,
            ordinal,
            team.version_of(role.key),
            instructions(role, context) if full else role.system,
            "\n".join(filter(None, (opening(role, context) if full else role.brief(context), more))),
            self._listed(role, coins) if team.settings.schemas_in_prompt else (),
        )
        types, turns, sampling = role.argument_types(), role.turns(len(context.symbols)), self._sampling(role, context)
        called: Counter[tuple[str, str]] = Counter()
        requests = turn = free = 0
        while turn < turns:
            if full and turn == turns - 1:  # nothing else could still help
                tools = tuple(tool for tool in tools if tool["function"]["name"] == role.answer.name)
            obstacle = self._obstacle(conversation, sampling.room)
            if obstacle is not None:
                return conversation.finish(asked, None, obstacle)
            seed = derive_seed(self.seed, role.key, ordinal, requests)
            requests, turn = requests + 1, turn + 1
            ids = tuple(conversation.ids)
            [completion] = yield [Request(role.key, ids, sampling, seed, tools)]
            cost = self.ledger.book(role.key, completion.usage) if self.ledger else 0.0
            text = conversation.add_completion(completion, cost)
            if completion.failure is not None:
                return conversation.finish(asked, None, f"engine_failed: {completion.failure}")
            call: ToolCall | MalformedCall = MalformedCall("cut_off", "no end within the token limit")
            if completion.finished:
                call = team.codec.parse(text, types)
            if isinstance(call, ToolCall):
                call = self._check_symbol(call)
            conversation.calls.append(CalledTurn(call))
            if isinstance(call, MalformedCall):
                if conversation.retries == team.settings.retries or not completion.finished:
                    return conversation.finish(asked, None, f"{call.code}: {call.detail}")
                conversation.add_tool_response({"error": call.code, "detail": call.detail}, retry=True)
                continue
            if call.name == role.answer.name:
                return conversation.finish(asked, call.arguments.model_dump(exclude_none=True), None)
            run = role.tool(call.name).run
            wanted = (call.name, call.arguments.model_dump_json())
            begun = len(self.sub_transcripts)
            if full and called[wanted]:  # small models ask the same again and again
                result: dict[str, Any] = {"note": f"you have this result already; call {role.answer.name}"}
                if type(call.arguments) is NoArguments:
                    tools = tuple(tool for tool in tools if tool["function"]["name"] != call.name)
                if called[wanted] > 1:  # only the first time costs a turn; and in the end nothing is left but to answer
                    turn, free = (turn - 1, free + 1) if free < turns else (max(turn, turns - 1), free)
            elif run is not None:
                result = run(context, call.arguments)
            elif isinstance(call.arguments, AskSeveral):
                result = yield from self.delegate_all(call.arguments)
            else:
                result = yield from self.delegate(call)
            called[wanted] += 1
            if run is None:  # only the manager consults, one turn after the other
                conversation.calls[-1] = CalledTurn(call, len(self.sub_transcripts) - begun)
            if full and turn == turns - 1:
                result = {**result, "last_turn": f"call {role.answer.name} now"}
            conversation.add_tool_response(result, tool=call.name)
        return conversation.finish(asked, None, f"no_answer: no {role.answer.name} within {turns} turns")

    def _listed(self, role: Role, coins: tuple[str, ...]) -> tuple[dict[str, Any], ...]:
        """The schemas that the system turn of `role` lists."""
        return listed_tools(role, coins) if self.team.settings.prompts == "full" else role.schemas

    def _sampling(self, role: Role, context: ToolContext) -> Sampling:
        """How a role is sampled. What is said of several coins in one answer grows with their number."""
        sampling = self.team.settings.sampling
        coins = len(context.symbols) if context.portfolio and role is self.team.manager else 1
        return replace(sampling, max_tokens=sampling.max_tokens + TOKENS_PER_COIN * (coins - 1))

    def _obstacle(self, conversation: Conversation, answer: int) -> str | None:
        """Why the conversation cannot have another turn of up to `answer` tokens, None where it can."""
        settings = self.team.settings
        room = settings.context_tokens - answer
        if settings.context_tokens and not conversation.make_room(room):
            length = len(conversation.ids)
            return f"no_room: {length} tokens and {answer} for the answer are too many"
        return None

    def delegate(self, call: ToolCall) -> AgentTask[dict[str, Any]]:
        """Let the sub-agent behind `call` answer. A verdict of RiskAnalyst and a plan of Trader are binding."""
        transcript = yield from self._ask(call)
        self.sub_transcripts.append(transcript)
        return self._apply_answer(call, transcript)

    def delegate_all(self, several: AskSeveral) -> AgentTask[dict[str, Any]]:
        """Let the sub-agents answer several questions side by side. The answers are applied in the order of the
        questions, not in the order of arrival."""
        calls = [ToolCall(f"consult_{question.ask}", question) for question in several.questions]
        transcripts = yield from side_by_side([self._ask(call) for call in calls])
        self.sub_transcripts += transcripts
        answers = [self._apply_answer(call, transcript) for call, transcript in zip(calls, transcripts, strict=True)]
        asked = [{"ask": question.ask, "symbol": question.symbol} for question in several.questions]
        return {"answers": [question | answer for question, answer in zip(asked, answers, strict=True)]}

    def _ask(self, call: ToolCall) -> AgentTask[Transcript]:
        """Hold the conversation that `call` opens."""
        role, question = self.team.sub_agents[call.name], call.arguments
        assert isinstance(question, AskAnalyst | AskAboutPosition)
        asked = {"symbol": self._symbol(question), **_position_of(question)}
        return (yield from self.converse(role, replace(self.context, **asked), asked, self._ordinal(role)))

    def _ordinal(self, role: SubAgent) -> int:
        """The number of the role's next conversation."""
        ordinal = self._calls.get(role.key, 0)
        self._calls[role.key] = ordinal + 1
        return ordinal

    def _apply_answer(self, call: ToolCall, transcript: Transcript) -> dict[str, Any]:
        """The answer as the manager reads it; a verdict or a plan is binding from now on."""
        role = self.team.sub_agents[call.name]
        self.bind(role, transcript)
        answer = role.typed(transcript.answer)
        reply = {"error": "no valid answer"} if answer is None else role.reply(answer)
        return in_words(reply) if role.key == "trader" else reply

    def bind(self, role: SubAgent, transcript: Transcript) -> None:
        """Keep what was answered about proposed positions as caps and plans.

        Every verdict counts, so that RiskAnalyst cannot be asked until it approves. Where it gave no valid answer, the
        position may not grow. Of Trader's plans the newest holds: none of them is larger than another.
        """
        if role.key in self.team.advisory:
            return
        asked, answer = transcript.brief, role.typed(transcript.answer)
        if "side" not in asked:
            return
        place = asked["symbol"], asked["side"]
        if isinstance(answer, Execution):
            self._plans[place] = answer
        elif isinstance(answer, Verdict):
            limit = 0.0 if answer.verdict == "veto" else math.inf if answer.to is None else answer.to
            cap = _Cap(answer.verdict, answer.cap(asked["exposure"]), limit, transcript.ordinal)
            self._caps.setdefault(place, []).append(cap)
        elif answer is None and role.answer.arguments is Verdict:
            held = max(self.context.held(asked["symbol"]) * (1.0 if asked["side"] == "long" else -1.0), 0.0)
            self._caps.setdefault(place, []).append(_Cap("invalid", held, held, transcript.ordinal))

    def _symbol(self, question: Question) -> str:
        symbol = self.context.mask.symbol(question.symbol)
        assert symbol is not None  # _check_symbol has refused the others
        return symbol

    def _check_symbol(self, call: ToolCall) -> ToolCall | MalformedCall:
        """Names of coins come from the model; one that does not exist, or is not asked about here, is malformed."""
        arguments = call.arguments
        named: list[str] = []
        if isinstance(arguments, AskAnalyst | AskAboutPosition):
            named = [arguments.symbol]
        elif isinstance(arguments, OfCoin):
            named = [arguments.symbol] if arguments.symbol else []
        elif isinstance(arguments, AskSeveral):
            named = [question.symbol for question in arguments.questions]
        elif isinstance(arguments, WhatIfBook):
            named = [entry.symbol for entry in arguments.positions]
        elif isinstance(arguments, Decision):
            named = [position.symbol for position in arguments.positions]
        for alias in named:
            if self.context.mask.symbol(alias) not in self.context.symbols:
                known = ", ".join(map(self.context.mask.alias, self.context.symbols))
                return MalformedCall("unknown_symbol", f"no coin {alias!a} to decide on; there are {known}")
        return call

    def orders_of(self, manager: Transcript) -> tuple[list[Order], list[Ruling]]:
        """The manager's positions as orders: capped by RiskAnalyst's verdicts, timed by Trader's plans."""
        if manager.answer is None:
            return [], []
        orders: list[Order] = []
        rulings: list[Ruling] = []
        for position in Decision.model_validate(manager.answer).changes:
            symbol = self.context.mask.symbol(position.symbol)
            assert symbol is not None
            exposure = position.signed() * self.context.share
            caps = self._caps.get((symbol, position.side), [])
            strictest, asked = _strictest(caps), position.exposure
            if strictest is not None and asked > strictest[0]:
                most, by = strictest
                rulings.append(Ruling(symbol, position.side, asked, most, by.verdict, by.ordinal, len(caps)))
                exposure *= most / asked
            plan = self._plans.get((symbol, position.side))
            orders += self._orders_for(symbol, exposure, position, plan)
        return orders, rulings

    def _orders_for(self, symbol: str, exposure: float, position: Position, plan: Execution | None) -> list[Order]:
        orders = orders_for_target(
            self.context.view,
            self.context.account,
            symbol,
            exposure,
            stop_fraction=None if position.stop is None else position.stop / 100,
            target_fraction=None if position.target is None else position.target / 100,
            delays=(0,) if plan is None else plan.delays(),
        )
        if plan is None:
            return orders
        account = self.context.account
        rules = account.rules.get(symbol, SymbolRules())
        return plan.placed(orders, self.context.view.last_close(symbol), rules, account.positions[symbol])


def _position_of(question: Question) -> dict[str, Any]:
    """Side and exposure of a question about a position."""
    return {} if isinstance(question, AskAnalyst) else {"side": question.side, "exposure": question.exposure}


@dataclass(frozen=True)
class _Cap:
    """What one verdict allows: `exposure` of what was proposed, and nothing above `limit` whatever is proposed."""

    verdict: str
    exposure: float
    limit: float
    ordinal: int


def _strictest(caps: Sequence[_Cap]) -> tuple[float, _Cap] | None:
    """The exposure that all the verdicts on one symbol and side allow together, and the one that decides it.

    It is the smallest limit. Within that, the largest position that was allowed: to approve a small one says nothing
    against a larger one that is approved as well.
    """
    if not caps:
        return None
    allowed, limit = max(caps, key=lambda cap: cap.exposure), min(caps, key=lambda cap: cap.limit)
    return (allowed.exposure, allowed) if allowed.exposure < limit.limit else (limit.limit, limit)


def replayable_roles(team: Team) -> tuple[str, ...]:
    """The sub-agents whose answers act through code, in the team's order."""
    return tuple(role.key for role in team.sub_agents.values() if acts_through_code(role))


def acts_through_code(role: Role) -> bool:
    """Whether a role's answers bind by code, and not by what others read in them."""
    return role.answer.arguments in (Verdict, Execution)


def has_effect(team: Team, transcript: Transcript) -> bool:
    """Whether a consultation counts in a replay: RiskAnalyst's answers do even where they are not valid, since then the
    position may not grow."""
    role = team.sub_agents.get(f"consult_{transcript.role}")
    if role is None or not acts_through_code(role):
        return False
    return transcript.valid or role.answer.arguments is Verdict


def replay(
    team: Team, decision: TeamDecision, view: MarketView, account: AccountView, guard: Guard, roles: Collection[str]
) -> list[Order]:
    """The orders, after the guard, in which of the binding consultations only those of `roles` count. No model is
    asked. The decision must have been on all of the equity, and first at its bar.

    Code makes the orders from the manager's answer, RiskAnalyst's caps and Trader's plans, so it can make them again
    without some of these. MarketAnalyst only advises: what the manager would have answered without the advice is not
    known. So a replay measures a role's *binding effect*, given the whole conversation. With all of `replayable_roles`
    it is `decision.orders`, for the view, the account and a guard as they were when it was taken.
    """
    session = _DecisionSession(team, team.context(view, account, decision.symbols, 1.0), 0)
    for transcript in decision.transcripts[1:]:
        if transcript.role in roles:
            session.bind(team.sub_agents[f"consult_{transcript.role}"], transcript)
    orders, _ = guard.review(view, account, session.orders_of(decision.manager)[0], ())
    return orders


def side_by_side(tasks: Sequence[AgentTask[_T]]) -> AgentTask[list[_T]]:
    """Run several tasks at the same time and return their results in order. Their requests go out together."""
    results: dict[int, _T] = {}
    asked: dict[int, Sequence[Request]] = {}

    def advance(number: int, answers: Sequence[Completion] | None) -> None:
        try:
            asked[number] = next(tasks[number]) if answers is None else tasks[number].send(answers)
        except StopIteration as stop:
            results[number] = stop.value

    for number in range(len(tasks)):
        advance(number, None)
    while asked:
        now, asked = asked, {}
        said = iter((yield [request for requests in now.values() for request in requests]))
        for number, requests in now.items():
            advance(number, [next(said) for _ in requests])
    return [results[number] for number in range(len(tasks))]


def derive_seed(*parts: object) -> int:
    """A seed of 63 bits from any identifying parts; distinct parts give independent seeds."""
    digest = hashlib.blake2b("|".join(str(part) for part in parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
