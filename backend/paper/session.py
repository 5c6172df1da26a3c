"""A paper session: the other `TradingSession` beside the backtest. Bars come when they come, and time passes.

The order at each close: the bar is over (`simulator.live.bar_assembly`); the account takes it; if nothing is decided
here, the guard looks; all of it is written to the journal; what is to be sent is sent. A decision is written before its
orders are sent. So after a kill at any point the journal says everything that took effect and nothing that did not.

A decision at a close is due until the next bar is over by the clock. One that could not be begun by then, because a
model thought for too long or nobody was there, is recorded as missed, and the guard looks in its place.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from backend.decisions.recording import decision_document
from backend.paper.feeds import FeedBars
from backend.paper.journal import (
    Journal,
    bar_from_json,
    bar_to_json,
    happened_to_json,
    requests_from_json,
    requests_to_json,
)
from backend.paper.switch import Switch, SwitchOrder
from backend.paper.thinking import DeadlineRunner
from backend.store.errors import StoreError
from backend.store.records import JournalRecord
from cryptosentinel.guard.guard import Guard
from cryptosentinel.guard.limits import Clamp
from cryptosentinel.guard.pending import closing_orders
from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.team import TeamDecision
from simulator.backtest.run import BacktestResult, Watch, Window
from simulator.exchange.exchange_records import AccountView, Fill, record_to_json
from simulator.exchange.orders import Cancel, OrderRequest
from simulator.live.bar_assembly import LiveBar
from simulator.live.broker import Happened, SimulatedBroker
from simulator.market.market import MarketView
from simulator.market.timeframes import format_time

# Gets market, account and the recorded entry of a decision that is taken again.
DecidesAgain = Callable[[MarketView, AccountView, Mapping[str, Any]], None]


class PaperSession:
    """One account of a team on a feed.

    Attributes:
        decisions: give this list to `play`; what is in it at `apply` is written with the orders.
        ended: why the session is over, empty while it is not: "finished", "stopped", "flatten", "freeze", "liquidated".
        missed: how many closes there were at which a decision was due and none was taken.
    """

    def __init__(
        self,
        broker: SimulatedBroker,
        bars: FeedBars,
        journal: Journal,
        switch: Switch,
        guard: Guard,
        codec: ChatFormat | None,
        *,
        decide_every: int,
        on_bar: Callable[[int], None] | None = None,
    ) -> None:
        """`codec` is that of the team, None for a strategy."""
        self._broker, self._bars, self._journal = broker, bars, journal
        self._switch, self._guard, self._codec = switch, guard, codec
        self._on_bar = on_bar
        self.window = Window(broker.start, sys.maxsize, decide_every)
        self.decisions: list[tuple[int, TeamDecision]] = []
        self.ended = ""
        self.missed = 0
        self.bars = self.decided = self.fills = 0
        self._now = broker.close  # no decision is earlier than what was known before it
        self._due = True  # whether a decision at this close is to be taken
        self._thinking, self._began = False, broker.close  # whether one is under way, and when it began
        self._watch: Watch | None = None
        self._thinker: DeadlineRunner | None = None
        self._clamps: list[Clamp] = []
        self._ready: tuple[Sequence[OrderRequest], list[int]] = ((), [])  # written, and to be sent
        self._killed = False
        self._met = Counter[str]()  # what went wrong with the data before this source was opened
        self._begun, self._begun_at = time.monotonic(), bars.now()

    # -- what a team plays ------------------------------------------------------------------------------------------

    @property
    def index(self) -> int:
        """The bar at whose close it stands."""
        return self._broker.index

    @property
    def done(self) -> bool:
        """Whether the session is over."""
        return bool(self.ended)

    def view(self) -> MarketView:
        """The market as it is known at this close."""
        return self._broker.view()

    def account(self) -> AccountView:
        """The account at this close."""
        return self._broker.account()

    def watched_by(self, watch: Watch) -> None:
        """Take the guard's look at each close, and continue to the first decision."""
        self._watch = watch
        if self._due and not self.done:
            late = max(self._now, self._bars.now()) - self._broker.close
            if late >= self.view().interval or self._killed:
                self._now = self._broker.close + late
                why = "the kill switch was set" if self._killed else "nobody was there when it was due"
                self._journal.write("missed", self._now, self._look(why, self.account()))
                self._send()
                self._due = False
        if self._due:
            self._think()
        else:
            self._advance()

    def late_ms(self, thought_ms: int) -> int:
        """What has passed since the close: until the decision was begun and `thought_ms`, or more by the clock."""
        passed = self._bars.now() - self._begun_at
        return self._began - self._broker.close + max(thought_ms, passed)

    def apply(self, requests: Sequence[OrderRequest], thinking_ms: Sequence[int] = ()) -> None:
        """Write the decision, send its orders, and continue. While the kill switch is set, or the session is over,
        nothing of it is sent."""
        if self.done and not self._thinking:
            return
        begun = self._began - self._broker.close
        late = [max(milliseconds, begun) for milliseconds in thinking_ms or [0] * len(requests)]
        # Also a decision without orders has taken its time: the next one cannot have begun before.
        thought = [decision.thinking_ms for _, decision in self.decisions]
        self._now = max(self._now, self._broker.close + max([begun, *late, *thought]))
        dropped = self._switch.order() in ("flatten", "freeze")
        self._journal.write(
            "decision",
            self._now,
            {
                "bar": self.index,
                "begun": begun,
                "requests": requests_to_json(requests, late),
                "dropped": dropped,
                "decisions": self._documents(),
                "guard": self._guard.state(),
                **({} if self._thinker is None else self._thinker.summary()),
            },
        )
        self.decisions.clear()
        if not dropped:
            self._broker.submit(requests, late)
        self.decided += 1
        self._due = self._thinking = False
        self._advance()

    def earned(self) -> Mapping[str, float]:
        """Net profit of each symbol so far."""
        return self._broker.earned()

    def result(self) -> BacktestResult:
        """The result so far."""
        return self._broker.result(self.window.decide_every)

    # -- what else a session does -----------------------------------------------------------------------------------

    def thinks_with(self, thinker: DeadlineRunner) -> None:
        """Tell `thinker` of each decision that begins, and write its summary with it."""
        self._thinker = thinker

    def clamped(self, bar: int, clamps: Sequence[Clamp]) -> None:
        """Keep what the guard did between decisions, for the journal: `on_clamps` of `play`."""
        self._clamps += clamps

    def thinking_seconds(self) -> float:
        """Seconds of real time since the decision was begun."""
        return time.monotonic() - self._begun

    def asked(self) -> SwitchOrder | None:
        """What the kill switch, or a stop, asks for. A kill switch is obeyed before this returns, also while a model
        thinks: the decision that is cut off then is written afterwards, and sends nothing."""
        order = self._switch.order()
        if order in ("flatten", "freeze") and not self._killed:
            self._obey()
        return order

    def restore(
        self, entries: Sequence[JournalRecord], released: bool = False, again: DecidesAgain | None = None
    ) -> None:
        """Take everything that the journal has, from its second entry on, as if it happened now. `released`: the kill
        switch was taken back since. `again` is called at each recorded decision with the market and the account of
        then, so that a strategy gets its state back.

        Raises `StoreError` where the account does not become what it was: the journal or the program is another one.
        """
        for entry in entries:
            data = entry.document
            if entry.kind == "bar":
                self._met = Counter(data.get("feed", {}))
                self._take(bar_from_json(data["bar"]), data["happened"], entry.ordinal)
                self._due, self._now = bool(data["due"]), entry.time
            elif entry.kind in ("decision", "missed"):
                if entry.kind == "decision" and again is not None:
                    again(self.view(), self.account(), data)
                self._due, self._now = False, entry.time
                self.decided += entry.kind == "decision"
            elif entry.kind == "control":
                self._now = max(self._now, entry.time)
                self._killed = data["what"] == "flatten" or (self._killed and data["what"] != "resume")
            if data.get("missed"):
                self.missed += 1
            if data.get("requests") and not data.get("dropped"):
                self._broker.submit(*requests_from_json(data["requests"]))
            if data.get("guard") is not None:
                self._guard.restore(data["guard"])
        self._killed = self._killed and not released

    def resumed(self, released: bool) -> None:
        """Write that the session continues, and whether the kill switch was taken back."""
        what = "resume" if released else "continue"
        self._journal.write("control", self._now, {"what": what, "bar_index": self.index, "requests": []})

    def finish(self) -> None:
        """Write that the session is over for good; what waits is rejected."""
        self._journal.write("end", self._now, {"why": self.ended, "bar_index": self.index})
        self._broker.finish()

    def _think(self) -> None:
        self._begun, self._begun_at = time.monotonic(), self._bars.now()
        self._thinking, self._began = True, self._now
        if self._thinker is not None:
            self._thinker.begin()

    def _advance(self) -> None:
        """Take bars until a decision is due or the session is over."""
        while not self.done:
            self._obey()
            bar = None if self.done else self._bars.next_bar(self._is_asked)
            if bar is None:
                if self._bars.ended and not self.done:
                    self._switch.look_again()  # what was set since its last look is obeyed before the end
                    self._obey()
                if self._bars.ended and not self.done:
                    self.ended = "flatten" if self._killed else "finished"
                continue
            happened = self._extend(bar)
            self._now = max(self._now, bar.known_at)
            late = self._now - self._broker.close
            planned = (self.index - self.window.start) % self.window.decide_every == 0 and not self._killed
            self._due = planned and late < self.view().interval
            why = "the next bar was over already" if planned and not self._due else ""
            account = self.account()
            looked = {"bar_index": self.index} if self._due else self._look(why, account)
            entry = {"bar": bar_to_json(bar), "happened": happened_to_json(happened), "due": self._due, **looked}
            entries = {symbol: price for symbol, price in account.entry_price.items() if price is not None}
            entry["account"] = {
                "equity": account.equity, "cash": account.cash, "positions": account.positions, "entry_prices": entries,
            }  # fmt: skip
            entry["totals"] = {
                "bars": self.bars, "decided": self.decided, "fills": self.fills, "missed": self.missed,
            }  # fmt: skip
            if account.pending:
                entry["waiting"] = [record_to_json(order) for order in account.pending]
            met = self._met_in_all()
            if met:
                entry["feed"] = dict(met)
            self._journal.write("bar", self._now, entry)
            self._send()
            if self._on_bar is not None:
                self._on_bar(self.bars)
            if account.liquidated:
                self.ended = "liquidated"
            elif self._due:
                self._think()
                return

    def _look(self, missed: str, account: AccountView) -> dict[str, Any]:
        """What the guard, or the kill switch, sends at this close, as an entry; `_send` sends it."""
        requests: Sequence[OrderRequest]
        if self._killed:
            requests = closing_orders(account)
        else:
            assert self._watch is not None
            requests = self._watch(self.view(), account)
        late = self._now - self._broker.close
        self._ready = (requests, [late] * len(requests))
        clamps = [{name: _writable(value) for name, value in asdict(one).items()} for one in self._clamps]
        self._clamps.clear()
        if missed:
            self.missed += 1
        return {
            "bar_index": self.index,
            "requests": requests_to_json(*self._ready),
            "late": late,
            "clamps": clamps,
            "guard": self._guard.state(),
            "missed": missed,
        }

    def _send(self) -> None:
        """Send what `_look` found, once it is written."""
        (requests, late), self._ready = self._ready, ((), [])
        self._broker.submit(requests, late)

    def _obey(self) -> None:
        """Do what the switch says, once."""
        order = self._switch.order()
        if order is None or self.done:
            return
        account = self.account()
        if self._killed:
            if not any(account.positions.values()) and not account.pending:
                self.ended = "flatten"
            return
        requests: list[OrderRequest] = []
        if order == "flatten":
            requests = closing_orders(account)
        elif order == "freeze":
            requests = [Cancel(waiting.id) for waiting in account.pending if not waiting.reduce_only]
        self._now = max(self._now, self._bars.now())
        late = [self._now - self._broker.close] * len(requests)
        self._journal.write(
            "control",
            self._now,
            {"what": order, "bar_index": self.index, "requests": requests_to_json(requests, late)},
        )
        self._broker.submit(requests, late)
        if order == "flatten":
            self._killed = True
            if not requests and not account.pending:
                self.ended = "flatten"
        else:
            self.ended = "stopped" if order == "stop" else "freeze"

    def _extend(self, bar: LiveBar) -> Happened:
        happened = self._broker.extend(bar)
        self.bars += 1
        self.fills += sum(isinstance(one, Fill) for one in happened.ledger)
        return happened

    def _documents(self) -> list[dict[str, Any]]:
        """What was said in the decisions of this close; a strategy says nothing."""
        if self._codec is None:
            return []
        return [decision_document(self._codec, decision).to_json() for _, decision in self.decisions]

    def _met_in_all(self) -> Counter[str]:
        return Counter({name: round(count) for name, count in self._bars.counters().items()}) + self._met

    def _is_asked(self) -> bool:
        """Whether the switch asks for something that was not done yet."""
        return self._switch.order() is not None and not self._killed

    def _take(self, bar: LiveBar, expected: dict[str, Any], ordinal: int) -> None:
        happened = happened_to_json(self._extend(bar))
        self._bars.skip()
        if happened != expected:
            raise StoreError(
                f"entry {ordinal} of the journal: the bar of {format_time(bar.open_time)} brings something else than "
                "it did then. The journal was changed, or another version of the program wrote it: resume with that one"
            )


def _writable(value: Any) -> Any:
    """`value` as a journal can hold it: None for a number that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
