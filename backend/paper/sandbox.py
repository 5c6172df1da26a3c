"""The sandbox beside a session: its positions are traded at the exchange's test network, and compared with them.

The account stays the simulator's. Its position after a bar is the position that the test network shall have: the
difference is sent as market orders. Each has a name, and stands in the journal before it is sent. What is not known of
an order, as after a kill, is asked by its name; so none is sent twice. All of it happens in a thread of its own, so
that a network that hangs holds up neither the session nor its kill switch. The keys come from the environment and go
nowhere but into ccxt: failures are told without them, and without the queries of addresses, which are signed.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import queue
import re
import resource
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ccxt

from backend.config.schema import SANDBOX, Config
from backend.store.records import JournalRecord
from simulator.data.download_client import aim, check_exchange, server_of
from simulator.errors import RunFailed, UserError

KEY_VARIABLE, SECRET_VARIABLE = "CRYPTOSENTINEL_SANDBOX_KEY", "CRYPTOSENTINEL_SANDBOX_SECRET"
_TIMEOUT = 10_000  # ms of one request
CONNECT_WAITS = (0.5, 2.0)  # seconds before each further try to connect
# ccxt logs every request with its headers, which hold the key, where a program logs at the level of debugging.
_QUIET = logging.getLogger("cryptosentinel.sandbox.ccxt")
_QUIET.setLevel(logging.WARNING)
_QUERY = re.compile(r"\?\S+")
_MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError)
_CLOSING = 30.0  # seconds that the last orders may take
_FEES = 0.003  # share of what was traded by which a balance may differ: fees are taken off it
_DUST = 1e-9

_Wanted = tuple[int, Mapping[str, float]]  # a bar, and what the session holds after it


@dataclass(frozen=True)
class SandboxKeys:
    """What the test network knows the account by. Its `repr` shows none of it."""

    key: str
    secret: str

    def __repr__(self) -> str:
        return f"SandboxKeys({self.account})"

    @property
    def account(self) -> str:
        """A name for the account that does not tell the key."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> SandboxKeys:
        """The keys of the environment. Raises `UserError` where there are none."""
        there = os.environ if environment is None else environment
        key, secret = there.get(KEY_VARIABLE, "").strip(), there.get(SECRET_VARIABLE, "").strip()
        if not key or not secret:
            raise UserError(
                f"the sandbox needs keys of the exchange's test network in {KEY_VARIABLE} and {SECRET_VARIABLE}: make "
                "them there and set both, or leave --broker out"
            )
        return cls(key, secret)


@dataclass(frozen=True)
class SandboxOrder:
    """An order as the test network has it; `filled` is signed base units. "unknown": it has no such order, so it never
    arrived."""

    name: str
    symbol: str
    status: Literal["open", "closed", "unknown"]
    filled: float = 0.0


class SandboxFailure(Exception):
    """A request that failed, in words without keys; asking again later may help."""


class _RefusedError(SandboxFailure):
    """The keys are refused."""


class SandboxAccount:
    """The account of `keys` at the test network of `exchange`, for spot symbols as ccxt writes them. Raises `UserError`
    for an exchange without a test network, for other symbols, and for a URL that cannot be used."""

    def __init__(self, exchange: str, symbols: tuple[str, ...], keys: SandboxKeys, url: str = "") -> None:
        check_exchange(exchange, ccxt.exchanges)
        if any(":" in symbol for symbol in symbols):
            raise UserError(
                f"the sandbox cannot trade {', '.join(symbols)}: it takes spot, as BTC/USDT; choose such symbols, or "
                "leave --broker out"
            )
        self.symbols, self._keys = symbols, keys
        quiet: Any = type(exchange, (getattr(ccxt, exchange),), {"logger": _QUIET})
        options = {"defaultType": "spot", "fetchMarkets": {"types": ["spot"]}}
        self._api: Any = quiet(
            {
                "apiKey": keys.key, "secret": keys.secret, "enableRateLimit": not url, "timeout": _TIMEOUT,
                "options": options,
            }
        )  # fmt: skip
        if not self._api.urls.get("test"):
            raise UserError(f"{exchange} has no test network in ccxt: choose binance or bybit, or leave --broker out")
        self._api.set_sandbox_mode(True)  # nothing is left that could reach the exchange itself
        aim(self._api, "spot", server_of(url) if url else None)
        self._api.session.trust_env = not url

    def connect(self) -> dict[str, float]:
        """Check the account and the symbols; what it holds, see `holdings`. What may pass, as an answer 500, is asked
        again a few times. Raises `UserError` for keys that are refused and a symbol that is not there, `RunFailed`
        where it cannot be reached."""
        name, failure = self._api.id, ""
        for wait in (*CONNECT_WAITS, None):
            try:
                self._ask("load_markets")
                if lacking := [symbol for symbol in self.symbols if symbol not in self._api.markets]:
                    raise UserError(f"{name}'s test network has no {', '.join(lacking)}: choose other symbols")
                return self.holdings()
            except _RefusedError as error:
                raise UserError(
                    f"{name}'s test network refuses the keys in {KEY_VARIABLE} and {SECRET_VARIABLE} ({error}): use "
                    "keys that were made there and may trade; those of the exchange itself do not work"
                ) from None
            except SandboxFailure as error:
                failure = str(error)
                if wait is not None:
                    time.sleep(wait)
        raise RunFailed(f"{name}'s test network cannot be reached: {failure}; try later, or leave --broker out")

    def holdings(self) -> dict[str, float]:
        """The total of each currency traded. Raises `SandboxFailure`."""
        answer = self._ask("fetch_balance")
        total = answer.get("total") if isinstance(answer, dict) else None
        if not isinstance(total, dict):
            raise SandboxFailure("an answer of another shape")
        traded = {part for symbol in self.symbols for part in symbol.split("/")}
        return {currency: float(total.get(currency) or 0.0) for currency in sorted(traded)}

    def order(self, name: str, symbol: str) -> SandboxOrder:
        """The order that was sent as `name`. Raises `SandboxFailure`."""
        answer = self._ask("fetch_order", None, symbol, {"clientOrderId": name, "origClientOrderId": name})
        return SandboxOrder(name, symbol, "unknown") if answer is None else _order(name, symbol, answer)

    def send(self, name: str, symbol: str, quantity: float) -> SandboxOrder | None:
        """Send a market order of `quantity` (signed base units) under `name`; None where it is below what the exchange
        takes. Raises `SandboxFailure`, after which it is not known whether it arrived."""
        # Of a sum of floats twelve digits are meant: cut to the lot, 0.19999999999999998 would lose a whole lot.
        try:
            amount = float(self._api.amount_to_precision(symbol, float(f"{abs(quantity):.12g}")))
        except ccxt.BaseError:
            return None
        side = "buy" if quantity > 0.0 else "sell"
        answer = self._ask("create_order", symbol, "market", side, amount, None, {"clientOrderId": name})
        return _order(name, symbol, answer)

    def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._api, method)(*arguments)
        except ccxt.OrderNotFound:
            return None
        except (ccxt.AuthenticationError, ccxt.PermissionDenied) as error:
            raise _RefusedError(self._words(method, error)) from None
        except (ccxt.BaseError, OSError, *_MALFORMED) as error:
            raise SandboxFailure(self._words(method, error)) from None

    def _words(self, method: str, error: BaseException) -> str:
        words = " ".join(_QUERY.sub("", str(error) or type(error).__name__).split())
        for secret in (self._keys.key, self._keys.secret):
            words = words.replace(secret, "...")
        return f"{method}: {words[:160]}"


def _order(name: str, symbol: str, answer: Any) -> SandboxOrder:
    try:
        filled = (1.0 if answer["side"] == "buy" else -1.0) * float(answer.get("filled") or 0.0)
        return SandboxOrder(name, symbol, "open" if answer.get("status") in (None, "open") else "closed", filled)
    except _MALFORMED as error:
        raise SandboxFailure(f"an order of another shape ({type(error).__name__})") from None


class SandboxMirror:
    """Trades what a session holds at `account`. `entries` are those of its journal so far; `write` adds one, which is
    on disk when it returns. `differences` is what the last comparison found."""

    def __init__(
        self,
        account: SandboxAccount,
        run: str,
        write: Callable[[dict[str, Any]], None],
        entries: Sequence[JournalRecord] = (),
    ) -> None:
        """Raises `UserError` and `RunFailed` as `SandboxAccount.connect` does."""
        self._account, self._write = account, write
        # Names of at most 36 letters, digits and '-', as exchanges take them.
        self._own = "cs" + "".join(one for one in run if one.isalnum())[-18:]
        self._orders: dict[str, SandboxOrder] = {}
        self._count, self.differences, self._last = 0, tuple[str, ...](), ""
        self._wanted: queue.SimpleQueue[_Wanted | threading.Event | None] = queue.SimpleQueue()
        self._defect: BaseException | None = None
        self._begin = account.connect()
        kept = [entry.document for entry in entries if entry.kind == "sandbox"]
        for data in kept:
            self._begin = data.get("balance", self._begin)
            for name, symbol, _ in data.get("sends", ()):
                self._orders[name] = SandboxOrder(name, symbol, "open")
                self._count += 1
            self._orders |= {one["name"]: SandboxOrder(**one) for one in data.get("orders", ())}
        if not kept:
            write({"what": "begin", "balance": self._begin})
        self._thread = threading.Thread(target=self._work, name="sandbox", daemon=True)
        self._thread.start()

    def follow(self, bar: int, positions: Mapping[str, float]) -> None:
        """Let the test network hold `positions` (base units) after the bar `bar`. Raises `RunFailed` where a record of
        it could not be written."""
        if self._defect is not None:
            raise RunFailed(f"the sandbox stopped: {self._defect}") from self._defect
        self._wanted.put((bar, dict(positions)))

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

    def _work(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            if isinstance(wanted, threading.Event):
                wanted.set()
                continue
            try:
                self._reconcile(*wanted)
            except SandboxFailure as failure:
                self._tell(wanted[0], [], [f"not reached: {failure}"])
            except BaseException as error:  # noqa: BLE001  # it is raised in the session's thread
                self._defect = error
                return

    def _reconcile(self, bar: int, positions: Mapping[str, float]) -> None:
        changed = [self._account.order(one.name, one.symbol) for one in self._unsettled()]
        self._orders |= {one.name: one for one in changed}
        differences = [
            f"{symbol}: the session is short by {-held:.6g}, which a spot account cannot be"
            for symbol, held in positions.items()
            if held < 0.0
        ]
        wanted = {symbol: max(positions.get(symbol, 0.0), 0.0) for symbol in self._account.symbols}
        if not self._unsettled():
            sends = []
            for symbol, position in wanted.items():
                held = self._held(symbol)
                if abs(position - held) > max(_DUST, 1e-4 * max(position, abs(held))):
                    self._count += 1
                    sends.append((f"{self._own}-{self._count}", symbol, position - held))
            if sends:
                self._write({"what": "sends", "bar_index": bar, "sends": sends})
            # From here on they may be there, whatever the answers are.
            self._orders |= {name: SandboxOrder(name, symbol, "open") for name, symbol, _ in sends}
            for name, symbol, quantity in sends:
                sent = self._account.send(name, symbol, quantity) or SandboxOrder(name, symbol, "unknown")
                self._orders[name] = sent
                changed.append(sent)
        self._tell(bar, changed, differences + self._compare(wanted, changed))

    def _unsettled(self) -> list[SandboxOrder]:
        return [one for one in self._orders.values() if one.status == "open"]

    def _held(self, symbol: str) -> float:
        return sum(one.filled for one in self._orders.values() if one.symbol == symbol)

    def _compare(self, wanted: Mapping[str, float], changed: Sequence[SandboxOrder]) -> list[str]:
        """Where the test network differs from the session."""
        differences: list[str] = []
        there = self._account.holdings()
        for symbol, position in wanted.items():
            held, name = self._held(symbol), symbol.partition("/")[0]
            if abs(held - position) > max(_DUST, 0.01 * max(abs(held), position)):
                differences.append(f"{symbol}: {held:.6g} bought there, {position:.6g} held in the session")
            traded = sum(abs(one.filled) for one in self._orders.values() if one.symbol == symbol)
            change = there.get(name, 0.0) - self._begin.get(name, 0.0)
            if abs(change - held) > max(_DUST, _FEES * traded):
                differences.append(f"{name}: the balance changed by {change:.6g}, our orders filled {held:.6g}")
        lost = [one for one in changed if one.status == "unknown"]
        return differences + [f"{one.symbol}: the order {one.name} is not there and is sent again" for one in lost]

    def _tell(self, bar: int, orders: Sequence[SandboxOrder], differences: Sequence[str]) -> None:
        self.differences = tuple(differences)
        if orders or repr(self.differences) != self._last:
            self._last = repr(self.differences)
            state = {"orders": [vars(one) for one in orders], "differences": list(differences)}
            self._write({"what": "state", "bar_index": bar, **state})


@contextmanager
def sandbox_of(config: Config, symbols: tuple[str, ...]) -> Iterator[SandboxAccount | None]:
    """The checked account of `paper.broker = "sandbox"` for a block, None for another broker. The process leaves no
    core dump from then on, since its memory holds keys. Raises `UserError` and `RunFailed` where it cannot be used."""
    if config.paper.broker != SANDBOX:
        yield None
        return
    keys = SandboxKeys.from_environment()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with sole_use(keys):
        account = SandboxAccount(config.paper.feed, symbols, keys)
        account.connect()
        yield account


@contextmanager
def sole_use(keys: SandboxKeys) -> Iterator[None]:
    """Hold the account of `keys` for a block. Raises `UserError` where another session of this machine has it."""
    top = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    folder = Path(top) / "cryptosentinel" / "accounts"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(folder / f"{keys.account}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UserError(
            "another session trades on this sandbox account, and neither could tell its orders' effect from the "
            "other's: stop that one first, or use other keys"
        ) from None
    finally:
        os.close(descriptor)
