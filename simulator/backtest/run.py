"""One account through one window of history: decisions at closes, fills at later opens, a result with everything.

The clock: a decision at the close of bar i sees the `MarketView` of bar i and the account as marked there; its orders
fill from the open of bar i + 1 on. The window's last close values what is still held; it is not sold.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from simulator.backtest.metrics import compute
from simulator.backtest.trades import Trade, trades_of, with_excursions
from simulator.errors import DataError, UserError
from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.exchange_records import AccountView, Fill, Rejection
from simulator.exchange.orders import Cancel, Order, OrderRequest, Target
from simulator.exchange.rules import SymbolRules, down_to
from simulator.exchange.venue import Venue
from simulator.market.market import Market, MarketView, set_index
from simulator.market.timeframes import format_time

_SMALLEST_CHANGE = 0.005  # of equity: a smaller change of exposure is not worth an order
# Why a request is refused at once; every other reason ends one that was accepted, or a part of it.
REFUSED = frozenset({
    "unknown_symbol", "bad_quantity", "bad_delay", "bad_bracket", "bad_price", "bad_exposure", "bad_duration",
    "off_tick", "off_lot", "min_quantity", "max_quantity", "min_notional", "duplicate_id", "unknown_id", "stop_side",
    "target_side", "no_price", "delisted", "liquidated",
})  # fmt: skip
_LISTED = 3


@dataclass(frozen=True)
class Window:
    """Bar indices of a run: first decision at the close of `start`, then every `decide_every` bars, over at the close
    of `stop` (where nothing is decided any more). Raises `DataError` when it holds no decision."""

    start: int
    stop: int
    decide_every: int = 1

    def __post_init__(self) -> None:
        if self.start < 0:
            raise DataError(f"the window starts at bar {self.start}; the first bar is 0.")
        if self.stop <= self.start:
            raise DataError(
                f"the window {self.start}..{self.stop} is too short: stop must be at least one bar after start, so "
                "that the first decision can be filled."
            )
        if self.decide_every < 1:
            raise DataError(f"decide_every is {self.decide_every}; give the bars between decisions, at least 1.")

    @property
    def decisions(self) -> int:
        """How many decisions the window holds."""
        return -((self.start - self.stop) // self.decide_every)


# What looks at the account at each close between two decisions, and gives what to submit there.
Watch = Callable[[MarketView, AccountView], Sequence[OrderRequest]]


class Strategy(Protocol):
    """Decides from what was known and from its own account, nothing else.

    It may also have a method `fit(view)`. That is called once, before the first decision and with the same view: what
    is learned from the past is learned there. An attribute `warmup` is the number of bars that must lie before its
    first decision; without it, it may decide from the first bar on.
    """

    name: str

    def decide(self, view: MarketView, account: AccountView) -> Sequence[OrderRequest]:
        """What to submit at this close; an empty sequence changes nothing.

        `account` is the account at this close and must be looked at before this method returns, if at all.
        """
        ...


@dataclass(frozen=True)
class BacktestResult:
    """What a run did and what came of it. n = bars of the window + 1, S symbols.

    Attributes:
        start: index of the bar at whose close the run began; `times[0]` is that close.
        decisions: how many decisions there were.
        equity: (n,) at each close; `equity[0]` is the starting cash. exposure: (n, S) signed notional over equity.
        costs: money paid, see `Exchange.paid`. Negative amounts were received.
        metrics: see `simulator.backtest.metrics.compute`.
        absent_bars: bars of the window that the data lacks, summed over the symbols.
    """

    symbols: tuple[str, ...]
    start: int
    decisions: int
    times: NDArray[np.int64]
    equity: NDArray[np.float64]
    exposure: NDArray[np.float64]
    fills: tuple[Fill, ...]
    trades: tuple[Trade, ...]
    rejections: tuple[Rejection, ...]
    costs: dict[str, float]
    metrics: dict[str, float]
    absent_bars: int

    @property
    def refused(self) -> str:
        """How many requests were refused and why, see `refusal_text`; empty where none was."""
        return refusal_text(
            OrderRefusal(one.reason, getattr(one.order, "symbol", ""), one.detail)
            for one in self.rejections
            if one.reason in REFUSED and one.quantity is None
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON types; `from_dict` brings back an equal result. A NaN or infinity becomes None."""
        return {
            "symbols": list(self.symbols),
            "start": self.start,
            "decisions": self.decisions,
            "times": self.times.tolist(),
            "equity": self.equity.tolist(),
            "exposure": self.exposure.tolist(),
            "fills": [asdict(fill) for fill in self.fills],
            "trades": [asdict(trade) for trade in self.trades],
            "rejections": [_finite(asdict(rejection)) for rejection in self.rejections],
            "costs": dict(self.costs),
            "metrics": _finite(self.metrics),
            "absent_bars": self.absent_bars,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> BacktestResult:
        """The result that `to_dict` described (an unusable quantity comes back as NaN, a metric as infinity)."""
        symbols = tuple(data["symbols"])
        return cls(
            symbols=symbols,
            start=data["start"],
            decisions=data["decisions"],
            times=np.array(data["times"], dtype=np.int64),
            equity=np.array(data["equity"], dtype=np.float64),
            exposure=np.array(data["exposure"], dtype=np.float64).reshape(-1, len(symbols)),
            fills=tuple(Fill(**fill) for fill in data["fills"]),
            trades=tuple(Trade(**trade) for trade in data["trades"]),
            rejections=tuple(_rejection(rejection) for rejection in data["rejections"]),
            costs=dict(data["costs"]),
            metrics={name: math.inf if value is None else value for name, value in data["metrics"].items()},
            absent_bars=data["absent_bars"],
        )


class OrderRefusal(NamedTuple):
    """A request that was refused: the reason, its coin (empty for one that names an order) and the detail."""

    reason: str
    symbol: str
    detail: str


def refusal_text(refusals: Iterable[OrderRefusal]) -> str:
    """`1,464 orders refused: unknown symbol X (the market has A, B)`; empty where none was.

    Reasons are grouped, unknown symbols one by one, and the most frequent three are listed with their number and the
    detail of the first.
    """
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for one in refusals:
        what = one.reason.replace("_", " ") + (f" {one.symbol}" if one.reason == "unknown_symbol" else "")
        counts[what] += 1
        first.setdefault(what, f"{what} ({one.detail})")
    total = counts.total()
    if not total:
        return ""
    text = f"{total:,} order{'' if total == 1 else 's'} refused: "
    if len(counts) == 1:
        return text + next(iter(first.values()))
    listed = [f"{count:,} {first[what]}" for what, count in counts.most_common(_LISTED)]
    more = total - sum(count for _, count in counts.most_common(_LISTED))
    return text + "; ".join([*listed, *([f"{more:,} for other reasons"] if more else [])])


class BacktestRun:
    """A run that the caller drives: look at `view()` and `account()`, `apply(requests)`, until `done`."""

    def __init__(
        self,
        market: Market,
        window: Window,
        cash: float = 10_000.0,
        costs: Costs | None = None,
        max_leverage: float = 1.0,
        venue: Venue | None = None,
    ) -> None:
        if window.stop >= len(market):
            raise DataError(
                f"the window ends at bar {window.stop}, but {market.source} has bars 0..{len(market) - 1}; "
                "choose an earlier window or load more history."
            )
        self.market = market
        self.window = window
        self._exchange = Exchange(market, window.start, cash, costs, max_leverage, window.stop, venue)
        self._acted = -1  # the bar at whose close something was last submitted
        self.viewed = -1  # the bar whose account was last asked for
        self.deciding = -1  # the bar at whose close the strategy of `run_backtest` decides
        self._watch: Watch | None = None

    @property
    def index(self) -> int:
        """The bar at whose close the run stands."""
        return self._exchange.index

    @property
    def done(self) -> bool:
        return self._exchange.index >= self.window.stop

    def view(self) -> MarketView:
        return MarketView(self.market, self._exchange.index)

    def account(self) -> AccountView:
        return self._exchange.account()

    def watched_by(self, watch: Watch) -> None:
        """From now on `apply` asks `watch` at each close between two decisions, and submits what it gives."""
        self._watch = watch

    def late_ms(self, thought_ms: int) -> int:
        """How long after this close orders are sent whose decisions took `thought_ms`: a backtest waits for nothing
        else."""
        return thought_ms

    def apply(self, requests: Sequence[OrderRequest], thinking_ms: Sequence[int] = ()) -> None:
        """`submit` and advance to the next decision or the end; once `done` the requests are only rejected."""
        self.submit(requests, thinking_ms)
        if self.done:
            return
        if self._watch is None:
            self._exchange.step(self.window.decide_every)
            return
        for left in reversed(range(self.window.decide_every)):
            self._exchange.step()
            if left and self._exchange.index < self.window.stop:
                self.submit(self._watch(self.view(), self._watched_account()))

    def _watched_account(self) -> AccountView:
        """The account at a close between two decisions, for `watch`."""
        return self._exchange.account()

    def submit(self, requests: Sequence[OrderRequest], thinking_ms: Sequence[int] = ()) -> None:
        """Submit `requests` at this close and stay there. They are late by the times that their decisions took, one for
        each of them; none: they took none."""
        self._acted = self._exchange.index
        check_requests(requests, int(self.market.open_time[self._exchange.index]) + self.market.interval)
        for request, milliseconds in zip(requests, thinking_ms or [0] * len(requests), strict=True):
            self._exchange.submit(request, milliseconds)

    def catch_up(self, index: int) -> None:
        """Advance to the close of bar `index` without submitting anything."""
        if index > self._exchange.index:
            self._exchange.step(index - self._exchange.index)

    def account_at(self, index: int) -> AccountView:
        """The account at the close of bar `index`, which must not have been acted at or passed. Raises `DataError`."""
        self.catch_up(index)
        if self._exchange.index != index or self._acted == index:
            raise DataError("an account was kept and looked at in a later bar; look at it when it is given.")
        self.viewed = index
        return self._exchange.account()

    def earned(self) -> dict[str, float]:
        """Net profit of each symbol so far; what is still held is valued at the last close."""
        earned: dict[str, float] = dict.fromkeys(self.market.symbols, 0.0)
        for trade in self.result().trades:
            earned[trade.symbol] += trade.pnl
        return earned

    def result(self) -> BacktestResult:
        """The result so far: of the whole window when `done`, else up to the present bar."""
        return result_of(self._exchange, self.window.start, self.window.decide_every)


def check_requests(requests: object, time: int) -> None:
    """Raise `UserError` where what was decided at `time` (ms) is not a list of orders."""
    if isinstance(requests, list | tuple) and all(isinstance(one, OrderRequest) for one in requests):
        return
    wrong = (
        requests
        if not isinstance(requests, list | tuple)
        else next(one for one in requests if not isinstance(one, OrderRequest))
    )
    raise UserError(
        f"decide returned {wrong!r:.60} at {format_time(time)} UTC, which is not a list of orders: return orders, such"
        " as [Order('BTCUSDT', 0.1)] or what orders_for_target(view, account, symbol, exposure) gives, and [] for none"
    )


class AccountAtClose:
    """Stands for an `AccountView` that is only made when it is looked at: most bars of most strategies change nothing,
    and the exchange then takes many bars at once. No attribute of it leads to the run and its market.

    It is of the close of bar `index`, or for None of the one that the run is deciding at when it is looked at.
    """

    __slots__ = ("_index", "_run", "_view")

    def __init__(self, run: BacktestRun, index: int | None = None) -> None:
        _set_run(self, run)
        _set_close(self, index)

    def __getattr__(self, name: str) -> Any:
        if name == "_view":  # not set yet
            run, index = _run_of(self), _close_of(self)
            self._view = run.account_at(run.deciding if index is None else index)
            return self._view
        return getattr(self._view, name)


# Slots without a name in the class, as in `simulator.market.market`.
_run_of: Callable[[AccountAtClose], BacktestRun] = vars(AccountAtClose)["_run"].__get__
_set_run: Callable[[AccountAtClose, BacktestRun], None] = vars(AccountAtClose)["_run"].__set__
_close_of: Callable[[AccountAtClose], int | None] = vars(AccountAtClose)["_index"].__get__
_set_close: Callable[[AccountAtClose, int | None], None] = vars(AccountAtClose)["_index"].__set__
del AccountAtClose._run, AccountAtClose._index  # type: ignore[attr-defined]  # slots are attributes


def result_of(exchange: Exchange, start: int, decide_every: int) -> BacktestResult:
    """What came of an account between the closes of bar `start` and of the bar at which its exchange stands."""
    market = exchange.market
    rows = slice(start, exchange.index + 1)
    times = market.open_time[rows] + market.interval
    equity, exposure = exchange.equity_curve(), exchange.exposure_curve()
    fills = exchange.fills
    trades = with_excursions(
        trades_of(exchange.ledger, exchange.account().mark, int(times[-1]), exchange.index), market
    )
    traded = sum(abs(fill.quantity) * fill.price for fill in fills)
    costs = exchange.paid()
    return BacktestResult(
        symbols=market.symbols,
        start=start,
        decisions=Window(start, exchange.index, decide_every).decisions if len(times) > 1 else 0,
        times=times,
        equity=equity,
        exposure=exposure,
        fills=tuple(fills),
        trades=tuple(trades),
        rejections=tuple(exchange.rejections),
        costs=costs,
        metrics=compute(equity, market.interval, exposure, trades, traded, costs),
        absent_bars=int((~market.present[start + 1 : exchange.index + 1]).sum()),
    )


def fit(strategy: Strategy, view: MarketView) -> None:
    """Let a strategy that has a method `fit(view)` learn from what was known at its first decision."""
    learn = getattr(strategy, "fit", None)
    if callable(learn):
        learn(view)


def run_backtest(
    market: Market,
    strategy: Strategy,
    window: Window,
    cash: float = 10_000.0,
    costs: Costs | None = None,
    max_leverage: float = 1.0,
    venue: Venue | None = None,
) -> BacktestResult:
    """Let `strategy` decide through `window`, after its `fit` if it has one. Raises `DataError` for a window outside
    the market."""
    run = BacktestRun(market, window, cash, costs, max_leverage, venue)
    decide = cast(Callable[[MarketView, AccountAtClose], Sequence[OrderRequest]], strategy.decide)
    kept = sys.getrefcount
    view, account = MarketView(market, window.start), AccountAtClose(run)
    fit(strategy, view)
    # Bars are not taken before somebody acts or looks: what is submitted at the next close is all that they depend on.
    for index in range(window.start, window.stop, window.decide_every):
        # Making two objects takes as long as a quiet bar, so those of the last close serve again if nobody kept them
        # (then the name here and the argument of getrefcount are the only references) or looked at the account. An
        # account that was kept stays that of its close.
        if kept(view) > 2:
            view = MarketView(market, index)
        else:
            set_index(view, index)
        if kept(account) > 2:
            _set_close(account, run.deciding)
            account = AccountAtClose(run)
        elif run.viewed == run.deciding:
            account = AccountAtClose(run)
        run.deciding = index
        requests = decide(view, account)
        if requests:
            run.catch_up(index)
            run.submit(requests)
    run.catch_up(window.stop)
    return run.result()


def orders_for_target(
    view: MarketView,
    account: AccountView,
    symbol: str,
    exposure: float,
    stop_fraction: float | None = None,
    target_fraction: float | None = None,
    delays: Sequence[int] = (0,),
) -> list[Order]:
    """Orders that bring `symbol` to `exposure`, a signed fraction of the equity at this close.

    Args:
        stop_fraction, target_fraction: distance of stop and target from the last close, as fractions of it.
        delays: the change is split equally over these delays (in bars).

    Returns:
        No orders where the symbol has no price yet, the account has no equity, or the change is below 0.5 % of the
        equity or the venue's smallest order. Quantities are whole lots and brackets whole ticks of the venue. A target
        below 0.5 % means flat, and a close to flat is always made. While the position still stands on the other side of
        a turn, a part carries no bracket: it would protect the wrong position.
    """
    price, exposure = view.last_close(symbol), float(exposure)
    if not (price > 0.0 and account.equity > 0.0):
        return []
    held = account.positions[symbol]
    wanted = exposure * account.equity / price if abs(exposure) >= _SMALLEST_CHANGE else 0.0
    rules = account.rules.get(symbol, SymbolRules())
    wanted = math.copysign(down_to(abs(wanted), rules.lot), wanted)
    change = wanted - held
    small = wanted != 0.0 and abs(wanted) > abs(held) and abs(change) * price < rules.min_notional
    if change == 0.0 or small or (wanted != 0.0 and abs(change) * price < _SMALLEST_CHANGE * account.equity):
        # The position is right as it is, so what still waits to change it must not.
        waits = any(order.symbol == symbol and order.kind == "market" for order in account.pending)
        return [Order(symbol, 0.0)] if waits else []
    side = (wanted > 0.0) - (wanted < 0.0)
    stop = None if stop_fraction is None else down_to(price * (1.0 - side * stop_fraction), rules.tick)
    target = None if target_fraction is None else down_to(price * (1.0 + side * target_fraction), rules.tick)
    shrinks = held * wanted >= 0.0 and abs(wanted) < abs(held)
    orders = []
    done = 0.0
    for part, delay in enumerate(delays, start=1):
        so_far = math.copysign(down_to(abs(change) * part / len(delays), rules.lot), change)
        so_far = change if part == len(delays) else so_far
        quantity = so_far - done
        done = so_far
        if quantity == 0.0:
            continue  # less than a lot
        order = Order(symbol, quantity, delay=delay, reduce_only=shrinks)
        # The last part reaches `wanted` by construction, whatever rounding says about the sum.
        if (held + done if part < len(delays) else wanted) * side > 0.0:
            order = replace(order, stop=stop, target=target)
        orders.append(order)
    return orders


def _finite(value: Any) -> Any:
    """`value` with None for every NaN or infinity in it."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def _rejection(data: dict[str, Any]) -> Rejection:
    request = data["order"]
    given: dict[str, Any] = {
        key: math.nan if value is None and key in ("quantity", "exposure") else value for key, value in request.items()
    }
    made: OrderRequest
    if "exposure" in request:
        made = Target(**given)
    elif "symbol" in request:
        made = Order(**given)
    else:
        made = Cancel(**request)
    return Rejection(data["bar"], made, data["reason"], data["detail"], data.get("quantity"))
