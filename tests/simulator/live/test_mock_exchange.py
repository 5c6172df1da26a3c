"""The mock exchange speaks as Binance does: beside recorded answers, and through the real ccxt."""

import asyncio
import gzip
import json
import os
from pathlib import Path
from typing import Any

import ccxt.pro
import pytest

from simulator.data.download import aim, server_of
from simulator.live.events import Candle, FeedHeartbeat, Notice
from simulator.live.exchange_feed import ExchangeFeed
from simulator.live.feed import SimulatedClock
from simulator.live.listener import FeedSettings
from tests.live_scenes import FIRST, MINUTE, START, history, in_virtual_time, minutes
from tests.loop_clock import LoopClock, VirtualClock
from tests.mock_binance.answers import Answers, RefusedRequest
from tests.mock_binance.faults import BAD_NETWORK, FaultDraws, Faults
from tests.mock_binance.server import MockExchange, serving_exchange

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


@pytest.mark.parametrize(("kind", "symbol"), [("spot", "BTC/USDT"), ("swap", "BTC/USDT:USDT")])
def test_ccxt_reads_it_unchanged(kind: Any, symbol: str) -> None:
    market = minutes(60)

    async def job(loop: asyncio.AbstractEventLoop) -> None:
        async with MockExchange(market, LoopClock(VirtualClock(loop, NOW))) as exchange:
            client = ccxt.pro.binance({"enableRateLimit": False, "options": {"defaultType": kind}})
            aim(client, kind, server_of(exchange.url))
            try:
                await client.load_markets()
                rows = await client.fetch_ohlcv(symbol, "1m", START + 20 * MINUTE, 5)
                assert [tuple(row) for row in rows] == history(market, symbol, 20)[:5]
                book = await client.fetch_order_book(symbol)
                assert book["bids"][0][0] < book["asks"][0][0]
                best = (await client.watch_bids_asks([symbol]))[symbol]
                assert best["bid"] < best["ask"]
                if kind == "swap":
                    assert (await client.fetch_funding_rate_history(symbol))[0]["timestamp"] == START
            finally:
                await client.close()

    in_virtual_time(job)


@pytest.mark.parametrize(
    ("query", "code"),
    [({"symbol": "NONE"}, -1121), ({"symbol": "BTCUSDT", "interval": "5m"}, -1120),
     ({"symbol": "BTCUSDT", "interval": "1m", "startTime": "x"}, -1100)],
)  # fmt: skip
def test_it_refuses_with_binances_codes(query: dict[str, str], code: int) -> None:
    with pytest.raises(RefusedRequest) as refused:
        Answers(minutes(60)).answer("/api/v3/klines", query, NOW)
    assert refused.value.code == code


def test_the_same_seed_draws_the_same_faults_and_another_others() -> None:
    def drawn(seed: int) -> list[Any]:
        draws = FaultDraws(Faults(dropped=0.2, limited=0.1, disconnects=2, seed=seed), START, START + 10**8)
        messages = draws.messages(1)
        return [draws.disconnects, [draws.message(messages) for _ in range(50)]]

    assert drawn(1) == drawn(1) != drawn(2)


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
