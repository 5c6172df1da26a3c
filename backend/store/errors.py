"""The errors of the store."""

from simulator.errors import RunFailed, UserError


class StoreError(UserError):
    """The store cannot be opened, read or written. The message says why and what to do."""


class StoreDiskError(StoreError, RunFailed):
    """The disk failed the database, as a full one does. What was acknowledged is stored."""
