"""The delegation of a decision as a graph in the DOT language: whom the manager asked, what they answered, and what
became of the decision.

Labels hold words of models: each is cleaned, shortened and escaped, so that no word can end a label or be markup.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from backend.decisions.tree import ConversationNode, DecisionTree
from backend.reporting.charts import DARK, ROLE_COLOURS
from backend.reporting.decision_narrative import answer_sentence, consequences, question_sentence
from backend.reporting.decision_views import outcome
from cryptosentinel.agents.registry import role_title
from cryptosentinel.protocol.untrusted import visible

_WIDTH, _LINES = 34, 5  # characters and lines of a label
_LIGHT_WORDS, _LIGHT_LINES = "#1a1a1a", "#767676"
_DARK_WORDS, _DARK_LINES = DARK["words"], "#a0a0a0"
_STEPS = ("Guard", "Orders", "Fills", "Outcome")


def delegation_graph(tree: DecisionTree, dark: bool = False) -> str:
    """The graph of a decision as DOT text, from the situation down to the outcome; `dark` for a dark ground."""
    words, lines = (_DARK_WORDS, _DARK_LINES) if dark else (_LIGHT_WORDS, _LIGHT_LINES)
    colours = f'color="{lines}", fontcolor="{words}"'
    head = [
        "digraph decision {",
        '  bgcolor="transparent"; rankdir="TB"; nodesep=0.3; ranksep=0.35;',
        f'  node [shape=box, style="rounded", fontname="sans-serif", fontsize=11, {colours}];',
        f'  edge [fontname="sans-serif", fontsize=10, {colours}];',
    ]
    return "\n".join([*head, *(f"  {line}" for line in _body(tree)), "}"])


def dot_label(title: str, text: str) -> str:
    """A quoted label of DOT: the title, and below it the text, cut to a few lines."""
    cut = [line for part in visible(text).splitlines() for line in textwrap.wrap(part, _WIDTH)]
    shown = [*cut[: _LINES - 1], f"{cut[_LINES - 1]} …"] if len(cut) > _LINES else cut
    escaped = (line.replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"') for line in (title, *shown) if line)
    return '"' + "\\n".join(escaped) + '"'


def _body(tree: DecisionTree) -> Iterator[str]:
    before = "decision"
    if tree.manager is None:
        yield f"decision [label={dot_label('No conversation', 'nothing was said')}];"
    else:
        yield from _conversations(tree, tree.manager)
    rulings = [line.text for line in consequences(tree) if line.speaker == "risk_analyst"]
    if rulings:
        yield _node("ruling", "RiskAnalyst binds", "\n".join(rulings), ROLE_COLOURS["risk_analyst"])
        yield f"{before} -> ruling;"
        before = "ruling"
    for title in _STEPS:
        texts = [text for what, text in outcome(tree) if what == title or (title == "Guard" and what == "Guard, later")]
        if texts:
            name = title.lower()
            yield _node(name, title, "\n".join(texts))
            yield f"{before} -> {name};"
            before = name


def _conversations(tree: DecisionTree, manager: ConversationNode) -> Iterator[str]:
    """The manager, whom it asked in which order, and its decision."""
    names, colour = tree.names, ROLE_COLOURS["manager"]
    asked = [other for turn in manager.turns for other in turn.consulted]
    yield _node("manager", role_title("manager"), manager.prompt, colour)
    decided = answer_sentence(manager, names)
    yield _node("decision", "Decision", decided, colour)
    if not asked:
        yield "manager -> decision;"
    for number, other in enumerate(asked):
        title, name = f"{number + 1}. {role_title(other.role)}", f"asked{number}"
        yield _node(name, title, answer_sentence(other, names), ROLE_COLOURS.get(other.role, ""))
        yield f"manager -> {name} [label={dot_label('', question_sentence(other))}];"
        yield f"{name} -> decision;"


def _node(name: str, title: str, text: str, colour: str = "") -> str:
    drawn = f', color="{colour}", penwidth=2' if colour else ""
    return f"{name} [label={dot_label(title, text)}{drawn}];"
