"""Whether the shadow of a session may take the place of the team that trades: what must be shown for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.config.schema import Config
from backend.evaluation.gate import GATE_RECORD
from backend.models.manifest import MANIFEST, team_folder
from backend.models.team_digest import team_digest
from backend.paper.journal import entries_of
from backend.paper.records.stored import shadow_name
from backend.paper.review.comparison import compared_teams
from backend.paper.review.decision_figures import figures_of_session
from backend.store.records import RunRecord
from backend.store.store import Store
from cryptosentinel.team import derive_seed
from simulator.errors import UserError

SHADOW_DECISIONS = 50  # as a shadow: fewer say little about a team that is to trade


@dataclass(frozen=True)
class Promotable:
    """A team that may take the place: its files' SHA-256, the run whose gate it passed, the shadow that it was, how
    often it decided as that, and how it did beside the team that trades."""

    team: str
    digest: str
    gate: str
    shadow: str
    decisions: int
    comparison: str


def promotable(store: Store, record: RunRecord, config: Config, name: str = "") -> Promotable:
    """The shadow of the session `record` (`config` is its configuration), which is the team `name` where that is given.

    Raises `UserError`, with what to do, where it may not take the place.
    """
    session, stated = record.run, str(record.config.get("shadow", ""))
    if "shadow_of" in record.config:
        raise UserError(f"{session} is the shadow of session {record.config['shadow_of']}: promote that one's")
    team = stated or name
    where = f"stop session {session} and go on with `cryptosentinel paper resume {session} --shadow {name or 'FOLDER'}`"
    if not stated:
        raise UserError(f"session {session} has no shadow, and only what has been one is promoted: {where}")
    if name and Path(name).resolve() != Path(stated).resolve():
        raise UserError(f"{name} is not the shadow of session {session}, which is {stated}: {where}")
    if not (team_folder(team) / MANIFEST).is_file():
        raise UserError(f"'{team}' is not the folder of a training, and only such a team can pass the gate: {where}")
    digest = team_digest(team_folder(team), config.training.base_model)
    shadow = shadow_name(record)
    known = store.run(shadow) if any(one.run == shadow for one in store.runs()) else None
    if known is None or known.imported or known.config.get("team_digest") != digest:
        raise UserError(f"the files of {team} are not those that have been the shadow of session {session}: {where}")
    gate = _gate_run(store, team, digest)
    entries = entries_of(store, shadow)
    decisions = sum(entry.kind == "decision" for entry in entries)
    if decisions < SHADOW_DECISIONS:
        raise UserError(
            f"{team} has decided {decisions} times as the shadow of session {session}, and {SHADOW_DECISIONS} are "
            f"asked for: wait for {SHADOW_DECISIONS - decisions} more"
        )
    figures = [figures_of_session(found) for found in (entries_of(store, session), entries)]
    begun = min((one.time for one in figures[1] if one.asked), default=0)
    mine, other = ([one for one in its if one.time >= begun] for its in figures)
    traded = str(record.config["team"])
    found = compared_teams(traded, team, mine, other, derive_seed(record.seed, "shadow"))
    if not found.missing and found.high < 0.0:
        raise UserError(f"{found.sentence()}: a team that is worse for certain is not promoted; train it further")
    return Promotable(team, digest, gate, shadow, decisions, found.sentence())


def _gate_run(store: Store, team: str, digest: str) -> str:
    """The run whose verdict on these files is the newest of those made in this store. Raises `UserError` where it is
    none, or not passed."""
    how = f"`cryptosentinel evaluate {team} --gate`"
    for record in store.runs():  # the newest first
        if record.kind != "evaluate" or record.status != "finished" or record.imported:
            continue
        verdicts = [one.result for one in store.evaluations(record.run) if one.name == GATE_RECORD]
        verdict: Mapping[str, Any] = verdicts[0] if verdicts else {}
        if verdict.get("team_digest") != digest:
            continue
        if not verdict.get("passed"):
            broken = ", ".join(str(rule["name"]) for rule in verdict["rules"] if not rule["passed"])
            raise UserError(f"{team} did not pass the gate in {record.run} ({broken}): train it further, then {how}")
        return record.run
    raise UserError(f"no verdict of the gate is in the store for the files of {team}: run {how}")
