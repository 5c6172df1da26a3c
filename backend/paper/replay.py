"""What came of a session, from its journal: the bars and the requests, taken again by a broker that forgets nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.builders.market import Account
from backend.paper.journal import bar_from_json, entries_in_portions, history_from_json, requests_from_json
from backend.store.store import Store
from simulator.backtest.run import BacktestResult
from simulator.live.broker import SimulatedBroker


class JournalReplay:
    """The account of the session `run`, as far as its journal was read; `result` reads on."""

    def __init__(self, store: Store, run: str, start: Mapping[str, Any], account: Account) -> None:
        self._store, self._run, self._decide_every = store, run, int(start["decide_every"])
        self._broker = SimulatedBroker(
            history_from_json(start["history"]), account.cash, account.costs, account.max_leverage, account.venue
        )
        self._next = 1

    def result(self) -> BacktestResult:
        """The result of all that is in the journal by now."""
        for entry in entries_in_portions(self._store, self._run, self._next):
            data = entry.document
            if entry.kind == "bar":
                self._broker.extend(bar_from_json(data["bar"]))
            if data.get("requests") and not data.get("dropped"):
                self._broker.submit(*requests_from_json(data["requests"]))
            if entry.kind == "end":
                self._broker.finish()
            self._next = entry.ordinal + 1
        return self._broker.result(self._decide_every)
