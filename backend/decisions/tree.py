"""A stored decision as a tree: who asked whom, with what words, and what came of it.

Nothing is parsed, judged or shortened here: each turn was read when it was said.
`backend.reporting.decision_narrative` has the tree in sentences. What models and news said is untrusted: show it
through `cryptosentinel.protocol.untrusted.visible`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import cast

from backend.decisions.backtest_document import BacktestDocument, RejectionDocument, StoredBacktest
from backend.decisions.document import ConversationDocument, DecisionDocument, Message, StoredDecision, read_decisions
from backend.store.store import Store
from cryptosentinel.agents.manager import AskAboutPosition, AskAnalyst, AskSeveral, Decision, Position
from cryptosentinel.agents.registry import SPEAKERS
from cryptosentinel.protocol.tool_calls import Arguments, Code, MalformedCall, ToolCall, check_call
from simulator.errors import UserError
from simulator.exchange.exchange_records import Fill

_COIN = re.compile(r"^(\S+): held ", re.MULTILINE)  # a coin's line in the manager's brief


@dataclass(frozen=True)
class Turn:
    """One turn of a model: its exact words, the call that they are or why it is not a call, what came back (None where
    nothing did), the conversations that it opened, none or one, or several side by side, and the thought before it."""

    content: str
    call: ToolCall | MalformedCall
    result: str | None
    consulted: tuple[ConversationNode, ...]
    thought: str = ""


@dataclass(frozen=True)
class ConversationNode:
    """One conversation of one role: its document, the words before its first turn, and its turns."""

    document: ConversationDocument
    system: str
    prompt: str
    turns: tuple[Turn, ...]

    @property
    def role(self) -> str:
        return self.document.role

    def everyone(self) -> Iterator[ConversationNode]:
        """This conversation and all below it, in the order in which they began."""
        yield self
        for turn in self.turns:
            for other in turn.consulted:
                yield from other.everyone()


@dataclass(frozen=True)
class DecisionTree:
    """A decision with its conversations in place, and what followed. `manager` is None where nothing was said; `fills`
    and `rejections` are those of its orders, None where the result of that backtest is not stored."""

    document: DecisionDocument
    manager: ConversationNode | None
    fills: tuple[Fill, ...] | None = None
    rejections: tuple[RejectionDocument, ...] | None = None

    @property
    def positions(self) -> tuple[Position, ...] | None:
        """What the manager decided; None without a valid answer."""
        answer = None if self.manager is None else self.manager.document.answer
        return None if answer is None else tuple(Decision.model_validate(answer).changes)

    @cached_property
    def names(self) -> dict[str, str]:
        """What is known of the neutral names under which the team sees the coins, as `C1` -> `BTCUSDT`."""
        if self.manager is None:
            return {}
        symbols = self.document.symbols
        names = dict(zip(_COIN.findall(self.manager.prompt), symbols, strict=False))
        for turn in self.manager.turns:
            arguments = turn.call.arguments if isinstance(turn.call, ToolCall) else None
            questions = arguments.questions if isinstance(arguments, AskSeveral) else [arguments]
            for question, other in zip(questions, turn.consulted, strict=False):
                symbol = other.document.asked.get("symbol")
                if isinstance(question, AskAnalyst | AskAboutPosition) and isinstance(symbol, str):
                    names[question.symbol] = symbol
        return names


def decision_tree(decision: DecisionDocument) -> DecisionTree:
    """The tree of a decision, each consultation at the place where it was asked."""
    conversations = decision.conversations
    manager = _node(conversations[0], iter(conversations[1:])) if conversations else None
    return DecisionTree(decision, manager)


def traced_tree(
    tree: DecisionTree, decision: StoredDecision, decisions: Sequence[StoredDecision], result: BacktestDocument | None
) -> DecisionTree:
    """The `tree` of one of a team's `decisions` with what became of its orders in `result`, that of their backtest,
    where it is stored.

    An order of a later decision on the same coin replaces what still waits of it, so up to there the coin's fills are
    this decision's, those of its stop and target included. Bars are identified by their closing times.
    """
    if result is None:
        return tree
    bar_of = {time: result.start + row for row, time in enumerate(result.times)}
    begin, last = bar_of.get(decision.time), result.start + len(result.times)
    if begin is None:  # another window than the one whose result is stored
        return replace(tree, fills=(), rejections=())
    fills: list[Fill] = []
    rejections: list[RejectionDocument] = []
    orders = decision.document.orders
    for symbol in dict.fromkeys(order.symbol for order in orders):
        later = (
            bar_of.get(other.time, last)
            for other in decisions
            if other.time > decision.time and any(order.symbol == symbol for order in other.document.orders)
        )
        end = min(later, default=last)
        own = [order for order in orders if order.symbol == symbol]
        fills += [fill for fill in result.fills if fill.symbol == symbol and begin < fill.bar <= end]
        rejections += [one for one in result.rejections if begin <= one.bar <= end and any(map(one.is_of, own))]
    return replace(tree, fills=tuple(sorted(fills, key=lambda fill: fill.bar)), rejections=tuple(rejections))


def find_decision(
    store: Store, run_id: str, number: int, team: str | None, *, option: str = "--team"
) -> tuple[StoredDecision, DecisionTree]:
    """Decision `number` of `team` in a run, with its tree. Without `team` it is the only one that has decisions;
    `option` is the one with which a command names it.

    Raises `UserError` where there is no such run, team or decision, and says what there is.
    """
    store.run(run_id)  # the message about an unknown run lists those there are
    decisions = read_decisions(store, run_id)
    available = describe_decisions(decisions)
    if not decisions:
        raise UserError(
            f"run {run_id} stores no decisions: only backtests and evaluations of teams do, so choose one of those "
            "with `cryptosentinel runs`"
        )
    by_team: dict[str, list[StoredDecision]] = {}
    for decision in decisions:
        by_team.setdefault(decision.backtest, []).append(decision)
    if team is None and len(by_team) > 1:
        raise UserError(f"run {run_id} has decisions of several teams: choose one with {option}; there are {available}")
    of_team = by_team.get(team or next(iter(by_team)))
    chosen = next((decision for decision in of_team or [] if decision.ordinal == number), None)
    if of_team is None or chosen is None:
        missing = f"decisions of '{team}'" if of_team is None else f"decision {number}"
        raise UserError(f"run {run_id} has no {missing}; there are {available}")
    # An evaluation's episodes are numbered below the team, and the result of the first is stored.
    names = (chosen.backtest, chosen.backtest.rpartition("/")[0])
    record = next((record for record in store.backtests(run_id) if record.name in names), None)
    result = None if record is None else StoredBacktest.from_record(record).document
    return chosen, traced_tree(decision_tree(chosen.document), chosen, of_team, result)


def describe_decisions(decisions: Sequence[StoredDecision]) -> str:
    """Which decisions there are: "0 to 59 of scripted, ..."."""
    numbers: dict[str, list[int]] = {}
    for decision in decisions:
        numbers.setdefault(decision.backtest, []).append(decision.ordinal)
    return ", ".join(f"{min(ordinals)} to {max(ordinals)} of {name}" for name, ordinals in numbers.items())


def _call_of(message: Message, types: dict[str, type[Arguments]]) -> ToolCall | MalformedCall:
    """The stored call of a turn with arguments of their types."""
    said = message.call
    if said is None:
        return MalformedCall("engine_failed", "the request failed before its turn was whole")
    if said.tool:
        return check_call(said.tool, said.arguments, types)
    return MalformedCall(cast(Code, said.code), said.detail)


def _node(conversation: ConversationDocument, others: Iterator[ConversationDocument]) -> ConversationNode:
    """One conversation; `others` are the consulted ones that have no place yet."""
    role, messages = conversation.role, conversation.messages
    types = SPEAKERS[role].argument_types() if role in SPEAKERS else {}
    turns: list[Turn] = []
    for number, message in enumerate(messages):
        if message.role == "assistant":
            opened = 0 if message.call is None else message.call.opened
            consulted = tuple(_node(other, iter(())) for other in islice(others, max(0, opened)))
            answered = number + 1 < len(messages) and messages[number + 1].role == "tool"
            result = messages[number + 1].content if answered else None
            turns.append(Turn(message.content, _call_of(message, types), result, consulted, message.thought))
    words = {message.role: message.content for message in messages}  # of each kind but the turns there is one
    return ConversationNode(conversation, words.get("system", ""), words.get("user", ""), tuple(turns))
