"""A paper session as a row of the table of runs."""

from __future__ import annotations

from dataclasses import replace

from backend.paper.sessions import paper_status
from backend.reporting.comparison.run_table import RunRow, bare_row
from backend.reporting.labels import title_of
from backend.store.records import RunRecord
from backend.store.store import Store
from simulator.errors import UserError

_ENDINGS = {
    "finished": "the data came to its end",
    "stopped": "stopped",
    "flatten": "kill switch: closed all positions",
    "freeze": "kill switch: kept all positions",
    "liquidated": "liquidated",
}


def session_row(store: Store, run: RunRecord) -> RunRow:
    """The row of a session: its return so far, and what it has done. Also of one whose journal cannot be read, which
    says so. Raises `StoreError` where the store fails."""
    row = bare_row(run)
    team, data = run.config.get("team"), run.config.get("data")
    if isinstance(team, str):
        row = replace(row, teams=title_of(team))
    if isinstance(data, str):
        row = replace(row, data=data)
    try:
        _, outcome = paper_status(run.run, store)
        done = f"{outcome.bars} bars, {outcome.decisions} decisions, {outcome.fills} fills"
        row = replace(
            row,
            total_return=outcome.equity / outcome.begun_with - 1.0,
            verdict="; ".join(text for text in (_ENDINGS.get(outcome.why, ""), done) if text),
        )
    except (UserError, ValueError, TypeError, KeyError, AttributeError, IndexError, ArithmeticError):
        row = replace(row, verdict="its journal cannot be read")
    return replace(row, verdict=run.message) if run.message and run.status == "failed" else row
