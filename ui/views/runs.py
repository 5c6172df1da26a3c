"""The page of stored runs: a table to look through, one of them opened, or several side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

from backend.reporting.comparison import compared_runs
from backend.reporting.run_labels import RunLabels, write_labels
from backend.reporting.run_table import RunRow
from backend.runs.deletion import RunDeletion, delete_run, plan_deletions
from backend.runs.requests import RUNS
from backend.runs.sample_run import add_sample_run, has_sample_run
from backend.store.store import Store
from ui.access import asked_for, escape_markdown, mistakes_explained, read_run, set_address, store_name
from ui.parts.drawing import MOMENT, draw_blocks, show_table
from ui.parts.follow import follow_store
from ui.parts.ready import look_at_runs
from ui.views.run import show_run

_MOST_COMPARED = 8
_COLUMNS = {
    "started (UTC)": MOMENT,
    "return": st.column_config.NumberColumn(format="%+.2f %%", help="Net of all costs; of an evaluation, the mean over "
                                            "the held-out windows."),
    "Sharpe": st.column_config.NumberColumn(format="%.2f", help="Return per unit of risk, for a year."),
    "P(Sharpe > 0)": st.column_config.NumberColumn(format="%.0f %%", help="Probability that the true Sharpe ratio is "
                                                   "above 0, by the bars of this run alone."),
    "drawdown": st.column_config.NumberColumn(format="%.1f %%", help="The largest loss from a peak."),
    "costs": st.column_config.NumberColumn(format="%.2f %%", help="Paid for trading, of the money at the start."),
    "gain": st.column_config.NumberColumn(format="%+.2f pp", help="Of a backtest: more than holding. Of an "
                                          "evaluation: more than before training. Percentage points."),
    "95 % interval": st.column_config.TextColumn(help="Of the gain, percentage points: over the held-out windows, or "
                                                 "over blocks of a backtest's bars. Includes 0: not significant."),
    "teams": st.column_config.TextColumn(width="medium"),
    "verdict": st.column_config.TextColumn(width="medium"),
    "note": st.column_config.TextColumn(width="medium"),
}  # fmt: skip


def _page() -> None:
    """List the runs of the store, and show the chosen ones."""
    st.title("Runs")
    st.caption(escape_markdown(f"Store: {store_name()}"))
    with mistakes_explained():
        runs, labels, rows, unread, state = look_at_runs()
        follow_store(state, unread)
        if not runs:
            st.info("There are no runs yet. Start a backtest on the next page, or run `make demo`.")
            if has_sample_run():
                st.button("Open the finished run that comes with the program", on_click=_add_sample, type="primary",
                          icon=":material/folder_open:")  # fmt: skip
            return
        records = {run.run: run for run in runs}
        names = list(records)
        _begin_with(names)
        _choose_in_table(rows, labels)
        chosen = st.multiselect(
            "Open one, or compare several", names, key="open", max_selections=_MOST_COMPARED, on_change=_keep_choice,
            help="Or tick them in the table. The address of this page names them.",
        )  # fmt: skip
        if not chosen:
            st.info("Tick a run in the table to open it, several to compare them.")
        elif len(chosen) == 1:
            _edit_labels(chosen[0], labels.get(chosen[0], RunLabels()))
            show_run(read_run(chosen[0], records[chosen[0]]))
        else:
            draw_blocks(compared_runs([read_run(name, records[name]) for name in chosen]), "compared")
        _offer_to_delete(chosen)


def _add_sample() -> None:
    with mistakes_explained(), Store.open(store_name()) as store:
        add_sample_run(store)


def _begin_with(names: Sequence[str]) -> None:
    """Open what the address names, else what was open when the page was left, else the newest run."""
    asked = asked_for("run", names, "a run")[:_MOST_COMPARED]
    # The choice is kept apart: Streamlit forgets a widget's value while another page is shown.
    kept = [name for name in st.session_state.get("runs", []) if name in names]
    chosen = st.session_state.get("open", asked or kept or list(names[:1]))
    if asked and set(asked) != set(chosen) and st.session_state.get("runs") != asked:
        chosen = asked  # the address was typed again
    st.session_state["open"] = [name for name in chosen if name in names]
    st.session_state["runs"] = list(st.session_state["open"])


def _keep_choice() -> None:
    if st.session_state.get("runs", st.session_state["open"]) != st.session_state["open"]:
        set_address("decision", [])  # it was one of another run
    st.session_state["runs"] = list(st.session_state["open"])
    set_address("run", st.session_state["runs"])


def _edit_labels(run: str, labels: RunLabels) -> None:
    """Tags and a note of one run, which the store keeps."""
    shown = ", ".join(labels.tags)
    with st.expander(escape_markdown(f"Tags and note: {shown}" if shown else "Tags and note"), icon=":material/label:"):
        tags = st.text_input("Tags, with commas between", shown, key=f"tags of {run}", placeholder="baseline, keep")
        note = st.text_area("Note", labels.note, key=f"note of {run}", height=80)
        if st.button("Save", key=f"save labels of {run}"):
            with mistakes_explained():
                edited = RunLabels.of(tags, note)
                with Store.open(store_name()) as store:
                    write_labels(store, run, edited)
                st.rerun()


def _offer_to_delete(chosen: Sequence[str]) -> None:
    """A button for the runs that are open; what would go is shown first, and nothing goes without a second click."""
    if not chosen:
        return
    if st.session_state.get("to delete") != list(chosen):
        if st.button(f"Delete {_counted(len(chosen))} …", icon=":material/delete:", key="delete"):
            st.session_state["to delete"] = list(chosen)
            st.rerun()
        return
    with mistakes_explained(), Store.open(store_name()) as store:
        plans = plan_deletions(store, RUNS, chosen)
        for plan in plans:
            st.warning(escape_markdown(_deletion_words(plan)))
        sure, keep = st.columns(2)
        if keep.button("Keep", key="keep"):
            del st.session_state["to delete"]
            st.rerun()
        going = [plan for plan in plans if not plan.needed_by]
        if going and sure.button(f"Delete {_counted(len(going))} for good", type="primary", key="delete for good"):
            for plan in going:
                delete_run(store, plan)
            del st.session_state["to delete"]
            set_address("run", [])
            st.rerun()


def _deletion_words(plan: RunDeletion) -> str:
    if plan.needed_by:
        return f"{plan.run} stays: {'; '.join(plan.needed_by)}."
    own = f" Files of yours stay: {', '.join(plan.kept)}." if plan.kept else ""
    return f"{plan.run}: {plan.total:,} records and {plan.size / 1e6:,.1f} MB of files will be deleted.{own}"


def _counted(number: int) -> str:
    return "this run" if number == 1 else f"these {number} runs"


def _choose_in_table(rows: Sequence[RunRow], labels: Mapping[str, RunLabels]) -> None:
    """The table, with what the reader looks for; ticked rows are opened."""
    words, kinds, tags = st.columns([3, 2, 2])
    sought = words.text_input("Find", placeholder="a team, a coin's folder, a date, a word of the verdict")
    # The words on pills are read as Markdown, and a run of another user brings its own.
    wanted = kinds.pills(
        "Kind", sorted({row.kind for row in rows}), selection_mode="multi", format_func=escape_markdown
    )
    known_tags = sorted({tag for one in labels.values() for tag in one.tags})
    offered = known_tags and tags.pills("Tag", known_tags, selection_mode="multi", format_func=escape_markdown)
    tagged = set(offered or ())
    seen = [
        row
        for row in rows
        if row.mentions(sought)
        and (not wanted or row.kind in wanted)
        and tagged <= set(labels.get(row.run, RunLabels()).tags)
    ]
    if not seen:
        st.caption("No run has these words: take some away.")
        return

    def take() -> None:
        ticked = st.session_state["table"]["selection"]["rows"]
        st.session_state["open"] = [seen[number].run for number in ticked if number < len(seen)][:_MOST_COMPARED]
        _keep_choice()

    height = 38 + 35 * min(len(seen), 8)
    show_table(_table(seen, labels), column_config=_COLUMNS, on_select=take, key="table",
                 height=height, selection_mode="multi-row")  # fmt: skip


def _table(rows: Sequence[RunRow], labels: Mapping[str, RunLabels]) -> pd.DataFrame:
    def scaled(values: Sequence[float | None]) -> list[float | None]:
        return [None if value is None else 100.0 * value for value in values]

    return pd.DataFrame(
        {
            "run": [row.run for row in rows],
            "kind": [row.kind for row in rows],
            "status": [row.status for row in rows],
            "teams": [row.teams for row in rows],
            "return": scaled([row.total_return for row in rows]),
            "gain": scaled([row.difference for row in rows]),
            "95 % interval": [_interval(row) for row in rows],
            "Sharpe": [row.sharpe for row in rows],
            "P(Sharpe > 0)": scaled([row.certainty for row in rows]),
            "drawdown": scaled([row.max_drawdown for row in rows]),
            "costs": scaled([row.costs for row in rows]),
            "verdict": [row.verdict for row in rows],
            "data": [row.data for row in rows],
            "started (UTC)": pd.to_datetime([row.started_at for row in rows], unit="ms"),
            "seed": [row.seed for row in rows],
            "tags": [", ".join(labels.get(row.run, RunLabels()).tags) for row in rows],
            "note": [labels.get(row.run, RunLabels()).note for row in rows],
        }
    )


def _interval(row: RunRow) -> str | None:
    return None if row.interval is None else f"{100 * row.interval[0]:+.2f} to {100 * row.interval[1]:+.2f}"


_page()
