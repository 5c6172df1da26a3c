"""The page of stored runs: a table to look through, one of them opened, or several side by side."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from backend.reporting.comparison import compared_runs
from backend.reporting.run_table import RunRow
from backend.runs.sample_run import add_sample_run, has_sample_run
from backend.store.store import Store
from ui.access import asked_for, escape_markdown, mistakes_explained, read_run, set_address, store_name
from ui.parts.drawing import MOMENT, draw_blocks, show_table
from ui.parts.ready import follow_store, look_at_runs
from ui.views.run import show_run

_MOST_COMPARED = 8
_COLUMNS = {
    "started (UTC)": MOMENT,
    "a decision": st.column_config.NumberColumn(format="%+.1f bp", help="What a decision of the measured team earns."),
    "return": st.column_config.NumberColumn(format="%+.2f %%", help="Net of all costs."),
    "gain": st.column_config.NumberColumn(format="%+.2f pp", help="More than holding, or than before training."),
    "95 % interval": st.column_config.TextColumn(help="Of the gain. One that includes 0: not significant."),
    "teams": st.column_config.TextColumn(width="medium"),
    "verdict": st.column_config.TextColumn(width="medium"),
}


def _page() -> None:
    """List the runs of the store, and show the chosen ones."""
    st.title("Runs")
    st.caption(escape_markdown(f"Store: {store_name()}"))
    with mistakes_explained():
        runs, rows, unread, state = look_at_runs()
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
        _choose_in_table(rows)
        chosen = st.multiselect(
            "Open one, or compare several", names, key="open", max_selections=_MOST_COMPARED, on_change=_keep_choice,
            help="Or tick them in the table. The address of this page names them.",
        )  # fmt: skip
        if not chosen:
            st.info("Tick a run in the table to open it, several to compare them.")
        elif len(chosen) == 1:
            show_run(read_run(chosen[0], records[chosen[0]]))
        else:
            draw_blocks(compared_runs([read_run(name, records[name]) for name in chosen]), "compared")


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


def _choose_in_table(rows: Sequence[RunRow]) -> None:
    """The table, which can be sorted and searched; ticked rows are opened."""

    def take() -> None:
        ticked = st.session_state["table"]["selection"]["rows"]
        st.session_state["open"] = [rows[number].run for number in ticked if number < len(rows)][:_MOST_COMPARED]
        _keep_choice()

    height = 38 + 35 * min(len(rows), 8)
    show_table(_table(rows), column_config=_COLUMNS, on_select=take, key="table",
                 height=height, selection_mode="multi-row")  # fmt: skip


def _table(rows: Sequence[RunRow]) -> pd.DataFrame:
    def scaled(values: Sequence[float | None]) -> list[float | None]:
        return [None if value is None else 100.0 * value for value in values]

    return pd.DataFrame(
        {
            "run": [row.run for row in rows],
            "kind": [row.kind for row in rows],
            "status": [row.status for row in rows],
            "teams": [row.teams for row in rows],
            # A few held-out windows would say less than what a decision earns, so their returns are left out beside it.
            "a decision": [None if row.bp is None else row.bp[0] for row in rows],
            "return": scaled([None if row.bp else row.total_return for row in rows]),
            "gain": scaled([None if row.bp else row.difference for row in rows]),
            "95 % interval": [None if row.bp else _interval(row) for row in rows],
            "verdict": [row.verdict for row in rows],
            "data": [row.data for row in rows],
            "started (UTC)": pd.to_datetime([row.started_at for row in rows], unit="ms"),
        }
    )


def _interval(row: RunRow) -> str | None:
    return None if row.interval is None else f"{100 * row.interval[0]:+.2f} to {100 * row.interval[1]:+.2f}"


_page()
