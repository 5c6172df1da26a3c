"""The commands of `cryptosentinel store`: check, back up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from backend.cli.console import console
from backend.cli.options import StoreOption
from backend.cli.progress import bars
from backend.runs.requests import STORE
from simulator.errors import RunFailed

if TYPE_CHECKING:  # the database takes its time
    from backend.store.store import Store

_SHOWN = 10  # problems of one run

store_app = typer.Typer(
    help="Check a store, back it up.",
    no_args_is_help=True,
)


@store_app.command("check")
def store_check(store: StoreOption = STORE) -> None:
    """Read every record of a store and report what is damaged. Exit code 1 if anything is; nothing is changed."""
    from backend.runs.store_check import check_store

    with _opened(store) as opened, bars() as shown:
        check = check_store(opened, shown.progress)
    counted = ", ".join(f"{count:,} {table}" for table, count in sorted(check.records.items()))
    console.print(f"read {sum(check.records.values()):,} records: {counted or 'none'}", soft_wrap=True)
    for run, problems in check.problems.items():
        _print_some(f"run {run}: ", problems)
    if check.problems:
        raise RunFailed(
            f"store {store} has {sum(map(len, check.problems.values()))} problems in {len(check.problems)} runs. The "
            "other runs are whole. Go back to a backup (docs/guides/deployment.md), or keep this store and remove a "
            f"run with `cryptosentinel runs delete RUN`: {', '.join(list(check.problems)[:_SHOWN])}"
        )
    console.print("no problem: every record can be read")


@store_app.command("backup")
def store_backup(
    target: Annotated[Path, typer.Argument(help="Folder to make. It becomes a store itself.")],
    store: StoreOption = STORE,
) -> None:
    """Copy a store into a new folder, also while a training writes it, and verify the copy. Runs' folders are not in
    it."""
    from backend.store.maintenance import backup_store

    with _opened(store) as opened, bars() as shown:
        copied = backup_store(opened, target, shown.progress)
    console.print(
        f"{target} has {copied:,} records, read again and compared. Use it with --store {target}, or put it in the "
        f"place of {store}",
        soft_wrap=True,
    )


def _opened(store: str) -> Store:
    """The store of that name, which is there. Raises `UserError`."""
    from backend.store.maintenance import existing
    from backend.store.store import Store

    if "://" not in store:
        existing(Path(store))
    return Store.open(store)


def _print_some(prefix: str, lines: Sequence[str]) -> None:
    for line in lines[:_SHOWN]:
        console.print(f"{prefix}{line}", soft_wrap=True)
    if len(lines) > _SHOWN:
        console.print(f"{prefix}and {len(lines) - _SHOWN} more")
