"""The commands of `cryptosentinel runs`: list the stored runs, show one, or one of its decisions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from backend.cli.console import comparison_table, console, difference_line, narrow_table
from backend.cli.options import StoreOption
from backend.runs.requests import STORE
from simulator.errors import UserError
from simulator.market.timeframes import format_time

if TYPE_CHECKING:  # the database takes its time
    from backend.store.store import Store


class _RunsGroup(TyperGroup):
    """`runs RUN` is short for `runs show RUN`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["show", *args]
        return super().resolve_command(ctx, args)


runs_app = typer.Typer(
    cls=_RunsGroup, help="List the stored runs, show one (runs RUN), or a decision of it.", invoke_without_command=True
)


@runs_app.callback()
def runs_command(context: typer.Context, store: StoreOption = STORE) -> None:
    """List the stored runs; `runs RUN` or `runs show RUN` shows one."""
    context.obj = store
    if context.invoked_subcommand is not None:
        return
    from backend.store.store import Store

    with Store.open(store, reads_only=True) as opened:
        table = narrow_table(store)
        for heading in ("kind", "status", "started (UTC)", "seed", "data"):
            table.add_column(heading)
        for one in opened.runs():
            table.add_row(one.run, one.kind, one.status, format_time(one.started_at), str(one.seed), one.data_hash[:12])
        console.print(table)


@runs_app.command("show")
def runs_show(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="A run, as `cryptosentinel runs` lists it.")],
    decision: Annotated[
        int | None, typer.Option("--decision", help="Number of a decision to show as a tree: who asked whom, and why.")
    ] = None,
    team: Annotated[str, typer.Option("--team", help="Whose decision, where the run has those of several teams.")] = "",
    html: Annotated[
        Path | None, typer.Option("--html", help="Write the decision to this file, as one page, instead.")
    ] = None,
    store: StoreOption = "",
) -> None:
    """Show a run: its configuration and results, or with --decision N one decision with all that was said."""
    from backend.store.store import Store

    if decision is None and (team or html):
        raise UserError("--team and --html are about a decision: name it with --decision N")
    with Store.open(_where(context, store), reads_only=True) as opened:
        if decision is None:
            _show(opened, run)
            return
        from backend.decisions.tree import find_decision

        stored, tree = find_decision(opened, run, decision, team or None)
    from backend.reporting.decision_views import decision_page, text_tree

    if html is None:
        console.print(text_tree(stored, tree), highlight=False)
        return
    try:
        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(decision_page(stored, tree), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{html} cannot be written ({error.strerror}): give another file with --html") from error
    console.print(f"decision {decision}: {html}")


@runs_app.command("export")
def runs_export(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="A run, as `cryptosentinel runs` lists it.")],
    file: Annotated[Path, typer.Argument(help="File to write, for example RUN.jsonl.gz.")],
    store: StoreOption = "",
) -> None:
    """Write all records of a run to one file, which `runs import` reads. Files of its folder are not in it."""
    from backend.store.store import Store
    from backend.store.transfer import export_run

    with Store.open(_where(context, store), reads_only=True) as opened:
        count = export_run(opened, run, file)
    console.print(f"wrote {count} records of run {run} to {file}", soft_wrap=True)


@runs_app.command("import")
def runs_import(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="A file that `runs export` wrote.")],
    store: StoreOption = "",
) -> None:
    """Add the run in a file to a store. A run that is there already must be the very same."""
    from backend.decisions.checked_documents import check_document
    from backend.store.store import Store
    from backend.store.transfer import import_run

    where = _where(context, store)
    with Store.open(where) as opened:
        run, count = import_run(opened, file, check_document)
    line = f"wrote {count} records of run {run} to {where}" if count else f"{where} has this very run {run} already"
    console.print(line, soft_wrap=True)


@runs_app.command("adopt")
def runs_adopt(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="A run, as `cryptosentinel runs` lists it.")],
    store: StoreOption = "",
) -> None:
    """Take a run over as your own: from then on, what its record says is run, contacted and read when it goes on.

    Your own runs need it where they were made by a version that signed none, or came back out of an export.
    """
    from dataclasses import replace

    from backend.config.ownership import is_own, signed
    from backend.store.run_record import stored_config
    from backend.store.store import Store

    with Store.open(_where(context, store)) as opened:
        record = opened.run(run)
        _, withheld = stored_config(record)
        document = signed(run, record.config)
        if not is_own(run, document):
            raise UserError("your key cannot be kept: make ~/.local/state writable, or name a folder in XDG_STATE_HOME")
        opened.add_run(replace(record, config=document))
    for one in withheld:
        console.print(f"{one.key} = {json.dumps(one.value)}")
    console.print(f"run {run} is your own now; {len(withheld)} settings that only you may say are taken from it")


@runs_app.command("upgrade")
def runs_upgrade(context: typer.Context, store: StoreOption = "") -> None:
    """Bring a store to the schema of this program, as every command does that opens it."""
    from backend.store.migration import SCHEMA_VERSION
    from backend.store.store import Store

    where = _where(context, store)
    with Store.open(where):
        pass
    console.print(f"{where} has version {SCHEMA_VERSION} of the schema", soft_wrap=True)


def _where(context: typer.Context, store: str) -> str:
    """The store that was named: after the command, before it (as `runs --store`), or the usual one."""
    return store or (context.obj if isinstance(context.obj, str) else "") or STORE


def _show(opened: Store, run: str) -> None:
    from backend.decisions.checked_documents import check_document
    from backend.decisions.document import read_decisions
    from backend.decisions.tree import describe_decisions

    record = opened.run(run)
    check_document(record)
    message = f" ({record.message})" if record.message else ""
    console.print(f"{record.run}: {record.kind}, {record.status}{message}")
    console.print_json(data=record.config)
    for evaluation in opened.evaluations(run):
        check_document(evaluation)
        if "rows" in evaluation.result:
            console.print(comparison_table(evaluation.name, evaluation.result))
            if evaluation.result.get("difference"):
                console.print(difference_line(evaluation.result))
    decisions = read_decisions(opened, run)
    if decisions:
        console.print(f"decisions: {describe_decisions(decisions)}; see one with: runs show {run} --decision N")
