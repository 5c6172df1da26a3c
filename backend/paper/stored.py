"""What the store has of a session, and who trades in it."""

from __future__ import annotations

from typing import Any

from backend.builders.market import thinking_time_of
from backend.builders.strategies import NamedStrategy, made_ready
from backend.config.base import suggestion
from backend.config.schema import RECORDED, Config
from backend.models.manifest import MANIFEST, team_folder
from backend.models.team_digest import team_digest
from backend.paper.journal import entries_in_portions
from backend.runs.backtest import Subject, subject_of
from backend.store.records import PAPER, RunRecord
from backend.store.run_record import own_config
from backend.store.store import Store
from cryptosentinel.episode import ThinkingTime
from simulator.errors import UserError


def session_record(store: Store, run: str) -> RunRecord:
    """The record of the session `run`. Raises `UserError` for a run that is not a session, and for an unknown one."""
    known = store.runs()
    if run not in {record.run for record in known}:
        sessions = [record.run for record in known if record.kind == PAPER]
        near = suggestion(run, sessions)
        raise UserError(f"there is no session '{run}'{near}; the newest are: {', '.join(sessions[:5]) or 'none yet'}")
    record = store.run(run)
    if record.kind != PAPER:
        raise UserError(f"run {run} is a {record.kind} and not a paper session")
    return record


def stored_session(store: Store, run: str) -> tuple[RunRecord, Config, dict[str, Any]]:
    """A stored session, with what it needs: its configuration, and the first entry of its journal. Raises `UserError`
    for an imported one."""
    record = session_record(store, run)
    return record, own_config(record), session_start(store, run)


def session_start(store: Store, run: str) -> dict[str, Any]:
    """The first entry of a session's journal. Raises `StoreError` without one."""
    return next(entries_in_portions(store, run)).document


def session_thinking_time(config: Config) -> ThinkingTime:
    """Which time the decisions of a session take: on live data that which they take."""
    live = config.paper.feed != RECORDED and config.costs.thinking_time == "auto"
    return "measured" if live else thinking_time_of(config)


def session_subject(name: str, config: Config) -> Subject:
    """The team or strategy called `name`, ready to trade. Raises `UserError` where there is none."""
    subject = subject_of(name, config)
    return made_ready(subject)[0] if isinstance(subject, NamedStrategy) else subject


def digest_of_named(name: str, config: Config) -> str:
    """SHA-256 of the files of the team called `name`; empty for one that is not the folder of a training."""
    folder = team_folder(name)
    return team_digest(folder, config.training.base_model) if (folder / MANIFEST).is_file() else ""


def stored_subject(record: RunRecord, config: Config) -> Subject:
    """Who trades in a stored session. Raises `UserError` where the files of its team are not those that traded."""
    name, digest = str(record.config["team"]), str(record.config.get("team_digest", ""))
    if digest and digest_of_named(name, config) != digest:
        raise UserError(
            f"the files of {name} are not those that the session traded with: put them back, or begin another session"
        )
    return session_subject(name, config)
