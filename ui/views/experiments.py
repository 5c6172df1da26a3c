"""The page of experiments: the leaderboard of all backtests, the ledger of trials, and what each experiment found."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from backend.evaluation.evidence import Evidence
from backend.evaluation.in_sample import is_marked
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
from backend.reporting.blocks import Picture
from backend.reporting.charts import difference_chart
from backend.reporting.comparison.teams import LEAST_TRADES_RANKED
from backend.reporting.labels import title_of
from backend.reporting.run_summary import summarise_results
from backend.runs.requests import RUNS
from backend.store.records import RunRecord, TrialRecord
from backend.store.store import Store
from cryptosentinel.protocol.untrusted import visible
from simulator.errors import UserError
from simulator.market.timeframes import format_time
from ui.access import address_follows, asked_for, escape_markdown, mistakes_explained, open_store, store_name
from ui.kept import Kept
from ui.parts.drawing import MOMENT, draw_blocks, show_table

_MOST_RUNS = 50  # backtests of the leaderboard, the newest ones
_MARKETS = {"as_is": "The market", "no_edge": "Control: the market without an edge"}
_LEADERS = {
    "rank": st.column_config.NumberColumn(
        help=f"By the deflated Sharpe ratio, of those with {LEAST_TRADES_RANKED} closed trades or more."),
    "return": st.column_config.NumberColumn("return", format="%+.2f %%", help="Net of all costs."),
    "Sharpe": st.column_config.NumberColumn(format="%.2f", help="Return per unit of risk, for a year."),
    "deflated": st.column_config.NumberColumn(
        format="%.0f %%", help="Deflated Sharpe: probability that the true ratio is above 0 after all trials on this "
        "window. Whoever tries twenty ways finds a good one by luck."),
    "trials": st.column_config.NumberColumn(help="Ways of trading that were tried on this data and window."),
    "drawdown": st.column_config.NumberColumn(format="%.1f %%", help="The largest loss from a peak."),
}  # fmt: skip

_Window = tuple[str, int, int]  # hash of the data, first and last close (ms)
_TESTED: Kept[list[tuple[_Window, dict[str, Any]]]] = Kept(500)  # of runs that have ended


def _page() -> None:
    st.title("Experiments")
    st.caption("Does it help, and would a sceptic believe it? Every way of trading that was tried is counted.")
    leaders, ledger, experiments = st.tabs(["Leaderboard", "Trial ledger", "Experiments"])
    with leaders, mistakes_explained():
        _leaderboard()
    with ledger, mistakes_explained():
        _ledger()
    with experiments, mistakes_explained():
        _experiments()


def _leaderboard() -> None:
    """Teams and strategies of all backtests of one window, so that nothing is compared across windows."""
    rows: dict[_Window, list[dict[str, Any]]] = defaultdict(list)
    with open_store() as store, st.spinner("Reading the backtests"):
        runs = [run for run in store.runs() if run.kind == "backtest" and run.status == "finished"][:_MOST_RUNS]
        for run in runs:
            key = (store_name(), run.run, run.finished_at)
            for window, row in _TESTED.get(key, partial(_rows, store, run)):
                rows[window].append(row)
    if not rows:
        st.info("No backtest has finished yet: start one under New backtest. It takes half a minute.")
        return
    names = {window: _window_words(window, of_window) for window, of_window in rows.items()}
    chosen = st.selectbox("Window", list(rows), format_func=names.__getitem__, key="leaderboard window",
                          help="Only results of the same data and period can be compared.")  # fmt: skip
    table = pd.DataFrame(rows[chosen]).sort_values(["deflated", "Sharpe"], ascending=False)
    ranked = table["trades"] >= LEAST_TRADES_RANKED
    table = pd.concat([table[ranked], table[~ranked]])  # who hardly traded comes last
    places: list[int | None] = [*range(1, sum(ranked) + 1), *[None] * sum(~ranked)]
    table.insert(0, "rank", pd.Series(places, index=table.index, dtype="Int64"))
    show_table(table, column_config=_LEADERS)
    st.caption(
        f"The newest {_MOST_RUNS} backtests at most. Ranked by the deflated Sharpe ratio, and not at all with fewer "
        f"than {LEAST_TRADES_RANKED} closed trades. Intervals are 95 %, by a block bootstrap of the bars; costs and "
        "settings may differ between runs, and the run says which."
    )


def _window_words(window: _Window, rows: Sequence[Mapping[str, Any]]) -> str:
    data, first, last = window
    return f"{format_time(first)} to {format_time(last)} UTC, data {data[:8]}, {len(rows)} results"


def _rows(store: Store, run: RunRecord) -> list[tuple[_Window, dict[str, Any]]]:
    """What was tested in a run, a row each with its window."""
    summary = summarise_results(store, run)
    leaders = []
    for window in summary.windows():
        times = window.main_result.times
        key = (run.data_hash, int(times[0]), int(times[-1]))
        for name in window.subjects:
            result, evidence = window.results[name], window.evidence[name]
            leaders.append((key, {
                "team": visible(title_of(name)) + (" (in sample)" if is_marked(run.config, name) else ""),
                "return": 100.0 * result.total_return,
                "95 % interval": _interval(evidence),
                "Sharpe": result.metrics.get("sharpe"),
                "deflated": 100.0 * evidence.deflated,
                "trials": evidence.trials,
                "trades": int(result.metrics.get("trades") or 0),
                "drawdown": 100.0 * float(result.metrics.get("max_drawdown", 0.0)),
                "run": run.run,
            }))  # fmt: skip
    return leaders


def _interval(evidence: Evidence) -> str | None:
    if evidence.intervals is None:
        return None
    interval = evidence.intervals.total_return
    return f"{100 * interval.low:+.1f} to {100 * interval.high:+.1f} %"


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
    with st.expander(f"All {len(trials)} trials"):
        show_table(_trial_table(trials), column_config={"tested (UTC)": MOMENT})


def _trial_table(trials: Sequence[TrialRecord]) -> pd.DataFrame:
    newest = list(reversed(trials))
    return pd.DataFrame(
        {
            "tested (UTC)": pd.to_datetime([one.tested_at for one in newest], unit="ms"),
            "run": [one.run for one in newest],
            "what": [visible(one.name) for one in newest],
            "data": [one.data_hash[:12] for one in newest],
            "digest": [one.digest[:12] for one in newest],
        }
    )


def _experiments() -> None:
    folders = {path.name: path for path in experiment_folders(RUNS)}
    if not folders:
        st.info("No experiment was run here yet. One with its arms, seeds and test in a file is run so:")
        st.code("cryptosentinel experiment run experiments/team_size.toml", language=None)
        return
    names = list(folders)
    asked = asked_for("experiment", names, "an experiment")
    if asked:
        st.session_state["experiment chosen"] = asked[0]
    follow = address_follows("experiment", "experiment chosen")
    chosen = st.selectbox("Experiment", names, key="experiment chosen", on_change=follow)
    folder = folders[chosen]
    state = read_state_of(folder)
    if not (folder / RESULTS).is_file():
        st.markdown(f"**{escape_markdown(state.question)}**")
        st.info(f"{finished_cells(folder)} cells are finished. Go on with the same `cryptosentinel experiment run`.")
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
            _market(result, market, measure)
        st.caption(
            escape_markdown(
                f"{len(result['seeds'])} seeds, {amount} each. The test was written down before the "
                f"run. {result['trials']} ways of trading were tried on the first market's windows. As one file: "
                f"{RUNS / EXPERIMENTS / folder.name / PAGE}"
            )
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{folder / RESULTS} cannot be read ({error!r}): run the experiment again, which makes it anew"
        ) from error


def _market(result: Mapping[str, Any], market: Mapping[str, Any], shown: Measure) -> None:
    scale, measure = shown.scale, f"{str(result['measure']).replace('_', ' ')}{shown.axis}"
    compared = {one["arm"]: one for one in market["comparisons"]}
    if compared:
        rows = {
            visible(arm): {
                "mean": one["interval"]["mean"] * scale / 100.0,
                "ci95": [one["interval"][end] * scale / 100.0 for end in ("low", "high")],
                "per_window": [float(np.mean(seed)) * scale / 100.0 for seed in one["values"]],
            }
            for arm, one in compared.items()
        }
        against = visible(str(result["against"]))
        caption = f"{measure.capitalize()} {shown.each} beyond {against}: mean and interval, and a dot for each seed."
        chart = difference_chart(rows, "one seed", shown.axis)
        chart.update_xaxes(title=f"difference of {measure}", ticksuffix="")
        draw_blocks([Picture("Differences", caption, chart)], str(market["market"]))
    table = {
        "arm": [visible(one["arm"]) for one in market["arms"]],
        measure: [_scaled(one["means"][result["measure"]], scale) for one in market["arms"]],
        f"beyond {visible(str(result['against']))}": [
            _scaled(compared[one["arm"]]["interval"]["mean"], scale) if one["arm"] in compared else None
            for one in market["arms"]
        ],
        "interval": [
            _ends(compared[one["arm"]]["interval"], shown) if one["arm"] in compared else None
            for one in market["arms"]
        ],
        "p corrected": [compared[one["arm"]]["adjusted"] if one["arm"] in compared else None
                        for one in market["arms"]],
        "differs": ["yes" if compared.get(one["arm"], {}).get("different") else "" for one in market["arms"]],
    }  # fmt: skip
    show_table(pd.DataFrame(table), column_config={
        measure: st.column_config.NumberColumn(format=f"%.{shown.digits}f"),
        f"beyond {visible(str(result['against']))}": st.column_config.NumberColumn(format=f"%+.{shown.digits}f"),
        "p corrected": st.column_config.NumberColumn(
            format="%.3f", help="How likely chance alone would do as much, corrected for the number of comparisons."),
    })  # fmt: skip


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else scale * value


def _ends(interval: Mapping[str, float], shown: Measure) -> str:
    return f"{shown.signed(interval['low'])} to {shown.signed(interval['high'])}"


_page()
