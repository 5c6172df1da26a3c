"""Errors that a user can fix. The command line prints their message without a traceback."""


class UserError(Exception):
    """Something the user gave cannot be used. The message says what is wrong, where, and what to do."""


class DataError(UserError):
    """Market data that is missing, malformed or too short."""


class RunFailed(Exception):
    """A run that cannot continue although its input was right. The message says why and what to try."""


class Interrupted(RunFailed):
    """A run that the user stopped. What it had stored is kept."""


class LookAheadError(Exception):
    """Code asked a `MarketView` for something that was not known yet. A defect of the caller, never of the user."""
