"""What a window was used for before: the ledger of trials, and the trainings of the teams that are tested.

Whatever is tested on which data and window is in the ledger, so that the best of many is known to be one of many. A
trial is told from another by all that decides what it does: configuration, prompts, sampling, seed, weights, source.
Nothing resets the count: it stays when a run is deleted.

What a team earns on bars that it was trained or chosen on is not evidence. Its manifest lists these bars. Two recorded
markets are compared by time, since coins move together; a generated one only with its like.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.builders.loaded_team import LoadedTeam
from backend.builders.spans import origin_of
from backend.builders.strategies import NamedStrategy
from backend.config.schema import Config
from backend.models.manifest import MANIFEST, TeamManifest, TrainedSpan, read_manifest, team_folder
from backend.store.records import TrialRecord
from backend.store.store import Store
from cryptosentinel.agents.registry import MANAGER
from simulator.errors import UserError
from simulator.market.market import Market
from simulator.market.timeframes import format_time

IN_SAMPLE = "in_sample"  # of a run's record: a sentence for each team that was tested on what it was trained on
_OF_STRATEGIES = ("costs", "venue")  # sections that change what a strategy earns
_OF_TEAMS = (*_OF_STRATEGIES, "guard", "team", "engine")


@dataclass(frozen=True)
class TrialCount:
    """How often a window was used. `trials`: different ways of trading. `looks`: runs that looked at its results."""

    trials: int
    looks: int


def record_trial(
    store: Store, run: str, subject: LoadedTeam | NamedStrategy, config: Config, market: Market, start: int, stop: int,
    *, every: int, seed: int, of: str = "",
) -> TrialCount:  # fmt: skip
    """Add a way of trading, tested in the bars `start` to `stop` with a decision every `every` bars, to the ledger, and
    return the count for its window, itself included. `of` is the part of the run that it belongs to."""
    first, last = (int(market.open_time[bar]) + market.interval for bar in (start, stop))
    digest = digest_of_trial(subject, config, every, seed)
    name = f"{of}/{subject.name}" if of else subject.name
    return add_trial(store, run, name, market.content_hash, first, last, digest)


def add_trial(store: Store, run: str, name: str, data_hash: str, start: int, stop: int, digest: str) -> TrialCount:
    """Add a way of trading, tested in [start, stop) (ms) of a market, to the ledger under `name` within the run, and
    return the count for its window, itself included."""
    store.put(TrialRecord(run, name, data_hash, start, stop, digest, int(time.time() * 1000)))
    return count_trials(store.trials(data_hash), data_hash, start, stop)


def count_trials(trials: Sequence[TrialRecord], data_hash: str, start: int, stop: int) -> TrialCount:
    """What was tested on a market in any window that overlaps [start, stop) (ms): to know a part of a window
    is to know something of it."""
    found = [one for one in trials if one.data_hash == data_hash and one.start < stop and start < one.stop]
    return TrialCount(len({one.digest for one in found}), len({one.run for one in found}))


def digest_of_trial(subject: LoadedTeam | NamedStrategy, config: Config, every: int, seed: int) -> str:
    """SHA-256 of all that decides what `subject` does."""
    settings = config.to_dict()
    parts: dict[str, Any] = {"name": subject.name, "every": every}
    if isinstance(subject, LoadedTeam):
        roles = subject.team.settings.roles
        parts |= {
            "seed": seed,
            "settings": subject.team.settings.model_dump(mode="json"),
            "weights": {role: subject.team.version_of(role) for role in (MANAGER.key, *sorted(roles))},
            "config": {name: settings[name] for name in _OF_TEAMS},
        }
    else:
        parts |= {"config": {name: settings[name] for name in _OF_STRATEGIES}, "source": _source(subject)}
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _source(subject: NamedStrategy) -> str:
    """SHA-256 of the source of a user's strategy: of its file, or of what a script or notebook gave. Code that cannot
    be read may be new each time, and is counted as new. The program's own are told apart by their names."""
    if subject.load is None:
        return ""
    try:
        if subject.code is not None:
            return hashlib.sha256(inspect.getsource(subject.code).encode()).hexdigest()
        file = inspect.getsourcefile(type(subject.make()))
        return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""
    except (OSError, TypeError):
        return "" if subject.code is None else uuid.uuid4().hex


# -- what a team was trained on ---------------------------------------------------------------------------------------


def comparable_spans(manifest: TeamManifest, config: Config, market: Market) -> tuple[TrainedSpan, ...]:
    """The bars that the team of `manifest` learned from and that have anything in common with `market`, which is that
    of `config`."""
    origin = origin_of(config.market)
    return tuple(one for one in manifest.trained_on if one.data_hash == market.content_hash or one.origin == origin)


def overlaps(
    teams: Sequence[str], config: Config, market: Market, first: int, last: int, *, allowed: bool
) -> dict[str, str]:
    """By name a sentence on each team whose training overlaps the window from the close `first` to `last` (ms), by
    its manifest. `teams` are as the user names them; only folders of teams count.

    Raises `UserError` for an overlap unless it is `allowed`.
    """
    marked: dict[str, str] = {}
    for name in teams:
        folder = team_folder(name)
        if not (folder / MANIFEST).is_file():
            continue
        spans = comparable_spans(read_manifest(folder), config, market)
        until = max((one.until for one in spans if first < one.until and one.first < last), default=None)
        if until is None:
            continue
        if not allowed:
            raise UserError(
                f"{name} was trained or chosen on bars until {format_time(until)} UTC, and the window begins at "
                f"{format_time(first)} UTC: what it earns there is no evidence. Take a later window, or say "
                "--in-sample, which marks the result so for ever"
            )
        marked[name] = (
            f"IN SAMPLE: {name} was trained or chosen on bars of this window, until {format_time(until)} UTC, so what "
            "it earned here is not evidence"
        )
    return marked


def marks_of(record: Mapping[str, object]) -> list[str]:
    """The sentences with which a run's record is marked; none for a run out of sample."""
    marked = record.get(IN_SAMPLE)
    return [str(one) for one in marked.values()] if isinstance(marked, dict) else []
