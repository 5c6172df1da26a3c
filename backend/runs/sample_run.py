"""The finished backtest that is shipped beside the sample data, so that the first page has something to show."""

from __future__ import annotations

from backend.decisions.checked_documents import check_document
from backend.store.store import Store
from backend.store.transfer import import_run
from simulator.errors import UserError
from simulator.folders import sample_data

SAMPLE_RUN = "backtest-sample"  # its id
FILE = "sample-run.jsonl.gz"


def has_sample_run() -> bool:
    """Whether the file is there: a wheel has it, and the repository."""
    return (sample_data() / FILE).is_file()


def add_sample_run(store: Store) -> str:
    """Add the shipped run to a store, as the user's own since it came with the program; returns its id.

    Raises `UserError` where the file is not there, and `StoreError` where it is damaged or another run has this id.
    """
    path = sample_data() / FILE
    if not path.is_file():
        raise UserError(f"{path} is not there: install the program again, or start a backtest of your own")
    return import_run(store, path, check_document, own=True)[0]
