"""Two decisions side by side, row by row: whom they asked, what was answered, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from backend.decisions.tree import DecisionTree
from backend.reporting.decision_narrative import answer_sentence, consequences, headline, question_sentence
from cryptosentinel.agents.registry import role_title

NOTHING_HERE = "–"


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
    labels = [*before, *(label for label in after if label not in before)]
    order = sorted(labels, key=lambda label: _rank(label))
    return [PairedRow(label, before.get(label, NOTHING_HERE), after.get(label, NOTHING_HERE)) for label in order]


def _rank(label: str) -> int:
    first = ("Situation", "Decision")
    last = ("Guard", "Orders", "Guard, later", "What it earned")
    if label in first:
        return first.index(label) * 1_000
    return 2_000 + last.index(label) if label in last else 500


def _facts(tree: DecisionTree) -> Mapping[str, str]:
    facts: dict[str, str] = {}
    if tree.manager is not None:
        facts["Situation"] = tree.manager.prompt
        everyone = [node for node in tree.manager.everyone() if node is not tree.manager]
        for node in everyone:
            question = question_sentence(node)
            told = f"on {question}: " if question else ""
            facts[f"{role_title(node.role)} {node.document.ordinal + 1}"] = told + answer_sentence(node, tree.names)
    facts["Decision"] = headline(tree).partition(" → ")[0]
    for line in consequences(tree):
        label = line.title if line.speaker != "risk_analyst" else f"{line.title} binds"
        facts[label] = f"{facts[label]}\n{line.text}" if label in facts else line.text
    return facts
