"""What people see of one backtest: the facts of the first screen, then sections of pictures and tables.

The report and the page show the same parts; `backend.reporting.json_facts` holds the same numbers for programs.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from backend.evaluation.evidence import Evidence
from backend.reporting import charts, trade_charts
from backend.reporting.blocks import Missing, Picture, ReportSection, Table, TableRow, Tile
from backend.reporting.json_facts import regimes_of, rolling_of
from backend.reporting.labels import (
    ABSENT,
    COLUMNS,
    COST_TITLES,
    EVIDENCE_COLUMNS,
    MEANINGS,
    MONTHS,
    REGIME_COLUMNS,
    RISK_COLUMNS,
    Column,
    NumberKind,
    interval_text,
    number_text,
    quote_of,
    title_of,
)
from backend.reporting.market_reload import MarketReload
from backend.reporting.result_stats import FEWEST_RETURNS, cost_summary, monthly_returns, yearly_returns
from backend.reporting.run_summary import WindowResult
from backend.reporting.tearsheet.distribution import distribution_block
from backend.reporting.tearsheet.drawdowns import drawdowns_block
from backend.reporting.trade_sections import costs_section, loss_limits_block, trades_section, withheld_block
from backend.statistics.bootstrap import Interval
from simulator.backtest.regimes import UNKNOWN

_REGIME_TITLES = {"trend": "Trend", "volatility": "Volatility", "truth": "Hidden regime"}
SECTIONS = ("Equity", "Numbers", "Costs", "Trades", "Regimes")
NEED_MARKET = ("Trades", "Regimes")
_BAND = (
    " Shaded: where 95 of 100 accounts were that drew these bars anew, in blocks: how far the luck of the draw alone "
    "carries this way of trading."
)
_UNFAIR = "oracle"  # it knows what nobody can, so it is no yardstick


def tiles(window: WindowResult) -> list[Tile]:
    """The first screen: did it make money, against what, at what risk, after which costs."""
    own, metrics = window.main_result, window.main_result.metrics
    money = cost_summary(own)
    hold = window.hold
    held = hold.metrics if hold is not None else {}
    start, quote = own.equity[0], quote_of(own.symbols)
    sure = window.evidence[window.main]
    intervals = sure.intervals

    def within(interval: Interval | None, kind: NumberKind) -> str:
        return "" if interval is None else f". 95 % interval {interval_text(interval, kind)}"

    earned = money["net"] or 0.0
    verdict = "Yes" if earned > 0.0 else "No"
    of_trading = " of trading" if own.inference_money else ""
    made = Tile(
        "Did it make money?",
        _text(metrics, "total_return", "change"),
        f"{verdict}: {earned:+,.0f} on {start:,.0f} {quote}, after all costs{of_trading}"
        + within(intervals.total_return if intervals else None, "change"),
    )
    against = Tile("Against holding", ABSENT, "no baseline that holds is stored")
    if hold is not None:
        gap = 100.0 * (own.total_return - hold.total_return)
        note = f"percentage points; holding made {_text(held, 'total_return', 'change')}"
        best = _best_baseline(window)
        if best:
            note += f"; the best baseline was {title_of(best)}: {_text(window.rows[best], 'total_return', 'change')}"
        if intervals is not None and intervals.against is not None:
            note += f". Final wealth over that of holding {number_text(intervals.against.value, 'change')}"
            note += within(intervals.against, "change").replace(". ", ", ")
        against = Tile("Against holding", f"{gap:+.2f} pp", note)
    risk = Tile(
        "Largest drawdown",
        _text(metrics, "max_drawdown", "share"),
        f"from a peak; holding {_text(held, 'max_drawdown', 'share')}. Longest time below a peak: "
        f"{_text(metrics, 'longest_drawdown_days', 'days')}"
        + (f". 95 of 100 such windows: {interval_text(intervals.max_drawdown, 'share')}" if intervals else ""),
    )
    sharpe = Tile(
        "Sharpe ratio",
        _text(metrics, "sharpe", "ratio"),
        f"for a year; holding {_text(held, 'sharpe', 'ratio')}"
        + within(intervals.sharpe if intervals else None, "ratio")
        + f". Probability that the true one is above 0: {number_text(sure.probabilistic, 'share')}; after the number "
        f"of trials so far ({sure.trials}): {number_text(sure.deflated, 'share')}",
    )
    kinds = [
        f"{title.lower()} {number_text(amount / start, 'small_share')}"
        for key, title in COST_TITLES.items()
        if (amount := money[key])
    ]
    before = (money["gross"] or 0.0) / start
    spent, inference = own.inference_money, ""
    if spent:
        left = number_text(own.return_after_inference, "change")
        inference = f". Inference took another {number_text(spent / start, 'small_share')}, which leaves {left}"
    costs = Tile(
        "Costs paid",
        number_text(money["total_share"], "small_share"),
        f"of the start ({', '.join(kinds) or 'none'}); before them it made {number_text(before, 'change')}{inference}",
    )
    return [made, against, risk, sharpe, costs]


def sections(window: WindowResult, settings: Mapping[str, Any], reload: MarketReload) -> list[ReportSection]:
    """All that is shown of `window` but the candles. `settings` is the config of the run."""
    return [section(name, window, settings, reload) for name in SECTIONS]


def section(name: str, window: WindowResult, settings: Mapping[str, Any], reload: MarketReload) -> ReportSection:
    """The one of `SECTIONS` that is called `name`; only those of `NEED_MARKET` look at `reload`."""
    match name:
        case "Equity":
            return result_section(window)
        case "Numbers":
            return numbers_section(window)
        case "Costs":
            return costs_section(window, settings)
        case "Trades":
            trades = trades_section(window)
            more = (withheld_block(window, settings, reload), loss_limits_block(window, settings))
            return replace(trades, blocks=(*trades.blocks, *more))
        case "Regimes":
            return regimes_section(window, reload)
    raise ValueError(f"there is no section {name!r}")


def result_section(window: WindowResult) -> ReportSection:
    """Equity, drawdown and rolling Sharpe beside the baselines, and exposure."""
    equity, drawdown, exposure = lines_of_time(window)
    blocks = (equity, drawdown, _rolling_block(window), distribution_block(window), exposure)
    return ReportSection("What it did to the money", blocks)


def lines_of_time(window: WindowResult, span: tuple[int, int] | None = None) -> tuple[Picture, Picture, Picture]:
    """Equity, drawdown and exposure over a part of the window, `span` (ms), or over all of it."""
    own = window.main_result
    curves: dict[str, Sequence[float]] = {name: result.equity for name, result in window.results.items()}
    x = charts.Moments(own.times)
    waiting, banded = _waiting(window), window.band is not None
    shown = slice(None) if span is None else slice(bisect_left(own.times, span[0]), bisect_right(own.times, span[1]))
    return (
        Picture(
            "Equity",
            "Return since the start, net of all costs, beside the baselines on the same bars. Good: it ends above "
            f"holding, and no single jump carries it. More baselines wait in the legend for a click.{_BAND * banded}",
            charts.equity_chart(curves, x, "", window.main, waiting, shown, window.band),
        ),
        Picture(
            "Drawdown",
            "How far each lies below its own best moment so far. Good: shallower than holding, and soon back at 0."
            + " Shaded: the accounts of the picture above." * banded,
            charts.drawdown_chart(curves, x, "", window.main, waiting, shown, window.band),
        ),
        Picture(
            f"Exposure of {title_of(window.main)}",
            "Value of the positions over the equity: above 0 long, below 0 short. Good: within the limits, and not "
            "always the same, or holding would have done.",
            charts.exposure_chart(own.times, own.exposure, own.symbols, shown),
        ),
    )


def _rolling_block(window: WindowResult) -> Picture | Missing:
    rolling = rolling_of(window)
    title = "Rolling Sharpe ratio"
    if window.main not in rolling:
        return Missing(title, f"the run is too short: a window needs {FEWEST_RETURNS} bars, and the run three windows")
    own = rolling[window.main]
    known = [value for value in own.values if value is not None]
    above = f"{title_of(window.main)} was above 0 in {_share(known)} of the time. " if known else ""
    caption = (
        f"Of the last {own.days:.3g} days ({own.bars} bars), for a year of 365 days. {above}Good: above 0 most of the "
        "time, not carried by one stretch. A gap: nothing varied in that time, as while flat."
    )
    return Picture(title, caption, trade_charts.rolling_sharpe_chart(rolling, window.main, _waiting(window)))


def numbers_section(window: WindowResult) -> ReportSection:
    """Results, risk, and the months."""
    rows = tuple(
        TableRow(title_of(name), values, MEANINGS.get(name, ""), name == window.main)
        for name, values in window.rows.items()
    )
    return ReportSection(
        "In numbers",
        (
            Table("Results", "Good: more return and less drawdown than the baselines, after costs.", COLUMNS, rows),
            Table(
                "Risk",
                "Annual figures have a year of 365 days. Good: losses that you could sit through, and a Sharpe ratio "
                "that is hardly luck. Short runs say little about a year.",
                RISK_COLUMNS,
                tuple(TableRow(row.label, row.values, main=row.main) for row in rows),
            ),
            _evidence_block(window),
            _months_block(window),
            drawdowns_block(window),
            *_lookahead_block(window),
        ),
    )


def _evidence_block(window: WindowResult) -> Table | Missing:
    """Intervals of those that were tested, and of holding."""
    title, own = "How sure is that?", window.evidence[window.main]
    if own.intervals is None:
        return Missing(title, own.problem)
    ways = "one way of trading was" if own.trials == 1 else f"{own.trials} ways of trading were"
    caption = (
        f"Stationary block bootstrap of the {own.intervals.bars} bars, blocks of {own.intervals.block:.1f} bars on "
        f"average: what other windows of this length from the same market might have given. {ways.capitalize()} tried "
        "on this data and window so far: the best of many looks good by luck alone, and the deflated probability takes "
        "that off. Good: intervals above 0 and above holding, and a probability near 100 % after all trials. A market "
        "that changes is in no interval."
    )
    rows = tuple(
        TableRow(title_of(name), _evidence_row(found), found.problem, name == window.main)
        for name, found in window.evidence.items()
    )
    return Table(title, caption, EVIDENCE_COLUMNS, rows)


def _evidence_row(sure: Evidence) -> dict[str, Any]:
    """The values of `EVIDENCE_COLUMNS`."""
    found, line = sure.intervals, sure.regression
    return {
        "return_interval": interval_text(found.total_return if found else None, "change"),
        "sharpe_interval": interval_text(found.sharpe if found else None, "ratio"),
        "drawdown_interval": interval_text(found.max_drawdown if found else None, "share"),
        "against_interval": interval_text(found.against if found else None, "change"),
        "probabilistic_sharpe": sure.probabilistic,
        "deflated_sharpe": sure.deflated,
        "days_needed": sure.days_needed,
        "alpha_interval": interval_text(line.alpha_year if line else None, "change"),
        "beta": line.beta.value if line else None,
        "break_even_cost": sure.break_even,
    }


def _lookahead_block(window: WindowResult) -> list[Table]:
    """The verdict on each strategy of the user's own; nothing where there is none."""
    verdicts = {name: one.lookahead for name, one in window.results.items() if one.lookahead is not None}
    if not verdicts:
        return []
    caption = (
        "Each strategy of your own decided again where everything after the decision was altered. Good: no decision "
        "and no indicator changed. Numbers of one that looks ahead mean nothing."
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
        "gain. Multiplied up they give the total return. Good: gains in most months, no single one carries the year."
    )
    if min(window.main_result.equity) <= 0.0:
        caption += " The account was ruined: that counts as -100 %, also where it ended below 0."
    if incomplete:
        caption += f" Only in part: {' and '.join(incomplete)}."
    return Table("Months", caption, tuple(columns), tuple(rows), "Year", tinted=True)


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
        "Trend and volatility of the last 14 days over all symbols, as known when it decided; of a synthetic market "
        "its hidden regime too. Within each kind the returns add up to the total. Good: it earns in more than one row, "
        "and a falling market does not take back what a rising one gave."
    )
    return ReportSection(title, (Table("", caption, REGIME_COLUMNS, tuple(shown), "Market", tinted=True),))


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


def _share(values: Sequence[float]) -> str:
    return f"{100 * sum(value > 0.0 for value in values) / len(values):.0f} %"
