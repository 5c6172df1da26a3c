"""What can be seen of a session from outside: a file of figures in the text format of Prometheus, alerts among them.

All of it follows the journal. It decides nothing, and a monitor that fails, as on a full disk, does not stop a session.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from backend.config.schema import Config
from backend.paper.feeds import GRACE_SECONDS
from backend.store.records import JournalRecord, RunRecord
from backend.store.run_record import stored_config
from simulator.files import write_whole
from simulator.market.timeframes import SECOND_MS, interval_of

METRICS = "metrics.prom"
AlertKind = Literal[
    "guard_shutdown", "loss_stop", "guard_error", "stale_data", "implausible_data", "kill", "session_dead"
]
_FLAT: dict[str, AlertKind] = {"max_drawdown": "guard_shutdown", "daily_loss": "loss_stop"}


class AlertRules:
    """Which entries of a journal are alerts. The entries are given in their order."""

    def __init__(self) -> None:
        self._flat = ""  # why the guard closes the account

    def of(self, kind: str, document: Mapping[str, Any]) -> list[tuple[AlertKind, str]]:
        """The alerts of an entry, each with its detail."""
        found: list[tuple[AlertKind, str]] = []
        flat = str((document.get("guard") or {"flat_rule": self._flat})["flat_rule"])
        if flat != self._flat and flat in _FLAT:
            found.append((_FLAT[flat], f"the guard closes the account: {flat}"))
        self._flat = flat
        failed = next((one for one in document.get("clamps", ()) if one["rule"] == "guard_error"), None)
        if failed is not None:
            found.append(("guard_error", str(failed["detail"])))
        if kind == "control" and document["what"] in ("flatten", "freeze"):
            found.append(("kill", f"kill switch: {document['what']}"))
        if kind == "bar" and not document["bar"]["candles"]:
            found.append(("stale_data", f"bar {document['bar_index']} came without any symbol"))
        if kind == "notice" and document["kind"] == "stale":
            found.append(("stale_data", str(document["detail"])))
        if kind == "notice" and document["kind"] == "implausible":
            found.append(("implausible_data", f"not used until the next one confirms it: {document['detail']}"))
        return found


class Monitor:
    """Follows the session `run`, whose files lie in `folder`, from the `entries` of its journal on."""

    def __init__(self, run: str, folder: Path, entries: Iterable[JournalRecord] = ()) -> None:
        self._run, self._folder, self._lock = run, folder, threading.Lock()
        self._rules = AlertRules()
        self._counts: Counter[str] = Counter()
        self._gauges: dict[str, float] = {}
        for entry in entries:
            self._count(entry.kind, entry.document)
            self._rules.of(entry.kind, entry.document)
        self._write()

    def entry(self, kind: str, time_ms: int, document: Mapping[str, Any]) -> None:
        """An entry of the journal was written."""
        with self._lock:
            self._count(kind, document)
        for what, _ in self._rules.of(kind, document):
            self.alert(what)
        if kind == "bar":
            self._write()

    def alert(self, what: AlertKind) -> None:
        """Count an alert."""
        with self._lock:
            self._counts[f'alerts_total{{what="{what}"}}'] += 1

    def metrics(self) -> str:
        """All figures in the text format of Prometheus, as its node exporter reads them from a file."""
        with self._lock:
            values: dict[str, float] = {**self._counts, **self._gauges, "written_seconds": time.time()}
        lines = []
        for name, value in sorted(values.items()):
            bare, _, labels = name.rstrip("}").partition("{")
            both = ",".join(filter(None, (f'session="{self._run}"', labels)))
            lines.append(f"cryptosentinel_paper_{bare}{{{both}}} {value:.12g}")
        return "\n".join(lines) + "\n"

    def close(self) -> None:
        """End; called while an error is raised, it counts the session's death."""
        if sys.exc_info()[1] is not None:
            self.alert("session_dead")
        self._write()

    def _write(self) -> None:
        with suppress(OSError):  # the journal has it
            write_whole(self._folder / METRICS, self.metrics())

    def _count(self, kind: str, document: Mapping[str, Any]) -> None:
        if kind == "bar":
            fills = sum(one["kind_of_record"] == "Fill" for one in document["happened"]["ledger"])
            account = document["account"]
            self._counts.update(bars_total=1, fills_total=fills, missed_decisions_total=bool(document.get("missed")))
            self._gauges |= {"equity": account["equity"], "cash": account["cash"]}
            for symbol, quantity in account["positions"].items():
                self._gauges[f'position{{symbol="{symbol}"}}'] = quantity
        elif kind == "decision":
            self._counts.update(decisions_total=1, cut_off_total=bool(document.get("cut_off")))
            late = max([document["begun"], *(one[1] for one in document["requests"])])
            self._gauges["decision_late_seconds"] = late / 1000.0
        elif kind == "notice":
            self._counts[f'notices_total{{kind="{document["kind"]}"}}'] += 1
        elif kind == "missed":
            self._counts["missed_decisions_total"] += 1


def paper_problem(record: RunRecord, folder: Path, now: float) -> str:
    """Why a session needs somebody to look at it at `now` (seconds since the epoch); empty where it runs as it should,
    or is finished."""
    if record.status == "finished":
        return ""
    if record.status != "running":
        return f"it does not run: {record.status}{f' ({record.message})' if record.message else ''}"
    config = stored_config(record)
    silence = most_silence(config, interval_of(config.market.resample or config.market.timeframe))
    try:
        passed = now - (folder / METRICS).stat().st_mtime
    except OSError:
        return f"there is no {folder / METRICS}: it has not begun, or runs elsewhere"
    return f"no bar came for {passed:.0f} s, at most {silence:.0f} s are usual" if passed > silence else ""


def most_silence(config: Config, interval: int) -> float:
    """Seconds without a bar after which a session in bars of `interval` ms is taken for dead."""
    return 2.0 * interval / SECOND_MS + GRACE_SECONDS + config.paper.decision_timeout + 60.0
