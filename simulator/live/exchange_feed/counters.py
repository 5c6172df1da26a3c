"""Everything that a live feed counts, for pages and metrics."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class FeedCounters:
    """Counts since the feed was made; a snapshot is a plain dictionary.

    Attributes:
        candles, trades, books, depths, fundings: events given. filled: of the candles, those that REST gave.
        duplicates: closed candles and trades that came again. corrections: closed candles that came again and differ.
        early: closed candles that came before an earlier one, and had to wait for it.
        gaps: bars that the exchange has none of.
        disconnects, reconnects: of sockets. hung: sockets that were open and silent, and were ended for it.
        malformed: messages and answers that could not be used, or parts of them.
        requests: REST requests. timeouts, server_errors, maintenance, rate_limits, dns, refusals: requests and
            connections that failed, by reason. waited: seconds that the exchange asked to wait for, in all.
        overflow: trades and books that were not kept because nobody fetched them.
        skewed: comparisons in which the clocks differed by more than the settings let pass.
        skew: how far the exchange's clock is ahead of ours, ms. round_trip: of the request that said so, ms.
    """

    candles: int = 0
    trades: int = 0
    books: int = 0
    depths: int = 0
    fundings: int = 0
    filled: int = 0
    duplicates: int = 0
    corrections: int = 0
    early: int = 0
    gaps: int = 0
    disconnects: int = 0
    reconnects: int = 0
    hung: int = 0
    malformed: int = 0
    requests: int = 0
    timeouts: int = 0
    server_errors: int = 0
    maintenance: int = 0
    rate_limits: int = 0
    dns: int = 0
    refusals: int = 0
    waited: float = 0.0
    overflow: int = 0
    skewed: int = 0
    skew: int = 0
    round_trip: int = 0

    def snapshot(self) -> dict[str, int | float]:
        """All of them by name."""
        return asdict(self)

    def add(self, name: str, count: float = 1) -> None:
        """Count one more of `name`."""
        setattr(self, name, getattr(self, name) + count)
