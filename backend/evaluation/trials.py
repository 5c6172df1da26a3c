"""The ledger of trials: whatever was tested on which data and window, so that the best of many is known to be one of
many.

A trial is told from another by all that decides what it does: configuration, prompts, sampling, seed, weights, source.
Nothing resets the count: it stays when a run is deleted.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.builders.loaded_team import LoadedTeam
from backend.builders.strategies import NamedStrategy
from backend.config.schema import Config
from backend.store.records import TrialRecord
from backend.store.store import Store
from cryptosentinel.agents.registry import MANAGER
from simulator.market.market import Market

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
    store.add_trial(TrialRecord(run, name, data_hash, start, stop, digest, int(time.time() * 1000)))
    return count_trials(store.trials(data_hash), data_hash, start, stop)


def count_trials(trials: Sequence[TrialRecord], data_hash: str, start: int, stop: int) -> TrialCount:
    """What was tested on a market in any window that overlaps [start, stop) (ms): whoever knows a part of a window
    knows something of it."""
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
    be read may be new each time, and counts so. The program's own are told apart by their names."""
    if subject.load is None:
        return ""
    try:
        if subject.code is not None:
            return hashlib.sha256(inspect.getsource(subject.code).encode()).hexdigest()
        file = inspect.getsourcefile(type(subject.make()))
        return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""
    except (OSError, TypeError):
        return "" if subject.code is None else uuid.uuid4().hex
