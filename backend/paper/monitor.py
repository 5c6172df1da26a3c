"""What can be seen of a session from outside: a file of figures, and alerts.

All of it follows the journal. It decides nothing, and a monitor that fails (a full disk, a webhook that does not
respond) does not stop a session. The address of the webhook comes from the environment, since such addresses hold a
secret; it is in no record or message.
"""

from __future__ import annotations

import http.client
import json
import os
import queue
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from backend.config.schema import Config
from backend.paper.feeds import GRACE_SECONDS
from backend.store.records import JournalRecord, RunRecord
from backend.store.run_record import stored_config
from simulator.errors import UserError
from simulator.files import write_whole
from simulator.market.timeframes import SECOND_MS, interval_of

METRICS = "metrics.prom"
WEBHOOK = "CRYPTOSENTINEL_ALERT_URL"
AlertKind = Literal[
    "guard_shutdown", "loss_stop", "guard_error", "stale_data", "implausible_data", "kill", "session_dead", "parity"
]
FIRST_WAIT = 1.0  # seconds before the second try of an alert, doubled for each further one
_TRIES, _TIMEOUT, _WAITING, _PATIENCE = 4, 10.0, 100, 5.0
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
    """Follows the session `run`, whose files lie in `folder`, from the `entries` of its journal on.

    Raises `UserError` for a webhook that is not an address.
    """

    def __init__(self, run: str, folder: Path, entries: Iterable[JournalRecord] = ()) -> None:
        self._run, self._folder, self._lock = run, folder, threading.Lock()
        self._rules = AlertRules()
        self._counts: Counter[str] = Counter()
        self._gauges: dict[str, float] = {}
        address = webhook()
        self._webhook = Webhook(address, self._undelivered) if address else None
        for entry in entries:
            self._count(entry.kind, entry.document)
            self._rules.of(entry.kind, entry.document)
        self._write()

    def entry(self, kind: str, time_ms: int, document: Mapping[str, Any]) -> None:
        """An entry of the journal was written."""
        with self._lock:
            self._count(kind, document)
        for what, detail in self._rules.of(kind, document):
            self.alert(what, time_ms, detail)
        if kind == "bar":
            self._write()

    def alert(self, what: AlertKind, time_ms: int, detail: str) -> None:
        """Count an alert and send it."""
        with self._lock:
            self._counts[f'alerts_total{{what="{what}"}}'] += 1
        if self._webhook is not None:
            self._webhook.send({"session": self._run, "what": what, "detail": detail, "time": time_ms})

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
        """End; called while an error is raised, it sends the alert of the session's death."""
        error = sys.exc_info()[1]
        if error is not None:
            self.alert("session_dead", int(time.time() * 1000), type(error).__name__)
        if self._webhook is not None:
            self._webhook.close()
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

    def _undelivered(self) -> None:
        with self._lock:
            self._counts["alerts_undelivered_total"] += 1


class Webhook:
    """Posts alerts as JSON to `address`, one after the other, each at most four times, in a thread of its own. `failed`
    is called for each that could not be delivered."""

    def __init__(self, address: str, failed: Callable[[], None]) -> None:
        self._address, self._failed = address, failed
        self._alerts: queue.Queue[Mapping[str, Any] | None] = queue.Queue(_WAITING)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="alerts", daemon=True)
        self._thread.start()

    def send(self, alert: Mapping[str, Any]) -> None:
        """Send `alert` soon. One that finds a hundred others waiting is given up."""
        try:
            self._alerts.put_nowait(alert)
        except queue.Full:
            self._failed()

    def close(self) -> None:
        """Send what waits, for at most five seconds, and end."""
        try:
            self._alerts.put_nowait(None)
        except queue.Full:
            self._over.set()
        self._thread.join(_PATIENCE)
        self._over.set()

    def _work(self) -> None:
        while (alert := self._alerts.get()) is not None and not self._over.is_set():
            for number in range(_TRIES):
                delivered = self._post(alert)
                if delivered or self._over.wait(FIRST_WAIT * 2**number if number + 1 < _TRIES else 0.0):
                    break
            if not delivered:
                self._failed()

    def _post(self, alert: Mapping[str, Any]) -> bool:
        request = urllib.request.Request(  # `webhook` has looked at the scheme
            self._address, json.dumps(alert).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT):
                return True
        except (OSError, ValueError, http.client.HTTPException):  # an answer of 400 or more is an OSError, too
            return False


def webhook() -> str:
    """The address in the environment, or nothing. Raises `UserError`, without it, for one that cannot be used."""
    address = os.environ.get(WEBHOOK, "")
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if address and not usable:
        raise UserError(f"{WEBHOOK} is not an http or https address: correct it, or leave it out for no webhook")
    return address


def tell_parity(run: str, folder: Path, differences: Sequence[str], entries: Iterable[JournalRecord]) -> None:
    """Alert that the backtest of the session `run`, whose files lie in `folder`, does something else than it did.
    `entries` are those of its journal."""
    if differences and folder.is_dir():
        monitor = Monitor(run, folder, entries)
        more = f", and {len(differences) - 1} more" if len(differences) > 1 else ""
        monitor.alert("parity", int(time.time() * 1000), f"{differences[0]:.300}{more}")
        monitor.close()


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
