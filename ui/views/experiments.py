"""The page of experiments: what each found, and the ledger of trials."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import streamlit as st

from backend.evaluation.trials import count_trials
from backend.experiments.analysis import ExperimentResult
from backend.experiments.folder import (
    EXPERIMENTS,
    PAGE,
    RESULTS,
    experiment_folders,
    finished_cells,
    read_state_of,
    stored_result,
)
from backend.experiments.page import how_measured, result_blocks
from backend.runs.requests import RUNS
from ui.access import address_follows, asked_for, escape_markdown, mistakes_explained, open_store
from ui.parts.drawing import MOMENT, draw_blocks, show_table


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


def _result(result: ExperimentResult, folder: Path) -> None:
    """A finished experiment: its sentence, the differences with intervals, and the arms."""
    st.markdown(f"**{escape_markdown(result.question)}**")
    st.info(escape_markdown(result.sentence))
    draw_blocks(result_blocks(result))
    st.caption(escape_markdown(f"{how_measured(result)} As one file: {RUNS / EXPERIMENTS / folder.name / PAGE}"))


_page()
