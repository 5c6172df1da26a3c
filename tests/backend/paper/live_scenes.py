"""Paper sessions on a mock exchange that plays faster than real time, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.paper.sessions import PaperOutcome, resume_paper, run_paper
from backend.runs.requests import Observer, PaperRequest, RunStart
from backend.store.store import Store
from simulator.live.exchange_feed import ExchangeFeed
from simulator.live.feed import SimulatedClock
from simulator.live.listener import FeedSettings
from simulator.market.timeframes import format_time
from tests.live_scenes import MINUTE, START, minutes
from tests.mock_binance.faults import Faults
from tests.mock_binance.server import MockExchange, serving_exchange

FIRST, BARS, SPEED = 140, 600, 300.0  # the bar under way at first; bars in all; how much faster than real time
SYMBOLS = ("BTC/USDT", "ETH/USDT")


@dataclass
class Live:
    """An exchange that plays, and the clock that it shares with sessions."""

    exchange: MockExchange
    clock: SimulatedClock

    def feed(self, settings: FeedSettings) -> ExchangeFeed:
        return ExchangeFeed(settings, self.clock, SPEED)

    def request(self, bars: int = 0, **given: Any) -> PaperRequest:
        """A session of so many bars; 0: without an end."""
        end = {"end": format_time(START + (FIRST + bars) * MINUTE).replace(" ", "T")} if bars else {}
        overrides = ("paper.history_bars=130", "costs.thinking_time=20", *given.pop("overrides", ()))
        chosen: dict[str, Any] = {
            "exchange": "binance", "url": self.exchange.url, "symbols": SYMBOLS, "timeframe": "1m", "decide_every": 3,
        }  # fmt: skip
        return PaperRequest(overrides=overrides, **(chosen | end | given))

    def run(self, store: Store, folder: Path, observer: Observer | None = None, **given: Any) -> PaperOutcome:
        return run_paper(self.request(**given), store, folder, observer or Observer(), self.feed)

    def resume(self, run: str, store: Store, folder: Path, observer: Observer | None = None) -> PaperOutcome:
        return resume_paper(run, store, folder, observer or Observer(), make_feed=self.feed)


@contextmanager
def playing(faults: Faults | None = None, bars: int = BARS) -> Iterator[Live]:
    """An exchange of so many bars whose bar `FIRST` is under way."""
    clock = SimulatedClock(START + FIRST * MINUTE + 5000, SPEED)
    market = minutes(bars, ("BTCUSDT", "ETHUSDT"))
    with serving_exchange(market, clock, speed=SPEED, faults=faults) as exchange:
        yield Live(exchange, clock)


class AfterBars(Observer):
    """Calls `act` with the session's folder once `bars` bars are taken."""

    def __init__(self, bars: int, act: Callable[[Path], None]) -> None:
        self._bars, self._act = bars, act
        self._folder = Path()

    def started(self, start: RunStart) -> None:
        """See `Observer`."""
        self._folder = start.folder

    def progress(self, what: str, done: int, total: int) -> None:
        """See `Observer`."""
        if done == self._bars:
            self._act(self._folder)
