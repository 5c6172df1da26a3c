"""How a feed of a live exchange behaves: what it listens to, and how long it waits for what."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.data.download_client import MarketType
from simulator.errors import UserError
from simulator.market.timeframes import interval_of


@dataclass(frozen=True)
class FeedSettings:
    """What to listen to. Times are seconds of the session's clock.

    Attributes:
        exchange: id of ccxt. symbols: as ccxt writes them, all spot (BTC/USDT) or all perpetuals (BTC/USDT:USDT).
        timeframe: of `simulator.market.timeframes.TIMEFRAMES`.
        url: server to ask instead of the exchange's own.
        trades, books: whether to listen to trades and to the best bid and ask.
        depth: between two requests for the levels of a book; 0: none are asked for.
        grace: after a candle's close, in which the stream may bring it before REST is asked.
        absent_after: in which, beside the length of a bar, REST must give neither a candle nor a newer one for it to be
            believed absent. Where it has a newer one, two answers suffice.
        silence: of an open socket, after which it is taken to hang and ended.
        book_interval: shortest time between two events of one symbol's book.
        poll: between two requests for what no stream brings.
        skew_refused: by which the clocks may differ at the start; `skew_noticed`: from which on it is a notice.

    Raises:
        UserError, DataError: symbols or a timeframe that cannot be used.
    """

    exchange: str
    symbols: tuple[str, ...]
    timeframe: str
    url: str = ""
    trades: bool = True
    books: bool = True
    depth: float = 20.0
    grace: float = 2.0
    absent_after: float = 30.0
    silence: float = 30.0
    book_interval: float = 0.1
    poll: float = 10.0
    skew_refused: float = 30.0
    skew_noticed: float = 1.0

    def __post_init__(self) -> None:
        interval_of(self.timeframe)
        if not self.symbols or len(set(self.symbols)) < len(self.symbols):
            raise UserError("name at least one symbol, and each once")
        kinds = {":" in symbol for symbol in self.symbols}
        if len(kinds) > 1:
            raise UserError(
                f"{', '.join(self.symbols)}: spot and perpetuals cannot be mixed in one feed; BTC/USDT is spot,"
                " BTC/USDT:USDT the perpetual"
            )

    @property
    def market(self) -> MarketType:
        return "swap" if ":" in self.symbols[0] else "spot"

    @property
    def interval(self) -> int:
        """Length of a bar, ms."""
        return interval_of(self.timeframe)
