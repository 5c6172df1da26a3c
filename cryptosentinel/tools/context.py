"""The input of a tool: the point-in-time view, the account, and the question that was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cryptosentinel.conversation.masking import Mask
from simulator.arrays import FloatArray
from simulator.exchange.exchange_records import AccountView
from simulator.market.market import MarketView
from simulator.market.timeframes import DAY_MS, HOUR_MS

_VOLATILITY_BARS = 60
MISSING = "not available"


@dataclass(frozen=True)
class ToolContext:
    """The state of one decision.

    `symbol`, `side` and `exposure` are the question of a sub-agent's call; the manager's own context names its first
    symbol. `limits` are the guard's, by name. The team states
    exposures as fractions of `share` of the equity: a coin that has a quarter of the account to itself is fully
    invested at 1. With `portfolio` the decision is on all coins at once, and `share` is 1. `question_price_bps` and
    `pooled_trend` are those of `TeamSettings`.
    """

    view: MarketView
    account: AccountView
    mask: Mask
    symbols: tuple[str, ...]
    horizon_bars: int
    share: float
    symbol: str
    side: str = "flat"
    exposure: float = 0.0
    limits: Mapping[str, float] = field(default_factory=dict)
    portfolio: bool = False
    question_price_bps: float = 0.0
    pooled_trend: bool = False

    def held(self, symbol: str) -> float:
        """Signed exposure of `symbol` now, as the team states it."""
        return self.account.exposure.get(symbol, 0.0) / self.share

    def shown(self, exposure: float) -> str:
        """An exposure as a brief shows it. A portfolio's are smaller, so they have a digit more."""
        return f"{exposure:.2f}" if self.portfolio else f"{exposure:.1f}"


def bar_volatility(view: MarketView, symbol: str, bars: int = _VOLATILITY_BARS) -> float | None:
    """Standard deviation of the log returns of the last `bars` bars, per bar; None with fewer than 10 returns."""
    returns = log_returns(view, symbol, bars)
    return float(np.std(returns)) if len(returns) >= 10 else None


def horizon_volatility(view: MarketView, symbol: str, bars: int) -> float | None:
    """Volatility over `bars` bars by the square root of time; None where it is not known yet."""
    per_bar = bar_volatility(view, symbol)
    return None if per_bar is None else per_bar * float(np.sqrt(bars))


def book_volatility(view: MarketView, symbols: Sequence[str], bars: int) -> float | None:
    """Volatility over `bars` bars of a book that holds equal parts of `symbols` (log returns, their mean of those that
    have a bar); of one symbol it is `horizon_volatility`. None where it is not known yet."""
    found = returns_on_bars(view, symbols, _VOLATILITY_BARS)
    known = ~np.isnan(found)
    held = known.any(axis=0)
    if held.sum() < 10:
        return None
    mean = np.where(known, found, 0.0).sum(axis=0)[held] / known.sum(axis=0)[held]
    return float(np.std(mean)) * float(np.sqrt(bars))


def log_returns(view: MarketView, symbol: str, bars: int, timeframe: str | None = None) -> FloatArray:
    """The last `bars` log returns, oldest first, those beside an absent bar left out."""
    close = view.bars(symbol, bars + 1, timeframe).close
    returns = np.diff(np.log(close))
    return returns[~np.isnan(returns)]


def returns_on_bars(view: MarketView, symbols: Sequence[str], bars: int) -> FloatArray:
    """(S, bars): log returns of the symbols, oldest first; NaN where a bar is absent or not there yet."""
    found = np.full((len(symbols), bars), np.nan)
    for row, symbol in enumerate(symbols):
        moves = np.diff(np.log(view.bars(symbol, bars + 1).close))
        found[row, bars - len(moves) :] = moves
    return found


def percentile_of(value: float, values: FloatArray) -> int:
    """Percent of `values` that lie below `value`, ties counted half. `values` may not be empty."""
    return round(100.0 * float(np.mean((values < value) + 0.5 * (values == value))))


def last_day(view: MarketView) -> tuple[str, int]:
    """The last day by name and in bars; where bars are longer, the last week, which is one bar."""
    return ("day", DAY_MS // view.interval) if view.interval <= DAY_MS else ("week", 1)


def age_hours(context: ToolContext, milliseconds: int) -> float:
    """How long before now a moment was."""
    return round((context.view.now - milliseconds) / HOUR_MS, 1)
