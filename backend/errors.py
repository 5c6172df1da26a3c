"""The message of an error for the user, and the exit code of a command that ends with it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

from simulator.errors import Interrupted, RunFailed, UserError
from simulator.files import DISK_FULL

# A disk or a folder that cannot take what a run writes; any other OSError is a defect and shows its traceback.
FOLDER_TROUBLE = (
    *DISK_FULL, errno.EIO, errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR,
)  # fmt: skip
INTERRUPTED = 130
FOLDER_GONE = "the current folder was removed: change to one that exists, and give the command there"
# What each extra of the installation brings, by the names that are imported; a test compares it with pyproject.toml.
EXTRAS = {
    "train": (
        "accelerate", "huggingface_hub", "llguidance", "peft", "safetensors", "tensorboard", "torch", "transformers",
    ),
    "llm": ("openai",),
    "ui": ("starlette", "streamlit", "uvicorn"),
    "paper": ("aiohttp", "ccxt"),
}  # fmt: skip
_P = ParamSpec("_P")
_R = TypeVar("_R")


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
        case ModuleNotFoundError() if (missing := missing_extra(error)) is not None:
            return missing, 2
        case OSError() if error.errno in FOLDER_TROUBLE:
            return (
                f"{error.filename or 'a file'} cannot be written: {error.strerror}. Free some space or choose another "
                "folder; checkpoints and records written before are intact"
            ), 1
    return None


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """What to install for a package that is not there; None where it belongs to no extra, which is a defect."""
    package = (error.name or "").partition(".")[0]
    for extra, packages in EXTRAS.items():
        if package in packages:
            return f"this needs {package}, which is not installed: pip install 'cryptosentinel[{extra}]'"
    return None


def names_missing_extras(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`function`, which raises `UserError` with what to install where an extra is missing."""

    @wraps(function)
    def named(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except ModuleNotFoundError as error:
            missing = missing_extra(error)
            if missing is None:
                raise
            raise UserError(missing) from error

    return named


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The errors that an error was raised from."""
    cause = error.__cause__
    while cause is not None:
        yield cause
        cause = cause.__cause__
