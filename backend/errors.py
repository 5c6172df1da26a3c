"""The message of an error for the user, and the exit code of a command that ends with it."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from simulator.errors import Interrupted, RunFailed, UserError
from simulator.files import DISK_FULL

# A disk or a folder that cannot take what a run writes; any other OSError is a defect and shows its traceback.
FOLDER_TROUBLE = (
    *DISK_FULL, errno.EIO, errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR,
)  # fmt: skip
INTERRUPTED = 130


def message_and_code(error: BaseException) -> tuple[str, int] | None:
    """The message and the exit code of an error that a user can understand; None for a defect."""
    match error:
        case Interrupted():
            return str(error), INTERRUPTED
        case RunFailed():
            return str(error), 1
        case UserError():  # a full disk is nobody's mistake, whoever says it
            full = any(isinstance(cause, OSError) and cause.errno in DISK_FULL for cause in _causes(error))
            return str(error), 1 if full else 2
        case OSError() if error.errno in FOLDER_TROUBLE:
            return (
                f"{error.filename or 'a file'} cannot be written: {error.strerror}. Free some space or choose another "
                "folder; checkpoints and records written before are intact"
            ), 1
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The errors that an error was raised from."""
    cause = error.__cause__
    while cause is not None:
        yield cause
        cause = cause.__cause__
