"""One backtest for a reader: the figures of the first screen, then sections of pictures and tables.

The report and the page show the same parts.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from backend.evaluation.evidence import Evidence
from backend.reporting import charts, labels
from backend.reporting.blocks import Missing, Picture, ReportSection, Table, TableRow, Tile
from backend.reporting.labels import (
    ABSENT,
    COST_TITLES,
    MEANINGS,
    MONTHS,
    Column,
    NumberKind,
    interval_text,
    number_text,
    quote_of,
    title_of,
)
from backend.reporting.market_reload import MarketReload
from backend.reporting.result_stats import (
    FEWEST_RETURNS,
    cost_summary,
    daily_returns,
    deepest_drawdowns,
    monthly_returns,
    regime_rows,
    rolling_sharpe,
    yearly_returns,
)
from backend.reporting.run_summary import WindowResult
from backend.reporting.trade_sections import costs_section, trades_section
from backend.statistics.bootstrap import Interval
from simulator.arrays import FloatArray
from simulator.backtest import metrics
from simulator.backtest.regimes import UNKNOWN
from simulator.errors import DataError

SECTIONS = ("Equity", "Numbers", "Costs", "Trades", "Regimes")
NEED_MARKET = ("Regimes",)
_FEWEST_DAYS, _MOST_BINS = 10, 60
_UNFAIR = "oracle"  # it knows what nobody can, so it is not a yardstick
_REGIME_TITLES = {"trend": "Trend", "volatility": "Volatility", "truth": "Hidden regime"}
_BAND = (
    " Shaded: 95 of 100 accounts that drew these bars again at random, in blocks: how far luck alone carries this way "
    "of trading."
)


def tiles(window: WindowResult) -> list[Tile]:
    """The first screen: did it make money, against what, at what risk, after which costs."""
    own, values = window.main_result, window.main_result.metrics
    hold, start = window.hold, own.equity[0]
    held = hold.metrics if hold is not None else {}
    sure = window.evidence[window.main]
    intervals = sure.intervals

    def within(interval: Interval | None, kind: NumberKind) -> str:
        return "" if interval is None else f". 95 % interval {interval_text(interval, kind)}"

    earned = own.equity[-1] - start
    made = Tile(
        "Did it make money?",
        _text(values, "total_return", "change"),
        f"{'Yes' if earned > 0.0 else 'No'}: {earned:+,.0f} on {start:,.0f} {quote_of(own.symbols)}, after all costs"
        + (" of trading" if own.inference_money else "")
        + within(intervals.total_return if intervals else None, "change"),
    )
    risk = Tile(
        "Largest drawdown",
        _text(values, "max_drawdown", "share"),
        f"from a peak; holding {_text(held, 'max_drawdown', 'share')}. Longest time below a peak: "
        f"{_text(values, 'longest_drawdown_days', 'days')}"
        + (f". 95 of 100 such windows: {interval_text(intervals.max_drawdown, 'share')}" if intervals else ""),
    )
    sharpe = Tile(
        "Sharpe ratio",
        _text(values, "sharpe", "ratio"),
        f"for a year; holding {_text(held, 'sharpe', 'ratio')}"
        + within(intervals.sharpe if intervals else None, "ratio")
        + f". Probability that the true one is above 0: {number_text(sure.probabilistic, 'share')}; after the number "
        f"of trials so far ({sure.trials}): {number_text(sure.deflated, 'share')}",
    )
    return [
        made,
        _against_tile(window, None if intervals is None else intervals.against),
        risk,
        sharpe,
        _costs_tile(window),
    ]


def _against_tile(window: WindowResult, lead: Interval | None) -> Tile:
    hold = window.hold
    if hold is None:
        return Tile("Against holding", ABSENT, "no baseline that holds is stored")
    note = f"percentage points; holding made {number_text(hold.total_return, 'change')}"
    best = _best_baseline(window)
    if best:
        note += f"; the best baseline was {title_of(best)}: {_text(window.rows[best], 'total_return', 'change')}"
    if lead is not None:
        note += f". Final wealth over that of holding {number_text(lead.value, 'change')}"
        note += f", 95 % interval {interval_text(lead, 'change')}"
    return Tile("Against holding", f"{100.0 * (window.main_result.total_return - hold.total_return):+.2f} pp", note)


def _costs_tile(window: WindowResult) -> Tile:
    own, money = window.main_result, cost_summary(window.main_result)
    start, spent = own.equity[0], own.inference_money
    kinds = [
        f"{title.lower()} {number_text(amount / start, 'small_share')}"
        for key, title in COST_TITLES.items()
        if (amount := money[key])
    ]
    note = f"of the start ({', '.join(kinds) or 'none'}); before them it made "
    note += number_text((money["gross"] or 0.0) / start, "change")
    if spent:
        left = number_text(own.return_after_inference, "change")
        note += f". Inference took another {number_text(spent / start, 'small_share')}, which leaves {left}"
    return Tile("Costs paid", number_text(money["total_share"], "small_share"), note)


def sections(window: WindowResult, reload: MarketReload) -> list[ReportSection]:
    """All that is shown of `window` but the candles."""
    return [section(name, window, reload) for name in SECTIONS]


def section(name: str, window: WindowResult, reload: MarketReload) -> ReportSection:
    """The one of `SECTIONS` that is called `name`; only those of `NEED_MARKET` look at `reload`."""
    match name:
        case "Equity":
            return equity_section(window)
        case "Numbers":
            return numbers_section(window)
        case "Costs":
            return costs_section(window)
        case "Trades":
            return trades_section(window)
        case "Regimes":
            return regimes_section(window, reload)
    raise ValueError(f"there is no section {name!r}")


def equity_section(window: WindowResult, span: tuple[int, int] | None = None) -> ReportSection:
    """Equity and drawdown beside the baselines, rolling Sharpe, days and exposure. Equity, drawdown and exposure are of
    a part of the window, `span` (ms), or of all of it."""
    own = window.main_result
    curves: dict[str, Sequence[float]] = {name: result.equity for name, result in window.results.items()}
    x, waiting, banded = charts.moments(own.times), _waiting(window), window.band is not None
    shown = slice(None) if span is None else slice(bisect_left(own.times, span[0]), bisect_right(own.times, span[1]))
    equity = Picture(
        "Equity",
        "Return since the start, net of all costs, beside the baselines on the same bars. Good: it ends above holding, "
        f"and no single jump carries it. A click in the legend shows more baselines.{_BAND * banded}",
        charts.equity_chart(curves, x, window.main, waiting, shown, window.band),
    )
    drawdown = Picture(
        "Drawdown",
        "How far each lies below its own best moment so far. Good: shallower than holding, and soon back at 0."
        + " Shaded: the accounts of the picture above." * banded,
        charts.drawdown_chart(curves, x, window.main, waiting, shown, window.band),
    )
    exposure = Picture(
        f"Exposure of {title_of(window.main)}",
        "Value of the positions over the equity: above 0 long, below 0 short. Good: within the limits, and not always "
        "the same, or holding would have done.",
        charts.exposure_chart(own.times, own.exposure, own.symbols, shown),
    )
    return ReportSection("Equity over time", (equity, drawdown, _rolling_block(window), _days_block(window), exposure))


def _rolling_block(window: WindowResult) -> Picture | Missing:
    title = "Rolling Sharpe ratio"
    rolling = {name: rolling_sharpe(result.times, result.equity) for name, result in window.results.items()}
    own = rolling[window.main]
    if own is None:
        return Missing(title, f"the run is too short: a window needs {FEWEST_RETURNS} bars, and the run three windows")
    known = [value > 0.0 for value in own.values if value is not None]
    above = f"{title_of(window.main)} was above 0 in {np.mean(known):.0%} of the time. " if known else ""
    caption = (
        f"Of the last {own.days:.3g} days ({own.bars} bars), for a year of 365 days. {above}Good: above 0 most of the "
        "time, not carried by one stretch. A gap: nothing varied in that time, as while flat."
    )
    lines = {name: (one.times, np.array(one.values, float)) for name, one in rolling.items() if one is not None}
    return Picture(title, caption, charts.rolling_chart(lines, "Sharpe ratio, annual", window.main, _waiting(window)))


def _days_block(window: WindowResult) -> Picture | Missing:
    """The histogram of the main team's days beside those of holding, with the figures that describe it."""
    title = "Distribution of daily returns"
    names = [window.main, *(["hold"] if window.hold is not None else [])]
    days = {name: _days(window, name) for name in names}
    own = days[window.main]
    if len(own) < _FEWEST_DAYS:
        return Missing(title, f"the run is too short: it needs {_FEWEST_DAYS} days")
    together = np.concatenate(list(days.values()))
    # Freedman and Diaconis' width, over all that is shown, so that the bars stand on the same bins.
    bins = min(max(len(np.histogram_bin_edges(together, bins="fd")) - 1, 10), _MOST_BINS)
    varies = float(np.ptp(own)) > 1e-12
    shape = f", skewness {metrics.skew(own):+.2f}, excess kurtosis {metrics.kurtosis(own):+.2f}" if varies else ""
    caption = (
        f"Days (UTC) of {title_of(window.main)}: best {number_text(own.max(), 'change')}, worst "
        f"{number_text(own.min(), 'change')}, {number_text(float(np.mean(own > 0.0)), 'share')} above 0{shape}."
        " Good: the left tail is no longer than the right one, and the worst day is one that you could sit through."
    )
    return Picture(title, caption, charts.histogram_chart(days, np.histogram_bin_edges(together, bins), window.main))


def _days(window: WindowResult, name: str) -> FloatArray:
    result = window.results[name]
    return np.array(list(daily_returns(result.times, result.equity).values()))


def numbers_section(window: WindowResult) -> ReportSection:
    """Results, risk, how sure they are, months and drawdowns."""
    rows = tuple(
        TableRow(title_of(name), values, MEANINGS.get(name, ""), name == window.main)
        for name, values in window.rows.items()
    )
    results = Table(
        "Results", "Good: more return and less drawdown than the baselines, after costs.", labels.COLUMNS, rows
    )
    risk = Table(
        "Risk",
        "Annual figures have a year of 365 days. Good: losses that you could sit through. Short runs say little about "
        "a year.",
        labels.RISK_COLUMNS,
        tuple(TableRow(row.label, row.values, main=row.main) for row in rows),
    )
    blocks = (results, risk, _evidence_block(window), _months_block(window), _drawdowns_block(window))
    return ReportSection("In numbers", (*blocks, *_lookahead_block(window)))


def _evidence_block(window: WindowResult) -> Table | Missing:
    """Intervals of those that were tested, and of holding."""
    title, own = "How sure is that?", window.evidence[window.main]
    if own.intervals is None:
        return Missing(title, own.problem)
    ways = "one way of trading was" if own.trials == 1 else f"{own.trials} ways of trading were"
    caption = (
        f"Stationary block bootstrap of the {own.intervals.bars} bars, blocks of {own.intervals.block:.1f} bars on "
        f"average: what other windows of this length from the same market might have given. {ways.capitalize()} tried "
        "on this data and window so far; the best of many looks good by luck alone, and the deflated probability "
        "corrects for that. Good: intervals above 0 and above holding. No interval covers a market that changes."
    )
    rows = tuple(
        TableRow(title_of(name), _evidence_row(found), found.problem, name == window.main)
        for name, found in window.evidence.items()
    )
    return Table(title, caption, labels.EVIDENCE_COLUMNS, rows)


def _evidence_row(sure: Evidence) -> dict[str, Any]:
    """The values of `EVIDENCE_COLUMNS`."""
    found = sure.intervals
    return {
        "return_interval": interval_text(found.total_return if found else None, "change"),
        "sharpe_interval": interval_text(found.sharpe if found else None, "ratio"),
        "drawdown_interval": interval_text(found.max_drawdown if found else None, "share"),
        "against_interval": interval_text(found.against if found else None, "change"),
        "probabilistic_sharpe": sure.probabilistic,
        "deflated_sharpe": sure.deflated,
        "break_even_cost": sure.break_even,
    }


def _lookahead_block(window: WindowResult) -> list[Table]:
    """The verdict on each strategy of the user's own; nothing where there is none."""
    verdicts = {name: one.lookahead for name, one in window.results.items() if one.lookahead is not None}
    if not verdicts:
        return []
    caption = (
        "Each strategy of your own decided again where everything after the decision was altered. Good: no decision "
        "and no indicator changed. The numbers of one that looks ahead mean nothing."
    )
    rows = tuple(TableRow(title_of(name), {"verdict": one.text}) for name, one in verdicts.items())
    return [Table("Does it look ahead?", caption, (Column("verdict", "Verdict", "text", "of all cuts"),), rows)]


def _months_block(window: WindowResult) -> Table | Missing:
    months = monthly_returns(window.main_result.times, window.main_result.equity)
    if not months:
        return Missing("Months", "the run has no return yet")
    columns = [Column(str(number), name, "month", name) for number, name in enumerate(MONTHS, 1)]
    columns.append(Column("total", "Year", "month", "the months compounded"))
    others: dict[int, float] = {}
    hold = window.hold
    if hold is not None:
        others = yearly_returns(monthly_returns(hold.times, hold.equity))
        columns.append(Column("hold", "Hold", "month", "what holding made in that year"))
    rows = []
    for year, total in yearly_returns(months).items():
        values: dict[str, float | None] = {str(one.month): one.total_return for one in months if one.year == year}
        rows.append(TableRow(str(year), values | {"total": total, "hold": others.get(year)}))
    gains = sum(one.total_return > 0.0 for one in months)
    incomplete = [f"{month.year}-{month.month:02d}" for month in months if not month.whole]
    caption = (
        f"Net return of each calendar month (UTC) of {title_of(window.main)}; {gains} of {len(months)} ended with a "
        "gain. Compounded they give the total return. Good: gains in most months, no single one carries the year."
    )
    if min(window.main_result.equity) <= 0.0:
        caption += " The account was ruined: that counts as -100 %, also where it ended below 0."
    if incomplete:
        caption += f" Only in part: {' and '.join(incomplete)}."
    return Table("Months", caption, tuple(columns), tuple(rows), "Year", tinted=True)


def _drawdowns_block(window: WindowResult) -> Table | Missing:
    title, result = "Deepest drawdowns", window.main_result
    rows = deepest_drawdowns(result.times, result.equity)
    if not rows:
        return Missing(title, "the account was never below an earlier close")
    caption = f"Of {title_of(window.main)}, bar by bar. Good: shallow, few, and short."
    listed = tuple(TableRow(str(number), vars(row)) for number, row in enumerate(rows, 1))
    return Table(title, caption, labels.DRAWDOWN_COLUMNS, listed, "Rank")


def regimes_of(window: WindowResult, name: str, reload: MarketReload) -> list[dict[str, Any]] | str:
    """`regime_rows` of one result against holding, or one sentence on why there are none."""
    if reload.market is None:
        return f"the regimes need the run's data again: {reload.problem}"
    hold = window.hold if name != "hold" else None
    try:
        return regime_rows(window.results[name], reload.market, hold, reload.regimes)
    except DataError as error:
        return str(error)


def regimes_section(window: WindowResult, reload: MarketReload) -> ReportSection:
    """What was earned in which kind of market, or why that is not known."""
    title = "By kind of market"
    rows = regimes_of(window, window.main, reload)
    if isinstance(rows, str):
        return ReportSection(title, (Missing(title, rows),))
    start = window.main_result.equity[0]
    shown = []
    for row in rows:
        costs = math.fsum(row[key] for key in ("fees", "spread", "impact", "funding")) / start
        regime = "not known yet" if row["regime"] == UNKNOWN else row["regime"]
        label = f"{_REGIME_TITLES.get(row['kind'], row['kind'])}: {regime}"
        shown.append(TableRow(label, {**row, "costs": costs, "hit_rate": row["hit_rate"] if row["trades"] else None}))
    caption = (
        "Trend and volatility of the last 14 days over all symbols, as known at the decision; of a synthetic market "
        "its hidden regime too. Within each kind the returns add up to the total. Good: it earns in more than one row, "
        "and a falling market does not take back what a rising one gave."
    )
    return ReportSection(title, (Table("", caption, labels.REGIME_COLUMNS, tuple(shown), "Market", tinted=True),))


def _best_baseline(window: WindowResult) -> str | None:
    """The baseline with the largest return, if it is another than holding; the oracle does not count."""
    returns = {
        name: row["total_return"]
        for name, row in window.rows.items()
        if name != _UNFAIR and name not in window.subjects
    }
    best = max(returns, key=returns.__getitem__, default=None)
    return best if best != "hold" else None


def _waiting(window: WindowResult) -> set[str]:
    """Baselines that are not drawn until somebody asks for them: all but holding and the best."""
    return set(window.results) - {"hold", _best_baseline(window), *window.subjects}


def _text(values: Mapping[str, Any], key: str, kind: NumberKind) -> str:
    """The number of a metric in words; some metrics are absent where nothing was traded."""
    return number_text(values[key], kind) if values.get(key) is not None else ABSENT
