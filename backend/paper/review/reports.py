"""What is said of a stored session afterwards, beside its parity: as use cases."""

from __future__ import annotations

from pathlib import Path

from backend.builders.market import limits_of
from backend.paper.feeds import account_again
from backend.paper.journal import entries_of, history_from_json
from backend.paper.review.drift import DriftReport, drift_report
from backend.paper.sessions import session_thinking_time, stored_session
from backend.runs.requests import STORE
from backend.store.run_record import store_at
from backend.store.store import Store


def paper_drift(run: str, store: Store | str | Path = STORE) -> DriftReport:
    """Compare each week of a session with a backtest of the bars before it. Raises `UserError`."""
    with store_at(store) as opened:
        record, config, team, start = stored_session(opened, run)
        account = account_again(config, history_from_json(start["history"]), start)
        entries = entries_of(opened, run)
    return drift_report(entries, team, account, limits_of(config.guard), record.seed, session_thinking_time(config))
