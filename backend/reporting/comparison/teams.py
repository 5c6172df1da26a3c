"""The teams and strategies of one backtest against the first of them: what they made of the same bars, how sure the
difference is, and what their thinking cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.decisions.backtest_document import BacktestDocument
from backend.evaluation.paired_runs import ComparedResult, PairedDifference, paired_differences
from backend.reporting import charts
from backend.reporting.blocks import Missing, Picture, ReportBlock, ReportSection, Table, TableRow
from backend.reporting.drawing.figure import PlainFigure, trace
from backend.reporting.labels import Column, interval_text, title_of
from backend.reporting.run_summary import WindowResult
from backend.store.records import RunRecord
from simulator.errors import DataError, UserError

# Fewer trades get no rank: of five, all won by the toss of a coin has a probability of 1 in 32, below 5 %; of fewer, no
# outcome whatever tells skill from luck, and none at all is no way of trading.
LEAST_TRADES_RANKED = 5

_COLUMNS = (
    Column("rank", "Rank", "count", f"by return; a dash with fewer than {LEAST_TRADES_RANKED} trades"),
    Column("trades", "Trades", "count", "positions opened and closed"),
    Column("total_return", "Return", "change", "net of all costs of trading"),
    Column("sharpe", "Sharpe", "ratio", "return per unit of risk, for a year"),
    Column("max_drawdown", "Drawdown", "share", "largest loss from a peak"),
    Column("difference", "Over the first", "change", "final wealth over that of the first, less 1"),
    Column("interval", "95 % interval", "text", "of that difference; one that holds 0 says: not proven"),
    Column("p_value", "p", "ratio", "probability of such a difference of the Sharpe ratios where there is none"),
    Column("adjusted", "p, Holm", "ratio", "the same, corrected for all that were compared here"),
    Column("calls", "Model calls", "count", "answers that models were asked for"),
    Column("tokens", "Tokens", "count", "read and sampled"),
    Column("money", "Thinking", "money", "what the models' answers cost, in the account's currency"),
    Column("after_thinking", "After thinking", "change", "return less what thinking cost"),
)
_COLOURS = (charts.BLUE, charts.ORANGE, charts.VERMILION, charts.GREEN, charts.SKY, charts.PINK)
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star")
_CAPTION = (
    "On the same bars, in the same window, at the same costs; each is compared with the first, bar by bar. An interval "
    f"that holds 0 says: not proven. Below {LEAST_TRADES_RANKED} trades there is no rank: so few tell nothing."
)


def ranking(results: Mapping[str, BacktestDocument]) -> dict[str, int | None]:
    """The rank of each result by its total return, best first, from 1; behind them, with None, those of fewer than
    `LEAST_TRADES_RANKED` trades."""
    best = sorted(results, key=lambda name: -results[name].total_return)
    few = [name for name in best if results[name].metrics.get("trades", 0.0) < LEAST_TRADES_RANKED]
    ranks: dict[str, int | None] = {}
    for name in best:
        if name not in few:
            ranks[name] = len(ranks) + 1
    return ranks | dict.fromkeys(few)


def teams_section(window: WindowResult, run: RunRecord) -> ReportSection | None:
    """The section; None where only one was tested."""
    if len(window.subjects) < 2:
        return None
    first, *others = (ComparedResult(run, name, window.results[name]) for name in window.subjects)
    differences: dict[str, PairedDifference] = {}
    blocks: list[ReportBlock] = []
    try:
        differences = {one.ours.name: one for one in paired_differences([first, *others])}
    except (DataError, UserError) as error:
        blocks.append(Missing("Differences", str(error)))
    ranks = ranking({name: window.results[name] for name in window.subjects})
    rows = tuple(
        TableRow(
            title_of(name), {"rank": rank, **_values(window, name, differences.get(name))}, main=name == window.main
        )
        for name, rank in ranks.items()
    )
    blocks.insert(0, Table("Against one another", _CAPTION, _COLUMNS, rows, tinted=True))
    if differences:
        blocks.append(
            Picture(
                f"Final wealth over that of {title_of(window.main)}",
                "A bar wholly right of 0: better on this window. One that touches 0: the window does not tell.",
                wealth_chart(differences),
            )
        )
    prices = {name: row for name in window.subjects if (row := _price(window, name)) is not None}
    if prices:
        caption = "Further up earned more; further right cost more to think. Good: up and left."
        blocks.append(Picture("The price of thinking", caption, _prices(prices, any(x for x, _ in prices.values()))))
    return ReportSection("Against one another", tuple(blocks))


def _values(window: WindowResult, name: str, difference: PairedDifference | None) -> Mapping[str, Any]:
    result = window.results[name]
    inference = result.inference
    values: dict[str, Any] = {**result.metrics, "after_thinking": result.return_after_inference}
    if inference is not None:
        values |= {"calls": inference.calls, "tokens": inference.tokens}
        values["money"] = inference.money if inference.priced else None
    if difference is not None:
        values |= {
            "difference": difference.wealth.value,
            "interval": interval_text(difference.wealth, "change"),
            "p_value": difference.p_value,
            "adjusted": difference.adjusted,
        }
    return values


def _price(window: WindowResult, name: str) -> tuple[float, float] | None:
    """Tokens of a decision in the mean, and the return in percent; None for whom no model answers."""
    result = window.results[name]
    if result.inference is None or not result.decisions:
        return None
    return result.inference.tokens / result.decisions, 100.0 * result.total_return


def wealth_chart(differences: Mapping[str, PairedDifference]) -> PlainFigure:
    """Each one's final wealth over the first's, less 1, with its 95 % interval, in percent."""
    figure = charts.blank_figure("final wealth over the first's, less 1", "", "")
    names = list(differences)
    for number, name in enumerate(names):
        wealth = differences[name].wealth
        ends = [100.0 * wealth.low, 100.0 * wealth.high]
        style = {"color": charts.BLUE, "width": 6}
        shown = f"%{{x:+.2f}} %<extra>{charts.label_of(title_of(name))}</extra>"
        figure.add_trace(trace("scatter", x=ends, y=[number] * 2, mode="lines", line=style, hovertemplate=shown))
        mark = {"color": "#ffffff", "size": 11, "symbol": "diamond", "line": {"color": charts.BLUE, "width": 3}}
        figure.add_trace(
            trace("scatter", x=[100.0 * wealth.value], y=[number], mode="markers", marker=mark, hovertemplate=shown)
        )
    figure.add_vline(x=0.0, line={"color": charts.INK, "width": 1.5, "dash": "dot"})
    labels = [charts.label_of(title_of(name)) for name in names]
    figure.update_yaxes(tickvals=list(range(len(names))), ticktext=labels, range=[len(names) - 0.4, -0.6])
    edges = [100.0 * edge for one in differences.values() for edge in (one.wealth.low, one.wealth.high)]
    low, high = min(0.0, *edges), max(0.0, *edges)
    room = 0.04 * (high - low)  # so that the end of each bar is seen
    figure.update_xaxes(ticksuffix=" %", zeroline=False, range=[low - room, high + room])
    figure.update_layout(height=130 + 48 * len(names), hovermode="closest", showlegend=False)
    return figure


def _prices(prices: Mapping[str, tuple[float, float]], logarithmic: bool) -> PlainFigure:
    figure = charts.blank_figure("tokens a decision", "return", "%")
    for number, (name, (tokens, earned)) in enumerate(prices.items()):
        label = charts.label_of(title_of(name))
        marker = {"size": 13, "symbol": _SYMBOLS[number % len(_SYMBOLS)], "color": _COLOURS[number % len(_COLOURS)]}
        hover = f"%{{x:,.0f}} tokens a decision, %{{y:+.2f}} %<extra>{label}</extra>"
        figure.add_trace(
            trace("scatter", x=[tokens], y=[earned], name=label, mode="markers", marker=marker, hovertemplate=hover)
        )
    if logarithmic and min(tokens for tokens, _ in prices.values()) > 0:
        figure.update_xaxes(type="log")
    figure.update_layout(height=320, hovermode="closest")
    return figure
