"""The messages of Binance's WebSocket streams, made from a tape.

A stream is named `btcusdt@kline_1m`, as in a SUBSCRIBE message. Source of the format:
https://developers.binance.com/docs (WebSocket streams of spot and of USD-M futures, whose depth has `pu`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.mock_binance.answers import Answers, levels_of
from tests.mock_binance.tape import BarSoFar, Tick, decimal_text

STREAM = re.compile(
    r"([a-z0-9_]+)@(kline_\w+|aggTrade|trade|bookTicker|depth(?:@\d+ms)?|markPrice(?:@1s)?|ticker|miniTicker)"
)


@dataclass(frozen=True)
class StreamMessage:
    """One event on `stream`; `closes` marks a candle's last one."""

    stream: str
    data: dict[str, Any]
    closes: bool = False


class Streams:
    """Makes the messages of the market of `answers`, for spot or (`swap`) for perpetuals."""

    def __init__(self, answers: Answers, *, swap: bool) -> None:
        self._answers, self._tape, self._swap = answers, answers.tape, swap
        self._columns = {symbol.lower(): column for column, symbol in enumerate(answers.tape.market.symbols)}
        self._kinds: dict[str, Callable[[int, Tick, int], dict[str, Any]]] = {
            "aggTrade": self._aggregate_trade,
            "trade": self._trade,
            "bookTicker": self._best,
            "depth": self._depth,
            "ticker": self._day,
            "miniTicker": self._short_day,
        }
        if swap:
            self._kinds["markPrice"] = self._mark

    def knows(self, stream: str) -> bool:
        """Whether `stream` exists: its symbol, its kind and, of candles, its timeframe."""
        match = STREAM.fullmatch(stream)
        if match is None or match[1] not in self._columns:
            return False
        kind = match[2].partition("@")[0]
        return kind in self._kinds or kind == f"kline_{self._tape.market.timeframe}"

    def at_tick(self, bar: int, place: int, wanted: set[str], offset: int) -> Iterator[StreamMessage]:
        """What the streams `wanted` say at a tick of all symbols; the exchange's clock errs by `offset` ms."""
        for stream, column, kind in self._sorted(wanted):
            if not self._tape.is_present(column, bar):
                continue
            tick = self._tape.tick(column, bar, place)
            if kind.startswith("kline_"):
                so_far = self._tape.bar(column, bar, place + 1, closed=False)
                if so_far is not None:
                    yield StreamMessage(stream, self._candle(column, so_far, tick.time + offset))
            else:
                yield StreamMessage(stream, self._kinds[kind](column, tick, tick.time + offset))

    def at_close(self, bar: int, wanted: set[str], offset: int) -> Iterator[StreamMessage]:
        """The last message of each candle of `bar`."""
        for stream, column, kind in self._sorted(wanted):
            if kind.startswith("kline_"):
                closed = self._tape.bar(column, bar, 0, closed=True)
                if closed is not None:
                    time = self._tape.open_time(bar + 1) + offset
                    yield StreamMessage(stream, self._candle(column, closed, time), closes=True)

    def _sorted(self, wanted: set[str]) -> Iterator[tuple[str, int, str]]:
        for stream in sorted(wanted):
            name, _, kind = stream.partition("@")
            yield stream, self._columns[name], kind.partition("@")[0]

    def _candle(self, column: int, bar: BarSoFar, time: int) -> dict[str, Any]:
        symbol = self._tape.market.symbols[column]
        return {
            "e": "kline",
            "E": time,
            "s": symbol,
            "k": {
                "t": bar.open_time,
                "T": bar.open_time + self._tape.interval - 1,
                "s": symbol,
                "i": self._tape.market.timeframe,
                "f": bar.first_id,
                "L": bar.first_id + bar.trades - 1,
                "o": decimal_text(bar.open),
                "c": decimal_text(bar.close),
                "h": decimal_text(bar.high),
                "l": decimal_text(bar.low),
                "v": decimal_text(bar.volume),
                "n": bar.trades,
                "x": bar.closed,
                "q": decimal_text(bar.volume * bar.close),
                "V": decimal_text(bar.volume / 2),
                "Q": decimal_text(bar.volume * bar.close / 2),
                "B": "0",
            },
        }

    def _head(self, event: str, column: int, time: int) -> dict[str, Any]:
        return {"e": event, "E": time, "s": self._tape.market.symbols[column]}

    def _aggregate_trade(self, column: int, tick: Tick, time: int) -> dict[str, Any]:
        return self._head("aggTrade", column, time) | {
            "a": tick.id,
            "p": decimal_text(tick.price),
            "q": decimal_text(tick.size),
            "f": tick.id,
            "l": tick.id,
            "T": time,
            "m": tick.sold,
        } | ({} if self._swap else {"M": True})  # fmt: skip

    def _trade(self, column: int, tick: Tick, time: int) -> dict[str, Any]:
        return self._head("trade", column, time) | {
            "t": tick.id,
            "p": decimal_text(tick.price),
            "q": decimal_text(tick.size),
            "T": time,
            "m": tick.sold,
        } | ({} if self._swap else {"M": True})  # fmt: skip

    def _best(self, column: int, tick: Tick, time: int) -> dict[str, Any]:
        bids, asks = self._tape.book(column, tick)
        (bid, bid_size), (ask, ask_size) = bids[0], asks[0]
        sides = {
            "u": tick.id,
            "s": self._tape.market.symbols[column],
            "b": decimal_text(bid),
            "B": decimal_text(bid_size),
            "a": decimal_text(ask),
            "A": decimal_text(ask_size),
        }
        return {"e": "bookTicker", **sides, "T": time, "E": time} if self._swap else sides

    def _depth(self, column: int, tick: Tick, time: int) -> dict[str, Any]:
        """The change of the book since the trade before: old levels go, new ones come."""
        earlier = self._tape.earlier_tick(column, tick)
        old = self._tape.book(column, earlier) if earlier else ([], [])
        changes = []
        for before, after in zip(old, self._tape.book(column, tick), strict=True):
            kept = {price for price, _ in after}
            changes.append(levels_of([(price, 0.0) for price, _ in before if price not in kept] + after))
        last = earlier.id if earlier else 0
        clock = {"T": time} if self._swap else {}
        chain = {"pu": last} if self._swap else {}
        return (
            self._head("depthUpdate", column, time)
            | clock
            | {"U": last + 1, "u": tick.id}
            | chain
            | {"b": changes[0], "a": changes[1]}
        )

    def _day(self, column: int, tick: Tick, time: int) -> dict[str, Any]:
        day = self._answers.day(column, tick.time)
        fields = {
            "p": "priceChange", "P": "priceChangePercent", "w": "weightedAvgPrice", "x": "prevClosePrice",
            "c": "lastPrice", "Q": "lastQty", "b": "bidPrice", "B": "bidQty", "a": "askPrice", "A": "askQty",
            "o": "openPrice", "h": "highPrice", "l": "lowPrice", "v": "volume", "q": "quoteVolume",
            "O": "openTime", "C": "closeTime", "F": "firstId", "L": "lastId", "n": "count",
        }  # fmt: skip
        if self._swap:  # the futures' stream has no book
            fields = {name: of for name, of in fields.items() if name not in "xbBaA"}
        return self._head("24hrTicker", column, time) | {name: day[of] for name, of in fields.items()}

    def _short_day(self, column: int, tick: Tick, time: int) -> dict[str, Any]:
        day = self._day(column, tick, time)
        return self._head("24hrMiniTicker", column, time) | {name: day[name] for name in "cohlvq"}

    def _mark(self, column: int, tick: Tick, time: int) -> dict[str, Any]:
        mark = self._answers.premium(column, tick.time)
        return self._head("markPriceUpdate", column, time) | {
            "p": mark["markPrice"],
            "i": mark["indexPrice"],
            "P": mark["estimatedSettlePrice"],
            "r": mark["lastFundingRate"],
            "T": mark["nextFundingTime"],
        }
