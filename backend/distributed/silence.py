"""Which processes of a run hang: alive for the operating system, and silent.

A process that was stopped, whose machine swaps or whose network is gone sends no heartbeat. Nobody's clock is compared
with another's: a heartbeat is new when its number is, and how long there was none is counted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from backend.distributed.heartbeat import BEAT_SECONDS
from backend.store.records import ServiceRecord
from simulator.errors import RunFailed

SILENT_SECONDS = 12 * BEAT_SECONDS  # without a heartbeat, after which a process hangs
START_SECONDS = 600.0  # for a process to send its first one: it loads libraries and models before
MOST_HANGS = 3  # of one process in one step; one that hangs there again and again does so for a reason


@dataclass
class _Known:
    """What was last heard of a process, when, and in which steps it has hung."""

    pid: int
    beat: int | None = None
    heard_at: float = 0.0
    hangs: dict[int | None, int] = field(default_factory=dict)


class SilenceWatch:
    """Watches processes of this machine. Times are in seconds on one clock, which `look` is given."""

    def __init__(self, silent_seconds: float | None = None, start_seconds: float | None = None) -> None:
        self._silent = SILENT_SECONDS if silent_seconds is None else silent_seconds
        self._start = START_SECONDS if start_seconds is None else start_seconds
        self._known: dict[str, _Known] = {}

    def look(self, name: str, pid: int, services: Sequence[ServiceRecord], now: float) -> str | None:
        """Why the process `pid` that goes by `name` hangs, in words; None while it does not. It is to be killed then,
        and started again. Raises `RunFailed` for one that has hung too often in one step."""
        known = self._known.setdefault(name, _Known(pid, heard_at=now))
        if known.pid != pid:  # started again
            known.pid, known.beat, known.heard_at = pid, None, now
        record = next((one for one in services if one.name == name), None)
        step = None if record is None else record.step
        if record is not None and record.process.partition("@")[0] == str(pid) and record.beat != known.beat:
            known.beat, known.heard_at = record.beat, now
            return None
        limit = self._start if known.beat is None else self._silent
        if now - known.heard_at <= limit:
            return None
        known.heard_at = now
        known.hangs[step] = known.hangs.get(step, 0) + 1
        times, where = known.hangs[step], "before its first step" if step is None else f"at step {step}"
        if times > MOST_HANGS:
            raise RunFailed(
                f"{name} has hung {times} times {where}: it was killed and started again each time, and goes silent "
                "again; see the end of its log, and whether its machine swaps or its GPU has failed"
            )
        what = "sent no first heartbeat" if known.beat is None else "has sent no heartbeat"
        return f"{name} (process {pid}) {what} for {limit:.0f} s {where}: it hangs, and another takes its place"
