"""Downloads from a local exchange: whatever fails on the way, what is stored is what the exchange has."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend.cli import main as cli
from simulator.data import download
from simulator.data.catalog import Catalog
from simulator.data.download import (
    ATTEMPTS,
    SETTLING,
    DownloadReport,
    DownloadRequest,
    MarketType,
    connect,
    download_history,
)
from simulator.data.venue import read_rules
from simulator.errors import DataError, Interrupted, RunFailed, UserError
from simulator.market.timeframes import format_time
from tests.mock_exchange import HOUR, START, Fault, History, MockExchange, candle, history, serving

ROOT = Path(__file__).resolve().parents[3]
FAULTS: tuple[Fault, ...] = (
    "429", "418", "500", "503", "slow", "cut", "closed", "truncated", "page", "doubled", "shuffled", "empty",
)  # fmt: skip


def client_of(mock: MockExchange, exchange: str = "binance", market: MarketType = "spot") -> Any:
    """A client of the mock that neither throttles nor sleeps."""
    asked = connect(exchange, market, mock.url)
    asked.enableRateLimit = False
    asked.timeout = 150
    asked.options["maxRetriesOnFailureDelay"] = 0
    return asked


def request(**given: Any) -> DownloadRequest:
    values: dict[str, Any] = {"exchange": "binance", "symbols": ("BTC/USDT",), "timeframes": ("1h",), "start": START}
    return DownloadRequest(**(values | given))


def fetch(mock: MockExchange, root: Path, **given: Any) -> DownloadReport:
    asked = request(**given)
    return download_history(asked, root, client=client_of(mock, asked.exchange, asked.market))


def times(mock: MockExchange, symbol: str = "BTCUSDT") -> list[int]:
    """Open times of the closed candles."""
    return [one[0] for one in mock.history.candles[symbol] if one[0] + HOUR <= mock.history.now - SETTLING]


def stored(root: Path, symbol: str = "BTCUSDT") -> list[int]:
    found = pd.read_parquet(root / f"{symbol}-1h.parquet")["timestamp"]
    return found.to_numpy("datetime64[ms]").astype(int).tolist()


@pytest.fixture
def mock() -> Iterator[MockExchange]:
    with serving(history()) as exchange:
        yield exchange


@pytest.mark.parametrize(
    ("exchange", "market"), [("binance", "spot"), ("binance", "swap"), ("bybit", "spot")], ids=lambda value: str(value)
)
def test_what_is_stored_is_what_the_exchange_has(exchange: str, market: MarketType, tmp_path: Path) -> None:
    with serving(history(("BTCUSDT", "ETHUSDT"), absent=(7, 8, 30))) as mock:
        found = fetch(mock, tmp_path, exchange=exchange, market=market, symbols=("BTC/USDT", "ETH/USDT"))
        loaded = Catalog(tmp_path).load()
        for column, symbol in enumerate(("BTCUSDT", "ETHUSDT")):
            rows = loaded.present[:, column]
            known = [one for one in mock.history.candles[symbol] if one[0] in times(mock, symbol)]
            assert loaded.open_time[rows].tolist() == [one[0] for one in known]
            for place, name in enumerate(("open", "high", "low", "close", "volume"), 1):
                assert getattr(loaded, name)[rows, column].tolist() == [one[place] for one in known]
            events = [(event.time, event.rate) for event in loaded.funding.get(symbol, ())]
            assert events == (mock.history.funding[symbol] if market == "swap" else [])
        assert not [issue for issue in Catalog(tmp_path).check() if issue.fatal]
    bars = [one for one in found.series if one.file.endswith("-1h.parquet")]
    assert [(one.file, one.rows, one.added, one.absent) for one in bars] == [
        ("BTCUSDT-1h.parquet", 41, 41, 3), ("ETHUSDT-1h.parquet", 41, 41, 3),
    ]  # fmt: skip
    assert found.without_tiers == (("BTCUSDT", "ETHUSDT") if market == "swap" else ())
    rules = read_rules(tmp_path / "rules.json")
    assert rules["ETHUSDT"].kind == ("perpetual" if market == "swap" else "spot") and rules["ETHUSDT"].tick == 0.01
    left = {path.name for path in tmp_path.iterdir()}
    assert not [name for name in left if name.startswith(".") or name.endswith(".tmp")]


@st.composite
def scripts(draw: st.DrawFn) -> list[Fault]:
    """Faults to come. An empty answer is followed by one that is not: asking twice has to help."""
    script: list[Fault] = []
    for fault in draw(st.lists(st.sampled_from([*FAULTS, "sound"]), max_size=14)):
        script += [fault, "sound"] if fault == "empty" else [fault]
    return script


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    script=scripts(),
    stops=st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=3),
    absent=st.sets(st.integers(0, 43), max_size=6),
    page=st.integers(3, 20),
    market=st.sampled_from(["spot", "swap"]),
)
def test_no_fault_and_no_interruption_changes_what_is_stored(
    script: list[Fault],
    stops: list[tuple[int, bool]],
    absent: set[int],
    page: int,
    market: MarketType,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    clean, harmed = tmp_path_factory.mktemp("clean"), tmp_path_factory.mktemp("harmed")
    with serving(history(absent=sorted(absent), page=page)) as mock:
        fetch(mock, clean, market=market)
        mock.script = list(script)
        for requests, killed in stops:
            client = client_of(mock, market=market)
            stop_after(client, requests)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(download, "_PAGES_AT_ONCE", 2)
                if killed:  # a process that is killed saves nothing more
                    patch.setattr(download._Series, "save", lambda self: None)
                with suppress(Interrupted, RunFailed):
                    download_history(request(market=market), harmed, client=client)
        for _ in range(len(script) + 1):
            try:
                download_history(request(market=market), harmed, client=client_of(mock, market=market))
                break
            except RunFailed as error:  # more faults than one run puts up with
                assert "the same command" in str(error)
        else:
            pytest.fail("finitely many faults never ended")
    assert Catalog(harmed).load().content_hash == Catalog(clean).load().content_hash
    assert {path.name: path.read_bytes() for path in harmed.iterdir()} == {
        path.name: path.read_bytes() for path in clean.iterdir()
    }


def stop_after(client: Any, requests: int) -> None:
    """Press Ctrl-C when that many answers have come."""
    left = [requests]

    def count(*_: Any, **__: Any) -> None:
        left[0] -= 1
        if left[0] <= 0:
            raise KeyboardInterrupt

    client.session.hooks["response"].append(count)


def test_an_interrupted_download_keeps_its_pages_and_says_how_to_continue(mock: MockExchange, tmp_path: Path) -> None:
    client = client_of(mock)
    stop_after(client, 5)  # metadata, the clock, two pages, which share a bar; the third is lost
    with pytest.raises(Interrupted, match=r"BTCUSDT-1h\.parquet with 19 rows; the same command continues"):
        download_history(request(), tmp_path, client=client)
    assert stored(tmp_path) == times(mock)[:19]
    Catalog(tmp_path).load()
    mock.requests.clear()
    fetch(mock, tmp_path)
    asked = [int(found) for path in mock.requests for found in re.findall(r"klines.*startTime=(\d+)", path)]
    assert asked[0] == times(mock)[18] and asked == sorted(asked)
    assert stored(tmp_path) == times(mock)


def test_a_later_run_adds_what_has_closed_since(mock: MockExchange, tmp_path: Path) -> None:
    fetch(mock, tmp_path)
    assert stored(tmp_path)[-1] == START + 43 * HOUR
    mock.history.candles["BTCUSDT"] = [candle(place) for place in range(60)]
    mock.history.now = START + 59 * HOUR + HOUR // 2
    (report,) = fetch(mock, tmp_path).series
    assert (report.rows, report.added) == (59, 15)
    with serving(mock.history) as other:
        fetch(other, tmp_path / "at once")
    assert Catalog(tmp_path).load().content_hash == Catalog(tmp_path / "at once").load().content_hash
    before = (tmp_path / "BTCUSDT-1h.parquet").stat().st_mtime_ns
    assert fetch(mock, tmp_path).series[0].added == 0
    assert (tmp_path / "BTCUSDT-1h.parquet").stat().st_mtime_ns == before


@pytest.mark.parametrize(("end", "last"), [(START + 20 * HOUR, 19), (START + 20 * HOUR + 1, 20), (None, 43)])
def test_the_end_is_exclusive_and_the_unfinished_bar_is_not_stored(
    mock: MockExchange, tmp_path: Path, end: int | None, last: int
) -> None:
    mock.history.candles["BTCUSDT"][44] = (START + 44 * HOUR, 1.0, 0.5, 2.0, 1.0, -1.0)  # not even looked at
    fetch(mock, tmp_path, end=end)
    assert stored(tmp_path) == [START + place * HOUR for place in range(last + 1)]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (4, None),
        (4, "NaN"),
        (1, "NaN"),
        (5, "NaN"),
        (2, "inf"),
        (3, "-1"),
        (3, "0"),
        (5, "-0.1"),
        (2, "1"),
        (1, "x"),
        (0, START + 13 * HOUR + 9),
    ],
)
def test_an_impossible_candle_is_named_and_nothing_of_its_page_is_stored(
    mock: MockExchange, tmp_path: Path, place: int, value: Any
) -> None:
    rows: list[Any] = mock.history.candles["BTCUSDT"]
    rows[13] = [*rows[13][:place], value, *rows[13][place + 1 :]]
    original = mock.answer

    def answer(path: str, query: dict[str, str]) -> Any:
        document = original(path, query)
        if path.endswith("klines"):  # the mock writes numbers as text, where an exchange may say null
            document = [[None if one == "None" else one for one in row] for row in document]
        return document

    mock.answer = answer  # type: ignore[method-assign]  # one test's exchange answers otherwise
    when = START + 13 * HOUR
    with pytest.raises(DataError, match=f"binance BTC/USDT 1h: .*({format_time(when)}|{when}|{when + 9})"):
        fetch(mock, tmp_path)
    assert stored(tmp_path) == times(mock)[:10]


def test_candles_that_contradict_are_refused_with_their_time(mock: MockExchange, tmp_path: Path) -> None:
    rows = mock.history.candles["BTCUSDT"]
    rows.insert(13, (*rows[12][:5], rows[12][5] + 1))
    with pytest.raises(DataError, match=f"contradicts itself about {format_time(rows[12][0])}"):
        fetch(mock, tmp_path)
    assert stored(tmp_path) == times(mock)[:10]


@pytest.mark.parametrize("market", ["spot", "swap"])
def test_an_exchange_that_ignores_the_start_is_found_out(tmp_path: Path, market: MarketType) -> None:
    with serving(history(ignores_since=True)) as mock:
        with pytest.raises(DataError, match="its latest records only, from 2023-11-16 11:00"):
            fetch(mock, tmp_path, market=market)
        assert len(mock.requests) < 10
        # It still serves those who start inside its latest page.
        fetch(mock, tmp_path / "late", start=START + 36 * HOUR)
        assert stored(tmp_path / "late") == times(mock)[36:]


def test_a_start_before_the_listing_and_a_long_pause_of_trading(tmp_path: Path) -> None:
    rows = [candle(place) for place in (*range(30), *range(1600, 1620))]
    for windowed in (False, True):
        with serving(History({"BTCUSDT": rows}, START + 1620 * HOUR, page=40, windowed=windowed)) as mock:
            root = tmp_path / str(windowed)
            (report,) = fetch(mock, root, start=START - 1500 * HOUR).series
            assert stored(root) == times(mock)
            assert report.absent == 1570
            assert len(mock.requests) < 20


def test_a_perpetual_of_which_there_is_one_page_is_no_loop(tmp_path: Path) -> None:
    with serving(history(bars=8)) as mock:
        fetch(mock, tmp_path, market="swap", start=START - 200 * HOUR)
        assert stored(tmp_path) == times(mock)


def test_no_bars_at_all(mock: MockExchange, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no closed bars from 2023-11-20"):
        fetch(mock, tmp_path, start=START + 120 * HOUR)
    assert not list(tmp_path.glob("*.parquet"))


def test_an_exchange_that_stays_away_ends_the_run_which_says_what_is_stored(mock: MockExchange, tmp_path: Path) -> None:
    mock.script = ["sound", "sound", "sound", *["503"] * ATTEMPTS]  # type: ignore[list-item]  # text of a literal
    mock.requests.clear()
    with pytest.raises(RunFailed, match=r"binance gave no usable answer to fetch_ohlcv.* with 10 rows; the same"):
        fetch(mock, tmp_path)
    assert len(mock.requests) == 3 + ATTEMPTS


def test_offline_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    client = connect("kraken", "spot", url)
    client.enableRateLimit, client.options["maxRetriesOnFailureDelay"] = False, 0
    with pytest.raises(RunFailed, match="kraken gave no usable answer"):
        download_history(request(exchange="kraken"), tmp_path, client=client)


@pytest.mark.parametrize(
    ("given_values", "match"),
    [
        ({"exchange": "binanze"}, "'binanze' is not an exchange.*binance"),
        ({"symbols": ()}, "no symbol"),
        ({"symbols": ("BTC/USDT", "BTC/USDT")}, "twice"),
        ({"timeframes": ()}, "no timeframe"),
        ({"timeframes": ("3h",)}, "3h"),
        ({"market": "margin"}, "margin"),
        ({"start": 5}, "2000"),
        ({"end": START}, "not after the start"),
        ({"url": "localhost"}, "scheme and host"),
        ({"url": "http://[::1"}, "cannot be read"),
        ({"url": "http://me:secret@localhost"}, r"^((?!secret).)*names a user((?!secret).)*$"),
    ],
)
def test_a_request_that_cannot_be_met(given_values: dict[str, Any], match: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=match):
        download_history(request(**given_values), tmp_path)


@pytest.mark.parametrize(
    ("given_values", "match"),
    [
        ({"symbols": ("DOGE/USDT",)}, "no spot market DOGE/USDT.*BTC/USDT"),
        ({"symbols": ("BTCUSDT",)}, "write it like BTC/USDT"),
        ({"market": "swap", "symbols": ("DOGE/USDT",)}, "no swap market DOGE/USDT:USDT"),
        ({"market": "swap", "symbols": ("BTC/USDT", "BTC/USDT:USDT")}, "same file"),
    ],
)
def test_a_symbol_that_the_exchange_lacks(
    mock: MockExchange, given_values: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=match):
        fetch(mock, tmp_path, **given_values)


def test_a_folder_of_something_else_is_left_alone(mock: MockExchange, tmp_path: Path) -> None:
    fetch(mock, tmp_path, start=START + HOUR)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UserError, match="holds spot data of binance"):
        fetch(mock, tmp_path, market="swap")
    with pytest.raises(UserError, match="downloaded from 2023-11-15 01:00 on"):
        fetch(mock, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "download.json").unlink()
    with pytest.raises(UserError, match="was not downloaded"):
        fetch(mock, tmp_path)
    for text in ("{}", '{"exchange": "binance", "market": "spot", "start": "x"}', "no json"):
        (tmp_path / "download.json").write_text(text)
        with pytest.raises(UserError, match=r"download\.json"):
            fetch(mock, tmp_path)


def test_a_refusal_is_not_asked_for_again(mock: MockExchange, tmp_path: Path) -> None:
    mock.recorded["/api/v3/time"] = {"code": -1100, "msg": "Illegal characters"}
    with pytest.raises(DataError, match="binance refuses fetch_time"):
        fetch(mock, tmp_path)
    assert sum("/time" in path for path in mock.requests) == 1


def test_margin_tiers_that_were_known_stay(mock: MockExchange, tmp_path: Path) -> None:
    fetch(mock, tmp_path, market="swap")
    path = tmp_path / "rules.json"
    document = json.loads(path.read_text())
    document["BTCUSDT"]["tiers"] = [{"floor": 0.0, "maintenance_rate": 0.01, "max_leverage": 50.0}]
    path.write_text(json.dumps(document))
    assert fetch(mock, tmp_path, market="swap").without_tiers == ()
    assert read_rules(path)["BTCUSDT"].tiers[0].max_leverage == 50.0


def test_recorded_answers_of_binance(mock: MockExchange, tmp_path: Path) -> None:
    base = Path(os.environ.get("CRYPTOSENTINEL_SHARED", ROOT.parent / "shared")) / "exchange-fixtures"
    if not base.is_dir():
        pytest.skip(f"no recorded answers at {base} (set CRYPTOSENTINEL_SHARED to the folder that holds them)")
    candles = json.loads((base / "nautilus/http_responses/http_spot_market_klines.json").read_text())
    info = json.loads((base / "cryptofeed/exchangeInfo-spot-2021-10-12-subset.json").read_text())
    mock.recorded = {"/api/v3/exchangeInfo": info, "/api/v3/klines": candles}
    start, minute = candles[0][0], 60_000
    mock.history.now = candles[-1][0] + 2 * minute
    report = fetch(mock, tmp_path, timeframes=("1m",), start=start, end=candles[-1][0] + minute)
    loaded = Catalog(tmp_path).load(timeframe="1m")
    assert report.series[0].rows == len(loaded) == len(candles)
    assert loaded.close[:, 0].tolist() == [float(one[4]) for one in candles]
    assert read_rules(tmp_path / "rules.json")["BTCUSDT"].tick == 0.01


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """command("--start", ...) runs `data download` as the shell would: exit code, what it printed, its errors."""
    monkeypatch.setenv("COLUMNS", "250")

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["cryptosentinel", "data", "download", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
            sys.exit(0)
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


def test_the_command(mock: MockExchange, tmp_path: Path, command: Callable[..., tuple[int, str, str]]) -> None:
    options = ("--exchange", "binance", "--symbols", "BTC/USDT", "--start", "2023-11-15", "--out", tmp_path / "d")
    code, printed, _ = command(*options, "--market", "swap", "--url", mock.url)
    words = " ".join(printed.split())  # a console breaks lines where it likes
    assert code == 0 and "BTCUSDT-1h.parquet" in words and "44" in words and "margin tiers" in words
    assert stored(tmp_path / "d") == times(mock)
    code, _, errors = command(*options, "--market", "margin", "--url", mock.url)
    assert code == 2 and "margin" in errors
    code, _, errors = command(*options, "--market", "swap", "--timeframe", "1h,7h", "--url", mock.url)
    assert code == 2 and "7h" in errors
