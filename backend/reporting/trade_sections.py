"""Sections about trading: what it cost, how the trades went, where they stand on the candles."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel

from backend.config.schema import Config
from backend.evaluation.guard_attribution import RISK_ANALYST
from backend.reporting import labels, trade_charts
from backend.reporting.blocks import Missing, Picture, ReportSection, Table, TableRow
from backend.reporting.decision.on_candles import DecisionsOnCandles
from backend.reporting.json_facts import TRADES_LISTED, withheld_of
from backend.reporting.labels import COST_TITLES, Column, title_of
from backend.reporting.market_reload import MarketReload, candles
from backend.reporting.result_stats import (
    busiest_day,
    by_side,
    cost_summary,
    inference_cost_line,
    trade_summary,
    traded_notional,
)
from backend.reporting.run_summary import WindowResult
from cryptosentinel.agents.registry import role_title
from simulator.backtest.trades import Trade
from simulator.errors import DataError
from simulator.market.market import Market
from simulator.market.timeframes import DAY_MS, format_time

_FEW_TRADES = 12  # a longer list is opened by a click
CANDLES_SHOWN = 6  # figures in the report: the symbols that were traded most

_SIGNS = (
    "▲ opens a long and ○ closes it, with a solid line between; ▼ opens a short and □ closes it, dotted. A cross is a "
    "stop, a star a target. Good: longs rise and shorts fall along their lines."
)
_CUT_SIGNS = " Above the candles: octagons are what RiskAnalyst vetoed (full) or reduced, diamonds what the guard cut."


def costs_section(window: WindowResult, settings: Mapping[str, Any]) -> ReportSection:
    """What trading cost by kind, for each, and the settings behind it."""
    quote = labels.quote_of(window.main_result.symbols)
    summaries = {name: cost_summary(result) for name, result in window.results.items()}
    paid = {name: dict(result.costs) for name, result in window.results.items()}
    start = {name: result.equity[0] for name, result in window.results.items()}
    unknown = [title for key, title in COST_TITLES.items() if key not in window.main_result.costs]
    rows = {name: {**one, "refused": len(window.results[name].rejections)} for name, one in summaries.items()}
    caption = (
        f"Money in {quote}, from a start of {start[window.main]:,.0f}; a negative cost was received. "
        "Good: costs take a small share of the profit before them."
    )
    if unknown:
        caption += f" {', '.join(unknown)}: {labels.ABSENT}, the run was recorded before they were told apart."
    picture: Picture | Missing = Missing("Costs by kind", "nobody paid anything: there was no trade")
    if any(any(one.values()) for one in paid.values()):
        picture = Picture(
            "Costs by kind",
            "What each kind took of the equity at the start; left of 0 was received. Good: short bars, or a return in "
            "the table below that is worth the long ones.",
            trade_charts.costs_chart(paid, start),
        )
    table = Table(
        "Costs in money",
        caption,
        labels.COST_COLUMNS,
        tuple(TableRow(title_of(name), one, main=name == window.main) for name, one in rows.items()),
    )
    inference = inference_block(window)
    blocks = (picture, table, _not_executed(window), *([inference] if inference else []), settings_block(settings))
    return ReportSection("What trading cost", blocks)


def _not_executed(window: WindowResult) -> Table | Missing:
    """What the main team or strategy asked for and did not get, by reason."""
    title = "What was not executed, and why"
    found = window.main_result.rejections
    if not found:
        return Missing(title, "everything that was asked for was executed")
    reasons = Counter(one.reason for one in found)
    columns = (
        Column("count", "Records", "count", "orders or parts of one"),
        Column("example", "The first of them", "text", "coin and detail"),
    )
    first = {one.reason: f"{one.symbol}: {one.detail}" for one in reversed(found)}
    rows = tuple(
        TableRow(reason, {"count": count, "example": first[reason]}) for reason, count in reasons.most_common()
    )
    caption = "Each order ends in a fill or here; what is filled in part does both. Good: few, and none that surprises."
    return Table(title, caption, columns, rows, "Reason")


_INFERENCE_COLUMNS = (
    Column("calls", "Requests", "count", "answers asked of the engine"),
    Column("tokens", "Tokens", "count", "read and sampled"),
    Column("seconds", "Seconds", "count", "waited for answers, those of a batch counted for each in it"),
    Column("money", "Money", "money", "by the price table of the configuration"),
    Column("share", "Of the start", "small_share", "money as a share of the equity at the start"),
    Column("left", "Return after it", "change", "total return less the money for inference"),
)


def inference_block(window: WindowResult) -> Table | None:
    """What the main team's inference took, by role; None for a team of rules."""
    spent = window.main_result.inference
    if spent is None:
        return None
    start = window.main_result.equity[0]
    rows = [
        TableRow(role_title(role), {**cost.model_dump(), **_money(cost.money, start, spent.priced), "left": None})
        for role, cost in spent.roles.items()
    ]
    left = window.main_result.return_after_inference
    whole = {**spent.model_dump(), **_money(spent.money, start, spent.priced), "left": left if spent.priced else None}
    line = inference_cost_line(window.main_result) or ""
    caption = f"{line[:1].upper()}{line[1:]}. Good: it leaves most of what trading earned."
    return Table("What inference cost", caption, _INFERENCE_COLUMNS, (*rows, TableRow("All", whole, main=True)), "Role")


def _money(money: float, start: float, priced: bool) -> dict[str, float | None]:
    """Money and its share of the equity at the start; None where the price is not known."""
    return {"money": money, "share": money / start} if priced else {"money": None, "share": None}


def settings_block(settings: Mapping[str, Any]) -> Table | Missing:
    """The settings of costs and venue, and the limits, with what they mean."""
    rows = []
    for section in ("costs", "venue", "guard"):
        values = settings.get(section)
        for key, value in values.items() if isinstance(values, Mapping) else ():
            shown = value if isinstance(value, str) else json.dumps(value)
            rows.append(TableRow(f"{section}.{key}", {"value": shown or "none", "meaning": _meaning(section, key)}))
    title = "Costs, venue and limits as they were set"
    if not rows:
        return Missing(title, "the run's record holds no settings")
    columns = (Column("value", "Value", "text", "as configured"), Column("meaning", "Meaning", "text", "what it sets"))
    caption = "What the exchange worked with. Good: close to what your venue charges."
    return Table(title, caption, columns, tuple(rows), "Setting", folded=True)


def _meaning(section: str, key: str) -> str:
    """The one line that the configuration says about a setting; empty for one that it does not know (any more)."""
    field = Config.model_fields.get(section)
    model = field.annotation if field is not None else None
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return ""
    inner = model.model_fields.get(key)
    return (inner.description or "") if inner is not None else ""


_WITHHELD_COLUMNS = (
    Column("count", "Times", "count", "orders lessened, dropped or, by a loss limit, added"),
    Column("saved", "Saved", "money", "losses avoided less gains missed; negative: it cost that much"),
    Column("losses_avoided", "Losses avoided", "money", "of those that would have lost"),
    Column("gains_missed", "Gains missed", "money", "of those that would have gained"),
    Column("share", "Of the start", "change", "what was saved as a share of the equity at the start"),
    Column("valued", "Valued", "count", "how many of them the bars and the record allow to value"),
)


def withheld_block(window: WindowResult, settings: Mapping[str, Any], reload: MarketReload) -> Table | Missing:
    """What the guard and RiskAnalyst withheld from the main team's orders and what that was worth, by rule.

    `settings` is the config of the run, whose costs the withheld orders are charged.
    """
    title = "What the guard and RiskAnalyst withheld, and what that was worth"
    worths = withheld_of(window, settings, reload)
    if isinstance(worths, str):
        return Missing(title, worths)
    if not worths:
        return Missing(title, "nothing was withheld: every order passed as it was decided")
    start, quote = window.main_result.equity[0], labels.quote_of(window.main_result.symbols)
    rows = tuple(
        TableRow(
            f"{'RiskAnalyst' if one.by == RISK_ANALYST else 'Guard'}: {one.rule}",
            {**asdict(one), "share": one.saved / start},
        )
        for one in worths
    )
    caption = (
        f"Money in {quote}. A counterfactual of each order alone: what was asked and what was let through, traded at "
        "the next open at the run's fees, spread and funding, without impact, brackets or delays, up to the next "
        "decision. It is no forecast of what the account would have made with all of them: they would have changed "
        "one another. Good: saved above 0 over many of them; a hard limit may cost a little, as an insurance does."
    )
    return Table(title, caption, _WITHHELD_COLUMNS, rows, "Who, by which rule", tinted=True)


_LIMITS_COLUMNS = (Column("value", "What happened", "text", "by the guard's own record, or from the fills"),)
_FLAT_RULES = ("daily_loss", "max_drawdown")


def loss_limits_block(window: WindowResult, settings: Mapping[str, Any]) -> Table:
    """When the main team's account was made flat by a loss limit, and how much was traded, beside the limits of the
    run's config."""
    own, limits = window.main_result, settings.get("guard")
    limits = limits if isinstance(limits, Mapping) else {}
    days = (own.times[-1] - own.times[0]) / DAY_MS
    rows = [
        TableRow(f"{format_time(time)} UTC", {"value": f"{rule}: {detail}"})
        for time, rule, detail in sorted(_flattened(window))
    ]
    if not rows:
        shown = [f"{name} {limits[name]:.0%}" for name in ("daily_loss", "max_drawdown") if name in limits]
        rows = [TableRow("Loss limits", {"value": f"none was reached ({', '.join(shown) or labels.ABSENT})"})]
    if days > 0.0:
        average = (
            f"{own.metrics['turnover'] / days:.2f} times the equity" if "turnover" in own.metrics else labels.ABSENT
        )
        rows.append(TableRow("Traded on an average day", {"value": average}))
    most = limits.get("max_daily_turnover")
    limit = f"; the limit is {most:g}" if most else "; no limit was set" if most is not None else ""
    busiest = busiest_day(own.times, own.equity, own.fills)
    rows.append(TableRow("Traded in the busiest 24 hours", {"value": f"{busiest:.2f} times the equity{limit}"}))
    caption = (
        "From a loss limit on, everything is closed and the account stays flat for the time that is stated. "
        "Good: no loss limit was reached, and little is traded for what was earned."
    )
    return Table("Loss limits and turnover", caption, _LIMITS_COLUMNS, tuple(rows), "When")


def _flattened(window: WindowResult) -> list[tuple[int, str, str]]:
    """Time, rule and words of each moment at which the guard began to keep the account flat."""
    found = []
    for decision in window.decisions.get(window.main, []):
        document = decision.document
        entries = [(decision.time, clamp) for clamp in document.clamps]
        entries += [(later.time, later) for later in document.later]
        found += [(time, one.rule, one.detail) for time, one in entries if not one.symbol and one.rule in _FLAT_RULES]
    return found


def trades_section(window: WindowResult) -> ReportSection:
    """Statistics of the trades of all, and of the main team by side; how far they went; the list."""
    trades = window.main_result.trades
    rows = []
    for name, result in window.results.items():
        start = result.equity[0]
        of_it = trades if name == window.main else result.trades
        rows.append(TableRow(title_of(name), trade_summary(of_it, start), main=name == window.main))
        if name == window.main:
            for side, chosen in by_side(trades).items():
                rows.append(TableRow(f"… {side} only", trade_summary(chosen, start)))
    table = Table(
        "Statistics",
        "From flat to flat, net of all costs; those still open count at their value at the end. Good: a profit factor "
        "above 1, and losers that are cut before they go further against you than winners do.",
        labels.TRADE_COLUMNS,
        tuple(rows),
    )
    if not trades:
        return ReportSection("Trades", (table, Missing("List", "there were no trades")))
    excursions: Picture | Missing = Missing("Excursions", "the run's record does not hold them")
    if any(trade.mae is not None for trade in trades):
        most = trade_charts.MOST_TRADES
        cut = f", of the {most} with the largest profits and losses" if len(trades) > most else ""
        excursions = Picture(
            "How far trades went against it",
            f"One point a trade{cut}: its worst moment against its result; a triangle up is a long, down a short. "
            "Good: winners near the right edge, and no loser far to the left of all winners.",
            trade_charts.excursions_chart(trades),
        )
    return ReportSection("Trades", (table, excursions, _trade_list(trades)))


def _trade_list(trades: Sequence[Trade]) -> Table:
    shown = trades[:TRADES_LISTED]
    cut = f"; the first {len(shown)} are shown" if len(shown) < len(trades) else ""
    caption = f"{len(trades)} from flat to flat{cut}. Good: no few trades that hold all of the profit."
    return Table(
        "List",
        caption,
        labels.TRADE_LIST_COLUMNS,
        tuple(_trade_row(trade) for trade in shown),
        "Symbol",
        folded=len(shown) > _FEW_TRADES,
    )


def _trade_row(trade: Trade) -> TableRow:
    hours = None if trade.holding_ms is None else trade.holding_ms / 3_600_000
    values = asdict(trade) | {"side": "long" if trade.quantity > 0.0 else "short", "hours": hours}
    return TableRow(trade.symbol, values)


def candles_block(
    window: WindowResult, market: Market, symbol: str, span: tuple[int, int] | None = None
) -> Picture | Missing:
    """The candles of one symbol with the trades in it and the number of each one's decision; `span` is the part of the
    window that is shown (ms), in bars as fine as it allows."""
    result = window.main_result
    first, last = (result.times[0], result.times[-1]) if span is None else span
    trades = [trade for trade in result.trades if trade.symbol == symbol]
    try:
        bars = candles(market, symbol, first, last)
    except DataError as error:
        return Missing(symbol, str(error))
    if not bars.present.any():
        return Missing(symbol, "the data has no bar of it in this window")
    decisions = window.decisions.get(window.main)
    on_candles = None if decisions is None else DecisionsOnCandles(decisions, result, symbol)
    shown = [trade for trade in trades if trade.exit_time >= first and trade.entry_time <= last]
    drawn = len(trade_charts.drawn_trades(shown, symbol))
    cut = f", the {drawn} with the largest profits and losses drawn" if drawn < len(shown) else ""
    length = int(bars.open_time[1] - bars.open_time[0]) if len(bars) > 1 else market.interval
    counted = f"{len(shown)} trade{'' if len(shown) == 1 else 's'}{cut}"
    caption = f"Bars of {_length(length)}; {counted}. {_SIGNS}{'' if on_candles is None else _CUT_SIGNS}"
    return Picture(symbol, caption, trade_charts.candles_chart(bars, shown, result.fills, on_candles))


def candles_section(window: WindowResult, reload: MarketReload) -> ReportSection:
    """The candles of the symbols that were traded most, or why there are none."""
    title = "Trades on the candles"
    if reload.market is None:
        return ReportSection(title, (Missing(title, f"the candles need the run's data again: {reload.problem}"),))
    traded = list(traded_notional(window.main_result))
    if not traded:
        return ReportSection(title, (Missing(title, "nothing was traded"),))
    shown = traded[:CANDLES_SHOWN]
    blocks = [candles_block(window, reload.market, symbol) for symbol in shown]
    rest = traded[len(shown) :]
    left_out = f"The {len(shown)} symbols that were traded most. Left out: {labels.listed(rest, 20)}." if rest else ""
    return ReportSection(title, tuple(blocks), left_out)


def _length(interval: int) -> str:
    """`14_400_000` as '4 hours'."""
    for unit, name in ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute")):
        if interval % unit == 0:
            return f"{interval // unit} {name}{'' if interval == unit else 's'}"
    return f"{interval} ms"
