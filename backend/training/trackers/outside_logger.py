"""What all loggers to other programs have in common: none of them may end a training.

What is sent is the name of the run and its metrics, and nothing else. After a failure a logger says so once and sends
nothing more: the run's own record is complete without it.
"""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

_log = logging.getLogger(__name__)


class OutsideLogger(ABC):
    """Sends the metrics of a run to the program `title`. A subclass calls `attempt` for all that may fail."""

    title: str

    def __init__(self) -> None:
        self.failed = False

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the metrics of a step."""

    @abstractmethod
    def close(self) -> None:
        """Send what is left."""

    def attempt(self, act: Callable[[], object]) -> None:
        """Do `act`; the first failure is logged and ends the logging."""
        if self.failed:
            return
        try:
            act()
        except Exception as error:  # noqa: BLE001 - their errors share no base, and none of them may end a training
            self.failed = True
            # Its text is from outside: a line of it, without what a terminal would obey.
            reason = ascii(str(error)[:200])
            _log.warning(
                "%s failed (%s: %s). The run goes on; metrics.jsonl, TensorBoard and the store have all its metrics",
                self.title,
                type(error).__name__,
                reason,
            )


def plain(name: str) -> str:
    """The name of a metric with `_` in place of all but letters, digits and - . / _."""
    return re.sub(r"[^A-Za-z0-9_./-]", "_", name)


def plain_run(run: str) -> str:
    """The name of a run as other programs take it: `plain`, and without `/`."""
    return plain(run).replace("/", "_")
