"""A decision as a graph, all of them on a line of time, and two of them side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.decisions.backtest_document import BacktestDocument
from backend.decisions.document import LaterClamp, RiskRuling, StoredDecision
from backend.decisions.recording import episode_decisions
from backend.decisions.tree import decision_tree, traced_tree
from backend.reporting.blocks import Picture
from backend.reporting.decision.graph import delegation_graph, dot_label
from backend.reporting.decision.side_by_side import NOTHING_HERE, paired_rows
from backend.reporting.decision.timeline import timeline
from backend.reporting.run_summary import WindowResult
from backend.reporting.trade_sections import candles_block
from simulator.exchange.exchange_records import FillReason
from tests.stored_runs import codec, episode, full_decision, small_market

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
    figure = timeline(DECISIONS).light
    numbers = [number for trace in figure.data for number in trace.customdata]
    assert sorted(numbers) == [one.ordinal for one in DECISIONS]
    assert {trace.name for trace in figure.data} <= {
        "sent orders", "changed nothing", "no valid answer", "cut by RiskAnalyst or the guard",
    }  # fmt: skip
    many = timeline(DECISIONS * 50).light
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


def test_a_mark_on_the_candles_names_its_decision() -> None:
    result = BacktestDocument.of(episode().result)
    [window] = _windows(result, DECISIONS)
    picture = candles_block(window, small_market(), "AAAUSDT")
    assert isinstance(picture, Picture)
    marks = [trace for trace in picture.light.data if trace.name and trace.name.startswith(("long,", "short,"))]
    assert marks
    for trace in marks:
        for row, moment in zip(trace.customdata, trace.x, strict=True):
            tree = traced_tree(DECISIONS[row[-1]], DECISIONS, result)
            assert moment in {
                f"{pd.to_datetime(fill.time, unit='ms'):%Y-%m-%d %H:%M}" for fill in tree.fills or ()
            } or (row[1] == "open")


def test_shapes_tell_entries_exits_stops_and_vetoes_apart() -> None:
    trade = next(one for one in episode().result.trades if one.symbol == "AAAUSDT")
    reasons: tuple[FillReason, ...] = ("order", "stop", "target", "liquidation")
    trades = [replace(trade, reason=reason, quantity=size) for reason in reasons for size in (1.0, -1.0)]
    first = DECISIONS[2]
    ruling = RiskRuling(symbol="AAAUSDT", side="long", asked=0.5, allowed=0.0, verdict="veto", ordinal=0, verdicts=1)
    later = LaterClamp(rule="daily_loss", symbol="AAAUSDT", asked=1.0, allowed=0.0, detail="<b>x", time=first.time + 1)
    cut = replace(first, document=first.document.model_copy(update={"rulings": (ruling,), "later": (later,)}))
    result = BacktestDocument.of(episode().result).model_copy(update={"trades": trades})
    [window] = _windows(result, [cut])
    picture = candles_block(window, small_market(), "AAAUSDT")
    assert isinstance(picture, Picture)
    marks = {trace.name: trace for trace in picture.light.data[1:] if trace.mode == "markers"}
    assert len(marks) == 2 * 5 + 2 and len({trace.marker.symbol for trace in marks.values()}) == len(marks)
    assert marks["vetoed by RiskAnalyst"].customdata[0][-1] == marks["cut by the guard"].customdata[0][-1] == 2
    assert "<b>" not in picture.figure.to_json()


def _windows(result: BacktestDocument, decisions: Sequence[StoredDecision]) -> list[WindowResult]:
    return [WindowResult("", "scripted", ("scripted",), {"scripted": result}, {"scripted": list(decisions)})]
