"""Download of history through ccxt into a folder that `simulator.data.catalog` reads.

Bars, the funding rates of perpetuals and the venue's rules (`rules.json`). A page is stored once it is known to be
sound; a second run goes on after the last stored row. Only bars are stored that had closed when the run began, by the
exchange's clock, so a bar never changes after it was stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simulator.data.archive import SYMBOL
from simulator.data.download_client import Client, MarketType, NotPublic, connect
from simulator.data.download_files import Manifest, SeriesFile
from simulator.data.download_pages import DownloadProgress, Pages
from simulator.data.formats import BAR_VALUES
from simulator.data.venue import RULES_FILE, read_rules, rules_from_ccxt, write_rules
from simulator.errors import DataError, Interrupted, RunFailed, UserError
from simulator.exchange.rules import SymbolRules
from simulator.market.timeframes import TIMEFRAMES, format_time, interval_of
from simulator.tables import EARLIEST, LATEST


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

    `absent` counts the bars missing between the first and the last, which the exchange did not give when asked twice.
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


def _silent(what: str, done: int, total: int) -> None:
    """Reports nothing."""


def download_history(
    request: DownloadRequest, root: str | Path, *, report: DownloadProgress = _silent, client: Client | None = None
) -> DownloadReport:
    """Bring the folder `root` up to what is asked for; what it has already is not asked for again.

    Args:
        report: called with the name of a series, the bars or hours done, and their total.
        client: asks instead of one made for the request.

    Raises:
        UserError, DataError: something asked for does not exist, or the exchange's data is unsound or contradictory.
        RunFailed: the exchange did not answer. Interrupted: Ctrl-C. All leave whole files that a next run goes on from.
    """
    folder = Path(root)
    asked = client or Client(connect(request.exchange, request.market, request.url))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: cannot be written: {error.strerror or error}") from error
    manifest = Manifest.open(folder, request.exchange, request.market)
    stored: list[SeriesReport] = []
    try:
        asked.ask("load_markets")
        markets = {_name(market): market for market in (_market(asked, request, s) for s in request.symbols)}
        if len(markets) < len(request.symbols):
            raise UserError(f"two of the symbols {', '.join(request.symbols)} would be stored in the same file")
        _check_offers(asked.exchange, request)
        without = _store_rules(asked, markets, folder)
        now = asked.now()
        for name, market in markets.items():
            for timeframe in request.timeframes:
                with _series(manifest, f"{name}-{timeframe}.parquet", BAR_VALUES, market, request, stored) as series:
                    Pages(asked, market, timeframe).fetch(series, request.start, request.end, now, report)
            if request.market == "swap":
                with _series(manifest, f"{name}-funding.parquet", ("funding_rate",), market, request, stored) as series:
                    Pages(asked, market).fetch(series, request.start, request.end, now, report)
    except KeyboardInterrupt:
        raise Interrupted(f"the download was interrupted; {_kept(stored, folder)}") from None
    except (DataError, RunFailed) as error:
        raise type(error)(f"{error}; {_kept(stored, folder)}") from error
    return DownloadReport(tuple(stored), without)


@contextmanager
def _series(
    manifest: Manifest,
    name: str,
    columns: tuple[str, ...],
    market: dict[str, Any],
    request: DownloadRequest,
    stored: list[SeriesReport],
) -> Iterator[SeriesFile]:
    """The series in the file `name` for the time of a block, whose end, however it ends, leaves it whole."""
    manifest.enter(name, market["symbol"], request.start)
    series = SeriesFile(manifest.root / name, columns)
    before = len(series.time)
    try:
        yield series
    finally:
        series.close()
        time = series.time
        absent = 0
        if columns == BAR_VALUES and len(time):
            interval = interval_of(name.removesuffix(".parquet").rpartition("-")[2])
            absent = (int(time[-1]) - int(time[0])) // interval + 1 - len(time)
        first, last = (int(time[0]), int(time[-1])) if len(time) else (None, None)
        stored.append(SeriesReport(name, len(time), len(time) - before, absent, first, last))


def _market(client: Client, request: DownloadRequest, symbol: str) -> dict[str, Any]:
    """ccxt's structure of the market that `symbol` means."""
    unified = symbol
    if request.market == "swap" and ":" not in symbol:
        unified = f"{symbol}:{symbol.partition('/')[2]}"
    market: dict[str, Any] | None = client.exchange.markets.get(unified)
    if market is None or market["type"] != request.market:
        there = sorted(name for name, one in client.exchange.markets.items() if one["type"] == request.market)
        near = [name for name in there if name.startswith(symbol.partition("/")[0] + "/")] or there
        raise UserError(
            f"{client.exchange.id} has no {request.market} market {unified}; write it like BTC/USDT; it has"
            f" {', '.join(near[:5]) or 'none of that kind'}"
        )
    return market


def _name(market: dict[str, Any]) -> str:
    """The symbol that names the files: BTCUSDT of BTC/USDT."""
    name = f"{market['base']}{market['quote']}"
    if not SYMBOL.fullmatch(name):
        raise UserError(f"{market['symbol']}: {name!r} cannot name a file; it needs letters, digits, '_' and '-'")
    return name


def _check_offers(exchange: Any, request: DownloadRequest) -> None:
    if exchange.has.get("fetchOHLCV") is not True:
        raise UserError(f"{exchange.id} offers no bars through ccxt; choose another exchange")
    offered = [name for name in TIMEFRAMES if name in (exchange.timeframes or {})]
    for timeframe in request.timeframes:
        if timeframe not in offered:
            raise UserError(f"{exchange.id} offers no bars of {timeframe}; it has {', '.join(offered)}")
    # A perpetual without its funding would look cheaper to hold than it was.
    if request.market == "swap" and exchange.has.get("fetchFundingRateHistory") is not True:
        raise UserError(f"{exchange.id} offers no funding rates through ccxt; choose another exchange or --market spot")


def _store_rules(client: Client, markets: dict[str, dict[str, Any]], folder: Path) -> tuple[str, ...]:
    """Bring `rules.json` up to date; the perpetuals whose margin tiers are not known."""
    path = folder / RULES_FILE
    rules: dict[str, SymbolRules] = read_rules(path) if path.exists() else {}
    without = []
    for name, market in markets.items():
        tiers = _tiers(client, market["symbol"]) if market["type"] == "swap" else None
        found = rules_from_ccxt(market, tiers, client.exchange.precisionMode)
        if not found.tiers and name in rules:
            found = replace(found, tiers=rules[name].tiers)  # put there by hand, or when the exchange showed them
        if found.kind == "perpetual" and not found.tiers:
            without.append(name)
        rules[name] = found
    write_rules(path, rules)
    return tuple(without)


def _tiers(client: Client, symbol: str) -> list[dict[str, Any]] | None:
    """The margin tiers of a perpetual, None where the exchange does not show them to everyone."""
    try:
        if client.exchange.has.get("fetchMarketLeverageTiers") is True:
            return list(client.ask("fetch_market_leverage_tiers", symbol))
        if client.exchange.has.get("fetchLeverageTiers") is True:
            return list(client.ask("fetch_leverage_tiers", [symbol]).get(symbol, ()))
    except NotPublic:
        pass
    return None


def _kept(stored: Sequence[SeriesReport], folder: Path) -> str:
    rows = sum(one.rows for one in stored)
    if not rows:
        return f"nothing is stored in {folder} yet; the same command begins again"
    named = ", ".join(f"{one.file} with {one.rows} rows" for one in stored if one.rows)
    return f"{folder} holds {named}; the same command goes on from there"
