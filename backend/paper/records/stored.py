"""What the store has of a session, for who resumes it, looks at it, or replaces its team."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backend.builders.loaded_team import LoadedTeam
from backend.builders.market import thinking_time_of
from backend.config.base import suggestion
from backend.config.schema import RECORDED, Config
from backend.models.manifest import MANIFEST, team_folder
from backend.models.team_digest import team_digest
from backend.paper.journal import entries_in_portions
from backend.paper.snapshots import Snapshot, newest_snapshot
from backend.runs.backtest import names_strategy, subject_of
from backend.store.records import PAPER, JournalRecord, RunRecord
from backend.store.run_record import own_config
from backend.store.store import Store
from cryptosentinel.episode import ThinkingTime
from simulator.errors import UserError


def session_record(store: Store, run: str) -> RunRecord:
    """The record of the session `run`. Raises `UserError` for a run that is no session, and for an unknown one."""
    known = store.runs()
    if run not in {record.run for record in known}:
        sessions = [record.run for record in known if record.kind == PAPER]
        near = suggestion(run, sessions)
        raise UserError(f"there is no session '{run}'{near}; the newest are: {', '.join(sessions[:5]) or 'none yet'}")
    record = store.run(run)
    if record.kind != PAPER:
        raise UserError(f"run {run} is a {record.kind}, no paper session")
    return record


def stored_session(store: Store, run: str) -> tuple[RunRecord, Config, dict[str, Any]]:
    """A stored session, with what it needs: its configuration, and the first entry of its journal. Raises `UserError`
    for an imported one."""
    record = session_record(store, run)
    return record, own_config(record), session_start(store, run)


def session_start(store: Store, run: str) -> dict[str, Any]:
    """The first entry of a session's journal. Raises `StoreError` without one."""
    return next(entries_in_portions(store, run)).document


def newest_entries(store: Store, run: str) -> tuple[Snapshot | None, list[JournalRecord]]:
    """The newest snapshot, if there is one, and the entries after it, or after the start."""
    snapshot = newest_snapshot(store, run)
    return snapshot, list(entries_in_portions(store, run, snapshot.after + 1 if snapshot else 1))


def session_thinking_time(config: Config) -> ThinkingTime:
    """Which time the decisions of a session take: on live data that which they take."""
    live = config.paper.feed != RECORDED and config.costs.thinking_time == "auto"
    return "measured" if live else thinking_time_of(config)


def shadow_name(record: RunRecord) -> str:
    """The id of the newest shadow of the session `record`."""
    number = int(record.config.get("shadows", 1))
    return f"{record.run}-shadow" if number == 1 else f"{record.run}-shadow-{number}"


def session_team(name: str, config: Config) -> LoadedTeam:
    """The team called `name`. Raises `UserError` where there is none, and for a strategy, which is not imported: the
    name may be that of a journal."""
    subject = None if names_strategy(name) else subject_of(name, config)
    if not isinstance(subject, LoadedTeam):
        raise UserError(
            f"'{name}' is a strategy: a paper session is of a team; name 'scripted', 'model' or a run's folder"
        )
    return subject


def digest_of_named(name: str, config: Config) -> str:
    """SHA-256 of the files of the team called `name`; empty for one that is not the folder of a training."""
    folder = team_folder(name)
    return team_digest(folder, config.training.base_model) if (folder / MANIFEST).is_file() else ""


def promotions_in(snapshot: Snapshot | None, entries: Sequence[JournalRecord]) -> list[Mapping[str, Any]]:
    """The promotions that are known: the one in place at the snapshot, and those of the entries after it."""
    before = [] if snapshot is None or snapshot.state.get("team") is None else [snapshot.state["team"]]
    return [*before, *(entry.document for entry in entries if entry.kind == "promotion")]


def team_in_place(record: RunRecord, config: Config, promotions: Sequence[Mapping[str, Any]]) -> LoadedTeam:
    """The team that trades after the `promotions`. Raises `UserError` where its files are not those that traded."""
    if not promotions:
        return team_of_digest(str(record.config["team"]), record.config.get("team_digest", ""), config)
    return team_of_digest(str(promotions[-1]["team"]), str(promotions[-1]["digest"]), config)


def team_of_digest(name: str, digest: str, config: Config) -> LoadedTeam:
    """The team called `name`, whose files have that SHA-256; an empty one is of a team without files.
    Raises `UserError` for other files."""
    if digest and digest_of_named(name, config) != digest:
        raise UserError(
            f"the files of {name} are not those that the session traded with: put them back, or let the new ones pass "
            "`cryptosentinel evaluate --gate` and `cryptosentinel paper promote`"
        )
    return session_team(name, config)
