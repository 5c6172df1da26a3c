"""A decision's tree as text, for a terminal or a file: every word as it was said."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from backend.decisions.backtest_document import RejectionDocument
from backend.decisions.document import StoredDecision
from backend.decisions.tree import ConversationNode, DecisionTree, Turn
from backend.reporting.decision_narrative import consequences, used
from backend.reporting.labels import ABSENT
from cryptosentinel.agents.registry import answers, role_title
from cryptosentinel.protocol.tool_calls import MalformedCall
from cryptosentinel.protocol.untrusted import visible
from simulator.exchange.exchange_records import Fill
from simulator.market.timeframes import format_time

_WIDTH = 120  # characters of a line in a file


def text_tree(decision: StoredDecision, tree: DecisionTree) -> Tree:
    """The tree for a console. All text is plain: no markup, no escape sequence of a model's reaches the terminal."""
    root = Tree(_text(_heading(decision, tree), "bold"))
    for line in decision_facts(tree):
        root.add(_text(line))
    if tree.manager is None:
        root.add(_text("nothing was said"))
    else:
        _add_conversation(root, tree.manager)
    for title, text in outcome(tree):
        root.add(_text(f"{title}: {text}"))
    return root


def whole_text(decision: StoredDecision, tree: DecisionTree) -> str:
    """The same as plain text, for a file."""
    out = io.StringIO()
    Console(file=out, width=_WIDTH, color_system=None).print(text_tree(decision, tree), highlight=False)
    return out.getvalue()


def decision_facts(tree: DecisionTree) -> list[str]:
    """What is known beside the words: the names behind the aliases, and what all conversations took."""
    names = [f"{alias} is {symbol}" for alias, symbol in tree.names.items() if alias != symbol]
    total = tree.total
    if total is None:
        return [f"tokens {ABSENT}"]
    cost = f"all conversations: {total.prompt + total.sampled:,} tokens, {total.sampled:,} of them sampled; "
    cost += f"{total.read:,} read in {total.turns:,} turns" + (f"; cost {total.cost:.4g}" if total.cost else "")
    return [*([", ".join(names)] if names else []), cost]


def outcome(tree: DecisionTree) -> Iterator[tuple[str, str]]:
    """What followed from the words: rulings, clamps, orders, what became of them, what the account made."""
    last = None
    for line in consequences(tree):
        if line.speaker == "result":
            last = line
        else:
            yield line.title, line.text
    if tree.fills is None or tree.rejections is None:
        yield "Fills", f"{ABSENT}: the result of this backtest is not stored"
    elif tree.document.orders:
        events = [_fill(fill) for fill in tree.fills] + [_rejection(rejection) for rejection in tree.rejections]
        yield "Fills", "\n".join(events) or "none"
    yield ("Outcome", f"{ABSENT}") if last is None else ("Outcome", last.text)


def _asked(node: ConversationNode) -> str:
    """The question that opened a consultation, with real names; empty for the manager's."""
    return json.dumps(node.document.asked, ensure_ascii=False) if node.document.asked else ""


def _called(node: ConversationNode, turn: Turn) -> str:
    """The call that `turn` is, with its arguments; what is not a valid call as it stands, with the reason."""
    if isinstance(turn.call, MalformedCall):
        return f"no valid call ({turn.call.code}: {turn.call.detail}): {turn.content or '(nothing)'}"
    arguments = turn.call.arguments.model_dump(exclude_none=True)
    final = node.document.answer is not None and answers(node.role, turn.call)
    return f"{'answer: ' if final else ''}{turn.call.name} {json.dumps(arguments, ensure_ascii=False)}"


def _problem(node: ConversationNode) -> str:
    """Why a conversation has no answer; empty where it has one."""
    document = node.document
    if document.answer is not None:
        return ""
    return f"no answer: {document.problem or ABSENT}" + (" (cut off at the token limit)" if document.truncated else "")


def _heading(decision: StoredDecision, tree: DecisionTree) -> str:
    version = "" if tree.manager is None else tree.manager.document.policy_version
    return (
        f"{decision.run}: decision {decision.ordinal} of {decision.backtest} at {format_time(decision.time)} UTC, "
        f"policy {version or ABSENT}"
    )


def _add_conversation(branch: Tree, node: ConversationNode) -> None:
    document, question = node.document, _asked(node)
    about = f", asked about {question}" if question else ""
    title = f"{role_title(node.role)} {document.ordinal}, policy {document.policy_version or ABSENT}{about}"
    own = branch.add(_text(title, "bold"))
    own.add(_text(used(node), "dim"))
    own.add(_text(f"system: {node.system}", "dim"))
    own.add(_text(f"prompt: {node.prompt}"))
    for turn in node.turns:
        if turn.thought:
            own.add(_text(f"thought: {turn.thought}", "dim"))
        step = own.add(_text(_called(node, turn)))
        for other in turn.consulted:
            _add_conversation(step, other)
        if turn.result is not None:
            step.add(_text(f"result: {turn.result}"))
    if _problem(node):
        own.add(_text(_problem(node), "red"))


def _fill(fill: Fill) -> str:
    side = "bought" if fill.quantity > 0 else "sold"
    why = "" if fill.reason == "order" else f" by {fill.reason}"
    return (
        f"{format_time(fill.time)} {side} {abs(fill.quantity):.6g} {fill.symbol} at {fill.price:.6g}{why}, "
        f"fee {fill.fee:.4g}, spread {fill.spread_cost:.4g}"
    )


def _rejection(rejection: RejectionDocument) -> str:
    return f"not executed: {rejection.symbol} {rejection.reason}, {rejection.detail}"


def _text(words: str, style: str = "") -> Text:
    return Text(visible(words), style=style, overflow="fold")
