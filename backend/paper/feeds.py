"""Where a session's data comes from: recorded bars, or an exchange; what is known before its first bar, and the bars
that are made of the events of a feed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from backend.builders.market import Account, account_of, load_market
from backend.config.schema import RECORDED_FEED, Config
from backend.paper.journal import Journal
from backend.paper.thinking import in_background
from backend.runs.requests import WindowRequest
from backend.runs.window import requested_window
from backend.training.curriculum.queries import WARM_UP_BARS
from simulator.backtest.run import Window
from simulator.errors import DataError, UserError
from simulator.exchange.rules import SymbolRules
from simulator.live.bar_assembly import BarAssembler, LiveBar
from simulator.live.events import Candle, FeedEvent, FeedHeartbeat, Funding, Notice
from simulator.live.exchange_feed import ExchangeFeed
from simulator.live.feed import Feed, RecordedFeed
from simulator.live.listener import FeedSettings
from simulator.market.events import FundingEvent
from simulator.market.growing import part_of
from simulator.market.market import Market
from simulator.market.timeframes import BAR_COLUMNS, DAY_MS, bar_start, format_time, interval_of, parse_time

MakeFeed = Callable[[FeedSettings], ExchangeFeed]
GRACE_SECONDS = 5.0  # how long after its close a bar waits for symbols that have not come
WAIT_SECONDS = 0.1  # of real time at a time, for the next event
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
    if config.paper.feed == RECORDED_FEED:
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
    """That of a session that continues: `start` is the first entry of its journal, with its `history`.

    Raises as `new_start` does, and `DataError` for recorded data that is not what the session was begun with.
    """
    if config.paper.feed == RECORDED_FEED:
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
    if config.paper.feed == RECORDED_FEED:
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


class FeedBars:
    """Bars of the events of a feed. `grace` (ms) is how long a bar waits for what is missing; `last` is the open time
    of the last bar, None: there is no last one. What is not used is noted in the journal."""

    def __init__(self, feed: Feed, assembler: BarAssembler, journal: Journal, grace: int, last: int | None) -> None:
        self._feed, self._assembler, self._journal = feed, assembler, journal
        self._grace, self._last = grace, last
        self._held: FeedEvent | None = None
        self._refused = Counter[str]()
        self._opened_at = feed.clock.now()  # bars that closed earlier have the same grace from here on
        self.ended = False  # whether there is no further bar

    def now(self) -> int:
        """The time by the feed's clock, ms."""
        return self._feed.clock.now()

    def skip(self) -> None:
        """The next bar is known from the journal."""
        self._assembler.skip()

    def counters(self) -> Mapping[str, int | float]:
        """What went wrong with the data since the feed was opened, by name."""
        met = Counter({name: round(count) for name, count in self._feed.counters().items()})
        return met + self._refused

    def next_bar(self, asked: Callable[[], bool]) -> LiveBar | None:
        """The next bar once it is over; None where there is none, or `asked` reports that something is asked of the
        session."""
        while True:
            if self._last is not None and self._assembler.open_time > self._last:
                self.ended = True
            if self.ended or asked():
                return None
            event, self._held = self._held or self._feed.next(WAIT_SECONDS), None
            moment = self._feed.clock.now() if event is None else event.known_at
            deadline = max(self._assembler.close, self._opened_at) + self._grace
            if moment > deadline:
                self._held = event
                # A clock that jumps from event to event would have stood at the deadline, too.
                known_at = deadline if self._feed.clock.jumps else moment
                if self._assembler.missing():
                    if not self._ask_again(known_at - self._grace, asked):
                        continue
                    if not self._feed.clock.jumps:  # the answer may have taken minutes
                        known_at = max(known_at, self._feed.clock.now())
                return self._assembler.finish(known_at)
            if isinstance(event, Notice):
                self._journal.write("notice", moment, {"kind": event.kind, "detail": event.detail})
                if event.kind == "end":
                    self.ended = True
                    return None
            elif event is not None and not isinstance(event, FeedHeartbeat):
                self._take(event, moment)
            if self._assembler.is_whole(moment):
                return self._assembler.finish(moment)

    def _take(self, event: FeedEvent, moment: int, asked: bool = False) -> None:
        """Use an event, or note why not; of one that was `asked` for again that it is there already is not news."""
        refused = self._assembler.take(event)
        if refused is not None and (not asked or refused.reason == "implausible"):
            what = f"{refused.what} of {refused.symbol} at {format_time(refused.at)}"
            self._journal.write("notice", moment, {"kind": refused.reason, "detail": what})
            self._refused[refused.reason] += 1

    def _ask_again(self, until: int, asked: Callable[[], bool]) -> bool:
        """Ask the feed once more for the bars up to `until` (ms); False where something was asked meanwhile."""
        since, until = self._assembler.open_time, max(until, self._assembler.close)
        if self._feed.clock.jumps:
            events = self._feed.backfill(since, until)
        else:
            answer = in_background(partial(self._feed.backfill, since, until), "backfill")
            while not wait([answer], WAIT_SECONDS).done:
                if asked():
                    return False
            events = answer.result()
        for event in events:
            self._take(event, self._feed.clock.now(), asked=True)
        return True
