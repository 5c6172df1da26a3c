"""The tables of a backtest as files, and its report."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO

import pandas as pd
import streamlit as st

from backend.config.schema import Config
from backend.reporting.run_page import RunPage
from backend.runs.outcomes import BacktestOutcome
from backend.runs.requests import RUNS
from ui.access import escape_markdown

_TABLES: dict[str, Callable[[BacktestOutcome], pd.DataFrame]] = {
    "equity": lambda outcome: outcome.equity,
    "trades": lambda outcome: outcome.trades,
    "metrics": lambda outcome: outcome.frame(),
    "decisions": lambda outcome: outcome.decisions,
}
_PARQUET = "application/vnd.apache.parquet"


def offer_downloads(page: RunPage) -> None:
    """A choice of table and format, and the report of the run where its folder has one."""
    run = page.run.run
    report = RUNS / run / "report.html"
    with st.expander("Download"):
        left, middle, right = st.columns(3, vertical_alignment="bottom")
        what = left.selectbox("Table", list(_TABLES), key=f"table of {run}")
        form = middle.selectbox("Format", ["CSV", "Parquet"], key=f"format of {run}")
        outcome = BacktestOutcome(run, report.parent, report, Config(), page.summary)
        write, kind = (_parquet, _PARQUET) if form == "Parquet" else (_csv, "text/csv")
        # Files are made at the click: those of a long run take longer than the page.
        right.download_button(
            f"Download {what}", lambda: write(_TABLES[what](outcome)), f"{run}-{what}.{form.lower()}", kind,
            key=f"get {run}", on_click="ignore",
        )  # fmt: skip
        if report.is_file():
            st.download_button(
                "Download the report (HTML)", report.read_bytes, f"{run}.html", "text/html", key=f"report of {run}",
                on_click="ignore",
            )  # fmt: skip
        else:
            st.caption(escape_markdown(f"Its report is not in {RUNS / run} any more."))


def _csv(table: pd.DataFrame) -> bytes:
    return table.to_csv().encode()


def _parquet(table: pd.DataFrame) -> bytes:
    buffer = BytesIO()
    table.to_parquet(buffer)
    return buffer.getvalue()
