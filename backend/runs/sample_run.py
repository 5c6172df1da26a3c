"""The finished backtest that is shipped beside the sample data, so that the first page has something to show."""

from __future__ import annotations

import shutil
from pathlib import Path

from backend.decisions.checked_documents import check_document
from backend.runs.backtest import plan_backtest, play_backtest
from backend.runs.requests import BacktestRequest
from backend.store.store import Store
from backend.store.transfer import export_run, import_run
from simulator.errors import UserError
from simulator.folders import sample_data

SAMPLE_RUN = "backtest-sample"  # its id
_FILE = "sample-run.jsonl.gz"
_REQUEST = BacktestRequest(
    teams=("scripted", "ema_cross"), variants=("shuffled_days",), start="2021-05-01", end="2021-06-15",
    baselines=("hold", "flat", "sma_cross", "matched_random", "oracle"),
)  # fmt: skip


def has_sample_run() -> bool:
    """Whether the file is there: a wheel has it, and the repository."""
    return (sample_data() / _FILE).is_file()


def add_sample_run(store: Store) -> str:
    """Add the shipped run to a store, as the user's own since it came with the program; returns its id.

    Raises `UserError` where the file is not there, and `StoreError` where it is damaged or another run has this id.
    """
    path = sample_data() / _FILE
    if not path.is_file():
        raise UserError(f"{path} is not there: install the program again, or start a backtest of your own")
    return import_run(store, path, check_document, own=True)[0]


def make_sample_run(work: Path) -> tuple[Path, int]:
    """Play the run on the sample anew in the folder `work`, and write the file beside the sample; returns its path and
    its bytes. Raises `UserError` as a backtest does."""
    path = sample_data() / _FILE
    with Store.open(work / "store") as store:
        play_backtest(plan_backtest(_REQUEST), store, SAMPLE_RUN, work / SAMPLE_RUN)
        export_run(store, SAMPLE_RUN, work / _FILE)
    shutil.move(work / _FILE, path)  # over the former one, which an export leaves as it is
    return path, path.stat().st_size
