"""Names as people read them, for roles, teams, baselines and numbers."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from backend.config.schema import BASELINES, model_named
from backend.statistics.bootstrap import Interval
from simulator.market.timeframes import format_time

ABSENT = "not available"

_QUOTES = ("USDT", "USDC", "FDUSD", "BUSD", "USD", "EUR", "BTC", "ETH")

_TITLES = {
    "trained": "Trained team",
    "warm_started": "Initial team",
    "scripted": "Scripted team",
    "matched_random": "Random, matched",
}
_SPELLED = {"sma": "SMA", "ema": "EMA", "rsi": "RSI"}
_KNOWN = {*BASELINES, "teacher", "holding"}
MEANINGS = {
    "trained": "the team after M-GRPO",
    "warm_started": "the same models before it: they know the format and little of the trade",
    "scripted": "hand-written rules for the same roles",
    "hold": "buys once and keeps it",
    "flat": "never trades",
    "always_short": "sells short once and stays short",
    "sma_cross": "follows the crossing of two moving averages",
    "ema_cross": "follows the crossing of two exponential averages",
    "donchian_breakout": "buys new highs, sells new lows",
    "rsi_reversion": "buys what has fallen too fast by the RSI",
    "equal_weight": "long all coins in equal parts, brought back to them",
    "volatility_target": "long, less when prices swing more",
    "matched_random": "trades at random, as much and as often as the team",
    "oracle": "knows the hidden regimes: what perfect knowledge would have earned",
}


NumberKind = Literal[
    "change", "month", "share", "small_share", "ratio", "count", "money", "hours", "days", "price", "moment", "text"
]


@dataclass(frozen=True)
class Column:
    """A column of a table of results. `kind` says how its numbers are written, `meaning` what they are."""

    key: str
    title: str
    kind: NumberKind
    meaning: str


COLUMNS = (
    Column("total_return", "Return", "change", "net of all costs"),
    Column("sharpe", "Sharpe", "ratio", "return per unit of risk, for a year of 365 days"),
    Column("max_drawdown", "Drawdown", "share", "largest loss from a peak"),
    Column("exposure", "Exposure", "share", "how much of the equity was in the market on average"),
    Column("trades", "Trades", "count", "positions opened and closed"),
    Column("long_share", "Long share", "share", "part of the exposure that was long"),
    Column("hold_rate", "Hold rate", "share", "decisions that changed nothing; teams only"),
    Column("turnover", "Turnover", "ratio", "traded value over equity; 2 is one all-in round trip"),
    Column("costs", "Costs", "small_share", "all costs together, as a share of the equity at the start"),
)
RISK_COLUMNS = (
    Column("annual_return", "A year", "change", "compound growth per year"),
    Column("volatility", "Volatility", "share", "standard deviation of the returns, for a year"),
    Column("sortino", "Sortino", "ratio", "return per unit of downside risk, for a year"),
    Column("calmar", "Calmar", "ratio", "annual return over the largest drawdown"),
    Column("var_95", "VaR 95 %", "small_share", "loss that one bar in twenty exceeds"),
    Column("cvar_95", "CVaR 95 %", "small_share", "mean loss of the worst twentieth of the bars"),
)
EVIDENCE_COLUMNS = (
    Column("return_interval", "Return", "text", "95 % interval"),
    Column("sharpe_interval", "Sharpe", "text", "95 % interval, for a year"),
    Column("drawdown_interval", "Drawdown", "text", "where 95 of 100 such windows have it"),
    Column("against_interval", "Over holding", "text", "final wealth over that of holding, 95 % interval"),
    Column("probabilistic_sharpe", "Sharpe above 0", "share", "probability, for one trial"),
    Column("deflated_sharpe", "After all trials", "share", "probability that it is not luck of the trials so far"),
    Column("break_even_cost", "Break-even cost", "small_share", "of the traded value, at which nothing is left"),
)
COST_TITLES = {
    "fees": "Fees",
    "spread": "Spread",
    "impact": "Impact",
    "funding": "Funding",
    "borrow": "Borrow",
    "liquidation": "Liquidation",
}
COST_COLUMNS = (
    Column("gross", "Profit before costs", "money", "what the positions earned"),
    *(Column(key, title, "money", "negative: received") for key, title in COST_TITLES.items()),
    Column("total", "All costs", "money", "sum of the costs"),
    Column("net", "Profit after costs", "money", "change of the equity"),
    Column("total_of_gross", "Of the profit", "share", "all costs as a share of the profit before them"),
    Column("refused", "Refused or cut", "count", "orders that were not executed, or not wholly"),
)
TRADE_COLUMNS = (
    Column("trades", "Trades", "count", "from flat to flat; those still open count at their value at the end"),
    Column("hit_rate", "Won", "share", "share of the trades with a profit after costs"),
    Column("profit_factor", "Profit factor", "ratio", "sum of the gains over sum of the losses; ∞ without a loss"),
    Column("payoff_ratio", "Payoff", "ratio", "mean gain over mean loss"),
    Column("expectancy", "Expectancy", "change", "mean profit of a trade, of the equity at the start"),
    Column("best_trade", "Best", "change", "largest profit, of the equity at the start"),
    Column("worst_trade", "Worst", "change", "smallest profit, of the equity at the start"),
    Column("mae", "Mean MAE", "change", "worst excursion of the price while held, of the entry price"),
    Column("mfe", "Mean MFE", "change", "best excursion of the price while held, of the entry price"),
    Column("median_hours", "Held, median", "hours", "time from the first fill to the last"),
    Column("longest_hours", "Held, longest", "hours", "longest time from the first fill to the last"),
    Column("lose_streak", "Lost in a row", "count", "most losses in a row"),
)
TRADE_LIST_COLUMNS = (
    Column("side", "Side", "text", "long or short"),
    Column("quantity", "Quantity", "price", "most that was held, in coins"),
    Column("entry_time", "From (UTC)", "moment", "first fill"),
    Column("entry_price", "At", "price", "mean price of what opened it"),
    Column("exit_time", "To (UTC)", "moment", "last fill, or the end of the window"),
    Column("exit_price", "At ", "price", "mean price of what closed it"),
    Column("hours", "Held", "hours", "from the first fill to the last"),
    Column("pnl", "Profit", "money", "net of all costs"),
    Column("mae", "MAE", "change", "worst excursion of the price while held"),
    Column("mfe", "MFE", "change", "best excursion of the price while held"),
    Column("reason", "Closed by", "text", "what closed it; open: held at the end"),
)
DRAWDOWN_COLUMNS = (
    Column("depth", "Depth", "share", "loss from the peak at the lowest close"),
    Column("peak", "Peak (UTC)", "moment", "the last close before the loss"),
    Column("valley", "Lowest (UTC)", "moment", "the lowest close"),
    Column("recovery", "Back at the peak (UTC)", "moment", "a dash: not until the end of the window"),
    Column("days", "Days below", "days", "from the peak to the recovery, or to the end of the window"),
)
INFERENCE_COLUMNS = (
    Column("calls", "Requests", "count", "answers asked of the engine"),
    Column("tokens", "Tokens", "count", "read and sampled"),
    Column("seconds", "Seconds", "count", "waited for answers, those of a batch counted for each in it"),
    Column("money", "Money", "money", "by the price table of the configuration"),
    Column("share", "Of the start", "small_share", "money as a share of the equity at the start"),
    Column("left", "Return after it", "change", "total return minus the money for inference"),
)
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def title_of(name: str) -> str:
    """A team's or baseline's name for people: `warm_started, unmasked` as 'Initial team, unmasked'.

    A name that is not known is that of a user's strategy, module:Class or Class, or of a team's folder.
    """
    base, comma, variant = name.partition(", ")
    if base.isidentifier() and base != base.lower():
        return base + comma + variant
    if model_named(base):
        return f"Model {model_named(base)}{comma}{variant}"
    if base in _TITLES:
        title = _TITLES[base]
    elif base in _KNOWN:
        title = " ".join(_SPELLED.get(word, word) for word in base.split("_"))
        title = title[:1].upper() + title[1:]
    else:
        title = f"Strategy {base}" if ":" in base else f"Team {base}"
    return title + comma + variant


def number_text(value: Any, kind: NumberKind) -> str:
    """A cell of a table as text, with its unit; a dash where there is nothing, ∞ for infinity.

    `change` +1.23 %, `month` +1.2 %, `share` 1.2 %, `small_share` 1.23 %, `ratio` 1.23, `count` 1.2, `money` 1,234.50,
    `hours` (from three days on as days) and `days` with their unit, `price` with six digits, `moment` (ms) as UTC,
    `text` as it is.
    """
    if kind == "text" and isinstance(value, str):
        return value
    if value == math.inf and kind != "moment":
        return "∞"
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "–"
    if kind == "moment":
        return format_time(int(value))
    percent, form, unit = _FORMS[kind]
    if kind == "count" and not float(value).is_integer():
        form = ".1f"
    shown = max(-_LARGEST, min(100 * value, _LARGEST)) if percent else value
    if kind == "hours" and abs(value) >= 72:
        shown, unit = value / 24, " d"
    if abs(shown) >= 1e9:  # a lucky short window, compounded for a year
        form = f"{form[:-2]}2e"
    text = f"{shown:{form}}"
    # What rounds to 0 has no sign of its own.
    return (text.replace("-", "+" if "+" in form else "") if not float(text.replace(",", "")) else text) + unit


def interval_text(interval: Interval | None, kind: NumberKind) -> str:
    """The ends of an interval, as `-1.23 to +4.56 %`; a dash where there is none."""
    if interval is None:
        return "–"
    low, high = number_text(interval.low, kind), number_text(interval.high, kind)
    return f"{low.removesuffix(' %')} to {high}"


_LARGEST = sys.float_info.max

# NumberKind -> whether it is a fraction that is written in percent, format, unit.
_FORMS: dict[NumberKind, tuple[bool, str, str]] = {
    "change": (True, "+.2f", " %"),
    "month": (True, "+.1f", " %"),
    "share": (True, ".1f", " %"),
    "small_share": (True, ".2f", " %"),
    "ratio": (False, ".2f", ""),
    "count": (False, ".0f", ""),
    "money": (False, ",.2f", ""),
    "hours": (False, ",.1f", " h"),
    "days": (False, ",.1f", " d"),
    "price": (False, ".6g", ""),
}


def quote_of(symbols: Sequence[str]) -> str:
    """The currency that money is in, where all symbols end in the same well-known one; else 'of the quote currency'."""
    ends = {next((quote for quote in _QUOTES if symbol.upper().endswith(quote)), "") for symbol in symbols}
    return (ends.pop() if len(ends) == 1 else "") or "of the quote currency"


def listed(names: Sequence[str], most: int = 6) -> str:
    """'A, B, C', and how many more there are beyond `most`."""
    text = ", ".join(names[:most])
    return text if len(names) <= most else f"{text} and {len(names) - most} more"


def duration_text(seconds: Any) -> str:
    """`75.2` as '1 min 15 s', `7500` as '2 h 5 min'."""
    if not isinstance(seconds, int | float):
        return ABSENT
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
