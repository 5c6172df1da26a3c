"""The error of the store."""

from simulator.errors import UserError


class StoreError(UserError):
    """The store cannot be opened, read or written. The message says why and what to do."""
