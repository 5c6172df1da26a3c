"""The errors of the store."""

from simulator.errors import RunFailed, UserError


class StoreError(UserError):
    """The store cannot be opened, read or written. The message says why and what to do."""


class StoreDiskError(StoreError, RunFailed):
    """The disk failed the database, as a full one does. What was acknowledged is stored."""


def half_deleted(store: str, run_id: str) -> StoreError:
    """The error for a run whose deletion was cut short."""
    return StoreError(
        f"run {run_id} in store {store} is half deleted: finish that with `cryptosentinel runs delete {run_id}`"
    )
