"""The log of a process of a run: JSON lines on standard error, each with time, level, run, service, role and step.

A line is `{"time", "level", "run", "service", "role", "step", "logger", "message"}`, and `traceback` after a defect;
what does not apply is null. Time is UTC. The message is data: a line break in it is escaped, so one line is one event.
No setting, address or environment variable is logged as such.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from backend.errors import INTERRUPTED, message_and_code
from simulator.documents import parse_json

_log = logging.getLogger(__name__)


@dataclass
class Place:
    """Where the lines of this process come from; a process is one service of one run."""

    run: str | None = None
    service: str | None = None
    role: str | None = None
    step: int | None = None


PLACE = Place()


def set_step(step: int | None) -> None:
    """From here on, the lines of this process say that they are of this step."""
    PLACE.step = step


def set_service(name: str) -> None:
    """From here on, the lines of this process say that they are of the process of this name."""
    PLACE.service = name


class JsonLines(logging.Formatter):
    """A line of JSON for each record, with the `Place` of this process."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            **asdict(PLACE),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class Ended(Exception):
    """The process has logged why it ends; `code` is its exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


@contextmanager
def json_lines(place: Place) -> Iterator[None]:
    """Log what a block does as JSON lines, from `place`."""
    vars(PLACE).update(asdict(place))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.addHandler(handler)
    ours = [logging.getLogger(name) for name in ("backend", "cryptosentinel")]
    levels = [one.level for one in ours]
    for one in ours:
        one.setLevel(logging.INFO)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)
        for one, level in zip(ours, levels, strict=True):
            one.setLevel(level)


@contextmanager
def logged(place: Place) -> Iterator[None]:
    """`json_lines`, also for how the block ends: after an error it raises `Ended` with the exit code that the command
    line would have had, so that nothing but JSON is written."""
    with json_lines(place):
        try:
            yield
        except KeyboardInterrupt:
            _log.info("stopped by a signal; what was stored is kept")
            raise Ended(INTERRUPTED) from None
        except Exception as error:
            known = message_and_code(error)
            if known is None:
                _log.critical("a defect: %s: %s", type(error).__name__, error, exc_info=True)
                raise Ended(1) from error
            _log.error("%s", known[0])
            raise Ended(known[1]) from error


def last_message(log: Path) -> str:
    """The last message that a process wrote to `log`, and where that file is."""
    lines = log.read_text(errors="replace").strip().splitlines() if log.is_file() else []
    message = lines[-1] if lines else "it logged nothing"
    with suppress(ValueError, TypeError, KeyError):  # killed while it wrote, or another program's line
        message = str(parse_json(message)["message"])
    return f"{message[:400]} (see {log})"
