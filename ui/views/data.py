"""The page of market data: which folders there are, what they cover, what is wrong with them, and how more come in."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pandas as pd
import streamlit as st

from backend.jobs.commands import download_command, import_command
from backend.jobs.queue import command_words
from backend.reporting.data.coverage import coverage_of, coverage_picture, coverage_table, data_folders
from backend.runs.requests import sample_data
from cryptosentinel.protocol.untrusted import visible
from simulator.data.catalog import Catalog
from simulator.errors import UserError
from simulator.market.instruments import MARKET_KINDS
from simulator.market.timeframes import TIMEFRAMES
from ui.access import asked_for, escape_markdown, job_queue, mistakes_explained, open_store, set_address
from ui.parts.drawing import draw_blocks
from ui.parts.job import job_label, newest_of, open_job, show_job

_ROOTS = (Path("data"), Path("bars"))  # below the current folder
_UPLOADS = Path("data/uploads")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
_OTHER = "another folder …"


def _page() -> None:
    st.title("Data")
    st.caption("Bars, funding and news, as files of this machine. Nothing is filled in and nothing is sent anywhere.")
    with mistakes_explained():
        _jobs()
    look, import_, download = st.tabs(["Look at a folder", "Import files", "Download"])
    with look, mistakes_explained():
        _look()
    with import_, mistakes_explained():
        _import()
    with download, mistakes_explained():
        _download()


def _jobs() -> None:
    """The import or download that the address names, and others that run."""
    queue = job_queue()
    queue.wake()
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
    chosen = st.selectbox("Folder", [*names, _OTHER], index=names.index(asked) if asked in names else 0)
    if chosen == _OTHER:
        chosen = st.text_input("Its path", help="A folder of files like BTCUSDT-1h.parquet.").strip()
        if not chosen:
            return
    set_address("folder", [chosen])
    folder = Path(chosen)
    coverage = coverage_of(folder)
    st.caption(escape_markdown(_kinds(folder)))
    draw_blocks([coverage_picture(coverage), coverage_table(coverage)], "coverage")
    st.markdown("**Quality**")
    st.caption("Reads every bar: order, gaps, impossible values, flash wicks (prices far off the usual), stale runs.")
    if st.button("Check all files", icon=":material/fact_check:", key="check"):
        st.session_state["checked folder"] = chosen
    if st.session_state.get("checked folder") == chosen:
        _quality(folder)


def _kinds(folder: Path) -> str:
    kinds = Catalog(folder).kinds()
    return "; ".join(f"{symbol}: {stated}" for symbol, stated in kinds.items())


def _quality(folder: Path) -> None:
    newest = max((path.stat().st_mtime_ns for path in folder.glob("*.parquet")), default=0)
    issues = _issues(str(folder), newest)
    fatal = sum(issue[0] == "unusable" for issue in issues)
    if fatal:
        st.error(f"{fatal} findings make the data unusable: mend or remove the files that are named.")
    else:
        st.success(f"Usable, {len(issues)} notes.")
    if issues:
        columns = ["verdict", "what", "count", "file", "detail"]
        st.dataframe(pd.DataFrame([dict(zip(columns, row, strict=True)) for row in issues]), hide_index=True)


@st.cache_data(show_spinner="Checking every bar", max_entries=16)
def _issues(folder: str, newest: int) -> list[tuple[str, str, int, str, str]]:
    """The arguments are the key of the cache; `newest` is the time of the newest file."""
    return [
        ("unusable" if issue.fatal else "note", issue.kind, issue.count, visible(Path(issue.file).name),
         visible(issue.detail))
        for issue in Catalog(folder).check()
    ]  # fmt: skip


def _import() -> None:
    st.caption(
        "Parquet files of bars, Binance Vision, CryptoDataDownload, freqtrade and other CSV. They are checked first, "
        "and the files that you name are only read."
    )
    source = st.text_input("Folder or file on this machine", key="source").strip()
    uploads = st.file_uploader("Or upload files", accept_multiple_files=True, key="uploads")
    left, middle, right = st.columns(3)
    name = left.text_input("Name of the new folder, below data/", key="new folder").strip()
    kind = middle.selectbox(
        "What the bars are of", ["as the files say", *MARKET_KINDS],
        help="Spot, or perpetual futures, which pay or earn funding. Only where the files do not say it.",
    )  # fmt: skip
    columns = right.text_input(
        "Columns of a CSV, where they are not recognised", placeholder="time=Date,open=Open,high=High,low=Low,…"
    ).strip()
    if not st.button("Import", type="primary", icon=":material/upload_file:"):
        return
    target = _new_folder(name)
    if uploads:
        source = str(_UPLOADS / name)
        Path(source).mkdir(parents=True, exist_ok=False)
        for upload in uploads:
            file = Path(upload.name).name
            if not _NAME.fullmatch(file):
                raise UserError(f"the file name '{file[:80]}' has other characters than letters, digits, '.', '_', '-'")
            (Path(source) / file).write_bytes(upload.getvalue())
    if not source:
        raise UserError("nothing is chosen: name a folder or a file, or upload files")
    if not Path(source).exists():
        raise UserError(f"there is no {source} on this machine")
    instrument = "" if kind == "as the files say" else kind
    open_job(job_queue().submit(import_command(source, target, instrument, columns), once=True))


def _new_folder(name: str) -> Path:
    """`data/NAME`, which must not be there: nothing is ever written over. Raises `UserError`."""
    if not _NAME.fullmatch(name):
        raise UserError("give the new folder a name of letters, digits, '.', '_' and '-'")
    target = Path("data") / name
    if target.exists() or (_UPLOADS / name).exists():
        raise UserError(f"{target} is there already and is not written over: take another name")
    return target


def _download() -> None:
    st.caption("From an exchange, without a key. Cancel and a lost connection are safe: the same again goes on.")
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
        open_job(job_queue().submit(command, once=True))


_page()
