"""A market of minutes, a mock exchange that plays it, and a listener to it, in one event loop whose time jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.live.events import Candle, FeedEvent, Notice
from simulator.live.listener import FeedSettings, Listener
from simulator.market.events import FundingEvent
from simulator.market.market import Market
from tests.loop_clock import LoopClock, VirtualClock, VirtualLoop
from tests.mock_binance.faults import Faults
from tests.mock_binance.server import MockExchange

MINUTE = 60_000
START = 1_700_006_400_000  # 2023-11-15 00:00
FIRST = 5  # the bar that a listener is to begin with; the exchange is at the tenth when it does


def minutes(count: int, symbols: Sequence[str] = ("BTCUSDT",), absent: Sequence[int] = ()) -> Market:
    """So many one-minute bars of each symbol with prices of six decimals, without those at the places `absent`."""
    draw, shape = np.random.default_rng(7), (count, len(symbols))
    close = (100 * np.exp(np.cumsum(draw.normal(0, 0.001, shape), 0))).round(6)
    open_ = np.vstack([close[:1], close[:-1]])
    columns = {
        "open": open_,
        "high": (np.maximum(open_, close) * 1.0007).round(6),
        "low": (np.minimum(open_, close) * 0.9993).round(6),
        "close": close,
        "volume": draw.uniform(1, 10, shape).round(5),
    }
    for values in columns.values():
        values[list(absent)] = np.nan
    time = START + MINUTE * np.arange(count, dtype=np.int64)
    eight_hours = 480 * MINUTE
    funding = {
        symbol: tuple(FundingEvent(START + k * eight_hours, round(1e-4 * (k + 1), 6)) for k in range(count // 480 + 1))
        for symbol in symbols
    }
    return Market(tuple(symbols), "1m", time, half_spread=np.full(shape, 2e-4), funding=funding, **columns)


def history(market: Market, symbol: str, first: int = FIRST) -> list[tuple[float, ...]]:
    """What the exchange has of a symbol (as ccxt writes it) from the bar `first` on."""
    column = market.column(symbol.partition(":")[0].replace("/", ""))
    values = (market.open, market.high, market.low, market.close, market.volume)
    return [
        (int(market.open_time[bar]), *(float(one[bar, column]) for one in values))
        for bar in range(first, len(market))
        if market.present[bar, column]
    ]


@dataclass
class Heard:
    """What a listener gave, and what was done to it."""

    events: list[FeedEvent]
    counted: Mapping[str, int]
    injected: dict[str, int]

    def candles(self, symbol: str) -> list[tuple[float, ...]]:
        return [
            (one.open_time, one.open, one.high, one.low, one.close, one.volume)
            for one in self.events
            if isinstance(one, Candle) and one.symbol == symbol
        ]

    def notices(self, kind: str) -> list[Notice]:
        return [one for one in self.events if isinstance(one, Notice) and one.kind == kind]


def in_virtual_time(job: Callable[[asyncio.AbstractEventLoop], Coroutine[Any, Any, Any]]) -> Any:
    """The result of a coroutine in an event loop whose time jumps."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(job(loop))
    finally:
        loop.close()


def listen(
    market: Market,
    faults: Faults | None = None,
    symbols: tuple[str, ...] = ("BTC/USDT",),
    *,
    begin: int = 10,
    until: int | None = None,
    meanwhile: Callable[[MockExchange, Listener], Coroutine[Any, Any, None]] | None = None,
    **settings: Any,
) -> Heard:
    """Listen to an exchange that plays `market` from the bar `begin` on until it ends, or for `until` minutes."""

    async def job(loop: asyncio.AbstractEventLoop) -> Heard:
        clock = LoopClock(VirtualClock(loop, START + begin * MINUTE + 5000))
        events = list[FeedEvent]()
        async with MockExchange(market, clock, faults) as exchange:
            chosen = {"exchange": "binance", "symbols": symbols, "timeframe": "1m", "url": exchange.url} | settings
            listener = Listener(FeedSettings(**chosen), clock.clock, lambda make: events.append(make(clock.now())))
            try:
                await listener.open(START + FIRST * MINUTE)
                if meanwhile is not None:
                    await meanwhile(exchange, listener)
                if until is None:
                    await exchange.ended.wait()
                await asyncio.sleep(20 if until is None else 60 * until)
                if listener.defect is not None:
                    raise listener.defect
            finally:
                await listener.close()
            return Heard(events, listener.counters, dict(exchange.draws.injected))

    found: Heard = in_virtual_time(job)
    return found
