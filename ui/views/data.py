"""The page of market data: which folders there are, what they cover, what is wrong with them, and how more come in."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pandas as pd
import streamlit as st

from backend.builders.sources import import_into
from backend.jobs.commands import command_words, download_command
from backend.reporting.coverage import coverage_of, coverage_picture, data_folders
from cryptosentinel.protocol.untrusted import visible
from simulator.data.catalog import Catalog
from simulator.data.formats import FileOptions, columns_of
from simulator.errors import UserError
from simulator.folders import sample_data
from simulator.market.instruments import MARKET_KINDS, check_kind
from simulator.market.timeframes import TIMEFRAMES
from ui.access import (
    address_follows,
    asked_for,
    escape_markdown,
    job_queue,
    mistakes_explained,
    open_store,
    set_address,
)
from ui.parts.drawing import draw_blocks, show_table
from ui.parts.job import job_label, newest_of, open_job, show_job

_ROOTS = (Path("data"), Path("bars"))  # below the current folder
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")  # of a new folder
_AS_FILES_SAY = "as the files say"
_OTHER = "another folder …"


def _page() -> None:
    st.title("Data")
    st.caption("Bars, funding and news, as files of this machine. Nothing is filled in and nothing is sent anywhere.")
    with mistakes_explained():
        _jobs()
    _tell_import()
    look, import_, download = st.tabs(["Look at a folder", "Import files", "Download"])
    with look, mistakes_explained():
        _look()
    with import_, mistakes_explained():
        _import()
    with download, mistakes_explained():
        _download()


def _jobs() -> None:
    """The download that the address names, and others that run."""
    queue = job_queue()
    jobs = queue.jobs()
    shown = asked_for("job", [job.name for job in jobs], "a job")[:1]
    for job in newest_of(jobs, "data"):
        if job.name not in shown and st.button(escape_markdown(job_label(job)), key=f"open {job.name}"):
            set_address("job", [job.name])
            st.rerun()
    if shown:
        show_job(queue.job(shown[0]))


def _known_folders() -> list[str]:
    """Folders of bars below the current one, the sample, and those that stored runs used."""
    with open_store() as store:
        used = []
        for run in store.runs():
            settings = run.config.get("config")
            market = settings.get("market") if isinstance(settings, dict) else None
            if isinstance(market, dict) and isinstance(market.get("data"), str) and market["data"]:
                used.append(market["data"])
    there = [str(path) for path in data_folders([*_ROOTS, sample_data()])]
    return list(dict.fromkeys([*there, *(name for name in used if Path(name).is_dir())]))


def _look() -> None:
    names = _known_folders()
    asked = st.query_params.get("folder", "")
    if asked and asked not in names and Path(asked).is_dir():
        names.append(asked)
    elif asked and asked not in names:
        st.warning(escape_markdown(f"The address asks for a folder that is not here: {asked[:80]}. Choose one below."))
    if not names:
        st.info("No folder of bars is known here yet: name one, import files, or download some.")
    if asked in names:
        st.session_state["folder chosen"] = asked
    chosen = st.selectbox(
        "Folder", [*names, _OTHER], key="folder chosen", on_change=_follow_folder, format_func=visible
    )
    if chosen == _OTHER:
        chosen = st.text_input(
            "Its path", key="other folder", on_change=address_follows("folder", "other folder"),
            help="A folder of files like BTCUSDT-1h.parquet.",
        ).strip()  # fmt: skip
        if not chosen:
            return
    folder = Path(chosen)
    st.caption(escape_markdown(_kinds(folder)))
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


def _kinds(folder: Path) -> str:
    kinds = Catalog(folder).kinds()
    return "; ".join(f"{symbol}: {stated}" for symbol, stated in kinds.items())


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


def _import() -> None:
    st.caption(
        "Parquet files of bars, Binance Vision, CryptoDataDownload, freqtrade and other CSV. They are checked first. "
        "The files are only read."
    )
    source = st.text_input("Folder or file on this machine", key="source").strip()
    left, middle, right = st.columns(3)
    name = left.text_input("Name of the new folder, below data/", key="new folder").strip()
    kind = middle.selectbox(
        "What the bars are of", [_AS_FILES_SAY, *MARKET_KINDS],
        help="Spot, or perpetual futures, which pay or earn funding. Only where the files do not say it.",
    )  # fmt: skip
    zone = right.text_input(
        "Time zone of a CSV", placeholder="UTC or Europe/Berlin",
        help="Only for times that name no zone themselves (--time-zone).",
    ).strip()  # fmt: skip
    columns = left.text_input(
        "Columns of a CSV, where they are not recognized", placeholder="time=Date,open=Open,high=High,low=Low,…"
    ).strip()
    symbol = middle.text_input("Symbol, where the files do not name it", placeholder="BTCUSDT").strip()
    frame = right.selectbox("Timeframe, where the files do not name it", ["", *TIMEFRAMES])
    if not st.button("Import", type="primary", icon=":material/upload_file:"):
        return
    target = _new_folder(name)
    instrument = None if kind == _AS_FILES_SAY else check_kind("What the bars are of", kind)
    options = FileOptions(columns_of(columns), symbol, frame or "", name, time_zone=zone)
    if not source or not Path(source).exists():
        raise UserError(f"there is no {source} on this machine" if source else "name a folder or a file to import")
    shown = st.progress(0.0, "Importing")

    def show_share(done: int, total: int) -> None:
        shown.progress(done / max(1, total), "Importing")

    report = import_into(Path(source), target, instrument, options, show_share)
    st.session_state["imported"] = [
        {"outcome": one.outcome, "file": str(one.path), "detail": one.detail} for one in report.sources
    ]
    set_address("folder", [str(target if len(report.catalogs) == 1 else target / report.catalogs[0].name)])
    st.rerun()


def _new_folder(name: str) -> Path:
    """`data/NAME`, which must not exist. Raises `UserError`."""
    target = Path("data") / name
    if not _NAME.fullmatch(name):
        raise UserError("give the new folder a name of letters, digits, '.', '_' and '-'")
    if target.exists():
        raise UserError(f"{target} is there already and is not written over: take another name")
    return target


def _tell_import() -> None:
    """What became of the files of the import that was just made."""
    files = st.session_state.pop("imported", None)
    if files is None:
        return
    refused = sum(one["outcome"] == "refused" for one in files)
    (st.warning if refused else st.success)(f"Imported. {refused} of {len(files)} files were refused.")
    show_table(pd.DataFrame(files))


def _download() -> None:
    st.caption("From an exchange, without a key. Cancel and a lost connection are safe: the same again continues.")
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
