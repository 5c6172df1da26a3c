"""The page of market data: which folders there are, what they cover, what is wrong with them, and how more come in."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pandas as pd
import streamlit as st

from backend.builders.sources import bars_at
from backend.jobs.commands import command_words, download_command
from backend.reporting.coverage import coverage_of, coverage_picture, data_folders
from backend.runs.requests import RUNS
from cryptosentinel.protocol.untrusted import visible
from simulator.data.catalog import Catalog
from simulator.errors import UserError
from simulator.folders import sample_data
from simulator.market.timeframes import TIMEFRAMES
from ui.access import (
    address_follows,
    escape_markdown,
    job_queue,
    mistakes_explained,
    set_address,
)
from ui.parts.drawing import draw_blocks, show_table
from ui.parts.job import open_job, show_jobs_of

_ROOTS = (Path("data"), Path("bars"))  # below the current folder
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")  # of a new folder
_OTHER = "another folder or file …"


def _page() -> None:
    st.title("Data")
    st.caption("Bars, funding and news, as files of this machine. Nothing is filled in and nothing is sent anywhere.")
    with mistakes_explained():
        show_jobs_of("data")
    look, download = st.tabs(["Look at data", "Download"])
    with look, mistakes_explained():
        _look()
    with download, mistakes_explained():
        _download()


def _look() -> None:
    names = [str(path) for path in data_folders([*_ROOTS, sample_data()])]
    asked = st.query_params.get("folder", "")
    if asked and asked not in names and Path(asked).exists():
        names.append(asked)
    elif asked and asked not in names:
        st.warning(escape_markdown(f"The address asks for a folder that is not here: {asked[:80]}. Choose one below."))
    if not names:
        st.info("No folder of bars is known here yet: name a folder or a file, or download some.")
    if asked in names:
        st.session_state["folder chosen"] = asked
    chosen = st.selectbox(
        "Folder", [*names, _OTHER], key="folder chosen", on_change=_follow_folder, format_func=visible
    )
    if chosen == _OTHER:
        chosen = st.text_input(
            "Its path", key="other folder", on_change=address_follows("folder", "other folder"),
            help="A folder of files like BTCUSDT-1h.parquet, or files of another program, such as CSV, which are "
            "imported. For those that need options there is `cryptosentinel data import`.",
        ).strip()  # fmt: skip
        if not chosen:
            return
    folder, imported = bars_at(chosen, RUNS)
    if imported:
        st.info(escape_markdown(imported))
    kinds = Catalog(folder).kinds()
    st.caption(escape_markdown("; ".join(f"{symbol}: {stated}" for symbol, stated in kinds.items())))
    draw_blocks([coverage_picture(coverage_of(folder))], "coverage")
    st.markdown("**Quality**")
    st.caption("Reads every bar: order, gaps, impossible values, flash wicks (prices far off the usual), stale runs.")
    if st.button("Check all files", icon=":material/fact_check:", key="check"):
        st.session_state["checked folder"] = chosen
    if st.session_state.get("checked folder") == chosen:
        _quality(folder)


def _follow_folder() -> None:
    chosen = st.session_state["folder chosen"]
    set_address("folder", [] if chosen == _OTHER else [chosen])


def _quality(folder: Path) -> None:
    newest = max((path.stat().st_mtime_ns for path in folder.glob("*.parquet")), default=0)
    issues = _issues(str(folder), newest)
    fatal = sum(issue[0] == "unusable" for issue in issues)
    if fatal:
        st.error(f"{fatal} findings make the data unusable: fix or remove the files that are named.")
    else:
        st.success(f"Usable, {len(issues)} notes.")
    if issues:
        columns = ["verdict", "what", "count", "file", "detail"]
        show_table(pd.DataFrame([dict(zip(columns, row, strict=True)) for row in issues]))


@st.cache_data(show_spinner="Checking every bar", max_entries=16)
def _issues(folder: str, newest: int) -> list[tuple[str, str, int, str, str]]:
    """The arguments are the key of the cache; `newest` is the time of the newest file."""
    return [
        ("unusable" if issue.fatal else "note", issue.kind, issue.count, Path(issue.file).name, issue.detail)
        for issue in Catalog(folder).check()
    ]  # fmt: skip


def _download() -> None:
    st.caption("From an exchange, without a key. Cancel and a lost connection are safe: the same download continues.")
    left, middle, right = st.columns(3)
    exchange = left.text_input("Exchange, by its id in ccxt", "binance").strip()
    market = middle.selectbox("Market", ["spot", "swap"], help="swap: perpetual futures, with their funding rates.")
    frames = right.multiselect("Timeframes", list(TIMEFRAMES), default=["1h"])
    symbols = left.text_input("Symbols, as the exchange writes them", "BTC/USDT,ETH/USDT").strip()
    today = datetime.now(tz=UTC).date()
    start: date = middle.date_input("From (UTC)", today - timedelta(days=365), key="download from")
    name = right.text_input("Folder, below data/", f"{exchange}-{market}", key="download folder").strip()
    if not _NAME.fullmatch(name):
        raise UserError("give the folder a name of letters, digits, '.', '_' and '-'")
    command = download_command(exchange, market, symbols, ",".join(frames), start.isoformat(), Path("data") / name)
    st.caption("The same as a command:")
    st.code(visible(command_words(command)), language=None, wrap_lines=True)
    if st.button("Download", type="primary", icon=":material/download:"):
        if not symbols or not frames:
            raise UserError("name at least one symbol and one timeframe")
        open_job(job_queue().submit(command))


_page()
