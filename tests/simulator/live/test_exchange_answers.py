"""What an exchange says is untrusted: nothing impossible gets through, and a refusal is counted."""

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import DataError
from simulator.live.events import BookTop, Candle, Funding, book_of, candle_of, funding_of
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
    candle: Candle | None = result_of(lambda: candle_of("BTC/USDT", MINUTE, values, 5))
    assert candle is None or (candle.open_time % MINUTE == 0 and candle.at == candle.open_time + MINUTE)
    assert candle is None or 0 < candle.low <= min(candle.open, candle.close) <= candle.high


fields = {
    "timestamp": times,
    "fundingRate": st.floats() | nonsense,
    "more": nonsense,
}


@given(st.fixed_dictionaries({}, optional=fields) | nonsense)
def test_a_settlement_is_possible_or_refused(record: Any) -> None:
    funding = result_of(lambda: funding_of("BTC/USDT", record, 5))
    assert funding is None or (isinstance(funding, Funding) and abs(funding.rate) < 1 and funding.at > 0)


@given(*[prices | nonsense] * 2, times)
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
def test_nonsense_instead_of_candles_is_no_candle_and_no_gap(answer: Any) -> None:
    async def meanwhile(exchange: MockExchange, listener: Any) -> None:
        exchange.record("/api/v3/klines", answer)
        exchange.disconnect()
        await asyncio.sleep(120)
        exchange.record("/api/v3/klines", None)

    market = minutes(18)
    heard = listen(market, meanwhile=meanwhile)
    assert heard.candles("BTC/USDT") == history(market, "BTC/USDT")
    assert heard.counted["gaps"] == 0


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
    assert sum(isinstance(one, BookTop) and one.at > START + 15 * MINUTE for one in heard.events) > 10
