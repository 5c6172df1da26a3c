"""The commands of `cryptosentinel runs`: list the stored runs, show one or one of its decisions, move and delete
them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from backend.cli.console import (
    RunsOption,
    StoreOption,
    comparison_table,
    console,
    difference_line,
    narrow_table,
    size_in_words,
    value_table,
)
from backend.config.places import RUNS, STORE
from cryptosentinel.protocol.untrusted import visible
from simulator.errors import UserError
from simulator.market.timeframes import format_time

if TYPE_CHECKING:  # the database takes its time
    from backend.runs.deletion import RunDeletion
    from backend.runs.replay import DecisionReplay
    from backend.store.records import RunRecord
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
def runs_command(
    context: typer.Context,
    store: StoreOption = STORE,
    long: Annotated[bool, typer.Option("--long", help="Also status, start, seed and hash of the data.")] = False,
) -> None:
    """List the stored runs; `runs RUN` or `runs show RUN` shows one."""
    context.obj = store
    if context.invoked_subcommand is not None:
        return
    from backend.store.store import Store

    with Store.open(store) as opened:
        console.print(_long_table(opened, store) if long else _results_table(opened, store))


_OPTIONAL = ("window", "who")  # columns that a narrow terminal has no room for, the first to go first


def _results_table(opened: Store, title: str) -> Table:
    """What each run is, who was tested when, and its result, a line a run; of one that has not finished its status.
    Where the terminal is too narrow for a column of `_OPTIONAL`, it is left out."""
    rows: list[dict[str, str]] = []
    for one in opened.runs():
        if one.status != "finished":
            rows.append({"": one.run, "what": f"{one.kind} {one.status}"})
            continue
        from backend.reporting.run_table import run_row  # numpy, which a list without results does not need

        row = run_row(opened, one, intervals=False)
        against = row.difference if one.kind == "backtest" else None
        cells = ["" if value is None else f"{100 * value:+.1f} %" for value in (row.total_return, against)]
        if row.bp is not None:  # a decision; a few windows would say less
            cells = [f"{value:+.1f} bp" for value in row.bp]
        rows.append({"": one.run, "what": one.kind, "who": visible(row.teams), "window": row.window,
                     "return": cells[0], "vs hold": cells[1]})  # fmt: skip
    columns = ["what", "who", "window", "return", "vs hold"]
    width = {name: max((cell_len(cell.get(name, "")) for cell in rows), default=0) for name in ("", *columns)}
    for name in _OPTIONAL:
        if 1 + sum(2 + max(width[one], len(one)) for one in ("", *columns)) > console.width:
            columns.remove(name)
    table = narrow_table(title)
    for name in columns:
        right = name in ("return", "vs hold")
        table.add_column(name, justify="right" if right else "left", no_wrap=True, overflow="ellipsis")
    for cell in rows:
        table.add_row(cell[""], *(cell.get(name, "") for name in columns))
    return table


def _long_table(opened: Store, title: str) -> Table:
    """What tells the runs apart: status, start, seed and hash of the data."""
    table = narrow_table(title)
    for heading in ("kind", "status", "started (UTC)", "seed", "data"):
        table.add_column(heading)
    for one in opened.runs():
        table.add_row(one.run, one.kind, one.status, format_time(one.started_at), str(one.seed), one.data_hash[:8])
    return table


@runs_app.command("show")
def runs_show(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="A run, as `cryptosentinel runs` lists it.")],
    decision: Annotated[
        int | None, typer.Option("--decision", help="Number of a decision to show: who asked whom, and why.")
    ] = None,
    team: Annotated[str, typer.Option("--team", help="Whose decision, where the run has those of several teams.")] = "",
    settings: Annotated[bool, typer.Option("--settings", help="Show all its settings, as JSON.")] = False,
    store: StoreOption = "",
) -> None:
    """Show a run: what came of it and how it was run, or with --decision N one decision with all that was said."""
    from backend.store.store import Store

    if decision is None and team:
        raise UserError("--team is about a decision: name it with --decision N")
    with Store.open(_where(context, store)) as opened:
        if decision is None:
            _show(opened, run, settings)
            return
        from backend.decisions.tree import find_decision

        stored, tree = find_decision(opened, run, decision, team or None)
    from backend.reporting.decision_narrative import transcript

    console.print(Text(transcript(stored, tree), overflow="fold"))


@runs_app.command("replay")
def runs_replay(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="A backtest, as `cryptosentinel runs` lists it.")],
    decision: Annotated[int, typer.Option("--decision", help="Number of the decision.")],
    answer: Annotated[
        list[str] | None,
        typer.Option("--answer", help="A role's answer in place of its own: ROLE='{\"up\": 0.7, ...}'. Repeatable."),
    ] = None,
    team: Annotated[str, typer.Option("--team", help="Whose decision, where the run has those of several teams.")] = "",
    rules: Annotated[
        bool, typer.Option("--rules", help="Let rules answer what was not asked then, and not the team's own model.")
    ] = False,
    store: StoreOption = "",
) -> None:
    """Replay one decision with a role's answer replaced, beside what happened."""
    from backend.runs.replay import parse_answers, replay_decision
    from backend.store.store import Store

    instead = parse_answers(answer or ())
    with Store.open(_where(context, store)) as opened:
        replay = replay_decision(opened, run, decision, instead, team=team, by="rules" if rules else "team")
    console.print(_replay_table(replay))
    same = "The orders are the same." if replay.same else "The orders differ."
    console.print(f"{same} {replay.asked} requests were answered again; the others as in the run.", soft_wrap=True)


@runs_app.command("export")
def runs_export(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="A run, as `cryptosentinel runs` lists it.")],
    file: Annotated[Path, typer.Argument(help="File to write, for example RUN.jsonl.gz.")],
    store: StoreOption = "",
) -> None:
    """Write all records of a run to one file, which `runs import` reads. Files of its folder, and those that lie with
    the store, are not in it."""
    from backend.store.store import Store
    from backend.store.transfer import export_run

    with Store.open(_where(context, store)) as opened:
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


@runs_app.command("compare")
def runs_compare(
    context: typer.Context,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...", help="Backtests; each is compared with the first. Of a single one: all that it tested."
        ),
    ],
    team: Annotated[
        str, typer.Option("--team", help="Whose result, where a run tested several; default: the first of each run.")
    ] = "",
    store: StoreOption = "",
) -> None:
    """Compare backtests bar by bar, with intervals. Other data, windows or costs are refused with what differs."""
    from backend.evaluation.paired_runs import compared_result, marks_within, paired_differences, results_within
    from backend.store.store import Store

    with Store.open(_where(context, store)) as opened:
        alone = len(names) == 1 and not team
        compared = (
            results_within(opened, names[0]) if alone else [compared_result(opened, name, team) for name in names]
        )
        differences = paired_differences(compared)
        marks = marks_within(compared)
    table = narrow_table(f"over {differences[0].theirs}")
    for heading in ("wealth%", "95 %", "Sharpe", "p", "p, Holm"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in differences:
        wealth = one.wealth
        table.add_row(
            one.ours.name if alone else one.ours.run.run,
            f"{100 * wealth.value:+.1f}",
            f"{100 * wealth.low:+.0f} to {100 * wealth.high:+.0f}",
            f"{one.sharpe:+.2f}",
            f"{one.p_value:.3f}",
            f"{one.adjusted:.3f}",
        )
    console.print(table)
    console.print(
        "wealth%: final wealth over that of the first, minus 1, with its interval. p: that the Sharpe ratios do not "
        "differ (Ledoit and Wolf); Holm: corrected for all that were compared",
        soft_wrap=True,
    )
    for mark in marks:
        console.print(Text(mark), soft_wrap=True)


@runs_app.command("trials")
def runs_trials(
    context: typer.Context,
    store: StoreOption = "",
) -> None:
    """Show the ledger: how many ways of trading were ever tested on each window. Deleting runs lowers nothing."""
    from backend.evaluation.trials import count_trials
    from backend.store.store import Store

    with Store.open(_where(context, store)) as opened:
        trials = opened.trials()
    table = narrow_table("trials")
    for heading in ("from (UTC)", "to (UTC)"):
        table.add_column(heading)
    for heading in ("trials", "looks"):
        table.add_column(heading, justify="right", no_wrap=True)
    for data, start, stop in sorted({(one.data_hash, one.start, one.stop) for one in trials}):
        count = count_trials(trials, data, start, stop)
        row = (format_time(start), format_time(stop), str(count.trials), str(count.looks))
        table.add_row(data[:12], *row)
    console.print(table if table.row_count else "no trial yet: backtest and evaluate count them")


@runs_app.command("delete")
def runs_delete(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="RUN...", help="Runs to delete.")],
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
    store: StoreOption = "",
    runs: RunsOption = RUNS,
) -> None:
    """Delete runs with their records and files. Shows what would go, and asks. What another run needs stays."""
    from backend.cli.progress import bars
    from backend.runs.deletion import delete_run, plan_deletions
    from backend.store.store import Store

    with Store.open(_where(context, store)) as opened:
        plans = plan_deletions(opened, runs, names)
        needed = [plan for plan in plans if plan.needed_by]
        if needed:
            raise UserError("; ".join(f"run {plan.run} stays: {', '.join(plan.needed_by)}" for plan in needed))
        _show_deletions(plans)
        if not yes and not _confirmed(len(plans)):
            console.print("nothing was deleted")
            return
        with bars() as shown:
            total, done = sum(plan.total for plan in plans), 0
            for plan in plans:

                def deleted(count: int) -> None:
                    nonlocal done
                    done += count
                    shown.progress("records", done, total)

                delete_run(opened, plan, deleted)
    console.print(f"deleted {len(plans)} runs; the space of their records is used again", soft_wrap=True)


def _where(context: typer.Context, store: str) -> str:
    """The store that was named: after the command, before it (as `runs --store`), or the usual one."""
    return store or (context.obj if isinstance(context.obj, str) else "") or STORE


def _show_deletions(plans: Sequence[RunDeletion]) -> None:
    """What a deletion would take, a line a run."""
    table = narrow_table("to delete")
    for heading in ("kind", "status", "started (UTC)"):
        table.add_column(heading)
    for heading in ("records", "files"):
        table.add_column(heading, justify="right", no_wrap=True)
    for plan in plans:
        facts = ("", "no run", "") if plan.record is None else _facts(plan.record)
        table.add_row(plan.run, *facts, f"{plan.total:,}", size_in_words(plan.size))
    console.print(table)
    for plan in plans:
        if plan.kept:
            console.print(f"note: {', '.join(plan.kept)} in {plan.folder} stay: not of this program")


def _replay_table(replay: DecisionReplay) -> Table:
    """Both decisions row by row; what differs has a mark before it. All words are plain text."""
    from backend.reporting.decision_narrative import paired_rows

    table = Table(title=f"decision {replay.then.ordinal} of {replay.then.backtest}", box=None, title_justify="left")
    for heading in ("", "what happened", "replayed"):
        table.add_column(heading, overflow="fold", ratio=1 if heading else None)
    for row in paired_rows(replay.then_tree, replay.now_tree):
        mark = "≠ " if row.differs else "  "
        table.add_row(*(Text(visible(words)) for words in (f"{mark}{row.label}", row.then, row.now)))
    return table


def _facts(record: RunRecord) -> tuple[str, str, str]:
    return record.kind, record.status, format_time(record.started_at)


def _confirmed(count: int) -> bool:
    """Whether the user says yes. Raises `UserError` where nobody can be asked."""
    if not sys.stdin.isatty():
        raise UserError("nobody is there to be asked: give --yes to delete, after a look at what would go")
    return typer.confirm(f"delete {count} runs?")


def _show(opened: Store, run: str, settings: bool) -> None:
    from backend.decisions.checked_documents import check_document
    from backend.decisions.document import read_decisions
    from backend.decisions.tree import describe_decisions
    from backend.reporting.run_summary import how_it_was_run, summarise
    from backend.reporting.training_sections import CONTROL_VALUE, HELD_OUT_VALUE

    record = opened.run(run)
    check_document(record)
    summary = summarise(opened, run)
    console.print(Text(summary.opening, "bold"))
    for note in summary.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)
    for label, value in how_it_was_run(summary):
        console.print(Text(f"{label}: {value}"), soft_wrap=True)
    if settings:
        console.print_json(data=record.config)
    else:
        console.print(f"its settings: cryptosentinel runs show {run} --settings", soft_wrap=True)
    for evaluation in opened.evaluations(run):
        check_document(evaluation)
        if evaluation.name in (HELD_OUT_VALUE, CONTROL_VALUE):
            console.print(value_table(evaluation.result, evaluation.name == CONTROL_VALUE))
        elif "rows" in evaluation.result:
            console.print(comparison_table(evaluation.name, evaluation.result))
            if evaluation.result.get("difference"):
                console.print(difference_line(evaluation.result))
    decisions = read_decisions(opened, run)
    if decisions:
        console.print(f"decisions: {describe_decisions(decisions)}; see one with: runs show {run} --decision N")
