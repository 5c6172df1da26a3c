"""The mock exchange beside the program that uses it: in an event loop and a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from simulator.live.clock import Clock
from simulator.market.market import Market
from tests.loop_clock import LoopClock
from tests.mock_binance.faults import Faults
from tests.mock_binance.server import MockExchange
from tests.mock_binance.tape import FEWEST_TICKS

_OPENING = 30.0  # seconds


@contextmanager
def serving_exchange(
    market: Market, clock: Clock, *, speed: float = 1.0, faults: Faults | None = None, ticks: int = FEWEST_TICKS
) -> Iterator[MockExchange]:
    """An exchange that plays `market` at a free port of this machine for the time of a block.

    `clock` is shared with who listens, and runs `speed` times as fast as real time. Only `url`, `requests` and `draws`
    of the exchange are to be read from outside its thread.
    """
    loop = asyncio.new_event_loop()
    opened: Future[tuple[MockExchange, asyncio.Event]] = Future()

    async def serve() -> None:
        done = asyncio.Event()
        try:
            async with MockExchange(market, LoopClock(clock, speed), faults, ticks=ticks) as exchange:
                opened.set_result((exchange, done))
                await done.wait()
        except BaseException as error:
            if not opened.done():
                opened.set_exception(error)
            raise

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        finally:
            loop.close()

    thread = threading.Thread(target=run, name="mock-exchange", daemon=True)
    thread.start()
    exchange, done = opened.result(_OPENING)
    try:
        yield exchange
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(_OPENING)
