"""What a paper session needs of a source of market data.

A feed owns its connection: it reconnects, falls back from the stream to requests, waits out rate limits, and fills what
it missed, by itself. Whatever it does that way it tells with a `Notice`. The session pulls; it never calls into a
running event loop. A feed that is asynchronous inside runs its loop in a thread of its own and hands events over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from simulator.live.clock import Clock
from simulator.live.events import Candle, FeedEvent, Funding
from simulator.market.instruments import MarketKind


class Feed(Protocol):
    """Live or recorded data of some symbols in bars of one timeframe.

    Attributes:
        name: of the source, for messages and records, like `binance` or `recorded`.
        symbols: as ccxt writes them, in the order of the market.
        timeframe: of the candles, one of `simulator.market.timeframes.TIMEFRAMES`.
        kinds: spot or perpetual, of each symbol; the session keeps them, so they must not change while it runs.
        clock: what `known_at` is read from.
    """

    name: str
    symbols: tuple[str, ...]
    timeframe: str
    kinds: Mapping[str, MarketKind]
    clock: Clock

    def open(self, since: int) -> None:
        """Connect, and deliver from then on every candle and settlement with ``at > since`` (ms), those first that have
        happened already. Called once, before `next`; a session that is resumed gives the close of the last bar that it
        has. Raises `UserError` where the source cannot be used: wrong keys, an unknown symbol, no such data.
        """

    def next(self, timeout_s: float) -> FeedEvent | None:
        """The next event by `known_at`, which never falls; None where none came within `timeout_s` seconds of real
        time. Candles of one symbol may come late, twice or out of order. After the notice `end` there is None for ever.
        Raises nothing that a retry could mend: that is a notice.
        """

    def backfill(self, since: int, until: int) -> Sequence[Candle | Funding]:
        """Candles and settlements with ``since < at <= until`` that the source has by now, in order of `at`, for the
        history before a session and for bars that did not come. What the source lacks is missing from it. Blocks;
        gives what it could get after a bounded number of tries, with notices of what failed in `next`.
        """

    def counters(self) -> Mapping[str, int | float]:
        """What was counted since the feed was made, by name: disconnections, requests that failed, and the like."""

    def close(self) -> None:
        """Disconnect. May be called twice, and from any state."""
