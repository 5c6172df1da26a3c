"""Recorded bars as a feed that also has what happens inside them: trades, the best bid and ask, the levels of the book.

For tests and rehearsals of what a session does with them. The recording does not know its trades: they are those that
the mock exchange makes of the same bars (`tests.mock_binance.tape`), known as late as its candles are.
"""

from __future__ import annotations

import math
from itertools import chain

from simulator.errors import DataError
from simulator.exchange.venue import Venue
from simulator.live.events import BookLevels, BookTop, FeedEvent, MarketTrade
from simulator.live.recorded_feed import RecordedFeed
from simulator.market.market import Market
from simulator.market.timeframes import SECOND_MS
from tests.mock_binance.tape import MarketTape, Tick

_TRADES = 8  # of a symbol in a bar


class TradedFeed(RecordedFeed):
    """A `RecordedFeed` with `trades` trades of each symbol in a bar. The book's best prices follow each trade; its
    levels come once with the first trade of a bar, as a real feed asks for them now and then."""

    def __init__(
        self, market: Market, venue: Venue, begin: int, speed: float = math.inf, trades: int = _TRADES
    ) -> None:
        """Raises `DataError` as `RecordedFeed` does, and for so many trades that the first of a bar would be known
        before the end of the one before it; `UserError` for fewer than a bar needs."""
        super().__init__(market, venue, begin, speed)
        self._tape = MarketTape(market, trades)
        if self._tape.tick_time(0, 0) - self._tape.begin <= SECOND_MS:
            raise DataError(f"{trades} trades in a bar of {market.timeframe} are too many; leave some seconds between.")

    def _events_of(self, row: int) -> list[FeedEvent]:
        columns = [column for column in range(len(self.symbols)) if self._tape.is_present(column, row)]
        inside = chain.from_iterable(
            self._at(column, self._tape.tick(column, row, place))
            for place in range(self._tape.ticks)
            for column in columns
        )
        # What the recording itself says of the book is that of the bar's end.
        closing = [event for event in super()._events_of(row) if not isinstance(event, BookTop)]
        return [*inside, *closing]

    def _at(self, column: int, tick: Tick) -> list[FeedEvent]:
        """What happens with one trade."""
        symbol, at, known = self.symbols[column], tick.time, tick.time + self._delay
        bids, asks = self._tape.book(column, tick)
        events: list[FeedEvent] = [
            MarketTrade(symbol, tick.price, tick.size, "sell" if tick.sold else "buy", str(tick.id), at, known),
            BookTop(symbol, *bids[0], *asks[0], at, known),
        ]
        if tick.place == 0:
            events.append(BookLevels(symbol, tuple(bids), tuple(asks), at, known))
        return events
