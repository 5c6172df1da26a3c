"""The page of experiments: what each found, and the ledger of trials."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from backend.evaluation.trials import count_trials
from backend.experiments.folder import (
    EXPERIMENTS,
    PAGE,
    RESULTS,
    experiment_folders,
    finished_cells,
    read_state_of,
    stored_result,
)
from backend.experiments.measures import Measure, measure_called
from backend.reporting.blocks import Picture, ReportBlock, Table, TableRow
from backend.reporting.charts import IntervalBar, interval_chart
from backend.reporting.labels import Column
from backend.runs.requests import RUNS
from cryptosentinel.protocol.untrusted import visible
from simulator.errors import UserError
from ui.access import address_follows, asked_for, escape_markdown, mistakes_explained, open_store
from ui.parts.drawing import MOMENT, draw_blocks, show_table

_MARKETS = {"as_is": "The market", "no_edge": "Control: the market without an edge"}


def _page() -> None:
    st.title("Experiments")
    st.caption("Does it help, and would a skeptic believe it? Every way of trading that was tried is counted.")
    experiments, ledger = st.tabs(["Experiments", "Trial ledger"])
    with experiments, mistakes_explained():
        _experiments()
    with ledger, mistakes_explained():
        _ledger()


def _ledger() -> None:
    """How many ways of trading were ever tried on each window."""
    with open_store() as store:
        trials = store.trials()
    if not trials:
        st.info("No trial yet: every backtest, evaluation and experiment adds what it tests here.")
        return
    windows = sorted({(one.data_hash, one.start, one.stop) for one in trials}, key=lambda window: -window[2])
    counts = {window: count_trials(trials, *window) for window in windows}
    st.caption(
        "Each configuration, prompt, seed and set of weights that was ever tested on a window. Deleting a run lowers "
        "nothing."
    )
    table = {
        "data": [window[0][:12] for window in windows],
        "from (UTC)": pd.to_datetime([window[1] for window in windows], unit="ms"),
        "to (UTC)": pd.to_datetime([window[2] for window in windows], unit="ms"),
        "ways of trading": [counts[window].trials for window in windows],
        "looks (runs)": [counts[window].looks for window in windows],
    }
    show_table(pd.DataFrame(table), column_config={"from (UTC)": MOMENT, "to (UTC)": MOMENT})


def _experiments() -> None:
    folders = {path.name: path for path in experiment_folders(RUNS)}
    if not folders:
        st.info("No experiment was run here yet. Run one with its arms, seeds and test in a file:")
        st.code("cryptosentinel experiment run experiments/team_size.toml", language=None)
        return
    names = list(folders)
    asked = asked_for("experiment", names, "an experiment")
    if asked:
        st.session_state["experiment chosen"] = asked[0]
    follow = address_follows("experiment", "experiment chosen")
    folder = folders[st.selectbox("Experiment", names, key="experiment chosen", on_change=follow)]
    if not (folder / RESULTS).is_file():
        st.markdown(f"**{escape_markdown(read_state_of(folder).question)}**")
        st.info(f"{finished_cells(folder)} cells are finished. The same `cryptosentinel experiment run` continues.")
        return
    _result(stored_result(folder), folder)


def _result(result: Mapping[str, Any], folder: Path) -> None:
    """A finished experiment: its sentence, and of each market the differences with intervals and the arms."""
    try:
        st.markdown(f"**{escape_markdown(str(result['question']))}**")
        st.info(escape_markdown(str(result["sentence"])))
        measure = measure_called(str(result["measure"]))
        amount = f"{result['states']} held-out states" if result["states"] else f"{result['windows']} windows"
        for market in result["markets"]:
            st.subheader(_MARKETS.get(market["market"], visible(str(market["market"]))))
            if market["problem"]:
                st.warning(escape_markdown(f"No difference can be judged: {market['problem']}."))
            draw_blocks(_market_blocks(result, market, measure), str(market["market"]))
        st.caption(
            escape_markdown(
                f"{len(result['seeds'])} seeds, {amount} each. The test was written down before the "
                f"run. {result['trials']} ways of trading were tried on the first market's windows. As one file: "
                f"{RUNS / EXPERIMENTS / folder.name / PAGE}"
            )
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / RESULTS} cannot be read ({error!r}): run the experiment again") from error


def _market_blocks(result: Mapping[str, Any], market: Mapping[str, Any], shown: Measure) -> list[ReportBlock]:
    """The differences from the arm that all are compared with, as a picture, and a table of the arms."""
    scale, against = shown.scale, visible(str(result["against"]))
    measure = f"{str(result['measure']).replace('_', ' ')}{shown.axis}"
    compared = {one["arm"]: one for one in market["comparisons"]}
    rows = {}
    for arm, one in compared.items():
        mean, low, high = (scale * float(one["interval"][end]) for end in ("mean", "low", "high"))
        rows[visible(arm)] = IntervalBar(mean, low, high, [scale * float(np.mean(seed)) for seed in one["values"]])
    columns = (
        Column("mean", measure, "text", "mean over the seeds"),
        Column("beyond", f"beyond {against}", "text", "mean difference, seed by seed"),
        Column("interval", "interval", "text", "of that difference"),
        Column("p", "p corrected", "text", "how likely chance alone would do as much, for all comparisons at once"),
        Column("differs", "differs", "text", ""),
    )
    table = []
    for one in market["arms"]:
        mean, row, found = one["means"][result["measure"]], rows.get(visible(one["arm"])), compared.get(one["arm"])
        values = {"mean": "–" if mean is None else f"{scale * mean:.{shown.digits}f}"}
        if row is not None and found is not None:
            ends = (f"{end:+.{shown.digits}f}" for end in (row.low, row.high))
            values |= {"beyond": f"{row.mean:+.{shown.digits}f}", "interval": " to ".join(ends),
                       "p": f"{found['adjusted']:.3f}", "differs": "yes" if found["different"] else ""}  # fmt: skip
        table.append(TableRow(visible(one["arm"]), values))
    arms = Table("", "", columns, tuple(table), "arm")
    if not rows:
        return [arms]
    caption = f"{measure.capitalize()} {shown.each} beyond {against}: mean and interval, and a dot for each seed."
    chart = interval_chart(rows, f"difference of {measure}", shown.axis, shown.digits, "one seed")
    return [Picture("Differences", caption, chart), arms]


_page()
