"""Download of history through ccxt into a folder that `simulator.data.catalog` reads.

Bars, the funding rates of perpetuals and the venue's rules (`rules.json`). A second run continues after the last stored
row. Only bars are stored that had closed when the run began, by the exchange's clock, so a bar never changes after it
was stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit, urlunsplit

import ccxt
import numpy as np

from simulator.arrays import FloatArray, IntArray
from simulator.data.archive import SYMBOL
from simulator.data.venue import RULES_FILE, read_json, read_rules, rules_from_ccxt, write_json, write_rules
from simulator.errors import DataError, Interrupted, RunFailed, UserError
from simulator.exchange.rules import SymbolRules
from simulator.market.bar_checks import BAR_VALUES, check_bars
from simulator.market.timeframes import DAY_MS, HOUR_MS, TIMEFRAMES, bar_start, format_time, interval_of, next_bar_start
from simulator.tables import EARLIEST, LATEST, numbers, read_table, times, timestamp_array, write_table

MarketType = Literal["spot", "swap"]

ATTEMPTS = 6
_RETRY_DELAY = 5_000  # ms
# What ccxt's parsers raise about an answer that is JSON but of another shape.
MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError)
SETTLING = 60_000  # ms after its close in which an exchange may still correct a bar
_MANIFEST = "download.json"
_FUNDING_PAGE = 100  # every exchange gives as many
_UNKNOWN_PAGE = 100  # bars to step over where an exchange does not state how many it gives
_SETTLEMENTS = 2 * DAY_MS  # within which a settlement is to be expected
_PAGES_AT_ONCE = 20  # that a kill may lose

DownloadProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class DownloadRequest:
    """What to download.

    Attributes:
        exchange: id of ccxt. symbols: as BTC/USDT; `market` says whether the spot market or the linear perpetual.
        timeframes: of `simulator.market.timeframes.TIMEFRAMES`.
        start, end: bound the open times of the bars, ms; `end` is exclusive, None: until now.
        url: server to ask instead of the exchange's own.

    Raises:
        UserError: a request that cannot be met. DataError: an unknown timeframe.
    """

    exchange: str
    symbols: tuple[str, ...]
    timeframes: tuple[str, ...]
    start: int
    end: int | None = None
    market: MarketType = "spot"
    url: str = ""

    def __post_init__(self) -> None:
        if self.market not in ("spot", "swap"):
            raise UserError(f"market is '{self.market}'; it must be 'spot' or 'swap'")
        for name, values in (("symbol", self.symbols), ("timeframe", self.timeframes)):
            if not values:
                raise UserError(f"no {name} is asked for; name at least one")
            if len(set(values)) < len(values):
                raise UserError(f"a {name} is asked for twice: {', '.join(values)}")
        for timeframe in self.timeframes:
            interval_of(timeframe)
        if not EARLIEST <= self.start < LATEST:
            raise UserError("the start must lie between the years 2000 and 2100")
        if self.end is not None and self.end <= self.start:
            raise UserError(f"the end, {format_time(self.end)}, is not after the start, {format_time(self.start)}")


@dataclass(frozen=True)
class SeriesReport:
    """What is stored of a series now: `rows`, `added` of them by this run; times in ms, None without rows.

    `absent` counts the bars missing between the first and the last.
    """

    file: str
    rows: int
    added: int
    absent: int
    first: int | None
    last: int | None


@dataclass(frozen=True)
class DownloadReport:
    """What a download brought. `without_tiers`: perpetuals whose margin tiers the exchange shows only with a key."""

    series: tuple[SeriesReport, ...]
    without_tiers: tuple[str, ...]


def download_history(
    request: DownloadRequest,
    root: str | Path,
    *,
    report: DownloadProgress = lambda what, done, total: None,
    client: Any = None,
) -> DownloadReport:
    """Bring the folder `root` up to what is asked for; what it has already is not asked for again.

    Args:
        report: called with the name of a series, the bars or hours done, and their total.
        client: ccxt's object to ask, in place of one made for the request.

    Raises:
        UserError, DataError: something asked for does not exist, or the exchange's data is unsound.
        RunFailed: the exchange did not answer. Interrupted: Ctrl-C. All leave whole files that a next run continues.
    """
    folder, stored = Path(root), list[SeriesReport]()
    exchange = client or connect(request.exchange, request.market, request.url)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: cannot be written: {error.strerror or error}") from error
    try:
        ask(exchange, "load_markets")
        pairs = [
            f"{one}:{one.partition('/')[2]}" if request.market == "swap" and ":" not in one else one
            for one in request.symbols
        ]
        markets = {_name(one): one for one in offered_markets(exchange, request.market, pairs, request.timeframes)}
        if len(markets) < len(request.symbols):
            raise UserError(f"two of the symbols {', '.join(request.symbols)} would be stored in the same file")
        _check_source(folder, request)
        without = _store_rules(exchange, markets, folder)
        now = ask(exchange, "fetch_time") if exchange.has.get("fetchTime") is True else exchange.milliseconds()
        for name, market in markets.items():
            for timeframe in (*request.timeframes, *[""] * (request.market == "swap")):
                file = folder / f"{name}-{timeframe or 'funding'}.parquet"
                series = _Series(file, timeframe)
                try:
                    _fetch(exchange, market, timeframe, series, request, int(now), report)
                finally:  # however it ends, what was fetched is saved and reported
                    series.save()
                    stored.append(series.report())
    except KeyboardInterrupt:
        raise Interrupted(f"the download was interrupted; {_kept(stored, folder)}") from None
    except (DataError, RunFailed) as error:
        raise type(error)(f"{error}; {_kept(stored, folder)}") from error
    return DownloadReport(tuple(stored), without)


class NotPublic(DataError):
    """The exchange shows this only with a key, or never."""


def ask(exchange: Any, method: str, *arguments: Any) -> Any:
    """The answer of ccxt's `method`; ccxt itself tries again where that may help.

    Raises `DataError` where the exchange refuses what is asked, `NotPublic` where it takes a key, and `RunFailed` where
    it gives no usable answer.
    """
    try:
        return getattr(exchange, method)(*arguments)
    except ccxt.OperationFailed as error:
        raise RunFailed(f"{exchange.id} gave no usable answer to {method}: {_words(error)}") from None
    except (ccxt.AuthenticationError, ccxt.NotSupported) as error:
        raise NotPublic(f"{exchange.id} does not show {method} without a key: {_words(error)}") from None
    except ccxt.BaseError as error:
        raise DataError(f"{exchange.id} refuses {method}: {_words(error)}") from None
    except MALFORMED as error:
        raise RunFailed(f"{exchange.id} gave an answer of another shape to {method} ({error!r:.100})") from None


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


class _Series:
    """Rows in order of time in the Parquet file `path`: bars of `timeframe`, funding where that is empty."""

    def __init__(self, path: Path, timeframe: str) -> None:
        self.path, self.timeframe = path, timeframe
        self.columns = BAR_VALUES if timeframe else ("funding_rate",)
        self.time: list[IntArray] = []
        self.values: list[FloatArray] = []  # (n, columns) each
        self._unsaved = 0
        if path.exists():
            table = read_table(path, ("timestamp", *self.columns))
            self.time = [times(table, "timestamp", path)]
            self.values = [np.stack([numbers(table, name, path) for name in self.columns], axis=1)]
        self._before = self.rows

    @property
    def rows(self) -> int:
        return sum(map(len, self.time))

    @property
    def last(self) -> int | None:
        """Time of the last row, ms; None where there are no rows."""
        return int(self.time[-1][-1]) if self.rows else None

    def append(self, time: IntArray, values: FloatArray) -> None:
        """Add rows that come after `last`; the file has them after a few more pages, or with `save`."""
        self.time.append(time)
        self.values.append(values)
        self._unsaved += 1
        if self._unsaved >= _PAGES_AT_ONCE:
            self.save()

    def save(self) -> None:
        """Write the file, where rows were added."""
        if self._unsaved:
            values = np.concatenate(self.values)
            columns = {name: np.ascontiguousarray(values[:, place]) for place, name in enumerate(self.columns)}
            write_table(self.path, {"timestamp": timestamp_array(np.concatenate(self.time)), **columns})
            self._unsaved = 0

    def report(self) -> SeriesReport:
        """What is stored now."""
        rows, last = self.rows, self.last
        first = int(self.time[0][0]) if rows else None
        absent = 0
        if self.timeframe and first is not None and last is not None:
            absent = (last - first) // interval_of(self.timeframe) + 1 - rows
        return SeriesReport(self.path.name, rows, rows - self._before, absent, first, last)


def _fetch(
    exchange: Any, market: dict[str, Any], timeframe: str, series: _Series, request: DownloadRequest, now: int,
    report: DownloadProgress,
) -> None:  # fmt: skip
    """Append the bars from the start to before the end, or `now` (ms), that are not there yet. Of rates, those at the
    end, the last bar's close, too. Raises `DataError` where there is no bar at all, or what comes is unsound."""
    what = f"{exchange.id} {market['symbol']} {timeframe or 'funding'}"
    interval = interval_of(timeframe) if timeframe else HOUR_MS  # the shortest between settlements
    step = interval if timeframe else 1  # to the next record that may be
    if timeframe:
        limit = exchange.feature_value(market["symbol"], "fetchOHLCV", "limit")
        begin, stop = next_bar_start(request.start, interval), bar_start(now - SETTLING, interval)
        stop = stop if request.end is None else min(stop, next_bar_start(request.end, interval))
    else:
        limit, begin = _FUNDING_PAGE, request.start
        stop = (now if request.end is None else min(now, request.end)) + 1
    limit = int(limit) if limit else None

    def page(since: int | None) -> dict[int, tuple[float, ...]]:
        if timeframe:
            answer = ask(exchange, "fetch_ohlcv", market["symbol"], timeframe, since, limit)
        else:
            answer = ask(exchange, "fetch_funding_rate_history", market["symbol"], since, limit)
            answer = [[one["timestamp"], one["fundingRate"]] for one in answer]
        return _rows(what, answer, len(series.columns))

    since, total = begin if series.last is None else series.last + step, max(0, stop - begin) // interval
    while since < stop:
        report(series.path.stem, (since - begin) // interval, total)
        # From the last stored bar on: an exchange that gives it again continues from there.
        begun = since - step if timeframe and series.last == since - step else since
        rows = page(begun) or page(begun)  # an empty answer may be a slip
        wanted = sorted(time for time in rows if since <= time < stop)
        if not wanted:
            # Some exchanges answer for a stretch of time, which may hold nothing, others with the next records.
            since = stop if rows and max(rows) >= stop else since + (limit or _UNKNOWN_PAGE) * interval
            continue
        listed = market.get("created")  # a page that begins late is right where the symbol is young
        first = max(begun, listed + DAY_MS) if isinstance(listed, int) else begun
        if min(rows) > first + (0 if timeframe else _SETTLEMENTS):
            _check_honoured(what, since, min(rows), page(None), interval)
        time, values = np.array(wanted, np.int64), np.array([rows[one] for one in wanted])
        _check_page(what, timeframe, time, values)
        series.append(time, values)
        since = wanted[-1] + step
    report(series.path.stem, total, total)
    if series.last is None and timeframe:
        raise DataError(f"{what}: there are no closed bars from {format_time(begin)} to {format_time(stop)} UTC")


def _rows(what: str, answer: Any, columns: int) -> dict[int, tuple[float, ...]]:
    """The records of a page by time (ms), equal ones once. Raises `DataError` for records that contradict each other or
    lack a number."""
    rows: dict[int, tuple[float, ...]] = {}
    for record in answer:
        try:
            time, *values = record
            row = tuple(float(value) for value in values)
            if len(row) != columns or not EARLIEST <= time < LATEST:
                raise ValueError
        except (TypeError, ValueError):
            raise DataError(
                f"{what}: the record {record!r} lacks a number or its time, so its page is refused"
            ) from None
        if rows.setdefault(int(time), row) != row and not np.isnan(row).any():
            raise DataError(
                f"{what}: the exchange contradicts itself about {format_time(int(time))}: {rows[int(time)]}, then"
                f" {row}; its page is refused, try again later"
            )
    return rows


def _check_page(what: str, timeframe: str, time: IntArray, values: FloatArray) -> None:
    """Raise `DataError` for a page with an impossible record."""
    if timeframe:
        columns = {name: np.ascontiguousarray(values[:, place]) for place, name in enumerate(BAR_VALUES)}
        for issue in check_bars(what, interval_of(timeframe), time, columns):
            if issue.fatal:
                raise DataError(f"{issue}, so its page is refused")
    elif not (np.abs(values) < 1.0).all():  # NaN fails too
        place = int(np.flatnonzero(~(np.abs(values[:, 0]) < 1.0))[0])
        raise DataError(f"{what}: the rate {values[place, 0]} of {format_time(int(time[place]))} is impossible")


def _check_honoured(what: str, since: int, first: int, latest: dict[int, Any], interval: int) -> None:
    """Refuse a page that begins late and is the latest one: then `since` was ignored, and continuing would be a
    loop."""
    if latest and abs(min(latest) - first) <= interval:
        raise DataError(
            f"{what}: asked for {format_time(since)} on, the exchange gives its latest records only, from"
            f" {format_time(first)} on; if trading began there or that is enough, start there"
        )


def offered_markets(
    exchange: Any, market: MarketType, symbols: Sequence[str], timeframes: Sequence[str]
) -> list[dict[str, Any]]:
    """ccxt's structures of the `symbols`, as it writes them. Raises `UserError` for what the exchange does not have:
    a symbol, bars of one of the `timeframes`, the funding rates of perpetuals."""
    found = []
    for symbol in symbols:
        one = exchange.markets.get(symbol)
        if one is None or one["type"] != market:
            there = sorted(name for name, each in exchange.markets.items() if each["type"] == market)
            base = symbol.partition("/")[0]
            near = [name for name in there if name.startswith(f"{base}/")]
            near += [name for name in there if name.startswith(base[:3]) and name not in near]
            raise UserError(
                f"{exchange.id} has no {market} market {symbol}; it has"
                f" {', '.join((near or there)[:5]) or 'none of that kind'}; write it like BTC/USDT"
            )
        found.append(one)
    bars = exchange.timeframes or {} if exchange.has.get("fetchOHLCV") is True else {}
    for timeframe in timeframes:
        if timeframe not in bars:
            there = [name for name in TIMEFRAMES if name in bars]
            raise UserError(
                f"{exchange.id} offers no bars of {timeframe}; it has {', '.join(there) or 'none'}: choose another"
                " timeframe or exchange"
            )
    # A perpetual without its funding would look cheaper to hold than it is.
    if market == "swap" and exchange.has.get("fetchFundingRateHistory") is not True:
        raise UserError(f"{exchange.id} offers no funding rates through ccxt; choose another exchange, or spot")
    return found


def _name(market: dict[str, Any]) -> str:
    """The symbol that names the files: BTCUSDT of BTC/USDT."""
    name = f"{market['base']}{market['quote']}"
    if not SYMBOL.fullmatch(name):
        raise UserError(f"{market['symbol']}: {name!r} cannot name a file; it needs letters, digits, '_' and '-'")
    return name


def _check_source(folder: Path, request: DownloadRequest) -> None:
    """Write down where the data of the folder comes from, or raise `UserError` where it comes from elsewhere or begins
    later than is asked for."""
    path = folder / _MANIFEST
    source = {"exchange": request.exchange, "market": request.market, "start": request.start}
    if not path.exists():
        if there := sorted(folder.glob("*.parquet")):
            raise UserError(f"{there[0]}: was not downloaded by this command; choose another folder")
        write_json(path, source)
        return
    known = read_json(path)
    if known.keys() != source.keys() or not isinstance(known["start"], int):
        raise UserError(f"{path}: is not as a download writes it; download into a new folder")
    if (known["exchange"], known["market"]) != (request.exchange, request.market):
        raise UserError(
            f"{folder}: holds {known['market']} data of {known['exchange']}; choose another folder for {request.market}"
            f" data of {request.exchange}"
        )
    if request.start < known["start"]:
        raise UserError(
            f"{folder}: was downloaded from {format_time(known['start'])} on, and earlier rows cannot be put in front:"
            " start then or later, or choose another folder"
        )


def _store_rules(exchange: Any, markets: dict[str, dict[str, Any]], folder: Path) -> tuple[str, ...]:
    """Bring `rules.json` up to date; the perpetuals whose margin tiers are not known."""
    path = folder / RULES_FILE
    rules: dict[str, SymbolRules] = read_rules(path) if path.exists() else {}
    without = []
    for name, market in markets.items():
        tiers = _tiers(exchange, market["symbol"]) if market["type"] == "swap" else None
        found = rules_from_ccxt(market, tiers, exchange.precisionMode)
        if not found.tiers and name in rules:
            found = replace(found, tiers=rules[name].tiers)  # put there by hand, or when the exchange showed them
        if found.kind == "perpetual" and not found.tiers:
            without.append(name)
        rules[name] = found
    write_rules(path, rules)
    return tuple(without)


def _tiers(exchange: Any, symbol: str) -> list[dict[str, Any]] | None:
    """The margin tiers of a perpetual, None where the exchange does not show them without a key."""
    try:
        if exchange.has.get("fetchMarketLeverageTiers") is True:
            return list(ask(exchange, "fetch_market_leverage_tiers", symbol))
        if exchange.has.get("fetchLeverageTiers") is True:
            return list(ask(exchange, "fetch_leverage_tiers", [symbol]).get(symbol, ()))
    except NotPublic:
        pass
    return None


def _kept(stored: Sequence[SeriesReport], folder: Path) -> str:
    rows = sum(one.rows for one in stored)
    if not rows:
        return f"nothing is stored in {folder} yet; the same command begins again"
    named = ", ".join(f"{one.file} with {one.rows} rows" for one in stored if one.rows)
    return f"{folder} holds {named}; the same command continues there"


# ccxt's client for public data: made, aimed at a server, and patient where an answer fails for a passing reason. No key
# is needed or sent.


def connect(exchange: str, market: MarketType, url: str = "") -> Any:
    """ccxt's object for the exchange with this id, which has not asked anything yet.

    Args:
        market: which markets will be used; others are not fetched where the exchange has them apart.
        url: server to ask instead of the exchange's own, as `http://localhost:8080`; paths stay as they are.

    Raises:
        UserError: no such exchange, or a URL that cannot be used.
    """
    check_exchange(exchange, ccxt.exchanges)
    server = server_of(url) if url else None
    client = getattr(ccxt, exchange)({"enableRateLimit": True})
    client.options |= {"maxRetriesOnFailure": ATTEMPTS - 1, "maxRetriesOnFailureDelay": _RETRY_DELAY}
    client.session.hooks["response"].append(_check_answer)
    aim(client, market, server)
    # A proxy of the environment is for the world outside, not for a server that was named.
    client.session.trust_env = not url
    return client


def _check_answer(response: Any, *_: Any, **__: Any) -> None:
    """Sees every HTTP response before ccxt does, which takes an unreadable body for an empty one, and what a failing
    server sends for a refusal."""
    if response.status_code >= 500:
        raise ccxt.ExchangeNotAvailable(f"HTTP status {response.status_code}")
    if response.ok:
        try:
            response.json()
        except ValueError:
            raise ccxt.NetworkError("an answer that is cut off or not JSON") from None


def check_exchange(exchange: str, there: Sequence[str]) -> None:
    """Raise `UserError` where `exchange` is not one of the ids `there`, and name those near it."""
    if exchange not in there:
        near = [name for name in there if name.startswith(exchange[:3])][:6]
        raise UserError(
            f"'{exchange}' is not an exchange of ccxt; {'near: ' + ', '.join(near) if near else 'try binance'}"
        )


def server_of(url: str) -> SplitResult:
    """The parts of an address to ask instead of an exchange's own. Raises `UserError` for one that cannot be used."""
    try:
        server = urlsplit(url)
    except ValueError as error:
        raise UserError(f"the URL cannot be read ({error}); write it like http://localhost:8080") from None
    if server.scheme not in ("http", "https") or not server.hostname:
        raise UserError("the URL must name scheme and host, as http://localhost:8080")
    if "@" in server.netloc:
        raise UserError("the URL names a user; public data needs none, so leave out what stands before the '@'")
    return server


def aim(client: Any, market: MarketType, server: SplitResult | None) -> None:
    """Let `client` (ccxt's, of either kind) fetch the markets in use only, and ask `server` where one is named."""
    fetched = client.options.get("fetchMarkets")
    if isinstance(fetched, dict) and isinstance(fetched.get("types"), list):
        wanted = [kind for kind in fetched["types"] if kind in ({"spot"} if market == "spot" else {"swap", "linear"})]
        client.options["fetchMarkets"] = {**fetched, "types": wanted or fetched["types"]}
    if server is not None:
        client.urls["api"] = _moved(client.urls["api"], server)


def seconds_to_wait(header: str | None) -> float | None:
    """A Retry-After header, which holds seconds or a date; None where it has nothing usable."""
    if not header:
        return None
    if header.strip().isdigit():
        return float(header)
    try:
        until = parsedate_to_datetime(header)
    except ValueError:
        return None
    moment = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def _moved(api: Any, target: SplitResult) -> Any:
    """`api`, ccxt's address or tree of addresses, with scheme and host of `target` and its path in front."""
    if isinstance(api, dict):
        return {name: _moved(part, target) for name, part in api.items()}
    known = urlsplit(api)
    if known.scheme in ("ws", "wss"):
        # ccxt tells spot from futures by the address of a socket, so the name of its host stays, as part of the path.
        scheme = "wss" if target.scheme == "https" else "ws"
        return urlunsplit((scheme, target.netloc, f"{target.path.rstrip('/')}/{known.hostname}{known.path}", "", ""))
    return urlunsplit((target.scheme, target.netloc, target.path.rstrip("/") + known.path, "", ""))
