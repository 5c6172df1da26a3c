"""The files of runs that lie with a store (`sharing/objects.py`): compared with their records, and copied.

The database has the name and the SHA-256 of each; a record of a file is only written when its content is there.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Collection
from pathlib import Path

from backend.store.errors import StoreError
from backend.store.folder_swap import sync_folder
from backend.store.maintenance.tables import Tables
from backend.store.records import Delegation, FileRecord, StoredFile, TensorRecord, TrajectoryRecord
from backend.store.sharing.bucket import BucketObjects, bucket_url
from backend.store.sharing.objects import (
    OBJECTS_FOLDER,
    ObjectFolder,
    ObjectStore,
    object_name,
    object_pieces,
)
from backend.store.store import Store

_CHECK_SECONDS = 5.0  # for which a bucket that is chosen may fail to answer
_TRIES = 5  # of a run whose files are replaced while they are copied


def choose_bucket(store: Store, url: str) -> str:
    """Let the files of runs lie in the bucket `url` from now on, and return its address. A store has one for good.

    Raises `StoreError` for a bucket that cannot be used, a store in memory or with another bucket, and where runs have
    files already, or one is being written.
    """
    connection, url = store.connection, bucket_url(url)
    if not connection.keeps_files:
        raise StoreError(f"store {connection.name} keeps no files: give a folder or a server")
    if (present := connection.bucket()) is None:
        early = "choose its bucket before the first training, or take another store"
        if runs := list(named_files(store)):
            raise StoreError(f"store {connection.name} has files of run {runs[0]} beside its database: {early}")
        if running := [record.run for record in store.runs() if record.status == "running"]:
            raise StoreError(f"run {running[0]} of store {connection.name} is being written: {early}")
        BucketObjects(url, _CHECK_SECONDS).check()
        statement = "UPDATE store:schema SET bucket = $bucket WHERE bucket IS NONE RETURN NONE"
        connection.query(statement, {"bucket": url})
        present = connection.bucket()
    if present != url:
        raise StoreError(
            f"the files of store {connection.name} lie in {present}: take another store for another bucket"
        )
    return url


def named_files(store: Store) -> dict[str, list[StoredFile]]:
    """The files of each run that has any. One whose deletion has begun has none: its contents go before its records."""
    deleting = {record.run for record in store.runs() if record.status == "deleting"}
    runs = sorted({run for kind in (FileRecord, TensorRecord) for run in Tables(store).run_ids(kind)})
    return {run: _files_of(store, run) for run in runs if run not in deleting}


def file_problem(store: Store, file: StoredFile) -> str | None:
    """What is wrong with the content of a file, in words. None where nothing is, and where its record is gone: a
    training replaces its files."""
    problem = _difference(store.objects, file)
    return problem if problem is not None and file in _files_of(store, file.run) else None


def verify_own_files(copy: Store) -> None:
    """Compare the files of runs in a new copy with their records, every byte, and remove what no record names: nobody
    else knows the copy. Raises `StoreError` for one that is not there or differs."""
    objects = copy.objects
    assert isinstance(objects, ObjectFolder)
    by_run = named_files(copy)
    for files in by_run.values():
        for file in files:
            if (problem := _difference(objects, file)) is not None:
                raise _damaged(file, problem)
    objects.remove_others({object_name(file) for files in by_run.values() for file in files}, 0.0)


def stray_files(store: Store) -> list[str]:
    """The contents that no record names, in the folder of a store: what a kill leaves between the two. Empty for any
    other store."""
    objects = store.objects if store.connection.folder is not None else None
    if not isinstance(objects, ObjectFolder):
        return []
    there = objects.others(())
    return objects.others(_all_named(store)) if there else []


def remove_stray_files(store: Store) -> int:
    """Remove what `stray_files` finds, and return how many they were; nothing in a bucket. The caller has the store
    alone."""
    objects = store.objects
    return objects.remove_others(_all_named(store)) if isinstance(objects, ObjectFolder) else 0


def copy_objects(source: Store, target: Path, without: Collection[str] = ()) -> dict[str, list[StoredFile]]:
    """Copy the files of all runs but `without` into the folder `target` of a new store, and return which they are:
    those that each run had at one moment. Raises `StoreError` for one that is damaged, and `OSError`."""
    copied: dict[str, list[StoredFile]] = {}
    for run in named_files(source):
        for attempt in range(1, _TRIES + 1) if run not in without else ():
            files = _files_of(source, run)
            problem = _copy_run(source.objects, files, target / OBJECTS_FOLDER)
            if problem is None:
                copied[run] = files
                break
            file, what = problem
            if run not in (still := named_files(source)):
                break  # it is being deleted
            if file in still[run]:
                raise _damaged(file, what)
            if attempt == _TRIES:
                raise StoreError(f"the files of run {run} were replaced faster than they could be copied: start again")
    return copied


def adopt_files(source: Store, target: Path, copied: dict[str, list[StoredFile]]) -> dict[str, int]:
    """Let the new store in `target` name the files that `copy_objects` has copied, and no others but the tokens of
    steps that were written since: its records were copied a little later. Compares every byte. Returns how many records
    it holds of the tables that this may change."""
    with Store.open(target, exclusive=True) as copy:
        named = named_files(copy)
        late = set(named) - set(copied)  # of a run that was begun meanwhile
        wanted = copied | (copy_objects(source, target, copied) if late else {})
        for run, files in wanted.items():
            if run in named:
                _name_anew(copy, run, [file for file in files if isinstance(file, FileRecord)])
                _add_tokens(source, copy, run, target)
        verify_own_files(copy)
        kinds = (FileRecord, TensorRecord, TrajectoryRecord, Delegation)
        return {kind.table: sum(Tables(copy).total(kind, record.run) for record in copy.runs()) for kind in kinds}


def _name_anew(copy: Store, run: str, files: list[FileRecord]) -> None:
    """Let a copy name these files of a run, which do not belong to a step."""
    if files != (there := copy.files(run)):
        copy.remove_files(run, [file.name for file in there])
        for file in files:
            copy.add_file(file)


def _add_tokens(source: Store, copy: Store, run: str, target: Path) -> None:
    """Bring the files with the tokens of a run's steps into the folder `target` of a copy. A step whose conversations
    were dropped meanwhile loses them in the copy as well."""
    for step in sorted({file.step for file in copy.tensors(run)}):
        problem = _copy_run(source.objects, list(copy.tensors(run, step)), target / OBJECTS_FOLDER)
        if problem is not None:
            file, what = problem
            if file in source.tensors(run, step):
                raise _damaged(file, what)
            copy.drop_trajectories(run, [step])


def _all_named(store: Store) -> set[str]:
    runs = {run for kind in (FileRecord, TensorRecord) for run in Tables(store).run_ids(kind)}
    return {object_name(file) for run in runs for file in _files_of(store, run)}


def _files_of(store: Store, run: str) -> list[StoredFile]:
    return [*store.files(run), *store.tensors(run)]


def _difference(objects: ObjectStore, file: StoredFile) -> str | None:
    digest = hashlib.sha256()
    try:
        for piece in object_pieces(objects, file):
            digest.update(piece)
    except StoreError as error:
        return f"its content cannot be read: {error}"
    except OSError as error:
        return f"its content cannot be read: {error.strerror}"
    if digest.hexdigest() != file.checksum:
        return "its content is not what was written: the SHA-256 differs"
    return None


def _copy_run(objects: ObjectStore, files: list[StoredFile], target: Path) -> tuple[StoredFile, str] | None:
    """The first of the files that cannot be read or differs, with what is wrong; it may have been replaced meanwhile.
    Raises `OSError`."""
    wanted = {object_name(file): file for file in files}
    missing = {name: file for name, file in wanted.items() if not (target / name).exists()}
    target.mkdir(parents=True, exist_ok=True)
    if sum(file.size for file in missing.values()) > shutil.disk_usage(target).free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for name, file in missing.items():
        path, digest = target / name, hashlib.sha256()
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as copy:
            try:
                for piece in object_pieces(objects, file):
                    digest.update(piece)
                    copy.write(piece)
            except StoreError as error:
                path.unlink()
                return file, str(error)
            copy.flush()
            os.fsync(copy.fileno())
            os.posix_fadvise(copy.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # what is compared is to come from the disk
        if digest.hexdigest() != file.checksum:
            path.unlink()
            return file, "its content is not what was written: the SHA-256 differs"
        sync_folder(path.parent)
    return None


def _damaged(file: StoredFile, problem: str) -> StoreError:
    return StoreError(
        f"{file.name} of run {file.run} lies with the store, and {problem}. Delete the run with `cryptosentinel runs "
        f"delete {file.run}`, or keep a copy of the store's folder as it is"
    )
