"""The commands of `cryptosentinel store`: check, back up, compact, choose a bucket, convert a former one, accept a
damaged one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from backend.cli.console import console, size_in_words
from backend.cli.options import RunsOption, StoreOption
from backend.cli.parts.progress import bars
from backend.runs.requests import RUNS, STORE
from simulator.errors import RunFailed, UserError

_SHOWN = 10  # problems of one run

store_app = typer.Typer(
    help="Check a store, back it up, compact it, choose a bucket, convert a former one, go on with a damaged one.",
    no_args_is_help=True,
)


@store_app.command("check")
def store_check(store: StoreOption = STORE, runs: RunsOption = RUNS) -> None:
    """Read every record of a store, and the files that lie with it, and say what is damaged. Exit code 1 if anything
    is; nothing is changed."""
    from backend.runs.store_check import check_store
    from backend.store.store import Store

    with Store.open(existing(store), reads_only=True) as opened, bars() as shown:
        files_compared = opened.verify_files()
        check = check_store(opened, runs, shown.progress)
    counted = ", ".join(f"{count:,} {table}" for table, count in sorted(check.records.items()))
    console.print(f"read {sum(check.records.values()):,} records: {counted or 'none'}", soft_wrap=True)
    if not files_compared:
        console.print("note: another process holds the store: its files were not compared with what was acknowledged")
    for note in check.notes[:_SHOWN]:
        console.print(f"note: {note}", soft_wrap=True)
    if len(check.notes) > _SHOWN:
        console.print(f"note: and {len(check.notes) - _SHOWN} more of these")
    for run, problems in check.problems.items():
        for problem in problems[:_SHOWN]:
            console.print(f"run {run}: {problem}", soft_wrap=True)
        if len(problems) > _SHOWN:
            console.print(f"run {run}: and {len(problems) - _SHOWN} more")
    if check.problems:
        raise RunFailed(
            f"store {store} has {sum(map(len, check.problems.values()))} problems in {len(check.problems)} runs. The "
            "other runs are whole. Go back to a backup (docs/deployment.md), or keep this store and remove a run with "
            f"`cryptosentinel runs delete RUN`: {', '.join(list(check.problems)[:_SHOWN])}"
        )
    console.print("no problem: every record can be read, and what it refers to is there")


@store_app.command("backup")
def store_backup(
    target: Annotated[Path, typer.Argument(help="Folder to make. It becomes a store itself.")],
    store: StoreOption = STORE,
) -> None:
    """Copy a store into a new folder, also while a training writes it, and verify the copy, files of runs that lie with
    the store included. Runs' folders are not in it."""
    from backend.store.maintenance.backup import backup_store
    from backend.store.store import Store

    with Store.open(existing(store), reads_only=True) as opened, bars() as shown:
        copied = backup_store(opened, target, shown.progress)
    console.print(
        f"{target} holds {copied.get('run', 0)} runs with {sum(copied.values()):,} records, read again and "
        f"compared. Use it with --store {target}, or put it in the place of {store}",
        soft_wrap=True,
    )


@store_app.command("compact")
def store_compact(store: StoreOption = STORE) -> None:
    """Write a store's database anew without the space of deleted records, and remove files that no record names. The
    present database stays until the new one is verified."""
    from backend.store.maintenance.compaction import compact_store

    if "://" in store:
        raise UserError(
            "a server's store cannot be compacted: stop the server, and give --store the folder that it has"
        )
    with bars() as shown:
        done = compact_store(Path(existing(store)), shown.progress)
    if done.strays:
        console.print(f"removed {done.strays} files of runs that no record names")
    console.print(
        f"{store}: {size_in_words(done.before)} before, {size_in_words(done.after)} now, {done.records:,} records",
        soft_wrap=True,
    )


@store_app.command("bucket")
def store_bucket(
    url: Annotated[str, typer.Argument(help="The bucket, as s3://BUCKET or s3://BUCKET/PREFIX.")],
    store: StoreOption = STORE,
) -> None:
    """Let the files of a new store's runs (tokens, masks, log-probabilities, weights) lie in an S3-compatible bucket
    and not beside its database. The keys are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, and
    AWS_ENDPOINT_URL is the server's address."""
    from backend.store.maintenance.object_copy import choose_bucket
    from backend.store.store import Store

    with Store.open(store) as opened:
        chosen = choose_bucket(opened, url)
    console.print(
        f"files of runs of {store} lie in {chosen}. Every process that uses them needs the keys in its environment",
        soft_wrap=True,
    )


@store_app.command("convert")
def store_convert(
    folder: Annotated[Path, typer.Argument(help="Folder of a store that was written with SurrealDB 2.")],
    former_python: Annotated[
        Path | None,
        typer.Option(
            "--former-python",
            envvar="CRYPTOSENTINEL_FORMER_PYTHON",
            help="Python with surrealdb 2.0.0. Default: the one that `make .venv-former-engine` installs.",
        ),
    ] = None,
    salvage: Annotated[
        bool, typer.Option("--salvage", help="Convert what can be read of a store whose log is damaged.")
    ] = False,
) -> None:
    """Write a store of the former engine anew with the present one. The former database stays beside the new one."""
    from backend.store.former_engine.conversion import convert_store

    with bars() as shown:
        done = convert_store(folder, former_python, shown.progress, salvage)
    if done.dropped:
        console.print(f"{done.dropped:,} bytes of the damaged log could not be read", soft_wrap=True)
    console.print(
        f"{folder} holds {done.records.get('run', 0)} runs with {sum(done.records.values()):,} records, read again and "
        f"compared. The former database is kept in {done.kept}: remove it when you no longer need it",
        soft_wrap=True,
    )


@store_app.command("accept")
def store_accept(
    folder: Annotated[Path, typer.Argument(help="Folder of the store that is refused as damaged.")],
) -> None:
    """Go on with a damaged store as it is now, without what it lost. First its database is copied within the folder."""
    from backend.store.integrity.acceptance import accept_store
    from backend.store.store import Store

    accepted = accept_store(Path(existing(str(folder))))
    if accepted is None:
        console.print(f"{folder} holds all that was acknowledged: there is nothing to accept", soft_wrap=True)
        return
    console.print(f"{accepted.found}\nAs it was found it is kept in {accepted.copy}", soft_wrap=True)
    with Store.open(folder) as opened:
        console.print(
            f"{folder} is taken as it is, with {len(opened.runs())} runs. Now run `cryptosentinel store check --store "
            f"{folder}`",
            soft_wrap=True,
        )


def existing(store: str) -> str:
    """The store of that name, which is there. Raises `UserError`."""
    from backend.store.folder_swap import DATABASE_FOLDER, WORKPLACE

    # Between two databases there is only the workplace; whoever opens the store finishes the exchange.
    if "://" not in store and not any((Path(store) / name).is_dir() for name in (DATABASE_FOLDER, WORKPLACE)):
        raise UserError(f"there is no store in {store}: give the folder of one with --store")
    return store
