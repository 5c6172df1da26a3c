"""A decision's tree in sentences, line by line, as a conversation that people can follow: on the page, in reports and
in the terminal; and two of them row by row.

Everything that models and news said is untrusted text: it comes out as plain strings, to be shown as such.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from textwrap import indent
from typing import Any

from pydantic import JsonValue

from backend.decisions.backtest_document import RejectionDocument
from backend.decisions.document import StoredDecision
from backend.decisions.tree import ConversationNode, DecisionTree
from backend.reporting.labels import ABSENT, number_text
from cryptosentinel.agents.manager import AskAboutPosition, AskAnalyst, AskSeveral, Decision, Position
from cryptosentinel.agents.market_analyst import Analysis
from cryptosentinel.agents.registry import SUB_AGENTS, answers, role_title
from cryptosentinel.agents.risk_analyst import Verdict
from cryptosentinel.agents.trader import Execution
from cryptosentinel.protocol.tool_calls import Arguments, MalformedCall, ToolCall
from cryptosentinel.protocol.untrusted import visible
from simulator.documents import parse_json
from simulator.exchange.exchange_records import Fill
from simulator.exchange.orders import Order
from simulator.market.timeframes import format_time

NOTHING_HERE = "–"
_COUNTED = ("prompt", "sampled", "read", "turns")


@dataclass(frozen=True)
class Line:
    """One thing that was said or done.

    `speaker` is a role's key, or "desk" (the situation that the team is given), "tool" (what code answered), "guard",
    "orders" or "result". `depth` is 1 inside a consultation. `raw` is the exact text behind `text`, empty where
    there is none; what a conversation began with stands in its first line's. `note` says what a whole conversation
    took, at its last line.
    """

    speaker: str
    title: str
    text: str
    raw: str = ""
    depth: int = 0
    problem: bool = False
    note: str = ""


def narrate(tree: DecisionTree) -> list[Line]:
    """The whole decision: what was said, what RiskAnalyst and the guard changed, the orders, what the account made."""
    return [*conversation_lines(tree), *consequences(tree)]


def transcript(decision: StoredDecision, tree: DecisionTree) -> str:
    """All of it as plain text, with the exact words, for a terminal or a file. No escape sequence of a model's is in
    it."""
    version = "" if tree.manager is None else tree.manager.document.policy_version
    parts = [
        f"{decision.run}: decision {decision.ordinal} of {decision.backtest} at {format_time(decision.time)} UTC, "
        f"policy {version or ABSENT}",
        *decision_facts(tree),
        *(["nothing was said"] if tree.manager is None else []),
    ]
    for line in narrate(tree):
        words = f"{line.title}: {line.text}"
        words += f"\nexact words: {line.raw}" if line.raw and line.raw != line.text else ""
        words += f"\n{line.note}" if line.note else ""
        parts.append(indent(words, "    " * line.depth))
    return visible("\n".join(parts))


def decision_facts(tree: DecisionTree) -> list[str]:
    """What is known beside the words: the names behind the aliases, and what all conversations took."""
    names = [f"{alias} is {symbol}" for alias, symbol in tree.names.items() if alias != symbol]
    if tree.manager is None:
        return [f"tokens {ABSENT}"]
    usages = [node.document.usage for node in tree.manager.everyone()]
    prompt, sampled, read, turns = (sum(getattr(one, key) for one in usages) for key in _COUNTED)
    money = math.fsum(one.cost for one in usages)
    cost = f"all conversations: {prompt + sampled:,} tokens, {sampled:,} of them sampled; {read:,} read in "
    cost += f"{turns:,} turns" + (f"; cost {money:.4g}" if money else "")
    return [*([", ".join(names)] if names else []), cost]


def headline(tree: DecisionTree) -> str:
    """One line: what was decided, what RiskAnalyst and the guard left of it, and the change of equity up to the next
    decision."""
    names, positions = tree.names, tree.positions
    if positions is None:
        decided = "no valid answer, so no change"
    else:
        asked_about = f" in {', '.join(names.values())}" if names else ""
        decided = "; ".join(_position(position, names) for position in positions) or f"no change{asked_about}"
    cut = _cut(tree)
    earned = tree.document.net_return
    return f"{decided}{cut}" if earned is None else f"{decided}{cut} → account {number_text(earned, 'change')}"


def _cut(tree: DecisionTree) -> str:
    """What RiskAnalyst and the guard left of it, where they changed something."""
    document = tree.document
    cuts = [
        f"RiskAnalyst left {one.side} {one.symbol} {_percent(one.allowed)}"
        for one in document.rulings
        if one.allowed != one.asked
    ]
    symbols = dict.fromkeys(one.symbol or "the account" for one in document.clamps)
    cuts += [f"the guard cut {', '.join(symbols)}"] if symbols else []
    return f" ({'; '.join(cuts)})" if cuts else ""


def conversation_lines(tree: DecisionTree) -> list[Line]:
    """The manager's situation, questions and decision; each answer stands behind its question, one level deeper."""
    return [] if tree.manager is None else list(_conversation(tree.manager, tree.names, 0))


def consequences(tree: DecisionTree) -> list[Line]:
    """What followed from the words: cuts by RiskAnalyst and the guard, orders, and what they earned."""
    lines: list[Line] = []
    document = tree.document
    for ruling in document.rulings:
        asked, allowed = _percent(ruling.asked), _percent(ruling.allowed)
        text = f"My verdict binds: {ruling.side} {ruling.symbol} goes from {asked} to {allowed}."
        if ruling.verdict == "invalid":
            several = f"One of my {ruling.verdicts} answers was not a valid verdict"
            what = several if ruling.verdicts > 1 else "I gave no valid verdict"
            text = f"{what}, so {ruling.side} {ruling.symbol} may not grow: {allowed} instead of {asked}."
        elif ruling.verdicts > 1:
            text += f" It is the strictest of {ruling.verdicts}."
        lines.append(Line("risk_analyst", role_title("risk_analyst"), text, json.dumps(ruling.model_dump())))
    for clamp in document.clamps:
        text = f"{clamp.symbol or 'Account'}: {clamp.detail} (rule {clamp.rule})."
        lines.append(Line("guard", "Guard", text, json.dumps(clamp.model_dump())))
    if document.orders and not document.clamps:
        lines.append(Line("guard", "Guard", "Within the hard limits: nothing was changed."))
    text = "\n".join(_order(order) for order in document.orders) or "None. What is held stays."
    raw = json.dumps([asdict(order) for order in document.orders]) if document.orders else ""
    lines.append(Line("orders", "Orders", text, raw))
    if document.orders and tree.fills is not None and tree.rejections is not None:
        events = [_fill(fill) for fill in tree.fills] + [_rejection(one) for one in tree.rejections]
        lines.append(Line("orders", "Fills", "\n".join(events) or "None."))
    for later in document.later:
        text = f"{format_time(later.time)} UTC, {later.symbol or 'account'}: {later.detail} (rule {later.rule})."
        lines.append(Line("guard", "Guard, later", text, json.dumps(later.model_dump())))
    if document.net_return is not None:
        before, after = document.equity_before, document.equity_after
        text = f"The account's change up to the next decision: {number_text(document.net_return, 'change')}"
        text += f", from {before:,.2f} to {after:,.2f}." if before is not None and after is not None else "."
        lines.append(Line("result", "What it earned", text, problem=document.net_return < 0))
    return lines


def question_sentence(node: ConversationNode) -> str:
    """What a consultation was asked about, in a line; empty for the manager's conversation."""
    return _about(node.document.asked) if node.document.asked else ""


def answer_sentence(node: ConversationNode, names: dict[str, str]) -> str:
    """What a conversation came to: its valid answer as a sentence, or why there is none."""
    for turn in reversed(node.turns):
        if isinstance(turn.call, ToolCall) and answers(node.role, turn.call) and node.document.answer is not None:
            return _sentence(turn.call, turn.content, names)
    return f"No valid answer: {node.document.problem or 'no reason is stored'}"


def _used(node: ConversationNode) -> str:
    """What a conversation took and how sure its words were."""
    usage = node.document.usage
    sure = ABSENT if usage.mean_logp is None else f"{usage.logp:.3f}, {usage.mean_logp:.4f} a token"
    more = f"; cost {usage.cost:.4g}" if usage.cost else ""
    if usage.thought:
        cut = f", {usage.thoughts_cut} cut off at their budget" if usage.thoughts_cut else ""
        more += f"; {usage.thought:,} tokens were thoughts{cut}"
    if usage.dropped:
        more += f"; {usage.dropped} old results dropped to make room, and what was said before is not counted"
    return (
        f"policy {node.document.policy_version or ABSENT}; tokens: {usage.prompt:,} given, {usage.sampled:,} sampled; "
        f"{usage.read:,} read in "
        f"{usage.turns:,} turns; log-probability {sure}{more}"
    )


def _about(asked: JsonValue) -> str:
    """One question: the coin, and the position that is proposed."""
    match asked:
        case {"symbol": str(symbol), "side": str(side), "exposure": int() | float() as exposure} if exposure:
            return f"{side} {symbol} {_percent(float(exposure))}"
        case {"symbol": str(symbol)}:
            return symbol
    return ""


def _conversation(node: ConversationNode, names: dict[str, str], depth: int) -> Iterator[Line]:
    """One conversation in order, with what was consulted in it."""
    role, title = node.role, role_title(node.role)
    given = f"{node.system}\n\n{node.prompt}".strip()
    if depth == 0 and node.prompt:
        yield Line("desk", "Situation", _named(node.prompt, names), given)
        given = ""
    problem = node.document.problem
    for number, turn in enumerate(node.turns, 1):
        call, content = turn.call, turn.content
        exact = "\n\n".join(part for part in (given, turn.thought, content, turn.result) if part)
        given = ""
        note = _used(node) if number == len(node.turns) and not problem else ""
        sentence = _sentence(call, content, names)
        looks_up = isinstance(call, ToolCall) and not turn.consulted and not answers(role, call)
        if looks_up and turn.result is not None:
            shown = _result(turn.result, names)
            yield Line("tool", f"{title} {sentence}", shown, exact, depth, note=note)
        else:  # what a consultation answers has lines of its own
            yield Line(role, title, sentence, exact, depth, isinstance(call, MalformedCall), note)
        for other in turn.consulted:
            yield from _conversation(other, names, depth + 1)
    if problem:
        cut = ", cut off at the token limit" if node.document.truncated else ""
        text = f"This answer could not be used ({problem}{cut}). It counts as no answer."
        yield Line(role, title, text, "", depth, problem=True, note=_used(node))


def _question(consult: str, question: AskAnalyst | AskAboutPosition, names: dict[str, str]) -> str:
    """What a sub-agent is asked."""
    asked = SUB_AGENTS[consult]
    if isinstance(question, AskAnalyst):
        return f"{asked.title}, where is {_name(question.symbol, names)} going?"
    wish = f"{question.side} {_name(question.symbol, names)} with {_percent(question.exposure)}"
    if not question.exposure:
        wish = f"nothing of {_name(question.symbol, names)}"
    return f"{asked.title}, {f'may I hold {wish}?' if asked.key == 'risk_analyst' else f'how would you trade {wish}?'}"


def _sentence(call: ToolCall | MalformedCall, content: str, names: dict[str, str]) -> str:
    """A call in a sentence; what is not a valid call, as it stands."""
    if isinstance(call, MalformedCall):
        return content or "(said nothing)"
    arguments = call.arguments
    if isinstance(arguments, AskAnalyst | AskAboutPosition):
        return _question(call.name, arguments, names)
    if isinstance(arguments, AskSeveral):
        return "\n".join(_question(f"consult_{one.ask}", one, names) for one in arguments.questions)
    if isinstance(arguments, Decision):
        positions = "\n".join(
            _position(position, names) + (f": {position.reason}" if position.reason else "")
            for position in arguments.positions
        )
        return f"My decision:\n{positions}" if positions else "My decision: no change."
    said = _said(arguments)
    if said is not None:
        return said
    given = arguments.model_dump(exclude_none=True)
    return f"looks up {call.name}" + (f" ({_plain(given, names)})" if given else "")


def _said(answer: Arguments) -> str | None:
    """A sub-agent's answer about one coin in a sentence; None for anything else."""
    if isinstance(answer, Analysis):
        down, flat, up = map(_percent, answer.distribution())
        return f"Up {up}, flat {flat}, down {down}."
    if isinstance(answer, Verdict):
        limit = f" to {_percent(answer.to)}" if answer.to is not None else ""
        return f"{answer.verdict.capitalize()}{limit}. In one case of 20 it loses {answer.loss:g} % or more."
    if isinstance(answer, Execution):
        begin = "at once" if answer.wait == 0 else f"after {_count(answer.wait, 'bar')}"
        parts = "in one order" if answer.slices == 1 else f"in {answer.slices} equal orders, one a bar"
        if answer.offset is not None:
            rest = "" if answer.rest is None else f", to rest for {_count(answer.rest, 'bar')}"
            return f"With limits {answer.offset:g} % better than the price, {begin}, {parts}{rest}."
        return f"At the market, {begin}, {parts}."
    return None


def _position(position: Position, names: dict[str, str]) -> str:
    if position.side == "flat" or not position.exposure:  # a short of nothing is no position
        return f"flat in {_name(position.symbol, names)}"
    text = f"{position.side} {_name(position.symbol, names)} {_percent(position.exposure)}"
    brackets = [
        f"{word} {level:g} % away" for word, level in (("stop", position.stop), ("target", position.target)) if level
    ]
    return f"{text} ({', '.join(brackets)})" if brackets else text


def _order(order: Order) -> str:
    side = "Buy" if order.quantity > 0 else "Sell"
    when = "at the next open" if not order.delay else f"after {_count(order.delay, 'bar')} of waiting"
    text = f"{side} {abs(order.quantity):.6g} {order.symbol} {when}"
    for word, level in (("stop", order.stop), ("target", order.target)):
        if level is not None:
            text += f", {word} {level:.6g}"
    return text + (", only to reduce." if order.reduce_only else ".")


def _fill(fill: Fill) -> str:
    side = "bought" if fill.quantity > 0 else "sold"
    why = "" if fill.reason == "order" else f" by {fill.reason}"
    return (
        f"{format_time(fill.time)} {side} {abs(fill.quantity):.6g} {fill.symbol} at {fill.price:.6g}{why}, "
        f"fee {fill.fee:.4g}, spread {fill.spread_cost:.4g}"
    )


def _rejection(rejection: RejectionDocument) -> str:
    return f"not executed: {rejection.symbol} {rejection.reason}, {rejection.detail}"


def _result(content: str, names: dict[str, str]) -> str:
    """A tool's JSON as text; anything else as it stands."""
    try:
        value = parse_json(content)
    except ValueError:
        return content
    return _plain(value, names) if isinstance(value, dict) else content


def _plain(value: Any, names: dict[str, str]) -> str:
    if isinstance(value, dict):
        if value.keys() == {"age", "text"}:  # a headline
            return f"“{value['text']}” ({_count(value['age'], 'day')} old)"
        return " · ".join(f"{key} {_plain(item, names)}" for key, item in value.items())
    if isinstance(value, list):
        return "".join(f"\n– {_plain(item, names)}" for item in value)
    return _name(value, names) if isinstance(value, str) else str(value)


def _name(alias: str, names: dict[str, str]) -> str:
    return names.get(alias, alias)


def _named(text: str, names: dict[str, str]) -> str:
    """The desk's own text with the real names beside the neutral ones."""
    for alias, name in names.items():
        if alias != name:
            text = text.replace(f"{alias}:", f"{name} (shown to the team as {alias}):")
    return text


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


@dataclass(frozen=True)
class PairedRow:
    """One thing in both decisions; `NOTHING_HERE` where one of them does not have it."""

    label: str
    then: str
    now: str

    @property
    def differs(self) -> bool:
        return self.then != self.now


def paired_rows(then: DecisionTree, now: DecisionTree) -> list[PairedRow]:
    """What was decided, every consultation by its number, then guard, orders and outcome."""
    before, after = _facts(then), _facts(now)
    labels = dict.fromkeys([*before, *after])
    return [PairedRow(label, before.get(label, NOTHING_HERE), after.get(label, NOTHING_HERE)) for label in labels]


def _facts(tree: DecisionTree) -> Mapping[str, str]:
    facts: dict[str, str] = {}
    if tree.manager is not None:
        facts = {"Situation": tree.manager.prompt, "Decision": ""}
        everyone = [node for node in tree.manager.everyone() if node is not tree.manager]
        for node in everyone:
            question = question_sentence(node)
            reported = f"on {question}: " if question else ""
            facts[f"{role_title(node.role)} {node.document.ordinal + 1}"] = reported + answer_sentence(node, tree.names)
    facts["Decision"] = headline(tree).partition(" → ")[0]
    for line in consequences(tree):
        if line.title == "Fills":  # those of a backtest, which a replayed decision has not
            continue
        label = line.title if line.speaker != "risk_analyst" else f"{line.title} binds"
        facts[label] = f"{facts[label]}\n{line.text}" if label in facts else line.text
    return facts
