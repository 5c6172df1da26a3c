"""The market that a configuration names, the venue and the account it is traded with, and how its history is divided.

This is the one place where settings become a `Market`, `Costs` and a `Venue`: whatever trades takes them from here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from backend.config.market import NONE, CostsConfig, MarketConfig
from backend.config.schema import Config, GuardConfig
from cryptosentinel.episode import ThinkingTime
from cryptosentinel.guard.limits import GuardLimits
from cryptosentinel.tools.market import FUNDING_MAX_AGE, NEWS_MAX_AGE
from simulator.arrays import IntArray
from simulator.backtest.run import Window
from simulator.data.archive import MARKET_MANIFEST
from simulator.data.catalog import Catalog
from simulator.data.venue import RULES_FILE, read_rules
from simulator.errors import DataError
from simulator.exchange.costs import Costs
from simulator.exchange.rules import SymbolRules
from simulator.exchange.venue import Venue, carry_of
from simulator.folders import named_data
from simulator.market.market import Market
from simulator.market.timeframes import bar_start, format_time, interval_of, parse_time
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.defaults import DAILY_VOLATILITY, PRIVATE_VOLATILITY
from simulator.synthetic.generator import generate

_MARK_FOLDER = "mark"


@dataclass(frozen=True)
class Split:
    """Bars of the three parts of a history, each [start, stop), one after the other: the past never learns from the
    future."""

    train: tuple[int, int]
    validation: tuple[int, int]
    held_out: tuple[int, int]


@dataclass(frozen=True)
class Account:
    """Start capital and rules of every account in a comparison; `terms` are the arguments of a `BacktestRun`."""

    cash: float
    costs: Costs
    max_leverage: float
    venue: Venue

    @property
    def terms(self) -> dict[str, Any]:
        return {"cash": self.cash, "costs": self.costs, "max_leverage": self.max_leverage, "venue": self.venue}


def load_market(config: MarketConfig, costs: CostsConfig) -> Market:
    """Recorded bars from `config.data`, or a synthetic market where it is empty. Raises `DataError`."""
    if config.source and not config.data:  # what takes the user's settings has asked it, where it can
        raise DataError(
            f"market.source = {config.source} is not asked here: keep its bars with a backtest (-s market.source=...), "
            "which names their folder, and give that folder as market.data"
        )
    if config.data:
        return Catalog(config.data).load(
            config.symbols or None,
            config.timeframe,
            start=parse_time(config.start) if config.start else None,
            end=parse_time(config.end) if config.end else None,
            resample=config.resample or None,
            half_spread_bps=costs.half_spread_bps,
            funding_dir=Path(config.funding_dir) if config.funding_dir else None,
            news_path=Path(config.news) if config.news else None,
        )
    symbols = config.symbols or tuple(f"{letter * 3}USDT" for letter in "ABCDEFGHIJKLMNOPQRST"[: config.coins])
    return generate(
        SyntheticConfig(
            bars=config.bars,
            seed=config.seed,
            symbols=symbols,
            timeframe=config.timeframe,
            start=bar_start(SyntheticConfig.start, interval_of(config.timeframe)),
            kind=config.kind,
            daily_volatility=PRIVATE_VOLATILITY if config.kind == "private" else DAILY_VOLATILITY,
            edge=config.edge,
            drift_ratio=config.drift_ratio,
            news_accuracy=config.news_accuracy,
        )
    )


@lru_cache(maxsize=2)
def remembered_market(config: MarketConfig, costs: CostsConfig) -> Market:
    """`load_market`, and the same market again where it is asked for again: for a process that works for one run, whose
    market does not change."""
    return load_market(config, costs)


def is_historical(data: str | Path) -> bool:
    """Whether `data` is a folder of historical bars, and not a written synthetic market."""
    folder = named_data(data)
    return folder.is_dir() and not (folder / MARKET_MANIFEST).exists()


def split(market: Market, config: MarketConfig, horizon: int) -> Split:
    """Divide the bars by the configured shares, with a horizon's distance between the parts."""
    first, second = int(len(market) * config.shares[0]), int(len(market) * sum(config.shares))
    parts = Split((0, first - horizon), (first, second - horizon), (second, len(market)))
    if min(stop - start for start, stop in (parts.train, parts.validation, parts.held_out)) < 1:
        raise DataError(
            f"{market.source}: {len(market)} bars are too few to divide into training, validation and held-out parts "
            f"with a horizon of {horizon} bars: use more bars or a shorter horizon"
        )
    return parts


def thinking_time_of(config: Config) -> ThinkingTime:
    """Which time the decisions of a team take: "auto" is "measured" on recorded bars and none on generated ones."""
    stated = config.costs.thinking_time
    if stated == "auto":
        return "measured" if config.market.data and is_historical(config.market.data) else 0.0
    return 0.0 if stated == "none" else stated


def limits_of(config: GuardConfig) -> GuardLimits:
    """The guard's limits as the configuration has them, where 0 is not a limit."""
    limits: dict[str, Any] = {name: value or math.inf for name, value in config.model_dump().items()}
    return GuardLimits(**limits)


def account_leverage(guard: GuardConfig) -> float:
    """What the exchange lends: gross notional / equity as far as the guard's limit, and never less than one's own."""
    return max(1.0, guard.max_gross_exposure)


def account_of(config: Config, market: Market) -> Account:
    """The account that `market` is traded with. Raises `DataError` as `venue_of` does."""
    return Account(config.costs.cash, config.costs.costs(), account_leverage(config.guard), venue_of(config, market))


def venue_of(config: Config, market: Market) -> Venue:
    """The venue of `market`, which the configuration describes.

    Raises `DataError` for files that are missing or unusable, rules that lack a symbol where a file of rules is named,
    and finer bars that are not finer or not there.
    """
    settings, root = config.venue, Path(config.market.data) if config.market.data else None
    finer = None
    if settings.finer:
        if root is None:
            raise DataError(f"venue.finer = '{settings.finer}' needs recorded bars: a generated market has none finer")
        if interval_of(settings.finer) >= market.interval:
            raise DataError(
                f"venue.finer = '{settings.finer}' is not finer than the {market.timeframe} bars that are traded"
            )
        finer = Catalog(root).beside(market, settings.finer, config.costs.half_spread_bps)
    rules = _rules(settings.rules, root, market)
    return Venue(rules=rules, finer=finer, mark=_mark(root, market, finer))


def describe_costs(costs: Costs, market: Market) -> str:
    """What trading costs, in words."""
    fees = f"taker fee {100 * costs.taker_fee:g} %, maker fee {100 * costs.maker_fee:g} %"
    spread = 1e4 * costs.spread_multiplier * float(np.nanmean(market.half_spread))
    parts = [
        f"{fees}{' in coins bought' if costs.fee_currency == 'base' else ''}",
        f"half spread {spread:.3g} bps on average",
    ]
    if costs.impact:
        parts.append(f"square-root impact x {costs.impact:g}")
    if costs.participation is not None:
        parts.append(f"at most {100 * costs.participation:g} % of a bar's volume")
    return "; ".join(parts)


def describe_carry(account: Account, market: Market, window: Window | None = None) -> str:
    """What holding the symbols costs in the window, or in the whole history: funding, interest, and where the data
    lacks what it should say."""
    first, stop = (1, len(market)) if window is None else (window.start + 1, window.stop + 1)
    costs, parts = account.costs, []
    carried = carry_of(market, account.venue, first, stop)
    perpetual = [one.symbol for one in carried if one.kind == "perpetual"]
    if perpetual:
        parts.append(f"{', '.join(perpetual)} as perpetuals: funding")
    for kind in ("spot", None):
        named = [one.symbol for one in carried if one.kind == kind]
        if named:
            what = "as spot" if kind else "as spot, since nothing states what they are (instruments.json does)"
            parts.append(f"{', '.join(named)} {what}: {100 * costs.borrow_rate:g} % a year on what is borrowed")
    for one in carried:
        if one.unfunded_bars:
            parts.append(
                f"{one.symbol} lacks funding for {one.unfunded_bars:,} of {stop - first:,} bars: both sides pay "
                f"{100 * costs.missing_funding_rate:g} % every eight hours there"
            )
        if one.delisted is not None:
            ended = format_time(int(market.open_time[one.delisted]))
            parts.append(f"{one.symbol} is delisted: closed at {ended}, {100 * costs.delisting_haircut:g} % worse")
    return "; ".join(parts)


def describe_venue(venue: Venue, market: Market, window: Window | None = None) -> str:
    """What the venue adds to the bars of the window, or of the whole history, and to the account's costs, in words."""
    parts = []
    if venue.rules:
        without = [symbol for symbol in market.symbols if symbol not in venue.rules]
        # These fees replace those of the account, so they are named.
        fees = sorted({100 * rule.taker_fee for rule in venue.rules.values() if rule.taker_fee is not None})
        own_fees = (
            f" with taker fees of {' to '.join(f'{fee:g}' for fee in dict.fromkeys((fees[0], fees[-1])))} %"
            if fees
            else ""
        )
        lacking = f" (none of {', '.join(without)})" if without else ""
        parts.append(f"rules of {', '.join(venue.rules)}{own_fees}{lacking}")
    if venue.finer is not None:
        parts.append(_describe_finer(venue.finer, market, window))
    if venue.mark is not None:
        parts.append("mark prices")
    return "; ".join(parts) or "no rules, finer bars or mark prices"


def _describe_finer(finer: Market, market: Market, window: Window | None) -> str:
    """Whose bars have finer ones inside, and how many where not all have."""
    first, stop = (0, len(market)) if window is None else (window.start + 1, window.stop + 1)
    inside = finer.present.reshape(len(market), -1, len(market.symbols)).any(axis=1)
    bars = market.present[first:stop].sum(axis=0)
    counts = (inside & market.present)[first:stop].sum(axis=0)
    named = [
        symbol if count == bars[column] else f"{symbol} ({count:,} of {bars[column]:,} bars)"
        for column, (symbol, count) in enumerate(zip(market.symbols, counts, strict=True))
        if count
    ]
    return f"{finer.timeframe} bars inside those of {', '.join(named) or 'none, as there are none for this time'}"


def venue_record(account: Account, market: Market, window: Window | None = None) -> dict[str, Any]:
    """The venue in the record of a run: in words, what holding costs there, and a hash of each of its parts."""
    venue = account.venue
    rules = hashlib.sha256(repr(sorted(venue.rules.items())).encode()).hexdigest() if venue.rules else None
    return {
        "told": describe_venue(venue, market, window),
        "carry": describe_carry(account, market, window),
        "rules": rules,
        "finer": None if venue.finer is None else venue.finer.content_hash,
        "mark": None if venue.mark is None else venue.mark.content_hash,
    }


def unknown_to_training(account: Account, thinking: bool = False) -> list[str]:
    """Parts of the account that the scenarios of training do not model, in words; `thinking`: orders wait for it."""
    venue, parts = account.venue, []
    if account.costs.impact:
        parts.append("price impact")
    if account.costs.participation is not None:
        parts.append("the limit to a share of the volume")
    if thinking:
        parts.append("the time that decisions take")
    if venue.rules:
        parts.append("the venue's rules with their fees")
    if venue.finer is not None:
        parts.append("finer bars")
    if venue.mark is not None:
        parts.append("mark prices")
    return parts


def other_costs(trained: CostsConfig, measured: CostsConfig) -> list[str]:
    """The differences between the costs of a measurement and those of the training, in words."""
    before, now = trained.model_dump(), measured.model_dump()
    return [f"{key} {now[key]} instead of {before[key]}" for key in now if now[key] != before[key]]


def _rules(named: str, root: Path | None, market: Market) -> dict[str, SymbolRules]:
    """The rules of the market's symbols; all of them must be in a file that is named."""
    if named == NONE:
        return {}
    path = Path(named) if named else None if root is None else root / RULES_FILE
    if path is None or not (named or path.exists()):
        return {}
    known = read_rules(path)
    missing = [symbol for symbol in market.symbols if symbol not in known]
    if named and missing:
        raise DataError(f"{path}: no rules of {', '.join(missing)}; it has {', '.join(known) or 'none'}")
    return {symbol: known[symbol] for symbol in market.symbols if symbol in known}


def _mark(root: Path | None, market: Market, finer: Market | None) -> Market | None:
    """Mark-price bars beside the bars, on the grid that fills are decided on. Where there are none, the trade price
    stands in."""
    if root is None or not (folder := root / _MARK_FOLDER).is_dir():
        return None
    traded = market if finer is None else _inside(market, finer)
    try:
        mark = Catalog(folder).beside(market, traded.timeframe)
    except DataError as error:
        raise DataError(
            f"{error}. Mark prices must be as fine as the bars that fills are decided on: move {folder} away to leave "
            "them out"
        ) from None
    absent = np.isnan(mark.close)
    filled = {name: np.where(absent, getattr(traded, name), getattr(mark, name)) for name in _PRICES}
    return replace(mark, **filled)


_PRICES = ("open", "high", "low", "close")


def _inside(market: Market, finer: Market) -> Market:
    """`finer`, with a bar of `market` in the place of its first finer bar where that has no finer bar at all."""
    per_bar, columns = market.interval // finer.interval, len(market.symbols)
    arrays: dict[str, Any] = {}
    alone = np.isnan(finer.close).reshape(len(market), per_bar, columns).all(axis=1)
    for name in _PRICES:
        blocks = getattr(finer, name).copy().reshape(len(market), per_bar, columns)
        blocks[:, 0][alone] = getattr(market, name)[alone]
        arrays[name] = blocks.reshape(-1, columns)
    return replace(finer, **arrays)


def part_notes(market: Market, parts: Split) -> list[str]:
    """A sentence for each part: its days, and on which share of its bars, over all coins, there is a price, and a
    headline or a funding rate that is new enough for the team's tools. And one of what the training part has none of:
    who then decides without it, and that it is paid as ever."""
    close = market.open_time + market.interval
    known = {
        "bars": market.present,
        "headlines": _columns(
            market,
            close,
            NEWS_MAX_AGE,
            ((one.known_at for one in market.news if one.symbol in (None, name)) for name in market.symbols),
        ),
        "funding": _columns(
            market,
            close,
            FUNDING_MAX_AGE,
            ((one.time for one in market.funding.get(name, ())) for name in market.symbols),
        ),
    }
    notes = []
    for title, (start, stop) in (
        ("training", parts.train),
        ("validation", parts.validation),
        ("held-out", parts.held_out),
    ):
        shares = ", ".join(f"{name} on {np.mean(there[start:stop]):.0%}" for name, there in known.items())
        days = f"{format_time(int(market.open_time[start]))[:10]} to {format_time(int(close[stop - 1]))[:10]}"
        notes.append(f"The {title} part, {days}, has {shares} of its {stop - start} bars, over all coins.")
    begin, end = parts.train
    absent = [name for name in ("headlines", "funding") if not known[name][begin:end].any()]
    if absent:
        rest = ", ".join(name for name in ("prices", "headlines", "funding") if name not in absent)
        notes.append(
            f"The training part has no {' and no '.join(absent)}: MarketAnalyst learns from {rest} alone there. What "
            "it is paid stays as it is: its forecast's score and its share of the outcome."
        )
    return notes


def _columns(market: Market, close: IntArray, age: int, times: Iterable[Iterable[int]]) -> np.ndarray:
    """(T, S): whether an event of at most `age` milliseconds is known at each close, by coin."""
    columns = []
    for one in times:
        sorted_times = np.asarray([-(2**62), *one], dtype=np.int64)
        newest = sorted_times[np.searchsorted(sorted_times, close, side="right") - 1]
        columns.append(close - newest <= age)
    return np.stack(columns, axis=1)
