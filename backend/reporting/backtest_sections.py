"""One backtest for a reader: the figures of the first screen, then sections of pictures and tables.

The report and the page show the same parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backend.evaluation.evidence import Evidence
from backend.reporting import charts, labels
from backend.reporting.blocks import Missing, Picture, ReportSection, Table, TableRow, Tile
from backend.reporting.labels import (
    ABSENT,
    MEANINGS,
    MONTHS,
    Column,
    NumberKind,
    interval_text,
    number_text,
    quote_of,
    title_of,
)
from backend.reporting.result_stats import (
    cost_summary,
    deepest_drawdowns,
    monthly_returns,
    yearly_returns,
)
from backend.reporting.run_summary import WindowResult
from backend.reporting.trade_sections import costs_section, trades_section
from simulator.market.timeframes import format_time

SECTIONS = ("Equity", "Numbers", "Costs", "Trades")
_UNFAIR = "oracle"  # it knows what nobody can, so it is not a yardstick
_BAND = (
    " Shaded: 95 of 100 accounts that drew these bars again at random, in blocks: how far luck alone carries this way "
    "of trading."
)


def tiles(window: WindowResult) -> list[Tile]:
    """The first screen: did it make money, against what, at what risk, after which costs."""
    own, values = window.main_result, window.main_result.metrics
    held = window.hold.metrics if window.hold is not None else {}
    start, found = own.equity[0], window.evidence_of(window.main).intervals
    earned = own.equity[-1] - start
    made = f"{'Yes' if earned > 0.0 else 'No'}: {earned:+,.0f} on {start:,.0f} {quote_of(own.symbols)}, after all costs"
    made += " of trading" if own.inference_money else ""
    made += f". 95 % interval {interval_text(found.total_return, 'change')}" if found is not None else ""
    return [
        Tile("Did it make money?", _text(values, "total_return", "change"), made),
        _against_tile(window),
        Tile(
            "Largest drawdown",
            _text(values, "max_drawdown", "share"),
            f"from a peak; holding {_text(held, 'max_drawdown', 'share')}",
        ),
        Tile("Sharpe ratio", _text(values, "sharpe", "ratio"), f"for a year; holding {_text(held, 'sharpe', 'ratio')}"),
        _costs_tile(window),
    ]


def _against_tile(window: WindowResult) -> Tile:
    hold = window.hold
    if hold is None:
        return Tile("Against holding", ABSENT, "no baseline that holds is stored")
    note = f"percentage points; holding made {number_text(hold.total_return, 'change')}"
    best = _best_baseline(window)
    if best:
        note += f"; the best baseline was {title_of(best)}: {_text(window.rows[best], 'total_return', 'change')}"
    return Tile("Against holding", f"{100.0 * (window.main_result.total_return - hold.total_return):+.2f} pp", note)


def _costs_tile(window: WindowResult) -> Tile:
    own, money = window.main_result, cost_summary(window.main_result)
    start, spent = own.equity[0], own.inference_money
    note = f"of the start; before them it made {number_text((money['gross'] or 0.0) / start, 'change')}"
    if spent:
        left = number_text(own.return_after_inference, "change")
        note += f". Inference took another {number_text(spent / start, 'small_share')}, which leaves {left}"
    return Tile("Costs paid", number_text((money["total"] or 0.0) / start, "small_share"), note)


def sections(window: WindowResult) -> list[ReportSection]:
    """All that is shown of `window` but the candles."""
    return [section(name, window) for name in SECTIONS]


def section(name: str, window: WindowResult) -> ReportSection:
    """The one of `SECTIONS` that is called `name`."""
    make = {"Equity": equity_section, "Numbers": numbers_section, "Costs": costs_section, "Trades": trades_section}
    return make[name](window)


def window_notes(window: WindowResult) -> list[str]:
    """What a reader must know before the numbers: bars that the data lacks, and when a loss limit closed everything."""
    absent, notes = window.main_result.absent_bars, []
    if absent:
        notes.append(
            f"The data lacks {absent} bars of this period (over all symbols). Nothing was filled in: orders waited, "
            "and positions kept their last price."
        )
    flat = [f"{format_time(time)} UTC ({rule}: {detail})" for time, rule, detail in loss_limits_of(window)]
    return [*notes, f"A loss limit closed everything at {labels.listed(flat)}."] if flat else notes


def loss_limits_of(window: WindowResult) -> list[tuple[int, str, str]]:
    """Time (ms), rule and words of each moment at which a loss limit began to keep the account flat."""
    found = []
    for decision in window.decisions.get(window.main, []):
        entries = [(decision.time, clamp) for clamp in decision.document.clamps]
        entries += [(later.time, later) for later in decision.document.later]
        limits = ("daily_loss", "max_drawdown")
        found += [(time, one.rule, one.detail) for time, one in entries if not one.symbol and one.rule in limits]
    return sorted(found)


def equity_section(window: WindowResult) -> ReportSection:
    """Equity and drawdown beside the baselines, and exposure."""
    own = window.main_result
    curves: dict[str, Sequence[float]] = {name: result.equity for name, result in window.results.items()}
    x, waiting, banded = charts.moments(own.times), _waiting(window), window.band is not None
    equity = Picture(
        "Equity",
        "Return since the start, net of all costs, beside the baselines on the same bars. Good: it ends above holding, "
        f"and no single jump carries it. A click in the legend shows more baselines.{_BAND * banded}",
        charts.equity_chart(curves, x, window.main, waiting, window.band),
    )
    drawdown = Picture(
        "Drawdown",
        "How far each lies below its own best moment so far. Good: shallower than holding, and soon back at 0."
        + " Shaded: the accounts of the picture above." * banded,
        charts.drawdown_chart(curves, x, window.main, waiting, window.band),
    )
    exposure = Picture(
        f"Exposure of {title_of(window.main)}",
        "Value of the positions over the equity: above 0 long, below 0 short. Good: within the limits, and not always "
        "the same, or holding would have done.",
        charts.exposure_chart(own.times, own.exposure, own.symbols),
    )
    return ReportSection("Equity over time", (equity, drawdown, exposure))


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
    title, own = "How sure is that?", window.evidence_of(window.main)
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
    rows = tuple(TableRow(title_of(name), {"verdict": one.sentence()}) for name, one in verdicts.items())
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
