"""The page that starts a backtest and shows what came of it."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import streamlit as st

from backend.builders.market import is_historical
from backend.builders.strategies import named_strategies
from backend.config.schema import BASELINES, SCRIPTED
from backend.models.manifest import MANIFEST
from backend.reporting.labels import title_of
from backend.runs.backtest import backtest_teams, settings_for
from backend.runs.requests import RUNS, BacktestRequest, Observer
from simulator.data.catalog import Catalog, SeriesInfo
from simulator.data.venue import RULES_FILE, read_rules
from simulator.errors import UserError
from simulator.market.instruments import MARKET_KINDS
from simulator.market.timeframes import TIMEFRAMES
from ui.access import escape_markdown, mistakes_explained, open_store, read_run
from ui.pages.run import show_run

_DAYS = 60  # a window that is done in seconds


def _page() -> None:
    """Ask what to run, run it, show the result; it stays until the next one."""
    st.title("New backtest")
    st.caption("A team trades recorded or synthetic bars, with costs and without a look ahead, beside plain baselines.")
    folder = st.text_input("Data folder", "data/synthetic", help="A folder of files like BTCUSDT-1h.parquet.")
    with mistakes_explained():
        _form(Path(folder.strip()))
    done = st.session_state.get("last_backtest")
    if done is not None:
        st.divider()
        st.success(escape_markdown(f"Stored as run {done}; its report is {RUNS / done / 'report.html'}"))
        with mistakes_explained():
            show_run(read_run(done))


def _form(folder: Path) -> None:
    """The form for the data in `folder`. Raises `UserError` for a folder without usable data."""
    series = [one for one in Catalog(folder).series() if one.first is not None]
    if not series:
        raise UserError(f"{folder}: its files hold no bars; choose another folder")
    known = sorted({one.symbol for one in series})
    finest = min(TIMEFRAMES[one.timeframe] for one in series)
    first, last = _span(series)
    with st.form("backtest"):
        symbols = st.multiselect("Symbols", known, default=known[:2])
        left, right = st.columns(2)
        timeframe = left.selectbox(
            "Timeframe", [name for name, interval in TIMEFRAMES.items() if interval >= finest],
            help="Coarser bars are made of finer ones.",
        )  # fmt: skip
        team = right.selectbox(
            "Team or strategy", [SCRIPTED, *_trained_teams(), *named_strategies()],
            help="Trained teams are those found under runs/. A strategy is tested in a team's place.",
        )  # fmt: skip
        start = left.date_input("From", max(first, last - timedelta(days=_DAYS)), min_value=first, max_value=last)
        end = right.date_input("To (not included)", last, min_value=first, max_value=last)
        portfolio = right.toggle(
            "All coins in one decision", value=settings_for("", (), folder).team.portfolio,
            help="Off: coin by coin, each with an equal share of the equity. A trained team keeps its own way.",
        )  # fmt: skip
        seed = left.number_input("Seed", min_value=0, value=1, step=1, help="Same seed, same result.")
        overrides = [f"team.portfolio={str(portfolio).lower()}", *_realism(folder, series)]
        submitted = st.form_submit_button("Run", type="primary")
    if not submitted:
        return
    if not symbols:
        raise UserError("no symbol is chosen: choose at least one")
    if start >= end:
        raise UserError(f"the window from {start} to {end} is empty: 'From' must be before 'To'")
    request = BacktestRequest(
        data=folder,
        symbols=tuple(symbols),
        timeframe=timeframe,
        teams=(team,),
        start=start.isoformat(),
        end=end.isoformat(),
        decide_every=settings_for("", overrides, folder).team.decide_every,
        seed=int(seed),
        overrides=tuple(overrides),
    )
    shown = _Progress()
    with open_store(reads_only=False) as store:
        st.session_state["last_backtest"] = backtest_teams(request, store, RUNS, shown).run
    st.session_state["run"] = st.session_state["last_backtest"]
    shown.end()


class _Progress(Observer):
    """The progress of a run as a bar."""

    def __init__(self) -> None:
        self._bar = st.progress(0.0, text="Reading the data")

    def progress(self, what: str, done: int, total: int) -> None:
        self._bar.progress(min(1.0, done / max(1, total)), text=f"{done} of {total}")

    def end(self) -> None:
        self._bar.empty()


def _realism(folder: Path, series: list[SeriesInfo]) -> list[str]:
    """The fields about costs, venue and comparison, as overrides of the preset that the data gets."""
    preset = settings_for("", (), folder)
    costs = preset.costs
    with st.expander("Costs, venue and comparison"):
        left, right = st.columns(2)
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
        latency = right.number_input(
            "Latency, bars", min_value=0, max_value=100, value=costs.latency_bars, step=1,
            help="How many bars later than the next open an order arrives.",
        )  # fmt: skip
        present = {one.timeframe for one in series}
        finer = left.selectbox(
            "Finer bars inside a bar", ["none", *(name for name in TIMEFRAMES if name in present - {"1w"})],
            help="They tell whether stop or target came first. They must be finer than the timeframe.",
        )  # fmt: skip
        baselines = right.multiselect(
            "Compare with", list(BASELINES), default=list(preset.evaluation.baselines), format_func=title_of,
            help="The oracle takes part only where the truth of a synthetic market is known.",
        )  # fmt: skip
        instrument: str = preset.market.instrument
        unknown = [symbol for symbol, stated in Catalog(folder).kinds().items() if stated.kind is None]
        if unknown and not instrument:
            chosen = left.selectbox(
                "What the bars are of", ["not stated", *MARKET_KINDS],
                help=f"Nothing states it for {', '.join(unknown)}. Not stated: shorts and borrowed cash pay "
                "costs.borrow_rate, as on a spot market.",
            )  # fmt: skip
            instrument = "" if chosen == "not stated" else chosen
        if (folder / RULES_FILE).exists():
            ruled = ", ".join(read_rules(folder / RULES_FILE))
            use_rules = st.toggle("The venue's rules", value=True, help=f"{RULES_FILE} has those of {ruled}.")
        else:
            use_rules = True
            if is_historical(folder):
                st.caption(f"No {RULES_FILE} beside the bars: any quantity at any price, and no margin tiers.")
    return [
        f"costs.taker_fee={fee / 1e4!r}", f"costs.half_spread_bps={spread!r}",
        f"costs.impact={(costs.impact or 1.0 if impact else 0.0)!r}",
        f"costs.participation={(costs.participation or 0.1 if impact else 0.0)!r}",
        f"market.instrument={instrument!r}",
        f"costs.latency_bars={int(latency)}", f"venue.finer={('' if finer == 'none' else finer)!r}",
        f"venue.rules={('' if use_rules else 'none')!r}", f"evaluation.baselines={list(baselines)!r}",
    ]  # fmt: skip


def _span(series: list[SeriesInfo]) -> tuple[date, date]:
    """The first day with a bar, and the day after the last one."""
    first = min(one.first for one in series if one.first is not None)
    last = max(one.last for one in series if one.last is not None)
    day_of = [datetime.fromtimestamp(time / 1000, tz=UTC).date() for time in (first, last)]
    return day_of[0], day_of[1] + timedelta(days=1)


def _trained_teams() -> list[str]:
    """Folders under `runs/` that hold a team, the newest first."""
    found = sorted(RUNS.glob(f"**/{MANIFEST}"), key=lambda path: path.stat().st_mtime, reverse=True)
    return [str(path.parent) for path in found]


_page()
