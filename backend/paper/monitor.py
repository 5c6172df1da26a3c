"""What can be seen of a session from outside: a log of one JSON line an event, metrics, health, and alerts.

All of it follows the journal: what is written there is told here. It decides nothing, and a monitor that fails (a full
disk, a port that is taken) does not stop a session that runs.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from backend.config.schema import Config
from backend.paper.alerts import AlertKind, Webhook, webhook
from backend.store.records import JournalRecord, RunRecord
from backend.store.run_record import stored_config
from simulator.errors import UserError
from simulator.market.timeframes import SECOND_MS, interval_of

LOG = "events.jsonl"
_FLAT: dict[str, AlertKind] = {"max_drawdown": "guard_shutdown", "daily_loss": "loss_stop"}
# What a session tells of itself and of the feed. Its shadow meets the same, and tells only what its own account does.
SHARED_WITH_SHADOW = frozenset[AlertKind]({"kill", "stale_data", "implausible_data"})


class Monitor:
    """Follows the session `run`, whose files lie in `folder`.

    Args:
        port: of metrics and health on this machine only; 0 for none.
        silence: seconds without an entry of the journal after which the session counts as dead.
        told_elsewhere: alerts that another monitor raises for the same reason, and this one does not.

    Raises `UserError` for a port that is taken, and for a webhook that is no address.
    """

    def __init__(
        self,
        run: str,
        folder: Path,
        port: int,
        silence: float,
        told_elsewhere: frozenset[AlertKind] = frozenset(),
    ) -> None:
        self._run, self._silence, self._lock = run, silence, threading.Lock()
        self._told_elsewhere = told_elsewhere
        self._latest, self._flat = time.monotonic(), ""
        self._counts: Counter[tuple[str, str]] = Counter()  # by metric and label
        self._gauges: dict[tuple[str, str], float] = {}
        self._file = (folder / LOG).open("a", encoding="utf-8")
        address = webhook()
        self._server: ThreadingHTTPServer | None = None
        try:
            self._server = _serve(self, port) if port else None
        except OSError as error:
            self._file.close()
            raise UserError(f"paper.metrics_port {port} cannot be used: {error.strerror}; choose another") from None
        self._webhook = Webhook(address, failed=self._undelivered) if address else None

    def state(self) -> dict[str, Any]:
        """What was counted so far, for a snapshot."""
        with self._lock:
            return {"counts": [[name, label, count] for (name, label), count in sorted(self._counts.items())]}

    def go_on(self, state: Mapping[str, Any], entries: Iterable[JournalRecord]) -> None:
        """Count on from a former process: from the `state` of a snapshot ({} without one), and the entries after
        it."""
        with self._lock:
            noted = state["monitor"]["counts"] if state else ()
            self._counts.update({(str(name), str(label)): int(count) for name, label, count in noted})
            for entry in entries:
                self._count(entry.kind, entry.document)
                guard = entry.document.get("guard")
                self._flat = self._flat if guard is None else str(guard["flat_rule"])

    def entry(self, kind: str, time_ms: int, document: Mapping[str, Any]) -> None:
        """An entry of the journal was written."""
        with self._lock:
            self._latest = time.monotonic()
            fields = self._count(kind, document)
        self._log(kind, time_ms, fields)
        self._alerts_of(kind, time_ms, document)

    def alert(self, what: AlertKind, time_ms: int, detail: str) -> None:
        """Log an alert and send it, unless it is told elsewhere."""
        if what in self._told_elsewhere:
            return
        self._counts["alerts_total", f'what="{what}"'] += 1
        self._log("alert", time_ms, {"what": what, "detail": detail})
        if self._webhook is not None:
            self._webhook.send({"session": self._run, "what": what, "detail": detail, "time": time_ms})

    def healthy(self) -> bool:
        """Whether the session wrote something lately."""
        return time.monotonic() - self._latest <= self._silence

    def metrics(self) -> str:
        """All metrics in the text format of Prometheus."""
        with self._lock:
            counts, gauges = dict(self._counts), dict(self._gauges)
        gauges["seconds_since_entry", ""] = time.monotonic() - self._latest
        gauges["healthy", ""] = float(self.healthy())
        lines = []
        for values, kind in ((counts, "counter"), (gauges, "gauge")):
            for name in sorted({name for name, _ in values}):
                lines.append(f"# TYPE cryptosentinel_paper_{name} {kind}")
                for (its, label), value in sorted(values.items()):
                    if its == name:
                        labels = ",".join(filter(None, (f'session="{self._run}"', label)))
                        lines.append(f"cryptosentinel_paper_{name}{{{labels}}} {float(value):.12g}")
        return "\n".join(lines) + "\n"

    def health(self) -> tuple[int, dict[str, Any]]:
        """The status and the answer of the health check."""
        well = self.healthy()
        since = round(time.monotonic() - self._latest, 1)
        return (200 if well else 503), {"session": self._run, "healthy": well, "seconds_since_entry": since}

    def close(self) -> None:
        """End; called while an error is on its way, that is told as the session's death."""
        error = sys.exc_info()[1]
        if error is not None:
            self.alert("session_dead", int(time.time() * 1000), type(error).__name__)
        if self._webhook is not None:
            self._webhook.close()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        self._file.close()

    def _count(self, kind: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Count an entry; what the log says of it."""
        if kind == "bar":
            fills = sum(one["kind_of_record"] == "Fill" for one in document["happened"]["ledger"])
            account = document["account"]
            self._counts["bars_total", ""] += 1
            self._counts["fills_total", ""] += fills
            self._counts["missed_decisions_total", ""] += bool(document.get("missed"))
            self._gauges["equity", ""], self._gauges["cash", ""] = account["equity"], account["cash"]
            self._gauges["bar_index", ""] = document["bar_index"]
            self._gauges["symbols_with_bar", ""] = len(document["bar"]["candles"])
            for symbol, quantity in account["positions"].items():
                self._gauges["position", f'symbol="{symbol}"'] = quantity
            return {"bar": document["bar_index"], "equity": account["equity"], "fills": fills}
        if kind == "decision":
            self._counts["decisions_total", ""] += 1
            self._counts["cut_off_total", ""] += bool(document.get("cut_off"))
            late = max([document["begun"], *(one[1] for one in document["requests"])]) / 1000.0
            self._gauges["decision_late_seconds", ""] = late
            fields = {"bar": document["bar"], "decision": self._counts["decisions_total", ""], "late_seconds": late}
            return {**fields, "orders": len(document["requests"]), "cut_off": document.get("cut_off", "")}
        if kind == "notice":
            self._counts["notices_total", f'kind="{document["kind"]}"'] += 1
            return {"notice": document["kind"], "detail": document["detail"]}
        if kind == "control":
            return {"bar": document["bar_index"], "what": document["what"]}
        if kind in ("missed", "end"):
            self._counts["missed_decisions_total", ""] += kind == "missed"
            return {"bar": document["bar_index"], "why": document.get("why") or document.get("missed", "")}
        return {}

    def _alerts_of(self, kind: str, time_ms: int, document: Mapping[str, Any]) -> None:
        flat = str((document.get("guard") or {"flat_rule": self._flat})["flat_rule"])
        if flat != self._flat:
            self._flat = flat
            if flat in _FLAT:
                self.alert(_FLAT[flat], time_ms, f"the guard closes the account: {flat}")
        failed = next((one for one in document.get("clamps", ()) if one["rule"] == "guard_error"), None)
        if failed is not None:
            self.alert("guard_error", time_ms, str(failed["detail"]))
        if kind == "control" and document["what"] in ("flatten", "freeze"):
            self.alert("kill", time_ms, f"kill switch: {document['what']}")
        if kind == "bar" and not document["bar"]["candles"]:
            self.alert("stale_data", time_ms, f"bar {document['bar_index']} came without any symbol")
        if kind == "notice" and document["kind"] == "stale":
            self.alert("stale_data", time_ms, str(document["detail"]))
        if kind == "notice" and document["kind"] == "implausible":
            self.alert("implausible_data", time_ms, f"not used until the next one confirms it: {document['detail']}")

    def _log(self, event: str, time_ms: int, fields: Mapping[str, Any]) -> None:
        """Add a line; one that the disk does not take is left out, since the journal has it."""
        line = {"event": event, "session": self._run, "time": time_ms, **fields}
        written = {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in line.items()}
        try:
            self._file.write(json.dumps(written) + "\n")
            self._file.flush()
        except (OSError, ValueError):
            self._counts["log_lines_lost_total", ""] += 1

    def _undelivered(self, why: str) -> None:
        self._counts["alerts_undelivered_total", ""] += 1
        self._log("alert_undelivered", int(time.time() * 1000), {"why": why})


def tell_parity(run: str, folder: Path, differences: Sequence[str]) -> None:
    """Alert that the backtest of the session `run`, whose files lie in `folder`, does something else than it did."""
    if differences and folder.is_dir():
        monitor = Monitor(run, folder, 0, math.inf)
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
        passed = now - (folder / LOG).stat().st_mtime
    except OSError:
        return f"there is no {folder / LOG}: it has not begun, or runs elsewhere"
    return f"nothing happened for {passed:.0f} s, at most {silence:.0f} s are usual" if passed > silence else ""


def most_silence(config: Config, interval: int) -> float:
    """Seconds without an entry of the journal after which a session in bars of `interval` ms is taken for dead."""
    return 2.0 * interval / SECOND_MS + config.paper.grace_seconds + config.paper.decision_timeout + 60.0


def _serve(monitor: Monitor, port: int) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Metrics, health, and nothing else."""
            if self.path == "/metrics":
                self._answer(200, "text/plain; version=0.0.4; charset=utf-8", monitor.metrics())
            elif self.path == "/health":
                status, answer = monitor.health()
                self._answer(status, "application/json", json.dumps(answer) + "\n")
            else:
                self._answer(404, "text/plain", "there are /metrics and /health\n")

        def _answer(self, status: int, kind: str, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            """Requests are not logged."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
