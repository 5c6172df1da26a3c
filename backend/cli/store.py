"""The commands that move runs between stores: `cryptosentinel runs export | import`, and `runs upgrade`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from backend.cli.console import console

transfer_app = typer.Typer(help="Move runs between stores.", no_args_is_help=True)

StoreOption = Annotated[
    str, typer.Option("--store", help="Folder of the store, or ws:// of a server. Default: runs/store.")
]
DEFAULT_STORE = "runs/store"


def _where(context: typer.Context, store: str) -> str:
    """The store that was named: after the command, before it (as `runs --store`), or the usual one."""
    return store or (context.obj if isinstance(context.obj, str) else "") or DEFAULT_STORE


@transfer_app.command("export")
def runs_export(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="A run, as `cryptosentinel runs` lists it.")],
    file: Annotated[Path, typer.Argument(help="File to write, for example RUN.jsonl.gz.")],
    store: StoreOption = "",
) -> None:
    """Write all records of a run to one file, which `runs import` reads. Files of its folder are not in it."""
    from backend.store.store import Store
    from backend.store.transfer import export_run

    with Store.open(_where(context, store)) as opened:
        count = export_run(opened, run, file)
    console.print(f"wrote {count} records of run {run} to {file}", markup=False, soft_wrap=True)


@transfer_app.command("import")
def runs_import(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="A file that `runs export` wrote.")],
    store: StoreOption = "",
) -> None:
    """Add the run in a file to a store. A run that is there already must be the very same."""
    from backend.store.store import Store
    from backend.store.transfer import import_run

    where = _where(context, store)
    with Store.open(where) as opened:
        run, count = import_run(opened, file)
    said = f"wrote {count} records of run {run} to {where}" if count else f"{where} has this very run {run} already"
    console.print(said, markup=False, soft_wrap=True)


@transfer_app.command("upgrade")
def runs_upgrade(context: typer.Context, store: StoreOption = "") -> None:
    """Bring a store to the schema of this program, as every command does that opens it."""
    from backend.store.migration import SCHEMA_VERSION
    from backend.store.store import Store

    where = _where(context, store)
    with Store.open(where):
        pass
    console.print(f"{where} has version {SCHEMA_VERSION} of the schema", markup=False, soft_wrap=True)
