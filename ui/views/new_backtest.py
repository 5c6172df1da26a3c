"""The page that hands a backtest to the queue, follows it and shows its result."""

from __future__ import annotations

import json

import streamlit as st

from backend.builders.sources import bars_at
from backend.config.schema import BASELINES, PROMPTED, SCRIPTED, Config
from backend.jobs.commands import request_command
from backend.jobs.files import Job
from backend.reporting.labels import title_of
from backend.runs.backtest import settings_for
from backend.runs.choices import BacktestChoices
from backend.runs.requests import RUNS, BacktestRequest
from simulator.errors import UserError
from simulator.folders import sample_data
from ui.access import escape_markdown, job_queue, mistakes_explained, read_run, set_address, store_name
from ui.parts.again import known_teams
from ui.parts.job import open_job, show_jobs_of
from ui.parts.setting_fields import number_fields, other_settings
from ui.views.run import show_run

_NUMBERS = (
    ("costs.taker_fee", "Taker fee, basis points", "Of every trade's value. The venue's own rules go before.", 1e4),
    ("costs.half_spread_bps", "Half spread, basis points", "Where the data has no spread of its own.", 1.0),
    (
        "guard.max_gross_exposure",
        "Most exposure, times the equity",
        "The guard's limit on all positions together.",
        1.0,
    ),
    ("guard.max_drawdown", "Close all at a drawdown of, %", "The guard's limit on the loss from the peak.", 100.0),
    ("guard.daily_loss", "Close all at a loss in a day of, %", "Days are UTC.", 100.0),
    ("budget.max_cost", "Spend at most, USD", "For a provider's answers, in all. 0: any amount.", 1.0),
)


def _page() -> None:
    """Ask what to run, or show the backtest that the address names: as it goes, and then its result."""
    st.title("New backtest")
    shown = None
    with mistakes_explained():
        shown = show_jobs_of("backtest")
        if shown is not None:
            _show_backtest(shown)
    if shown is None:
        st.caption("A team trades recorded or synthetic bars, with costs and without look-ahead, beside baselines.")
        _ask()
        return
    with st.expander("Another backtest"):
        _ask()


def _show_backtest(job: Job) -> None:
    """The result of a job that has ended."""
    if not job.active and st.button("Close and begin a new one", icon=":material/close:"):
        set_address("job", [])
        st.rerun()
    if job.status == "done" and job.run:
        st.success(escape_markdown(f"Stored as run {job.run}"))
        show_run(read_run(job.run))


def _ask() -> None:
    """The folder and the bars, on which the other fields depend, and the form."""
    left, right = st.columns([3, 1])
    path = left.text_input("Data folder or file", str(sample_data()),
                           help="A folder of files like BTCUSDT-1h.parquet, or a CSV file.").strip()  # fmt: skip
    with mistakes_explained():
        folder, imported = bars_at(path, RUNS)
        if imported:
            st.caption(escape_markdown(imported))
        choices = BacktestChoices.of(folder)
        offered = choices.timeframes
        timeframe = right.selectbox(
            "Timeframe", offered, index=offered.index(choices.timeframe), key=f"timeframe {folder}",
            help="Bars to read. A symbol without a file of them gets bars that are made of its finer ones.",
        )  # fmt: skip
        _form(choices, timeframe)


def _form(choices: BacktestChoices, timeframe: str) -> None:
    """The form for these bars. Raises `UserError` where they cannot be traded."""
    folder, here = choices.folder, f"{choices.folder} {timeframe}"
    suggested = choices.suggested_symbols(timeframe)
    first_day, day_after = choices.suggested_days(suggested, timeframe)
    with st.form("backtest"):
        symbols = st.multiselect("Symbols", choices.symbols(timeframe), default=suggested, key=f"symbols {here}")
        teams = st.multiselect(
            "Teams and strategies", [*known_teams(), PROMPTED], default=[SCRIPTED],
            format_func=title_of, accept_new_options=True,
            help="Trained teams are those found under runs/. A strategy is tested in a team's place. Your own: "
            "module:Class. A model that was not trained here: model=NAME, with its endpoint under other settings.",
        )  # fmt: skip
        columns = st.columns(4)
        start = columns[0].date_input("From", first_day, key=f"from {here}")
        end = columns[1].date_input("To (not included)", day_after, key=f"to {here}")
        every = columns[2].number_input(
            "Bars between decisions", min_value=0, max_value=10_000, value=0, step=1, help="0: once a day."
        )
        seed = columns[3].number_input(
            "Seed", min_value=0, value=BacktestRequest.seed, step=1, help="Same seed, same result."
        )
        preset = settings_for("", (), folder)
        overrides = _settings(preset)
        submitted = st.form_submit_button("Run", type="primary", icon=":material/play_arrow:")
    if not submitted:
        return
    choices.suggested_days(symbols, timeframe)  # refused here, and not by the job
    if start >= end:
        raise UserError(f"the window from {start} to {end} is empty: 'From' must be before 'To'")
    request = BacktestRequest(
        data=folder,
        symbols=tuple(symbols),
        timeframe=timeframe,
        teams=tuple(teams),
        start=start.isoformat(),
        end=end.isoformat(),
        decide_every=int(every),
        seed=int(seed),
        overrides=tuple(overrides),
    )
    if not teams:
        raise UserError("no team is chosen: choose at least one, such as the scripted team")
    request.check()
    open_job(job_queue().submit(request_command(("backtest",), request, store=store_name(), runs=str(RUNS))))


def _settings(preset: Config) -> list[str]:
    """Costs, limits, comparison and all other settings, as overrides of the preset that the data gets."""
    with st.expander("Costs, limits, comparison and other settings"):
        changed = number_fields(_NUMBERS, preset, 4)
        former = list(preset.evaluation.baselines)
        baselines = st.multiselect(
            "Compare with", list(BASELINES), default=former, format_func=title_of,
            help="The oracle takes part only where the truth of a synthetic market is known.",
        )  # fmt: skip
        changed += [f"evaluation.baselines={json.dumps(baselines)}"] if baselines != former else []
        return [*changed, *other_settings("backtest", 'engine.kind="openai"\nengine.model="gpt-5-mini"')]


_page()
