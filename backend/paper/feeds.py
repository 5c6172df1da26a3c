"""Where a session's data comes from: recorded bars, or an exchange; and what is known before its first bar."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from backend.builders.market import Account, account_of, load_market
from backend.config.schema import RECORDED, Config
from backend.runs.requests import WindowRequest
from backend.runs.window import requested_window
from backend.training.curriculum.queries import WARM_UP_BARS
from simulator.backtest.run import Window
from simulator.errors import DataError, UserError
from simulator.exchange.rules import SymbolRules
from simulator.live.events import Candle, Funding
from simulator.live.exchange_feed import ExchangeFeed
from simulator.live.feed import Feed
from simulator.live.listener import FeedSettings
from simulator.live.recorded_feed import RecordedFeed
from simulator.market.events import FundingEvent
from simulator.market.growing import part_of
from simulator.market.market import Market
from simulator.market.timeframes import BAR_COLUMNS, DAY_MS, bar_start, interval_of, parse_time

MakeFeed = Callable[[FeedSettings], ExchangeFeed]
_LATEST = 3  # bars: an exchange may list the newest one of a symbol a moment later


@dataclass(frozen=True)
class FeedStart:
    """A feed that was checked and not opened yet, and what a session begins with.

    Attributes:
        history: the bars known before the first one of the feed.
        source: its bars as a market: all that are recorded, or the history of an exchange.
        window: of `source`, from the end of the history on.
        last: open time (ms) of the last bar, None: the session has no end.
        live: the symbols' rules as the exchange tells them; None for recorded data.
    """

    feed: Feed
    history: Market
    account: Account
    source: Market
    window: Window
    last: int | None
    live: Mapping[str, SymbolRules] | None = None


def new_start(config: Config, request: WindowRequest, make_feed: MakeFeed) -> FeedStart:
    """The beginning of a new session.

    Raises:
        UserError, DataError: data that is not there, or a request that does not fit it. RunFailed: the exchange cannot
        be reached.
    """
    if config.paper.feed == RECORDED:
        market = load_market(config.market, config.costs)
        window = requested_window(market, request)
        return _recorded(config, market, account_of(config, market), window)
    if request.data or request.start:
        raise UserError(
            "--data and --start are of recorded data: a session on an exchange begins now, with the exchange's data; "
            "leave them out, or leave --exchange out"
        )
    if request.decide_every < 0:
        raise UserError(f"decide_every is {request.decide_every}: give a number of bars, or 0 for once a day")
    feed = make_feed(feed_settings(config))
    feed.connect()
    try:
        history = history_of(feed, config.paper.history_bars, config.costs.half_spread_bps / 1e4)
        last = None
        if request.end:
            last = bar_start(parse_time(request.end), history.interval) - history.interval
            if last <= int(history.open_time[-1]):
                raise UserError(f"--end {request.end} is over: give a time that is to come, UTC, or leave it out")
        rules = feed.rules()
        every = request.decide_every or max(1, DAY_MS // history.interval)
        window = Window(len(history) - 1, len(history), every)
        return FeedStart(feed, history, live_account(config, history, rules), history, window, last, rules)
    except BaseException:
        feed.close()
        raise


def start_again(config: Config, history: Market, start: Mapping[str, Any], make_feed: MakeFeed) -> FeedStart:
    """That of a session that goes on: `start` is the first entry of its journal, with its `history`.

    Raises as `new_start` does, and `DataError` for recorded data that is not what the session was begun with.
    """
    if config.paper.feed == RECORDED:
        market = load_market(config.market, config.costs)
        return _recorded(config, market, account_of(config, market), _window(market, history, start))
    feed = make_feed(feed_settings(config))
    feed.connect()
    window = Window(len(history) - 1, len(history), int(start["decide_every"]))
    last = start.get("last")
    return FeedStart(
        feed, history, account_again(config, history, start), history, window, None if last is None else int(last)
    )


def account_again(config: Config, history: Market, start: Mapping[str, Any]) -> Account:
    """The account of a stored session."""
    if config.paper.feed == RECORDED:
        return account_of(config, load_market(config.market, config.costs))
    return live_account(config, history, rules_from_json(start["rules"]))


def feed_settings(config: Config) -> FeedSettings:
    """What to listen to. Raises `UserError` for a setting that is missing or that
    does not fit."""
    market = config.market
    if not market.symbols:
        raise UserError("name what to trade with --symbols, as ccxt writes it: BTC/USDT, or BTC/USDT:USDT (perpetual)")
    if market.resample:
        raise UserError(f"market.resample = '{market.resample}' is of recorded data: set --timeframe to it instead")
    return FeedSettings(config.paper.feed, market.symbols, market.timeframe, config.paper.url)


def live_account(config: Config, history: Market, rules: Mapping[str, SymbolRules]) -> Account:
    """The account as configured, with the exchange's rules unless others are named."""
    account = account_of(config, history)
    if config.venue.rules:
        return account
    return replace(account, venue=replace(account.venue, rules=dict(rules)))


def history_of(feed: ExchangeFeed, bars: int, half_spread: float) -> Market:
    """The last `bars` bars of a connected feed, up to the newest that has closed. `half_spread` is a fraction.

    Raises `UserError` where the exchange has too few for the team's tools, `RunFailed` where it does not answer.
    """
    interval, symbols = interval_of(feed.timeframe), feed.symbols
    end = bar_start(min(feed.clock.now(), feed.exchange_now()), interval)
    events = feed.past(end - bars * interval, end)
    first = end - bars * interval
    columns: dict[str, Any] = {name: np.full((bars, len(symbols)), np.nan) for name in BAR_COLUMNS}
    funding: dict[str, list[FundingEvent]] = {}
    for event in events:
        if isinstance(event, Candle):
            row, column = (event.open_time - first) // interval, symbols.index(event.symbol)
            values = (event.open, event.high, event.low, event.close, event.volume, half_spread)
            for name, value in zip(BAR_COLUMNS, values, strict=True):
                columns[name][row, column] = value
        elif isinstance(event, Funding):
            funding.setdefault(event.symbol, []).append(FundingEvent(event.at, event.rate))
    present = ~np.isnan(columns["close"])
    for column, symbol in enumerate(symbols):
        if int(present[:, column].sum()) < WARM_UP_BARS:
            raise UserError(
                f"{feed.name} has {int(present[:, column].sum())} candles of {symbol} in the last {bars} times "
                f"{feed.timeframe}, and the team looks back over {WARM_UP_BARS}: choose a symbol that has been traded "
                "for longer, a shorter timeframe, or another exchange"
            )
    rows = np.flatnonzero(present.any(axis=1))
    whole = [row for row in np.flatnonzero(present.all(axis=1)) if row >= bars - _LATEST]
    begin, stop = int(rows[0]), int(whole[-1] if whole else rows[-1]) + 1
    stretch = slice(begin, stop)
    opens = first + interval * np.arange(begin, stop, dtype=np.int64)
    known = int(opens[-1]) + interval
    return Market(
        symbols, feed.timeframe, opens, **{name: values[stretch] for name, values in columns.items()},
        funding={symbol: tuple(one for one in events if opens[0] < one.time <= known)
                 for symbol, events in funding.items()},
        kinds=dict(feed.kinds), source=f"{feed.name}, {feed.timeframe}",
    )  # fmt: skip


def rules_to_json(rules: Mapping[str, SymbolRules]) -> dict[str, Any]:
    """Rules for the journal; infinity is None."""
    return {
        symbol: {name: None if value == math.inf else value for name, value in asdict(one).items() if name != "tiers"}
        for symbol, one in rules.items()
    }


def rules_from_json(data: Mapping[str, Any]) -> dict[str, SymbolRules]:
    """The rules again. Raises `DataError` for damaged ones."""
    try:
        return {
            symbol: SymbolRules(**{**one, "max_quantity": one["max_quantity"] or math.inf})
            for symbol, one in data.items()
        }
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise DataError(f"the session's rules are damaged: {error!r}; restore a backup of the store.") from error


def _recorded(config: Config, market: Market, account: Account, window: Window) -> FeedStart:
    """The recorded bars of `market` from the close of the window's first bar to its last one."""
    first = max(0, window.start + 1 - config.paper.history_bars)
    begin = int(market.open_time[window.start]) + market.interval
    recorded = part_of(market, first, window.stop + 1, market.kinds)
    feed = RecordedFeed(recorded, account.venue, begin, config.paper.speed or math.inf)
    history = part_of(market, first, window.start + 1, feed.kinds)
    return FeedStart(feed, history, account, market, window, int(market.open_time[window.stop]))


def _window(market: Market, history: Market, start: Mapping[str, Any]) -> Window:
    """Where the session's history ends in `market`, and where the session ends. Raises `DataError` for other bars."""
    opens = [int(history.open_time[-1]), int(start["last"])]
    first, last = ((time - int(market.open_time[0])) // market.interval for time in opens)
    if not 0 <= first < last < len(market) or int(market.open_time[first]) != opens[0]:
        raise DataError(f"{market.source}: these are not the bars of the session; give the data that it was begun with")
    return Window(int(first), int(last), int(start["decide_every"]))
