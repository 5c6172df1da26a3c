"""The page of stored runs: a list, and one of them opened."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from backend.store.records import RunRecord
from ui.access import escape_markdown, mistakes_explained, open_store, read_run, store_name
from ui.parts.drawing import MOMENT
from ui.views.run import show_run


def _page() -> None:
    """List the runs of the store and show the chosen one."""
    st.title("Runs")
    st.caption(escape_markdown(f"Store: {store_name()}"))
    with mistakes_explained():
        with open_store() as store:
            runs = store.runs()
        if not runs:
            st.info("There are no runs yet. Start a backtest on the next page, or run `make demo`.")
            return
        st.dataframe(_table(runs), hide_index=True, column_config={"started (UTC)": MOMENT})
        names = [run.run for run in runs]
        # The choice is kept apart: Streamlit forgets a widget's value while another page is shown.
        if st.session_state.get("open") not in names:
            kept = st.session_state.get("run")
            st.session_state["open"] = kept if kept in names else names[0]
        chosen = st.selectbox("Open", names, key="open")
        st.session_state["run"] = chosen
        show_run(read_run(chosen))


def _table(runs: list[RunRecord]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "run": [run.run for run in runs],
            "kind": [run.kind for run in runs],
            "status": [run.status for run in runs],
            "started (UTC)": pd.to_datetime([run.started_at for run in runs], unit="ms"),
            "seed": [run.seed for run in runs],
            "data": [run.data_hash[:12] for run in runs],
            "note": [run.message or "" for run in runs],
        }
    )


_page()
