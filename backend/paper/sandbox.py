"""The sandbox beside a session: its positions are traded at the exchange's test network, and compared with them.

The account stays the simulator's. What it holds after a bar is what the test network is to hold, in so far as this
session bought it: the difference is sent as market orders. Each order has a name, and stands in the journal before it
is sent. What is not known of an order, as after a kill, is asked by its name; so none is sent twice.

All of it happens in a thread of its own, so that a network that hangs holds up neither the session nor its kill switch.
"""

from __future__ import annotations

import fcntl
import os
import queue
import resource
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from backend.config.schema import SANDBOX, Config
from backend.paper.journal import EntryKind
from backend.store.records import JournalRecord
from simulator.errors import RunFailed, UserError
from simulator.live.sandbox import SandboxAccount, SandboxFailure, SandboxKeys, SandboxOrder

SANDBOX_ENTRY: EntryKind = "sandbox"
_CLOSING = 30.0  # seconds that the last orders may take
_FEES = 0.003  # share of what was traded by which a balance may differ: fees are taken off it
_ROUNDING = 1e-9  # and a position, whose fees are paid in cash
_DUST = 1e-9


class WriteEntry(Protocol):
    """Writes an entry of the journal at the session's time; it is on disk when this returns."""

    def __call__(self, document: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class _Wanted:
    """What the session holds after a bar."""

    bar: int
    positions: Mapping[str, float]


class SandboxMirror:
    """Trades what a session holds at `account`. `entries` are those of its journal so far.

    Attributes:
        differences: what the test network has otherwise, at the last comparison.
    """

    def __init__(
        self, account: SandboxAccount, run: str, write: WriteEntry, entries: Sequence[JournalRecord] = ()
    ) -> None:
        """Raises `UserError` and `RunFailed` as `SandboxAccount.connect` does."""
        self._account, self._write = account, write
        # Names of at most 36 letters, digits and '-', as exchanges take them.
        self._own = "cs" + "".join(one for one in run if one.isalnum())[-18:]
        self._orders: dict[str, SandboxOrder] = {}
        self._count, self._begin, self._last = 0, dict[str, float](), ""
        begun = False
        self.differences: tuple[str, ...] = ()
        self._wanted: queue.SimpleQueue[_Wanted | threading.Event | None] = queue.SimpleQueue()
        self._defect: BaseException | None = None
        holdings = account.connect()
        for entry in entries:
            if entry.kind == SANDBOX_ENTRY:
                self._restore(entry.document)
                begun = True
        if not begun:
            open_there = [symbol for symbol in account.symbols if account.perpetual and holdings[symbol]]
            if open_there:
                raise UserError(
                    f"the sandbox account has a position in {', '.join(open_there)} already, and the session's orders "
                    "would be netted with it: close it there, or use other keys"
                )
            self._begin = holdings
            write({"what": "begin", "balance": holdings})
        self._thread = threading.Thread(target=self._work, name="sandbox", daemon=True)
        self._thread.start()

    def follow(self, bar: int, positions: Mapping[str, float]) -> None:
        """Let the test network hold `positions` (base units) after the bar `bar`. Raises `RunFailed` where a record of
        it could not be written."""
        if self._defect is not None:
            raise RunFailed(f"the sandbox stopped: {self._defect}") from self._defect
        self._wanted.put(_Wanted(bar, dict(positions)))

    def wait(self) -> None:
        """Wait until all that was asked so far is done."""
        done = threading.Event()
        self._wanted.put(done)
        while self._thread.is_alive() and not done.wait(0.05):
            pass

    def close(self) -> None:
        """Finish what is under way."""
        self._wanted.put(None)
        self._thread.join(_CLOSING)

    def _restore(self, data: Mapping[str, Any]) -> None:
        if data["what"] == "begin":
            self._begin = {name: float(value) for name, value in data["balance"].items()}
        for name, symbol, _ in data.get("sends", ()):
            self._orders[name] = SandboxOrder(name, symbol, "open")
            self._count += 1
        for one in data.get("orders", ()):
            self._orders[one["name"]] = SandboxOrder(**one)

    def _work(self) -> None:
        while True:
            wanted = self._wanted.get()
            while isinstance(wanted, _Wanted) and not self._wanted.empty():
                following = self._wanted.get()
                if not isinstance(following, _Wanted):
                    self._wanted.put(following)
                    break
                wanted = following  # only the newest counts
            if wanted is None:
                return
            if isinstance(wanted, threading.Event):
                wanted.set()
                continue
            try:
                self._reconcile(wanted)
            except SandboxFailure as failure:
                self._tell(wanted, [], [f"not reached: {failure}"])
            except BaseException as error:  # noqa: BLE001  # it is raised in the session's thread
                self._defect = error
                return

    def _reconcile(self, wanted: _Wanted) -> None:
        changed = [self._account.order(one.name, one.symbol) for one in self._unsettled()]
        self._orders |= {one.name: one for one in changed}
        refused: list[str] = []
        if not self._unsettled():
            sends = self._lacking(wanted, refused)
            if sends:
                self._write({"what": "sends", "bar_index": wanted.bar, "sends": sends})
            # From here on they may be there, whatever the answers are.
            self._orders |= {name: SandboxOrder(name, symbol, "open") for name, symbol, _ in sends}
            for name, symbol, quantity in sends:
                held = self._held(symbol)
                reduces = held * quantity < 0.0 and abs(quantity) <= abs(held)
                sent = self._account.send(name, symbol, quantity, reduces=reduces)
                self._orders[name] = sent or SandboxOrder(name, symbol, "unknown")
                changed.append(self._orders[name])
        self._tell(wanted, changed, refused + self._compare(wanted, changed))

    def _unsettled(self) -> list[SandboxOrder]:
        return [one for one in self._orders.values() if one.status == "open"]

    def _held(self, symbol: str) -> float:
        return sum(one.filled for one in self._orders.values() if one.symbol == symbol)

    def _lacking(self, wanted: _Wanted, refused: list[str]) -> list[tuple[str, str, float]]:
        sends = []
        for symbol in self._account.symbols:
            stated, held = wanted.positions.get(symbol, 0.0), self._held(symbol)
            position = self._possible(stated)
            if position != stated:
                refused.append(f"{symbol}: the session is short by {-stated:.6g}, which a spot account cannot be")
            if abs(position - held) <= max(_DUST, 1e-4 * max(abs(position), abs(held))):
                continue
            # A turn is a close and an opening: the one can only reduce, whatever the network has.
            turns = position * held < 0.0
            for quantity in (-held, position) if turns else (position - held,):
                self._count += 1
                sends.append((f"{self._own}-{self._count}", symbol, quantity))
        return sends

    def _possible(self, position: float) -> float:
        """The position that the test network can hold in place of `position`."""
        return position if self._account.perpetual else max(position, 0.0)

    def _compare(self, wanted: _Wanted, changed: Sequence[SandboxOrder]) -> list[str]:
        """What the test network's own view has otherwise than the session."""
        differences = self._account.strangers(self._own)
        there = self._account.holdings()
        for symbol in self._account.symbols:
            held, position = self._held(symbol), self._possible(wanted.positions.get(symbol, 0.0))
            if abs(held - position) > max(_DUST, 0.01 * max(abs(held), abs(position))):
                differences.append(f"{symbol}: {held:.6g} bought there, {position:.6g} held in the session")
            name, what = self._account.held_as(symbol), "position" if self._account.perpetual else "balance"
            traded = sum(abs(one.filled) for one in self._orders.values() if one.symbol == symbol)
            change = there.get(name, 0.0) - self._begin.get(name, 0.0)
            room = _ROUNDING if self._account.perpetual else _FEES
            if abs(change - held) > max(_DUST, room * traded):
                differences.append(f"{name}: the {what} changed by {change:.6g}, our orders filled {held:.6g}")
        for one in changed:
            if one.status == "unknown":
                differences.append(f"{one.symbol}: the order {one.name} is not there; its quantity is ordered anew")
        return differences

    def _tell(self, wanted: _Wanted, orders: Sequence[SandboxOrder], differences: Sequence[str]) -> None:
        self.differences = tuple(differences)
        words = repr(self.differences)
        if orders or words != self._last:
            self._last = words
            self._write(
                {
                    "what": "state",
                    "bar_index": wanted.bar,
                    "orders": [vars(one) for one in orders],
                    "positions": {symbol: self._held(symbol) for symbol in self._account.symbols},
                    "differences": list(differences),
                }
            )


@contextmanager
def sandbox_of(config: Config, symbols: tuple[str, ...]) -> Iterator[SandboxAccount | None]:
    """The checked account of `paper.broker = "sandbox"` for a block, None for another broker. The process leaves no
    core dump from then on, since its memory holds keys.

    Raises `UserError` and `RunFailed` where it cannot be used.
    """
    if config.paper.broker != SANDBOX:
        yield None
        return
    keys = SandboxKeys.from_environment()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with sole_use(keys):
        account = SandboxAccount(config.paper.feed, symbols, keys, config.paper.sandbox_url)
        account.connect()
        yield account


@contextmanager
def sole_use(keys: SandboxKeys) -> Iterator[None]:
    """Hold the account of `keys` for a block. Raises `UserError` where another session of this machine has it."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    folder = Path(state) / "cryptosentinel" / "accounts"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(folder / f"{keys.account}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                "another session trades on this sandbox account, and neither could tell its orders' effect from the "
                "other's: stop that one first, or use other keys"
            ) from None
        yield
    finally:
        os.close(descriptor)


def sandbox_differences(entries: Sequence[JournalRecord]) -> tuple[int, tuple[str, ...]]:
    """How many orders a session sent to the test network, and what that had otherwise at the last comparison."""
    documents = [entry.document for entry in entries if entry.kind == SANDBOX_ENTRY]
    states = [one for one in documents if one["what"] == "state"]
    return sum(len(one.get("sends", ())) for one in documents), tuple(states[-1]["differences"]) if states else ()
