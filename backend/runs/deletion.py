"""The use case runs delete: a run with everything that belongs to it, and nothing that another run needs.

A deletion first marks the run in the store, then deletes the files of its folder, then its records, and the run itself
last. So one that is cut short leaves a run that is marked; a second deletion finishes it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.store.maintenance import size_of
from backend.store.records import KINDS, RunRecord
from backend.store.store import Store
from simulator.documents import read_document
from simulator.errors import UserError

# As in `backend.models`, whose import takes torch and seconds.
_MANIFEST, _ADAPTERS = "team.json", "adapters"
_START = f"{_ADAPTERS}/start"
# What the program writes into a run's folder, the manifest first: without it the rest is no team. Anything else there
# is the user's, and stays.
RUN_FILES = (
    _MANIFEST, "report.html", "report.json", "metrics.jsonl", "tensorboard", "wandb", "checkpoints", _ADAPTERS,
    "served", "services", "processes", "nano", "demo.json", "recorded", "metrics.prom", "session.log",
    "KILL", "STOP", "PROCESS",
)  # fmt: skip
_UNFINISHED = ".tmp"  # what an interrupt may leave beside them


@dataclass(frozen=True)
class RunDeletion:
    """What would go with a run: how many records of each table, and `size` bytes of files in `folder`.

    `needed_by` lists what needs the run's files; then it stays. `kept` are files in the folder that the program did not
    write. `record` is None for records whose run is not there, which an import that was cut short leaves.
    """

    run: str
    record: RunRecord | None
    records: dict[str, int]
    folder: Path | None = None
    size: int = 0
    needed_by: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    files: tuple[Path, ...] = field(default=(), repr=False)

    @property
    def total(self) -> int:
        """How many records go."""
        return sum(self.records.values())


def plan_deletions(store: Store, runs: Path, names: Sequence[str]) -> list[RunDeletion]:
    """What deleting the runs `names` would delete, the newest first: what needs another run is newer.

    Nothing is deleted. Raises `UserError` for a run that is not there or is being written.
    """
    known = {record.run: record for record in store.runs()}
    chosen = list(dict.fromkeys(names))
    order = {run: place for place, run in enumerate(known)}  # the newest first
    chosen.sort(key=lambda run: order.get(run, len(order)))
    plans = [_plan(store, runs, run, known, chosen) for run in chosen]
    for plan in plans:
        if plan.record is None and not plan.total:
            raise UserError(f"there is no run '{plan.run}': `cryptosentinel runs` lists those that are")
        if plan.record is not None and plan.record.status == "running":
            raise UserError(
                f"run {plan.run} is being written: delete it when it has ended, or stop the program that writes it"
            )
    return plans


def delete_run(store: Store, plan: RunDeletion, on_deleted: Callable[[int], None] | None = None) -> None:
    """Delete a run as planned. Raises `UserError` for one that is needed or has begun to run meanwhile."""
    if plan.needed_by:
        raise UserError(f"run {plan.run} stays: {'; '.join(plan.needed_by)}")
    store.mark_deleting(plan.run)
    try:
        for path in plan.files:
            _remove(path)
        if plan.folder is not None and plan.folder.is_dir() and not plan.kept:
            plan.folder.rmdir()
    except OSError as error:
        raise UserError(
            f"{error.filename or plan.folder} cannot be deleted ({error.strerror}): run {plan.run} is half deleted; "
            "fix that and delete it again"
        ) from error
    store.delete_run(plan.run, on_deleted)


# -- what belongs to a run ---------------------------------------------------------------------------------------------


def _plan(store: Store, runs: Path, run: str, known: dict[str, RunRecord], chosen: Collection[str]) -> RunDeletion:
    counted = {kind.table: store.count(kind, run) for kind in KINDS}
    folder = folder_of(run, runs)
    files, kept = _files_of(folder) if folder is not None else ((), ())
    needed: list[str] = []
    if folder is not None:
        for other in known.values():
            if other.run not in chosen and other.status != "deleting":
                needed += [f"run {other.run} names its files"] if _needs(other, run, folder, runs) else []
        chosen_folders = {_resolved(one) for name in chosen if (one := folder_of(name, runs)) is not None}
        needed += [f"the team in {team} has its base there" for team in _teams_over(folder, runs, chosen_folders)]
    return RunDeletion(
        run,
        known.get(run),
        {table: count for table, count in counted.items() if count},
        folder,
        sum(size_of(path) for path in files),
        tuple(needed),
        kept,
        files,
    )


def folder_of(run: str, runs: Path) -> Path | None:
    """The folder of a run's files below `runs`; None where there is none. The newest demo's is called `demo`."""
    try:
        if read_document(runs / "demo" / "demo.json")["run"] == run:
            return runs / "demo"
    except (OSError, ValueError, KeyError, TypeError):
        pass
    folder = runs / run
    return folder if folder.is_dir() and not folder.is_symlink() else None


def _files_of(folder: Path) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """What the program wrote into a folder, in the order in which it is deleted, and the names of what it did not."""
    present = {path.name: path for path in sorted(folder.iterdir())}
    ours = [
        name
        for name in present
        if name in RUN_FILES or (name.endswith(_UNFINISHED) and _written_as(name) in {*RUN_FILES})
    ]
    ours.sort(key=lambda name: RUN_FILES.index(_written_as(name)))
    return tuple(present[name] for name in ours), tuple(name for name in present if name not in ours)


def _written_as(name: str) -> str:
    """The name of the file whose unfinished version is called `name`: x.json.tmp and x.tmp stand for x.json."""
    whole = name.removesuffix(_UNFINISHED)
    return next((file for file in RUN_FILES if whole in (file, Path(file).stem)), whole)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# -- who needs it ------------------------------------------------------------------------------------------------------


def _needs(other: RunRecord, run: str, folder: Path, runs: Path) -> bool:
    """Whether another run's record names a path in `folder`, but for the team that a training began with: of that it
    has its own copy. Paths may have been written in another working directory, so a part that is the run's id counts.
    """
    own = folder_of(other.run, runs)
    copied = "start_from" if own is not None and (own / _START).is_dir() else ""
    named, here = (Path(text) for text in _texts(other.config, copied) if text), _resolved(folder)
    return any(run in path.parts or _resolved(path).is_relative_to(here) for path in named)


def _texts(value: Any, but: str) -> Iterator[str]:
    """All texts in a document, without those of the key `but`."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value if isinstance(value, list) else (part for key, part in value.items() if key != but):
            yield from _texts(one, but)


def _teams_over(folder: Path, runs: Path, chosen: Collection[Path]) -> Iterator[Path]:
    """The teams below `runs` whose base model lies in `folder`, but for those in folders that go as well."""
    for manifest in sorted((*runs.glob(f"*/{_MANIFEST}"), *runs.glob(f"*/{_START}/{_MANIFEST}"))):
        team = manifest.parent
        home = _resolved(runs / manifest.relative_to(runs).parts[0])
        if home in chosen or home == _resolved(folder):
            continue
        try:
            base = read_document(manifest)["base"]
            lies_there = isinstance(base, str) and _resolved(team / base).is_relative_to(_resolved(folder))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # it is no team that anybody could load
        if lies_there:
            yield team


def _resolved(path: Path) -> Path:
    return Path(os.path.realpath(path))
