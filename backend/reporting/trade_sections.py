"""Sections about trading: what it cost, how the trades went, where they are on the candles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from backend.reporting import labels, trade_charts
from backend.reporting.blocks import Missing, Picture, ReportSection, Table, TableRow
from backend.reporting.labels import ABSENT, COST_TITLES, Column, quote_of, title_of
from backend.reporting.market_reload import MarketReload, candles
from backend.reporting.result_stats import cost_summary, inference_cost_line, trade_summary, traded_notional
from backend.reporting.run_summary import WindowResult
from cryptosentinel.agents.registry import role_title
from simulator.backtest.trades import Trade
from simulator.errors import DataError
from simulator.market.market import Market

CANDLES_SHOWN = 6  # figures in the report: the symbols that were traded most
_TRADES_LISTED, _FEW_TRADES = 200, 12  # a longer list is cut, and opened by a click


def costs_section(window: WindowResult) -> ReportSection:
    """What trading cost by kind, what was not executed, what inference cost, and what the guard withheld."""
    summaries = {name: cost_summary(result) for name, result in window.results.items()}
    unknown = [title for key, title in COST_TITLES.items() if key not in window.main_result.costs]
    rows = {name: {**one, "refused": len(window.results[name].rejections)} for name, one in summaries.items()}
    caption = (
        f"Money in {quote_of(window.main_result.symbols)}, from a start of {window.main_result.equity[0]:,.0f}; a "
        "negative cost was received. Good: costs take a small share of the profit before them."
    )
    if unknown:
        caption += f" {', '.join(unknown)}: {ABSENT}."
    table = Table(
        "Costs in money",
        caption,
        labels.COST_COLUMNS,
        tuple(TableRow(title_of(name), one, main=name == window.main) for name, one in rows.items()),
    )
    inference = _inference_block(window)
    blocks = (table, _not_executed(window), *([inference] if inference else []))
    return ReportSection("What trading cost", (*blocks, withheld_block(window)))


def _not_executed(window: WindowResult) -> Table | Missing:
    """What the main team or strategy asked for and did not get, by reason."""
    title = "What was not executed, and why"
    found = window.main_result.rejections
    if not found:
        return Missing(title, "everything that was asked for was executed")
    columns = (
        Column("count", "Records", "count", "orders or parts of one"),
        Column("example", "The first of them", "text", "coin and detail"),
    )
    first = {one.reason: f"{one.symbol}: {one.detail}" for one in reversed(found)}
    rows = tuple(
        TableRow(reason, {"count": count, "example": first[reason]})
        for reason, count in Counter(one.reason for one in found).most_common()
    )
    caption = "Each order ends in a fill or here; one that is filled in part does both. Good: few, and no surprises."
    return Table(title, caption, columns, rows, "Reason")


def _inference_block(window: WindowResult) -> Table | None:
    """What inference took: of the main team by role, and of each team; None for teams of rules."""
    spent = {name: one.inference for name, one in window.results.items() if one.inference is not None}
    if not spent:
        return None
    rows = []
    for name, cost in spent.items():
        start, left = window.results[name].equity[0], window.results[name].return_after_inference
        parts = {f"… {role_title(role)}": one for role, one in cost.roles.items()} if name == window.main else {}
        for label, one in {title_of(name): cost, **parts}.items():
            values: dict[str, Any] = {"calls": one.calls, "tokens": one.tokens, "seconds": one.seconds}
            if cost.priced:
                values |= {"money": one.money, "share": one.money / start, "left": left if one is cost else None}
            rows.append(TableRow(label, values, main=one is spent.get(window.main)))
    line = inference_cost_line(window.main_result) or ""
    caption = f"{line[:1].upper()}{line[1:]}. Good: it leaves most of what trading earned.".removeprefix(". ")
    return Table("What inference cost", caption, labels.INFERENCE_COLUMNS, tuple(rows))


def withheld_of(window: WindowResult) -> dict[str, int]:
    """How often RiskAnalyst and the guard reduced, dropped or added an order of the main team, by `who: rule`."""
    counted: Counter[str] = Counter()
    for document in (decision.document for decision in window.decisions.get(window.main, [])):
        for ruling in document.rulings:
            verdict = "veto" if ruling.verdict != "invalid" and ruling.allowed == 0.0 else ruling.verdict
            counted[f"RiskAnalyst: {verdict}"] += 1
        held_back = (later for later in document.later if later.asked != later.allowed)
        counted.update(f"Guard: {one.rule}" for one in (*document.clamps, *held_back) if one.symbol)
    return dict(counted.most_common())


def withheld_block(window: WindowResult) -> Table | Missing:
    """`withheld_of` as a table."""
    title = "What the guard and RiskAnalyst withheld"
    if not window.decisions.get(window.main):
        return Missing(title, "only a team's decisions are reviewed by them, and the store holds none")
    rows = tuple(TableRow(who, {"count": count}) for who, count in withheld_of(window).items())
    if not rows:
        return Missing(title, "nothing was withheld: every order passed as it was decided")
    caption = "Orders that were reduced, dropped or, by a loss limit, added."
    return Table(title, caption, (Column("count", "Times", "count", ""),), rows, "Who, by which rule")


def trades_section(window: WindowResult) -> ReportSection:
    """Statistics of the trades of all, and of the main team by side; the list."""
    trades = window.main_result.trades
    rows = []
    for name, result in window.results.items():
        start = result.equity[0]
        rows.append(TableRow(title_of(name), trade_summary(result.trades, start), main=name == window.main))
        for side, sign in (("long", 1.0), ("short", -1.0)) if name == window.main else ():
            rows.append(
                TableRow(f"… {side} only", trade_summary([one for one in trades if sign * one.quantity > 0.0], start))
            )
    table = Table(
        "Statistics",
        "From flat to flat, net of all costs; those still open count at their value at the end. Good: a profit factor "
        "above 1, and losers that are cut before they go further against you than winners do.",
        labels.TRADE_COLUMNS,
        tuple(rows),
    )
    if not trades:
        return ReportSection("Trades", (table, Missing("List", "there were no trades")))
    return ReportSection("Trades", (table, _trade_list(trades)))


def _trade_list(trades: Sequence[Trade]) -> Table:
    shown = trades[:_TRADES_LISTED]
    cut = f"; the first {len(shown)} are shown" if len(shown) < len(trades) else ""
    caption = f"{len(trades)} from flat to flat{cut}. Good: the profit does not come from a few trades."
    rows = tuple(
        TableRow(
            one.symbol,
            asdict(one)
            | {
                "side": "long" if one.quantity > 0.0 else "short",
                "hours": None if one.holding_ms is None else one.holding_ms / 3_600_000,
            },
        )
        for one in shown
    )
    return Table("List", caption, labels.TRADE_LIST_COLUMNS, rows, "Symbol", folded=len(shown) > _FEW_TRADES)


def candles_block(
    window: WindowResult, market: Market, symbol: str, span: tuple[int, int] | None = None
) -> Picture | Missing:
    """The candles of one symbol with the trades in it and the number of each one's decision; `span` is the part of the
    window that is shown (ms), in bars as fine as it allows."""
    result = window.main_result
    first, last = (result.times[0], result.times[-1]) if span is None else span
    try:
        bars = candles(market, symbol, first, last)
    except DataError as error:
        return Missing(symbol, str(error))
    if not bars.present.any():
        return Missing(symbol, "the data has no bar of it in this window")
    decisions = window.decisions.get(window.main)
    of_fills = None if decisions is None else trade_charts.decisions_of_fills(decisions, result, symbol)
    shown = [one for one in result.trades if one.symbol == symbol and one.exit_time >= first and one.entry_time <= last]
    drawn = len(trade_charts.drawn_trades(shown, symbol))
    cut = f", the {drawn} with the largest profits and losses drawn" if drawn < len(shown) else ""
    length = int(bars.open_time[1] - bars.open_time[0]) if len(bars) > 1 else market.interval
    counted = f"{len(shown)} trade{'' if len(shown) == 1 else 's'}{cut}"
    caption = (
        f"Bars of {length_text(length)}; {counted}. ▲ opens a long and ○ closes it; ▼ opens a short and □ closes it. A "
        "cross is a stop, a star a target. Good: longs rise and shorts fall along their lines."
    )
    return Picture(symbol, caption, trade_charts.candles_chart(bars, shown, result.fills, of_fills))


def candles_section(window: WindowResult, reload: MarketReload) -> ReportSection:
    """The candles of the symbols that were traded most, or why there are none."""
    title = "Trades on the candles"
    if reload.market is None:
        return ReportSection(title, (Missing(title, f"the candles need the run's data again: {reload.problem}"),))
    traded = list(traded_notional(window.main_result))
    if not traded:
        return ReportSection(title, (Missing(title, "nothing was traded"),))
    blocks = [candles_block(window, reload.market, symbol) for symbol in traded[:CANDLES_SHOWN]]
    rest = traded[CANDLES_SHOWN:]
    left_out = f"The {len(blocks)} symbols that were traded most. Left out: {labels.listed(rest, 20)}." if rest else ""
    return ReportSection(title, tuple(blocks), left_out)


def length_text(interval: int) -> str:
    """`14_400_000` (ms) as '4 hours'."""
    for unit, name in ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute")):
        if interval % unit == 0:
            return f"{interval // unit} {name}{'' if interval == unit else 's'}"
    return f"{interval} ms"
