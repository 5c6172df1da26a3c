"""The feed of a live exchange, beside an exchange that fails on purpose: in a loop whose time jumps. What an exchange
says is untrusted: nothing impossible gets through, and a refusal is counted."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ccxt.pro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.errors import DataError, RunFailed, UserError
from simulator.live.bar_assembly import MOST_MOVE, BarAssembler
from simulator.live.events import (
    BookTop,
    Candle,
    FeedHeartbeat,
    Funding,
    Notice,
    book_of,
    candle_of,
    funding_of,
)
from simulator.live.exchange_feed import ExchangeFeed
from simulator.live.feed import SimulatedClock
from simulator.live.listener import FeedSettings, Listener
from simulator.market.timeframes import MINUTE_MS
from tests.live_scenes import FIRST, MINUTE, START, history, listen, minutes
from tests.mock_binance.answers import Answers
from tests.mock_binance.faults import BAD_NETWORK, Faults
from tests.mock_binance.server import MockExchange, serving_exchange

shares = st.floats(0.0, 0.18)


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.builds(
        Faults,
        dropped=shares,
        malformed=shares,
        disconnects=st.floats(0, 8),
        hangs=st.floats(0, 3),
        failed=st.floats(0, 0.3),
        limited=st.floats(0, 0.2),
        bursts=st.floats(0, 30),
        burst=st.floats(0, 60),
        clock_error=st.integers(-900, 900),
        seed=st.integers(0, 999),
    )
)
def test_under_any_faults_the_candles_are_those_of_the_exchange(faults: Faults) -> None:
    market = minutes(60)
    heard = listen(market, faults)
    candles = heard.candles("BTC/USDT")
    # The end may still be on its way through a network this bad; what has come is whole.
    assert candles == history(market, "BTC/USDT")[: len(candles)]
    assert len(candles) >= 40
    assert heard.injected.get("banned", 0) == 0  # Retry-After was obeyed
    assert heard.counted["rate_limits"] == heard.injected.get("limited", 0)
    assert heard.counted["server_errors"] >= heard.injected.get("failed", 0) + heard.injected.get("burst", 0)
    # Sockets that end again before their first message are one disconnection, and one that a malformed message has
    # deafened ccxt to is hung.
    assert heard.counted["disconnects"] + heard.counted["hung"] >= bool(heard.injected.get("disconnects", 0))
    assert heard.counted["gaps"] == 0


@pytest.mark.slow
def test_a_day_of_minutes_on_a_bad_network_is_the_exchanges_own() -> None:
    market = minutes(1440, ("BTCUSDT", "ETHUSDT"))
    symbols = ("BTC/USDT:USDT", "ETH/USDT:USDT")
    heard = listen(market, BAD_NETWORK, symbols)
    for symbol in symbols:
        assert heard.candles(symbol) == history(market, symbol)
    assert heard.injected["disconnects"] > 5 and heard.counted["reconnects"] > 5
    # The settlement at the very end is heard where the network lets it through in time.
    assert [event.rate for event in heard.events if isinstance(event, Funding)][:4] == [2e-4, 2e-4, 3e-4, 3e-4]


def test_on_a_sound_network_every_candle_comes_after_its_close_and_the_book_with_it() -> None:
    market = minutes(40, ("BTCUSDT", "ETHUSDT"))
    heard = listen(market, symbols=("BTC/USDT", "ETH/USDT"))
    for symbol in ("BTC/USDT", "ETH/USDT"):
        assert heard.candles(symbol) == history(market, symbol)
    assert not any(heard.counted[name] for name in ("gaps", "malformed", "server_errors", "disconnects"))
    assert sum(isinstance(event, BookTop) for event in heard.events) > 100


def test_bars_that_the_exchange_has_none_of_are_a_gap_and_not_invented() -> None:
    market = minutes(40, absent=(20, 21, 22))
    heard = listen(market)
    assert heard.candles("BTC/USDT") == history(market, "BTC/USDT")
    assert heard.counted["gaps"] == 3
    assert "bars from 2023-11-15 00:20" in heard.notices("gap")[0].detail


def test_a_hung_socket_is_opened_anew_and_nothing_is_lost() -> None:
    async def meanwhile(exchange: MockExchange, listener: Listener) -> None:
        await asyncio.sleep(300)
        exchange.hang()

    market = minutes(40)
    heard = listen(market, meanwhile=meanwhile)
    assert heard.candles("BTC/USDT") == history(market, "BTC/USDT")
    assert heard.counted["hung"] >= 1 and heard.counted["reconnects"] >= 1
    assert heard.notices("stale")


def test_maintenance_is_waited_for_and_made_up() -> None:
    market = minutes(60)
    stretch = (START + 20 * MINUTE, START + 35 * MINUTE)
    heard = listen(market, Faults(maintenance=(stretch,)))
    assert heard.candles("BTC/USDT") == history(market, "BTC/USDT")
    assert heard.injected["maintenance"] < 100  # with back-off, not without pause
    assert heard.counted["server_errors"] >= heard.injected["maintenance"]


def test_a_name_that_does_not_resolve_for_a_while_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def meanwhile(exchange: MockExchange, listener: Listener) -> None:
        await asyncio.sleep(300)
        monkeypatch.setattr("aiohttp.TCPConnector._resolve_host", unresolved)
        exchange.disconnect()
        await asyncio.sleep(400)
        monkeypatch.undo()

    async def unresolved(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    market = minutes(40)
    heard = listen(market, meanwhile=meanwhile)
    assert heard.candles("BTC/USDT") == history(market, "BTC/USDT")
    assert heard.counted["dns"] >= 2 and "cannot be resolved" in heard.notices("dns")[0].detail


def test_history_is_filled_in_page_after_page_and_by_request() -> None:
    market = minutes(1260)
    found: list[Any] = []

    async def meanwhile(exchange: MockExchange, listener: Listener) -> None:
        found.extend(await listener.backfill(START, START + 1201 * MINUTE))

    heard = listen(market, Faults(failed=0.2), ("BTC/USDT:USDT",), begin=1250, meanwhile=meanwhile)
    candles = [one for one in found if not isinstance(one, Funding)]
    assert [one.open_time for one in candles] == [START + place * MINUTE for place in range(1201)]
    assert [one.at for one in found] == sorted(one.at for one in found)
    assert [one.rate for one in found if isinstance(one, Funding)] == [2e-4, 3e-4]
    assert heard.candles("BTC/USDT:USDT") == history(market, "BTC/USDT:USDT")[: len(heard.candles("BTC/USDT:USDT"))]


@pytest.mark.parametrize("error", [60_000, -60_000])
def test_a_clock_that_is_off_by_a_minute_is_refused(error: int) -> None:
    with pytest.raises(UserError, match=r"60 seconds (ahead of|behind) that of binance"):
        listen(minutes(20), Faults(clock_error=error), until=1)


def test_a_clock_that_is_off_by_seconds_is_measured_and_told() -> None:
    market = minutes(30)
    heard = listen(market, Faults(clock_error=5_000))
    assert heard.counted["skew"] == 5_000 and "+5.0 seconds" in heard.notices("clock_skew")[0].detail
    assert heard.candles("BTC/USDT") == history(market, "BTC/USDT")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"symbols": ("BTC/EUR",)}, r"no spot market BTC/EUR; .*it has BTC/USDT"),
        ({"symbols": ("BTCC/USDT",)}, r"no spot market BTCC/USDT; .*it has BTC/USDT"),
        ({"symbols": ("BTC/USDT", "BTC/USDT:USDT")}, "cannot be mixed"),
        ({"symbols": ()}, "at least one symbol"),
        ({"exchange": "binanc"}, "not an exchange of ccxt; near: binance"),
        ({"timeframe": "7m"}, "unknown timeframe"),
        ({"url": "http://someone:password@127.0.0.1"}, "names a user"),
    ],
)
def test_what_the_exchange_does_not_have_is_refused_with_what_it_has(changed: dict[str, Any], message: str) -> None:
    with pytest.raises((UserError, DataError), match=message):
        listen(minutes(20), until=1, **changed)


def test_a_host_that_does_not_answer_is_named_as_such() -> None:
    with pytest.raises(RunFailed, match=r"binance cannot be reached: .*; check --url"):
        listen(minutes(20), until=1, url="http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("changed", "symbol", "message"),
    [
        ({"timeframes": {"5m": "5m", "1h": "1h"}}, "BTC/USDT", "no bars of 1m; it has 5m, 1h"),
        ({"has": {"fetchOHLCV": None}}, "BTC/USDT", "no bars of 1m"),
        ({"has": {"fetchFundingRateHistory": None}}, "BTC/USDT:USDT", "no funding rates through ccxt; choose"),
    ],
)
def test_an_exchange_without_the_data_is_refused(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], symbol: str, message: str
) -> None:
    describe = ccxt.pro.binance.describe

    def described(exchange: Any) -> Any:
        known = describe(exchange)
        return known | {name: known[name] | value if name == "has" else value for name, value in changed.items()}

    monkeypatch.setattr(ccxt.pro.binance, "describe", described)
    with pytest.raises(UserError, match=message):
        listen(minutes(20), symbols=(symbol,), until=1)


def test_without_a_stream_rest_brings_every_candle(monkeypatch: pytest.MonkeyPatch) -> None:
    describe = ccxt.pro.binance.describe
    none = dict.fromkeys(
        ("watchOHLCV", "watchOHLCVForSymbols", "watchTrades", "watchTradesForSymbols", "watchBidsAsks",
         "watchOrderBook", "watchOrderBookForSymbols"), False,
    )  # fmt: skip
    monkeypatch.setattr(
        ccxt.pro.binance, "describe", lambda self: (known := describe(self)) | {"has": known["has"] | none}
    )
    market = minutes(30)
    heard = listen(market)
    assert heard.candles("BTC/USDT") == history(market, "BTC/USDT")
    assert not any(isinstance(event, BookTop) for event in heard.events) and heard.counted["disconnects"] == 0


def test_no_key_is_sent_and_what_an_address_holds_is_not_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BINANCE_APIKEY", "SECRET")
    caplog.set_level("DEBUG")
    said = [repr(event) for event in listen(minutes(15), Faults(failed=0.3, disconnects=60)).events]
    assert not any("signature" in record.getMessage() for record in caplog.records)
    for url in ("http://127.0.0.1:9/?key=SECRET", "http://SECRET@127.0.0.1:9", "http://127.0.0.1:9/#SECRET"):
        with pytest.raises((RunFailed, UserError)) as caught:
            listen(minutes(20), until=1, url=url)
        said.append(str(caught.value))
    assert "SECRET" not in "".join(said + [record.getMessage() for record in caplog.records])


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
        {},
        [None],
        [[START + FIRST * MINUTE, "NaN", 1, 1, 1, 1]],
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


SYMBOL = "BTC/USDT"
FACTORS = st.floats(MOST_MOVE * 1.05, 1e6) | st.floats(1e-6, 0.95 / MOST_MOVE)


def candle(number: int, close: float, high: float | None = None) -> Candle:
    """The candle of the minute `number`, all at one price but for its high."""
    opened = number * MINUTE_MS
    return Candle(SYMBOL, opened, close, high or close, close, close, 1.0, opened + MINUTE_MS, opened + MINUTE_MS)


def played(closes: Sequence[float], last: float = 100.0) -> tuple[list[float | None], list[str]]:
    """The close of each bar of one candle a minute, None where it has none, and why candles were refused."""
    marks = {SYMBOL: last}
    assembler = BarAssembler({SYMBOL: "spot"}, MINUTE_MS, 0, 1e-4, closes=lambda: marks)
    bars, reasons = list[float | None](), list[str]()
    for number, close in enumerate(closes):
        refused = assembler.take(candle(number, close))
        if refused is not None:
            reasons.append(refused.reason)
        made = assembler.finish((number + 1) * MINUTE_MS).candles.get(SYMBOL)
        bars.append(None if made is None else made[3])
        if made is not None:
            marks[SYMBOL] = made[3]
    return bars, reasons


@given(FACTORS, st.integers(0, 5))
def test_one_wrong_candle_never_enters_a_bar(factor: float, place: int) -> None:
    closes = [100.0, 101.0, 99.0, 100.5, 100.0, 98.0, 100.0]
    bars, reasons = played([close * factor if number == place else close for number, close in enumerate(closes)])
    assert bars == [None if number == place else close for number, close in enumerate(closes)]
    assert reasons == ["implausible"]


@given(FACTORS)
def test_a_move_that_the_next_candle_confirms_is_used_from_there(factor: float) -> None:
    bars, reasons = played([100.0, 100.0 * factor, 101.0 * factor, 99.0 * factor])
    assert bars == [100.0, None, 101.0 * factor, 99.0 * factor] and reasons == ["implausible"]


@given(st.lists(st.floats(1 / MOST_MOVE + 0.01, MOST_MOVE - 0.01), max_size=20))
def test_a_market_that_moves_by_less_is_never_doubted(moves: Sequence[float]) -> None:
    closes = [100.0]
    for move in moves:
        closes.append(closes[-1] * move)
    assert played(closes) == (closes, [])


def test_a_crash_that_goes_on_is_used_as_soon_as_two_candles_agree() -> None:
    assert played([100.0, 1.0, 0.01, 0.0101]) == ([100.0, None, None, 0.0101], ["implausible"] * 2)


@pytest.mark.parametrize("high", [100.0 * MOST_MOVE * 1.01, 1e8])
def test_a_wick_is_looked_at_as_well(high: float) -> None:
    assembler = BarAssembler({SYMBOL: "spot"}, MINUTE_MS, 0, 1e-4, closes=lambda: {SYMBOL: 100.0})
    refused = assembler.take(candle(0, 100.0, high))
    assert refused is not None and refused.reason == "implausible"
    again = assembler.take(candle(0, 100.0, high))
    assert again is not None and again.reason == "duplicate", "the same candle is no second opinion"
    assert assembler.take(candle(0, 100.0)) is None, "and a right one of that minute is used"


@pytest.mark.parametrize("closes", [{}, {SYMBOL: math.nan}])
def test_without_a_last_close_nothing_is_doubted(closes: dict[str, float]) -> None:
    assembler = BarAssembler({SYMBOL: "spot"}, MINUTE_MS, 0, 1e-4, closes=lambda: closes)
    assert assembler.take(candle(0, 1e9)) is None


ROOT = Path(__file__).resolve().parents[3]
RECORDED = Path(os.environ.get("CRYPTOSENTINEL_SHARED", ROOT.parent / "shared")) / "exchange-fixtures"
NOW = START + 30 * MINUTE + 50_000


def shape(document: Any) -> Any:
    """What a document is made of: names and kinds of its values; of a list its first entry."""
    if isinstance(document, dict):
        return {name: shape(value) for name, value in document.items()}
    if isinstance(document, list):
        return [shape(document[0])] if document else []
    return "number" if isinstance(document, str) and document.replace(".", "").lstrip("-").isdigit() else type(document)


def recorded(path: str) -> Any:
    file = RECORDED / path
    if not file.exists():
        pytest.skip(f"no recorded answers at {RECORDED} (set CRYPTOSENTINEL_SHARED to the folder that holds them)")
    text = gzip.decompress(file.read_bytes()).decode() if file.suffix == ".gz" else file.read_text()
    return text if file.suffix == ".gz" else json.loads(text)


@pytest.mark.parametrize(
    ("file", "path"),
    [
        ("http_spot_market_klines", "/api/v3/klines"),
        ("http_futures_market_klines", "/fapi/v1/klines"),
        ("http_spot_market_depth", "/api/v3/depth"),
        ("http_futures_market_depth", "/fapi/v1/depth"),
        ("http_futures_market_funding_rate", "/fapi/v1/fundingRate"),
        ("http_spot_market_time", "/api/v3/time"),
    ],
)
def test_rest_has_every_field_that_was_recorded(file: str, path: str) -> None:
    there = shape(recorded(f"nautilus/http_responses/{file}.json"))
    made = shape(Answers(minutes(60)).answer(path, {"symbol": "BTCUSDT", "interval": "1m"}, NOW))
    one, other = (
        entry[0] if isinstance(entry, list) and isinstance(entry[0], dict) else entry for entry in (there, made)
    )
    if isinstance(one, dict):
        assert {name: other.get(name) for name in one} == one
    else:
        assert other == one


@pytest.mark.parametrize(("file", "swap"), [("BINANCE", False), ("BINANCE_FUTURES", True)])
def test_the_stream_has_every_field_that_was_recorded(file: str, swap: bool) -> None:
    lines = [line.partition(": {")[2] for line in recorded(f"cryptofeed/{file}.ws.1.0.gz").splitlines()]
    messages = [json.loads("{" + line) for line in lines if "@bookTicker" in line]
    assert messages
    made = shape(Answers(minutes(60)).best("btcusdt@bookTicker", 20, 2, 0, swap))
    there = shape(messages[0]["data"])
    assert {field: made.get(field) for field in there} == there


def test_a_session_pulls_from_its_own_thread_while_the_clock_runs_fast() -> None:
    market, speed = minutes(60), 300.0
    clock = SimulatedClock(START + 10 * MINUTE, speed)
    with serving_exchange(market, clock, speed=speed, faults=BAD_NETWORK) as exchange:
        feed = ExchangeFeed(FeedSettings("binance", ("BTC/USDT:USDT",), "1m", url=exchange.url), clock, speed)
        try:
            feed.open(START + FIRST * MINUTE)
            known: list[int] = []
            found: list[tuple[float, ...]] = []
            while len(found) < 20:
                event = feed.next(20.0)
                assert event is not None
                known.append(event.known_at)
                if isinstance(event, Candle):
                    found.append((event.open_time, event.open, event.high, event.low, event.close, event.volume))
                assert not isinstance(event, Notice) or event.kind != "gap"
            asked = feed.backfill(START, START + 3 * MINUTE)
        finally:
            feed.close()
            feed.close()
    assert found == history(market, "BTC/USDT:USDT")[:20]
    assert known == sorted(known)
    assert [event.at for event in asked] == [START + MINUTE, START + 2 * MINUTE, START + 3 * MINUTE]
    assert feed.counters()["candles"] >= 20 and feed.kinds == {"BTC/USDT:USDT": "perpetual"}


def test_a_quiet_feed_gives_heartbeats() -> None:
    market = minutes(12)
    clock = SimulatedClock(START + 11 * MINUTE, 100.0)
    with serving_exchange(market, clock, speed=100.0) as exchange:
        feed = ExchangeFeed(FeedSettings("binance", ("BTC/USDT",), "1m", url=exchange.url), clock, 100.0)
        feed.open(START + 11 * MINUTE)
        try:
            assert any(isinstance(feed.next(5.0), FeedHeartbeat) for _ in range(50))
        finally:
            feed.close()
