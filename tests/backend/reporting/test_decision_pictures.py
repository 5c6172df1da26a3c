"""Two decisions side by side, and a way from a mark on the candles to its decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from backend.decisions.backtest_document import BacktestDocument
from backend.decisions.document import StoredDecision
from backend.decisions.recording import episode_decisions
from backend.decisions.tree import decision_tree, traced_tree
from backend.reporting.blocks import Picture
from backend.reporting.charts import moments
from backend.reporting.decision_narrative import NOTHING_HERE, paired_rows
from backend.reporting.run_summary import WindowResult
from backend.reporting.trade_sections import candles_block
from simulator.exchange.exchange_records import FillReason
from tests.stored_runs import codec, episode, full_decision, small_market

DECISIONS = episode_decisions("run", "scripted", codec(), episode())
TREES = [decision_tree(decision.document) for decision in DECISIONS]


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
    marks = [trace for trace in picture.figure.data if trace.name and trace.name.startswith(("long,", "short,"))]
    assert marks
    for trace in marks:
        for row, moment in zip(trace.customdata, trace.x, strict=True):
            tree = traced_tree(TREES[row[-1]], DECISIONS[row[-1]], DECISIONS, result)
            assert moment in moments([fill.time for fill in tree.fills or ()]) or row[1] == "open"


def test_shapes_tell_entries_exits_and_stops_apart() -> None:
    trade = next(one for one in episode().result.trades if one.symbol == "AAAUSDT")
    reasons: tuple[FillReason, ...] = ("order", "stop", "target", "liquidation")
    trades = [replace(trade, reason=reason, quantity=size) for reason in reasons for size in (1.0, -1.0)]
    result = BacktestDocument.of(episode().result).model_copy(update={"trades": trades})
    [window] = _windows(result, [])
    picture = candles_block(window, small_market(), "AAAUSDT")
    assert isinstance(picture, Picture)
    marks = {trace.name: trace for trace in picture.figure.data[1:] if trace.mode == "markers"}
    assert len(marks) == 2 * 5 and len({trace.marker.symbol for trace in marks.values()}) == len(marks)


def _windows(result: BacktestDocument, decisions: Sequence[StoredDecision]) -> list[WindowResult]:
    return [WindowResult("", "scripted", ("scripted",), {"scripted": result}, {"scripted": list(decisions)})]
