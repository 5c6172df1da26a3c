"""The feed of a live exchange, beside an exchange that fails on purpose: in a loop whose time jumps."""

import asyncio
import socket
from typing import Any

import ccxt.pro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.errors import DataError, RunFailed, UserError
from simulator.live.events import BookTop, Funding
from simulator.live.listener import Listener
from tests.live_scenes import FIRST, MINUTE, START, history, listen, minutes
from tests.mock_binance.faults import BAD_NETWORK, Faults
from tests.mock_binance.server import MockExchange

shares = st.floats(0.0, 0.18)


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.builds(
        Faults,
        dropped=shares,
        duplicated=shares,
        delayed=shares,
        reordered=shares,
        malformed=shares,
        delay=st.floats(0, 200),
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
    # Sockets that end again before their first message are one disconnection.
    assert bool(heard.counted["disconnects"]) >= bool(heard.injected.get("disconnects", 0))
    assert heard.counted["gaps"] == 0


@pytest.mark.slow
def test_a_day_of_minutes_on_a_bad_network_is_the_exchanges_own() -> None:
    market = minutes(1440, ("BTCUSDT", "ETHUSDT"))
    symbols = ("BTC/USDT:USDT", "ETH/USDT:USDT")
    heard = listen(market, BAD_NETWORK, symbols)
    for symbol in symbols:
        assert heard.candles(symbol) == history(market, symbol)
    assert heard.injected["disconnects"] > 5 and heard.counted["reconnects"] > 5
    assert [event.rate for event in heard.events if isinstance(event, Funding)] == [2e-4, 2e-4, 3e-4, 3e-4]


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


def test_a_session_that_begins_again_gets_what_it_missed() -> None:
    market = minutes(40)
    first = listen(market, until=10)
    assert first.candles("BTC/USDT")[0][0] == START + FIRST * MINUTE
    again = listen(market)
    assert again.candles("BTC/USDT")[: 10 - FIRST] == history(market, "BTC/USDT")[: 10 - FIRST]


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
        ({"symbols": ("BTC/EUR",)}, r"no spot market BTC/EUR; it has BTC/USDT"),
        ({"symbols": ("BTCC/USDT",)}, r"no spot market BTCC/USDT; it has BTC/USDT"),
        ({"symbols": ("BTC/USDT", "BTC/USDT:USDT")}, "cannot be mixed"),
        ({"symbols": ()}, "at least one symbol"),
        ({"exchange": "binanc"}, "no exchange of ccxt; near: binance"),
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


def test_an_exchange_that_wants_a_key_for_its_candles_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any, **__: Any) -> Any:
        raise ccxt.AuthenticationError("requires an apiKey credential")

    monkeypatch.setattr(ccxt.pro.binance, "fetch_markets", refuse)
    with pytest.raises(UserError, match="wants a key even for market data"):
        listen(minutes(20), until=1)
