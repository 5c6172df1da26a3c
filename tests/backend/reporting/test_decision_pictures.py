"""A decision as a graph, all of them on a line of time, and two of them side by side."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.decisions.backtest_document import BacktestDocument
from backend.decisions.recording import episode_decisions
from backend.decisions.tree import decision_tree, traced_tree
from backend.reporting.decision.graph import delegation_graph, dot_label
from backend.reporting.decision.side_by_side import NOTHING_HERE, paired_rows
from backend.reporting.decision.timeline import timeline
from tests.stored_runs import codec, episode, full_decision

DECISIONS = episode_decisions("run", "scripted", codec(), episode())
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


def test_the_graph_says_whom_it_asked_and_what_came_of_it() -> None:
    decision = full_decision()
    tree = traced_tree(decision, DECISIONS, BacktestDocument.of(episode().result))
    dot = delegation_graph(tree)
    for title in (
        "DeepTraderManager",
        "1. MarketAnalyst",
        "2. RiskAnalyst",
        "3. Trader",
        "Decision",
        "Orders",
        "Outcome",
    ):
        assert f'"{title}\\n' in dot
    assert dot.count("manager -> asked") == 3 and dot.count("-> decision") == 3
    for one, other in (("decision", "guard"), ("guard", "orders"), ("orders", "fills"), ("fills", "outcome")):
        assert f"{one} -> {other};" in dot
    assert delegation_graph(tree, dark=True) != dot


def test_a_decision_in_which_nothing_was_said_is_a_graph_too() -> None:
    silent = full_decision().document.model_copy(update={"conversations": ()})
    assert "nothing was said" in delegation_graph(decision_tree(silent))


@settings(max_examples=200, deadline=None)
@given(title=st.text(max_size=20), text=st.text(max_size=400))
def test_no_words_end_a_label(title: str, text: str) -> None:
    label = dot_label(title, text)
    assert _QUOTED.fullmatch(label)
    assert label.count("\\n") <= 400 and "<" not in re.sub(r"&amp;|<", "", label)


@pytest.mark.parametrize("evil", ['"]; evil [URL="javascript:alert(1)"', "\\", '\\"', "&lt;b&gt;", "\\N\\G"])
def test_a_models_words_stay_words(evil: str) -> None:
    document = full_decision().document
    broken = document.conversations[0].model_copy(update={"answer": None, "problem": evil})
    dot = delegation_graph(decision_tree(document.model_copy(update={"conversations": (broken,)})))
    outside = _QUOTED.sub("", dot)
    assert "evil" not in outside and "\\" not in outside and "URL" not in outside


def test_each_decision_is_a_mark_on_the_line_of_time() -> None:
    figure = timeline(DECISIONS).figure
    numbers = [number for trace in figure.data for number in trace.customdata]
    assert sorted(numbers) == [one.ordinal for one in DECISIONS]
    assert {trace.name for trace in figure.data} <= {
        "sent orders", "changed nothing", "no valid answer", "cut by RiskAnalyst or the guard",
    }  # fmt: skip
    many = timeline(DECISIONS * 50).figure
    assert {trace.type for trace in many.data} == {"scattergl"}, "of thousands each is no element of the page"


def test_what_only_one_of_two_has_stands_beside_nothing() -> None:
    whole = decision_tree(full_decision().document)
    alone = decision_tree(
        full_decision().document.model_copy(update={"conversations": whole.document.conversations[:1]})
    )
    rows = {row.label: row for row in paired_rows(whole, alone)}
    assert rows["Trader 1"].now == NOTHING_HERE and rows["Trader 1"].differs
    assert not rows["Orders"].differs
    assert not any(row.differs for row in paired_rows(whole, whole))
