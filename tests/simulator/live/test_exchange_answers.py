"""What an exchange says is untrusted: nothing impossible gets through, and a refusal is counted."""

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import DataError, RunFailed
from simulator.live.events import BookTop, Candle, Funding, MarketTrade
from simulator.live.exchange_feed import connection
from simulator.live.exchange_feed.answers import CLOSED_IN_STREAM, book_of, funding_of, kline_of, trade_of
from simulator.live.exchange_feed.closed_candles import CandleRow
from tests.live_scenes import FIRST, MINUTE, START, history, listen, minutes
from tests.mock_binance.server import MockExchange

nonsense = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["NaN", "1e400", "-1"]),
    lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
prices = st.floats(0.001, 1e6) | st.integers(1, 10**6) | st.sampled_from(["1.5", "2"])
times = st.just(START) | st.integers(0, 2 * START) | nonsense


def result_of(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except DataError:
        return None


@given(st.lists(times | prices | nonsense, max_size=8) | nonsense)
def test_a_candle_is_possible_or_refused(values: Any) -> None:
    row: CandleRow | None = result_of(lambda: kline_of("a candle", MINUTE, values))
    if row is not None:
        Candle("BTC/USDT", *row, at=row[0] + MINUTE, known_at=0)  # checks itself too
        assert row[0] % MINUTE == 0


fields = {
    "price": prices | nonsense,
    "amount": prices | nonsense,
    "side": st.sampled_from(["buy", "sell"]) | nonsense,
    "timestamp": times,
    "id": nonsense,
    "fundingRate": st.floats() | nonsense,
    "more": nonsense,
}


@given(st.fixed_dictionaries({}, optional=fields) | nonsense)
def test_a_trade_and_a_settlement_are_possible_or_refused(record: Any) -> None:
    trade = result_of(lambda: trade_of("BTC/USDT", record, 5))
    if trade is not None:
        assert (
            isinstance(trade, MarketTrade)
            and 0 < trade.price < 1e16
            and 0 < trade.quantity < 1e16
            and len(trade.id) <= 64
        )
    funding = result_of(lambda: funding_of("BTC/USDT", record, 5))
    assert funding is None or (isinstance(funding, Funding) and abs(funding.rate) < 1 and funding.at > 0)


@given(*[st.tuples(prices | nonsense, prices | nonsense)] * 2, times)
def test_a_book_is_possible_or_refused(bid: Any, ask: Any, time: Any) -> None:
    book = result_of(lambda: book_of("BTC/USDT", bid, ask, time, START))
    assert book is None or (isinstance(book, BookTop) and 0 < book.bid < book.ask and math.isfinite(book.half_spread))


@pytest.mark.parametrize(
    "answer",
    [
        [],
        {},
        "no",
        [[]],
        [None],
        [[START + FIRST * MINUTE, "NaN", 1, 1, 1, 1]],
        [{"t": 1}],
        [[START + FIRST * MINUTE + 7, 1, 1, 1, 1, 1]],
    ],
)
def test_nonsense_instead_of_candles_is_a_counted_fault_and_no_candle(answer: Any) -> None:
    async def meanwhile(exchange: MockExchange, listener: Any) -> None:
        exchange.record("/api/v3/klines", answer)
        exchange.disconnect()
        await asyncio.sleep(120)
        exchange.record("/api/v3/klines", None)

    market = minutes(18)
    heard = listen(market, meanwhile=meanwhile, trades=False, books=False)
    assert heard.candles("BTC/USDT") == history(market, "BTC/USDT")
    assert heard.counted["malformed"] + heard.counted["refusals"] > 0 and heard.counted["gaps"] == 0


def test_an_answer_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LARGEST_ANSWER", 100)
    with pytest.raises(RunFailed, match="an answer of more than 100 bytes"):
        listen(minutes(20), until=1)


@pytest.mark.parametrize(
    "text", ['{"e":"kline","k":', "[", "\x00", '{"e":"kline","k":null}', '{"e":"kline"}', "[[[]]]", "7"]
)
def test_a_message_that_is_nonsense_does_not_silence_a_stream(text: str) -> None:
    async def meanwhile(exchange: MockExchange, listener: Any) -> None:
        await asyncio.sleep(100)
        exchange.send_to_all(text)

    market = minutes(20)
    heard = listen(market, meanwhile=meanwhile)
    assert heard.candles("BTC/USDT") == history(market, "BTC/USDT")
    assert heard.counted["filled"] <= 5 + 10 - FIRST


def told_closed(place: int, high: str) -> str:
    """A stream's message that the bar `place` has closed at 1."""
    time = START + place * MINUTE
    candle = {"t": time, "s": "BTCUSDT", "i": "1m", "o": "1", "h": high, "l": "1", "c": "1", "v": "1", "x": True}
    return json.dumps({"e": "kline", "E": time, "s": "BTCUSDT", "k": candle})


def test_a_candle_that_is_closed_before_its_time_is_not_believed() -> None:
    async def meanwhile(exchange: MockExchange, listener: Any) -> None:
        await asyncio.sleep(100)
        exchange.send_to_all(told_closed(15, high="1"))

    market = minutes(20)
    heard = listen(market, meanwhile=meanwhile)
    assert heard.candles("BTC/USDT") == history(market, "BTC/USDT")
    assert "before its time" in heard.notices("malformed")[0].detail


def test_a_correction_after_the_close_is_passed_on_and_counted() -> None:
    async def meanwhile(exchange: MockExchange, listener: Any) -> None:
        await asyncio.sleep(200)
        exchange.send_to_all(told_closed(11, high="2"))

    heard = listen(minutes(20), meanwhile=meanwhile)
    versions = [candle for candle in heard.candles("BTC/USDT") if candle[0] == START + 11 * MINUTE]
    assert len(versions) == 2 and versions[1][2] == 2.0
    assert heard.counted["corrections"] == 1


def test_closed_candles_of_bybit_are_read_from_its_stream() -> None:
    told = {"start": START, "open": "1", "high": "3", "low": "1", "close": "2", "volume": "5", "confirm": True}
    message = {"topic": "kline.1.BTCUSDT", "data": [told | {"confirm": False}, told]}
    assert list(CLOSED_IN_STREAM["bybit"](message)) == [("BTCUSDT", "1", [START, "1", "3", "1", "2", "5"])]
