"""A decision's tree on a terminal and as one HTML page, every word as it was said."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich.text import Text
from rich.tree import Tree

from backend.decisions.tree import DecisionTree, Talk, Turn, visible
from backend.reporting.decision_narrative import consequences, real_names
from backend.reporting.labels import ABSENT
from cryptosentinel.agents.registry import ROLES, role_title
from cryptosentinel.protocol.tool_calls import MalformedCall
from simulator.market.timeframes import format_time


def text_tree(decision: DecisionTree) -> Tree:
    """The tree for a console. All text is plain: no markup, no escape sequence of a model's reaches the terminal."""
    root = Tree(_text(_heading(decision), "bold"))
    for line in facts(decision):
        root.add(_text(line))
    if decision.manager is None:
        root.add(_text("nothing was said"))
    else:
        _add_talk(root, decision.manager)
    for title, text in outcome(decision):
        root.add(_text(f"{title}: {text}"))
    return root


def page(decision: DecisionTree) -> str:
    """The tree as one self-contained page without scripts; all text is escaped."""
    environment = Environment(
        loader=PackageLoader("backend.reporting"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )  # fmt: skip
    return environment.get_template("decision.html.j2").render(
        decision=decision,
        heading=_heading(decision),
        facts=facts(decision),
        outcome=outcome(decision),
        asked=asked,
        used=used,
        called=called,
        problem=problem,
    )


def facts(decision: DecisionTree) -> list[str]:
    """What is known beside the words: the names behind the aliases, and what all conversations took."""
    names = [f"{alias} is {symbol}" for alias, symbol in real_names(decision.story).items() if alias != symbol]
    total = decision.total
    cost = f"tokens {ABSENT}"
    if total:
        cost = (
            f"all conversations: {total['prompt'] + total['sampled']:,} tokens, {total['sampled']:,} of them sampled; "
            f"{total['read']:,} read in {total['turns']:,} turns"
        )
    return [*([", ".join(names)] if names else []), cost]


def outcome(decision: DecisionTree) -> Iterator[tuple[str, str]]:
    """What followed from the words: rulings, clamps, orders, what became of them, what the account made."""
    last = None
    for line in consequences(decision.story):
        if line.speaker == "result":
            last = line
        else:
            yield line.title, line.text
    if decision.fills is None or decision.rejections is None:
        yield "Fills", f"{ABSENT}: the result of this backtest is not stored"
    elif decision.story.get("orders"):
        told = [_fill(fill) for fill in decision.fills] + [_rejection(one) for one in decision.rejections]
        yield "Fills", "\n".join(told) or "none"
    yield ("Outcome", f"{ABSENT}") if last is None else ("Outcome", last.text)


def asked(talk: Talk) -> str:
    """The question that opened a consultation, with real names."""
    return json.dumps(dict(talk.asked), ensure_ascii=False)


def used(talk: Talk) -> str:
    """What a conversation took and how sure its words were."""
    if not talk.usage:
        return f"tokens and log-probabilities {ABSENT}"
    usage = talk.usage
    sure = ABSENT
    if usage["mean_logp"] is not None:
        sure = f"{usage['logp']:.3f}, {usage['mean_logp']:.4f} a token"
    more = f"; cost {usage['cost']:.4g}" if usage.get("cost") else ""
    if usage.get("dropped"):
        more += f"; {usage['dropped']} old results dropped to make room, and what was said before is not counted"
    return (
        f"tokens: {usage['prompt']:,} given, {usage['sampled']:,} sampled; {usage['read']:,} read in "
        f"{usage['turns']:,} turns; log-probability {sure}{more}"
    )


def called(talk: Talk, turn: Turn) -> str:
    """The call that `turn` of `talk` is, with its arguments; what is no valid call as it stands, with the reason."""
    if isinstance(turn.call, MalformedCall):
        return f"no valid call ({turn.call.code}: {turn.call.detail}): {turn.content or '(nothing)'}"
    arguments = turn.call.arguments.model_dump(exclude_none=True)
    answers = talk.answer is not None and turn.call.name == ROLES[talk.role].answer.name
    return f"{'answer: ' if answers else ''}{turn.call.name} {json.dumps(arguments, ensure_ascii=False)}"


def problem(talk: Talk) -> str:
    """Why a conversation has no answer; empty where it has one."""
    if talk.answer is not None:
        return ""
    return f"no answer: {talk.problem or ABSENT}" + (" (cut off at the token limit)" if talk.truncated else "")


def _heading(decision: DecisionTree) -> str:
    record = decision.record
    return (
        f"{record.run}: decision {record.ordinal} of {record.backtest} at {format_time(record.time)} UTC, policy "
        f"{decision.manager.version if decision.manager and decision.manager.version else ABSENT}"
    )


def _add_talk(node: Tree, talk: Talk) -> None:
    question = f", asked about {asked(talk)}" if talk.asked else ""
    version = talk.version or ABSENT
    own = node.add(_text(f"{role_title(talk.role)} {talk.ordinal}, policy {version}{question}", "bold"))
    own.add(_text(used(talk), "dim"))
    own.add(_text(f"system: {talk.system}", "dim"))
    own.add(_text(f"told: {talk.prompt}"))
    for turn in talk.turns:
        step = own.add(_text(called(talk, turn)))
        for other in turn.consulted:
            _add_talk(step, other)
        if turn.result is not None:
            step.add(_text(f"result: {turn.result}"))
    if problem(talk):
        own.add(_text(problem(talk), "red"))


def _fill(fill: Mapping[str, Any]) -> str:
    side = "bought" if fill["quantity"] > 0 else "sold"
    why = "" if fill["reason"] == "order" else f" by {fill['reason']}"
    return (
        f"{format_time(fill['time'])} {side} {abs(fill['quantity']):.6g} {fill['symbol']} at {fill['price']:.6g}{why}, "
        f"fee {fill['fee']:.4g}, spread {fill['spread_cost']:.4g}"
    )


def _rejection(rejection: Mapping[str, Any]) -> str:
    order = rejection["order"]
    return f"not executed: {order['symbol']} {rejection['reason']}, {rejection['detail']}"


def _text(words: str, style: str = "") -> Text:
    return Text(visible(words), style=style, overflow="fold")
