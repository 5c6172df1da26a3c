"""Runs and their folders: an id, a record in the store, and everything needed to repeat it."""

from __future__ import annotations

import hashlib
import platform
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from backend import PROGRAM_FOLDER, TOP_PACKAGES
from backend.config.load import config_from_dict
from backend.config.plugins import records_of
from backend.config.schema import Config, ConfigError
from backend.store.records import RunRecord
from backend.store.store import Store
from simulator.errors import Interrupted, UserError

PROGRAM = "cryptosentinel"
PACKAGES = (PROGRAM, "torch", "transformers", "peft", "numpy", "numba", "surrealdb")


def versions() -> dict[str, str]:
    """Versions of Python and of what decides results and is installed."""
    packages = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):  # a strategy's backtest needs no model
            packages[name] = version(name)
    return {"python": platform.python_version(), **packages, "source": source_digest()}


@cache
def source_digest() -> str:
    """The first digits of a SHA-256 over the program's source: two states of one version are told apart by it."""
    digest = hashlib.sha256()
    layers = [name for name in TOP_PACKAGES if name != "ui"]  # pages decide no result
    for path in sorted(path for layer in layers for path in (PROGRAM_FOLDER / layer).rglob("*.py")):
        digest.update(f"{path.relative_to(PROGRAM_FOLDER)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:8]


def code_version() -> str:
    """The version of this program and the digest of its source, as `1.0.0+3f2a9c01`."""
    return f"{version(PROGRAM)}+{source_digest()}"


def store_at(where: Store | str | Path) -> AbstractContextManager[Store]:
    """The store at an address, opened for a block. A store that is open already is used as it is and stays open."""
    return nullcontext(where) if isinstance(where, Store) else Store.open(where)


def new_run_id(kind: str) -> str:
    """A new id, as `train-20240131-120000-9f3a61c27d`: the kind, the time (UTC) and 40 random bits, so that no two
    programs choose the same one. Every id of a run is made here; `Store.add_run` refuses one that is there already."""
    return f"{kind}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(5)}"


def stored_config(record: RunRecord) -> Config:
    """The configuration of a stored run, to be shown or compared. Raises `ConfigError` for one that cannot be read."""
    document, where = record.config.get("config", {}), f"the configuration of run {record.run}"
    if not isinstance(document, dict):
        raise ConfigError(f"{where} is not a table: the record is damaged; make the run again")
    return config_from_dict(document, where)


def own_config(record: RunRecord) -> Config:
    """The configuration of a run, to be used again. Raises `UserError` for an imported run: what its record names would
    be run, contacted and read."""
    if record.imported:
        raise UserError(
            f"run {record.run} was imported, so it is only read: it is not resumed, played again or loaded with its "
            "market. Make a run of your own, for a training with --set training.start_from=FOLDER of its team"
        )
    return stored_config(record)


def _plugin_names(config: Config, sources: Mapping[str, Mapping[str, str]]) -> set[str]:
    """What a configuration and the teams of a backtest may name as plug-ins, as they are named."""
    by_role = config.team.tools
    names = {*config.plugins.roles, *config.team.roles, *(text.partition("=")[2].strip() for text in by_role)}
    names |= {config.training.reward, config.training.recipe, config.training.credit}
    names |= {config.engine.kind, config.market.source}
    teams = [str(one.get("team", "")) for one in sources.values()]
    # A strategy's arguments stand behind another colon.
    return names | {":".join(team.split(":")[:count]) for team in teams for count in (1, 2)}


@contextmanager
def recorded_run(
    store: Store,
    run: str,
    kind: str,
    seed: int,
    data_hash: str,
    config: Config,
    how: str = "",
    *,
    resumes: bool = False,
    **more: Any,
) -> Iterator[None]:
    """Record a run around a block: running, and then finished, failed (with the error's message) or interrupted. `how`
    are the options that `train --resume RUN` needs besides, each with a space before it.

    Raises `StoreError` where the store has a run of this id. With `resumes` that one is taken over, unless another
    program is at work on it.
    """
    document = {"config": config.to_dict(), "versions": versions(), **more}
    added = records_of(_plugin_names(config, more.get("sources", {})))
    if added:
        document["plugins"] = added
    record = RunRecord(run, kind, seed, data_hash, int(time.time() * 1000), document)
    (store.resume_run if resumes else store.add_run)(record)
    try:
        yield
    except KeyboardInterrupt:
        store.finish_run(run, "interrupted", "stopped by the user")
        advice = {
            "train": f"; continue with: cryptosentinel train --resume {run}{how}",
            "demo": "; the same command continues from here",
            "experiment": "; the same command continues from here",
            "sft": "; the same command continues from here",
            "paper": f"; continue with: cryptosentinel paper resume {run}",
        }
        raise Interrupted(f"run {run} was interrupted; what it stored is kept{advice.get(kind, '')}") from None
    except Exception as error:
        store.finish_run(run, "failed", f"{type(error).__name__}: {error}"[:500])
        raise
    store.finish_run(run, "finished")
