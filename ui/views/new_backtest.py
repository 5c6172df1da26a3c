"""The page that hands a backtest to the queue, follows it and shows what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from backend.builders.market import is_historical
from backend.config.schema import BASELINES, PROMPTED, SCRIPTED, Config
from backend.jobs.commands import request_command
from backend.jobs.queue import Submission
from backend.reporting.labels import title_of
from backend.runs.backtest import settings_for
from backend.runs.choices import BacktestChoices, warm_up_of
from backend.runs.requests import RUNS, BacktestRequest
from simulator.data.venue import RULES_FILE, read_rules
from simulator.errors import UserError
from simulator.folders import sample_data
from simulator.market.timeframes import TIMEFRAMES
from ui.access import asked_for, escape_markdown, job_queue, mistakes_explained, read_run, set_address, store_name
from ui.parts.again import known_teams
from ui.parts.job import job_label, newest_of, open_job, show_job
from ui.parts.setting_fields import SettingChange, changed_settings, engine_fields, percent_field
from ui.views.run import show_run

_SAME = "as they are"


def _page() -> None:
    """Ask what to run, or show the backtest that the address names: as it goes, and then what came of it."""
    st.title("New backtest")
    queue = job_queue()
    jobs = queue.jobs()
    names = [job.name for job in jobs]
    asked = asked_for("job", names, "a job")
    # Coming back from another page, one finds the backtest that one left.
    kept = st.session_state.get("job")
    shown = asked[:1] or [name for name in names if name == kept]
    if shown:
        st.session_state["job"] = shown[0]
        _show_backtest(shown[0])
    others = [job for job in newest_of(jobs, "backtest") if job.name not in shown]
    if others:
        st.caption("Backtests that wait or run, also those of the command line:")
        for job in others:
            if st.button(escape_markdown(job_label(job)), key=f"open {job.name}", icon=":material/visibility:"):
                open_job(Submission(job, True))
    if shown:
        with st.expander("Another backtest"):
            _ask()
    else:
        st.caption("A team trades recorded or synthetic bars, with costs and without a look ahead, beside baselines.")
        _ask()


def _show_backtest(name: str) -> None:
    told = st.session_state.pop("told of job", None)
    if told:
        st.info(told)
    with mistakes_explained():
        job = job_queue().job(name)
        show_job(job)
        if not job.active and st.button("Close and begin a new one", icon=":material/close:"):
            st.session_state.pop("job", None)
            set_address("job", [])
            st.rerun()
        if job.status == "done" and job.run:
            here = Path(job.request.folder) == Path.cwd()
            report = (RUNS if here else Path(job.request.folder) / RUNS) / job.run / "report.html"
            st.success(escape_markdown(f"Stored as run {job.run}; its report is {report}"))
            show_run(read_run(job.run))


def _ask() -> None:
    """The folder and the bars, on which the other fields depend, and the form."""
    left, middle, right = st.columns([3, 1, 1])
    folder = Path(left.text_input("Data folder", str(sample_data()),
                                  help="A folder of files like BTCUSDT-1h.parquet.").strip())  # fmt: skip
    with mistakes_explained():
        choices = BacktestChoices.of(folder)
        offered = choices.timeframes
        timeframe = middle.selectbox(
            "Timeframe", offered, index=offered.index(choices.timeframe), key=f"timeframe {folder}",
            help="Bars to read. A symbol without a file of them gets bars that are made of its finer ones.",
        )  # fmt: skip
        resample = right.selectbox(
            "Resample to", [_SAME, *choices.coarser(timeframe)], key=f"resample {folder} {timeframe}",
            help="Coarser bars to decide on, made of exactly those of the timeframe.",
        )  # fmt: skip
        _form(choices, timeframe, "" if resample == _SAME else resample)


def _form(choices: BacktestChoices, timeframe: str, resample: str) -> None:
    """The form for these bars. Raises `UserError` where they cannot be traded."""
    folder, here = choices.folder, f"{choices.folder} {timeframe} {resample}"
    suggested = choices.suggested_symbols(timeframe, resample)
    first_day, day_after = choices.suggested_days(suggested, timeframe, resample)
    with st.form("backtest"):
        symbols = st.multiselect(
            "Symbols", choices.symbols(timeframe, resample), default=suggested, key=f"symbols {here}"
        )
        teams = st.multiselect(
            "Teams and strategies", [*known_teams(), PROMPTED], default=[SCRIPTED],
            format_func=title_of, accept_new_options=True,
            help="Trained teams are those found under runs/. A strategy is tested in a team's place. Your own: "
            "module:Class. A model that was not trained here is named under Engine.",
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
        overrides = _settings(choices, resample or timeframe, preset)
        engine = engine_fields(preset)
        overrides += engine.overrides
        submitted = st.form_submit_button("Run", type="primary", icon=":material/play_arrow:")
    if not submitted:
        return
    choices.days(symbols, timeframe, resample, warm_up_of(teams))
    if start >= end:
        raise UserError(f"the window from {start} to {end} is empty: 'From' must be before 'To'")
    request = BacktestRequest(
        data=folder,
        symbols=tuple(symbols),
        timeframe=timeframe,
        resample=resample,
        teams=tuple(teams),
        start=start.isoformat(),
        end=end.isoformat(),
        decide_every=int(every),
        seed=int(seed),
        overrides=tuple(overrides),
    )
    if not teams:
        raise UserError("no team is chosen: choose at least one, such as the scripted team")
    engine.check(teams)
    request.check()
    open_job(job_queue().submit(request_command(("backtest",), request, store=store_name(), runs=str(RUNS))))


def _settings(choices: BacktestChoices, traded: str, preset: Config) -> list[str]:
    """The fields about the team, costs, venue, limits and comparison, as overrides of the preset that the data gets."""
    folder = choices.folder
    with st.expander("Team, costs, limits, venue and comparison"):
        left, right = st.columns(2)
        changed = [*_team_settings(left, preset), *_cost_settings(left, right, preset, folder)]
        changed += _venue_settings(left, right, preset, choices, traded)
        baselines = right.multiselect(
            "Compare with", list(BASELINES), default=list(preset.evaluation.baselines), format_func=title_of,
            help="The oracle takes part only where the truth of a synthetic market is known.",
        )  # fmt: skip
        changed.append(("evaluation.baselines", list(baselines), list(preset.evaluation.baselines)))
    return changed_settings(changed)


def _team_settings(place: Any, preset: Config) -> list[SettingChange]:
    whole = place.toggle(
        "All coins in one decision", value=preset.team.portfolio,
        help="Off: coin by coin, each with an equal share of the equity. A trained team keeps its own way.",
    )  # fmt: skip
    return [("team.portfolio", whole, preset.team.portfolio)]


def _cost_settings(left: Any, right: Any, preset: Config, folder: Path) -> list[SettingChange]:
    costs, guard = preset.costs, preset.guard
    fee = left.number_input(
        "Taker fee, basis points", min_value=0.0, max_value=100.0, value=1e4 * costs.taker_fee, step=0.5,
        help="Of every trade's value. The venue's own rules go before.",
    )  # fmt: skip
    spread = right.number_input(
        "Half spread, basis points", min_value=0.0, max_value=200.0, value=costs.half_spread_bps, step=0.5,
        help="Where the data has no spread of its own.",
    )  # fmt: skip
    impact = left.toggle(
        "Orders move the price", value=costs.impact > 0.0, disabled=not is_historical(folder),
        help="The square-root law, and at most a tenth of a bar's volume. For recorded bars with volume.",
    )  # fmt: skip
    gross = right.number_input(
        "Most exposure, times the equity", min_value=0.1, max_value=10.0, value=guard.max_gross_exposure, step=0.1,
        help="The guard's limit on all positions together. No model can pass it.",
    )  # fmt: skip
    drawdown = percent_field(left, "Close all at a drawdown of, %", guard.max_drawdown,
                             "The guard's limit on the loss from the highest equity.")  # fmt: skip
    daily = percent_field(right, "Close all at a loss in a day of, %", guard.daily_loss, "Days are UTC.")
    return [
        ("costs.taker_fee", costs.taker_fee if fee == 1e4 * costs.taker_fee else fee / 1e4, costs.taker_fee),
        ("costs.half_spread_bps", spread, costs.half_spread_bps),
        ("costs.impact", (costs.impact or 1.0) if impact else 0.0, costs.impact),
        ("costs.participation", (costs.participation or 0.1) if impact else 0.0, costs.participation),
        ("guard.max_gross_exposure", gross, guard.max_gross_exposure),
        ("guard.max_drawdown", drawdown, guard.max_drawdown),
        ("guard.daily_loss", daily, guard.daily_loss),
    ]


def _venue_settings(
    left: Any, right: Any, preset: Config, choices: BacktestChoices, traded: str
) -> list[SettingChange]:
    folder = choices.folder
    changed: list[SettingChange] = []
    finer = left.selectbox(
        "Finer bars inside a bar",
        ["none", *(name for name in choices.timeframes if TIMEFRAMES[name] < TIMEFRAMES[traded])],
        help="They tell whether stop or target came first. They must be finer than the bars that are traded.",
    )  # fmt: skip
    changed.append(("venue.finer", "" if finer == "none" else finer, preset.venue.finer))
    beside = {"Folder of funding rates": ("market.funding_dir", preset.market.funding_dir),
              "File or folder of news": ("market.news", preset.market.news)}  # fmt: skip
    for label, (key, former) in beside.items():
        where = right.text_input(label, former, help="Empty: what lies in the data folder.").strip()
        if where and not Path(where).exists():
            st.warning(escape_markdown(f"{label}: there is no {where}"))
        changed.append((key, where, former))
    if (folder / RULES_FILE).exists():
        ruled = ", ".join(read_rules(folder / RULES_FILE))
        use_rules = left.toggle("The venue's rules", value=True, help=f"{RULES_FILE} has those of {ruled}.")
        changed.append(("venue.rules", preset.venue.rules if use_rules else "none", preset.venue.rules))
    elif is_historical(folder):
        st.caption(f"No {RULES_FILE} beside the bars: any quantity at any price, and no margin tiers.")
    return changed


_page()
