"""What the store has of a session, for who resumes it, looks at it, or replaces its team."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from backend.builders.loaded_team import LoadedTeam
from backend.builders.market import thinking_time_of
from backend.builders.strategies import named_strategies
from backend.config.base import suggestion
from backend.config.ownership import is_own, signed
from backend.config.schema import RECORDED, SCRIPTED, Config
from backend.models.manifest import MANIFEST, SAMPLE_TEAM, team_folder
from backend.models.team_digest import team_digest
from backend.paper.journal import entries_in_portions
from backend.paper.snapshots import Snapshot, newest_snapshot
from backend.runs.backtest import names_strategy, subject_of
from backend.store.records import PAPER, JournalRecord, RunRecord
from backend.store.run_record import stored_config
from backend.store.store import Store
from cryptosentinel.episode import ThinkingTime
from simulator.errors import UserError

PROMOTED = "promoted"  # in the document of a session: SHA-256 of the files of teams that it may trade with besides


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
    for a session that is not this user's own."""
    record = session_record(store, run)
    return record, own_config(record), session_start(store, run)


def own_config(record: RunRecord) -> Config:
    """The configuration of a session. Raises `UserError` for one that is not this user's own and names what only the
    user may: a setting, or a team that is loaded from elsewhere."""
    config, withheld = stored_config(record)
    named = [one.key for one in withheld]
    if not is_own(record.run, record.config):
        teams = {role: str(record.config.get(role) or SCRIPTED) for role in ("team", "shadow")}
        named += [f"the {role} '{team}'" for role, team in teams.items() if team not in (SCRIPTED, SAMPLE_TEAM)]
    if named:
        raise UserError(
            f"session {record.run} was not begun by this user, and its record names {', '.join(named)}: adopt it "
            f"with `cryptosentinel runs adopt {record.run}` if it is your own"
        )
    return config


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
    """The team that trades after the `promotions`. Raises `UserError` where its files are not those that traded, and
    where the session's record, which this user has signed, does not say that it may."""
    if not promotions:
        return team_of_digest(str(record.config["team"]), record.config.get("team_digest", ""), config)
    team, digest = str(promotions[-1]["team"]), str(promotions[-1]["digest"])
    if not is_own(record.run, record.config) or digest not in record.config.get(PROMOTED, ()):
        raise UserError(
            f"the journal of session {record.run} says that {team} took the place of its team, and no record that "
            f"bears this user's signature does: look at it, and adopt it with `cryptosentinel runs adopt {record.run}` "
            "if it is your own"
        )
    return team_of_digest(team, digest, config)


def admit_team(store: Store, run: str, digest: str) -> None:
    """Say in the record of the session `run` that it may trade with the team whose files have that SHA-256."""
    record = store.run(run)
    admitted = record.config.get(PROMOTED, [])
    if digest not in admitted:
        document = signed(run, {**record.config, PROMOTED: [*admitted, digest]})
        store.set_document(replace(record, config=document))


def loaded_from_elsewhere(record: RunRecord) -> list[str]:
    """The teams that the record of a run names and that the program does not have itself: a folder, or a class."""
    sources = record.config.get("sources")
    stated = [one.get("team") for one in sources.values() if isinstance(one, dict)] if isinstance(sources, dict) else []
    stated += [record.config.get(role) for role in ("team", "shadow")]
    ours = {SCRIPTED, SAMPLE_TEAM, *named_strategies()}
    return [team for team in dict.fromkeys(str(one) for one in stated if one) if team not in ours]


def promoted_teams(store: Store, record: RunRecord) -> dict[str, str]:
    """The teams that took the place of another one by the journal of a run: names by the SHA-256 of their files. Empty
    for a run that is no session, and for one without a journal."""
    if record.kind != PAPER:
        return {}
    promotions = promotions_in(*newest_entries(store, record.run))
    promotions += [one.document for one in entries_in_portions(store, record.run) if one.kind == "promotion"]
    return {str(one["digest"]): str(one["team"]) for one in promotions}


def team_of_digest(name: str, digest: str, config: Config) -> LoadedTeam:
    """The team called `name`, whose files have that SHA-256; an empty one is of a team without files.
    Raises `UserError` for other files."""
    if digest and digest_of_named(name, config) != digest:
        raise UserError(
            f"the files of {name} are not those that the session traded with: put them back, or let the new ones pass "
            "`cryptosentinel evaluate --gate` and `cryptosentinel paper promote`"
        )
    return session_team(name, config)
