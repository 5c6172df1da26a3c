"""Runs and their folders: an id, a record in the store, and everything needed to repeat it."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from backend.config import Config
from backend.store.records import RunRecord
from backend.store.store import Store
from simulator.errors import Interrupted

PACKAGES = ("cryptosentinel", "torch", "transformers", "peft", "numpy", "numba", "surrealdb")


def versions() -> dict[str, str]:
    """Versions of Python and of what decides results."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def new_run_id(kind: str) -> str:
    """An id that sorts by time, as `train-20240131-120000-250`."""
    now = datetime.now(UTC)
    return f"{kind}-{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03d}"


@contextmanager
def recorded_run(
    store: Store, run: str, kind: str, seed: int, data_hash: str, config: Config, **more: Any
) -> Iterator[None]:
    """Record a run around a block: running, and then finished, failed (with the error's message) or interrupted."""
    document = {"config": config.to_dict(), "versions": versions(), **more}
    store.add_run(RunRecord(run, kind, seed, data_hash, int(time.time() * 1000), document))
    try:
        yield
    except KeyboardInterrupt:
        store.finish_run(run, "interrupted", "interrupted from the keyboard")
        how = {
            "train": f"; go on with: cryptosentinel train --resume {run}",
            "demo": "; the same command goes on from here",
        }
        raise Interrupted(f"run {run} was interrupted; what it stored is kept{how.get(kind, '')}") from None
    except Exception as error:
        store.finish_run(run, "failed", f"{type(error).__name__}: {error}"[:500])
        raise
    store.finish_run(run, "finished")
