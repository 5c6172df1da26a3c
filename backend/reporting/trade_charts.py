"""The trades of one backtest on the candles.

What is long and what is short differs by shape and by line, not by color alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from backend.decisions.backtest_document import BacktestDocument
from backend.decisions.document import StoredDecision
from backend.reporting.charts import GREEN, GREY, SKY, VERMILION, blank_figure, label_of, moments
from backend.reporting.result_stats import trade_return
from simulator.backtest.trades import Trade
from simulator.exchange.exchange_records import Fill
from simulator.market.market import Bars

MOST_TRADES = 400  # drawn in one figure


class _Side(NamedTuple):
    """How one side of the market is drawn: the sign of its quantity, color, dash, symbols of entry and of the exits
    by what closed the trade."""

    sign: int
    color: str
    dash: str
    entry: str
    exits: Mapping[str, str]


_SIDES = {
    "long": _Side(
        1, GREEN, "solid", "triangle-up", {"exit": "circle-open", "stop": "x", "target": "star", "forced": "bowtie"}
    ),
    "short": _Side(
        -1,
        VERMILION,
        "dot",
        "triangle-down",
        {"exit": "square-open", "stop": "cross", "target": "star-diamond", "forced": "hourglass"},
    ),
}
_EXITS = {"stop": "stop", "target": "target", "liquidation": "forced", "delisted": "forced"}  # others are plain exits


DecisionOf = Callable[[int], int | None]  # the number of the decision that a fill in a bar came from


def decisions_of_fills(decisions: Sequence[StoredDecision], result: BacktestDocument, symbol: str) -> DecisionOf:
    """Which of a team's `decisions` a fill of `symbol` came from: the newest before its bar that sent an order, whose
    stops and targets hold until the next. `result` is their backtest's."""
    bar_of = {time: result.start + row for row, time in enumerate(result.times)}
    sent = [
        (bar_of[one.time], one.ordinal)
        for one in decisions
        if one.time in bar_of and any(order.symbol == symbol for order in one.document.orders)
    ]

    def number(bar: int) -> int | None:
        place = bisect_left(sent, (bar, -1)) - 1
        return sent[place][1] if place >= 0 else None

    return number


def candles_chart(
    bars: Bars, trades: Sequence[Trade], fills: Sequence[Fill], decisions: DecisionOf | None = None
) -> go.Figure:
    """Candles of one symbol with its trades, each a line from its first fill to its last; an absent bar leaves a hole.

    `trades` and `fills` (of the stored result) may hold those of other symbols, which are left out. Of more than
    `MOST_TRADES` those with the largest profits and losses are drawn. With `decisions` the last of a mark's
    `customdata` is the number of its decision, None where there is none.
    """
    figure = blank_figure("", "price", "", 420, hovermode="closest")
    here = bars.present
    prices = {name: _short(getattr(bars, name)[here].tolist()) for name in ("open", "high", "low", "close")}
    figure.add_candlestick(
        x=moments(bars.open_time[here]), **prices, name=label_of(bars.symbol), showlegend=False,
        increasing={"line": {"color": SKY, "width": 1}, "fillcolor": "#ffffff"},
        decreasing={"line": {"color": GREY, "width": 1}, "fillcolor": "#9aa5b1"},
    )  # fmt: skip
    # A position that grew step by step has a mean entry price that the market may never have had at its entry.
    first_price = {
        (fill.time, fill.quantity > 0.0): fill.price for fill in reversed(fills) if fill.symbol == bars.symbol
    }
    own = drawn_trades(trades, bars.symbol)
    for side in _SIDES:
        chosen = [trade for trade in own if trade.quantity * _SIDES[side].sign > 0.0]
        entries = [first_price.get((one.entry_time, one.quantity > 0.0), one.entry_price) for one in chosen]
        exits = [one.exit_price if one.closing_price is None else one.closing_price for one in chosen]
        if chosen:
            _add_trades(figure, side, chosen, _short(entries), _short(exits), decisions)
    figure.update_xaxes(rangeslider={"visible": False})
    return figure


def _add_trades(
    figure: go.Figure,
    side: str,
    trades: Sequence[Trade],
    entries: np.ndarray[Any, Any],
    exits: np.ndarray[Any, Any],
    decisions: DecisionOf | None,
) -> None:
    """Lines from entries to exits, and the marks at both ends: an exit's shape says what closed the trade."""
    style = _SIDES[side]
    start, end = (moments([trade.entry_time for trade in trades]), moments([trade.exit_time for trade in trades]))
    # The hole between two lines has a time too: plotly writes none as 1970.
    way, height = np.stack([start, end, end], axis=1), np.stack([entries, exits, np.full(len(trades), np.nan)], axis=1)
    line = {"color": style.color, "width": 1.6, "dash": style.dash}
    figure.add_scatter(x=way.ravel(), y=height.ravel(), mode="lines", line=line, legendgroup=side, hoverinfo="skip",
                       showlegend=False)  # fmt: skip
    of_decision = "<br>decision %{customdata[2]}" if decisions is not None else ""
    ends = [_EXITS.get(trade.reason, "exit") for trade in trades]
    for what, symbol in {"entry": style.entry, **style.exits}.items():
        enters = what == "entry"
        rows = [row for row, kind in enumerate(ends) if enters or kind == what]
        if not rows:
            continue
        bars = [trades[row].entry_bar if enters else trades[row].exit_bar for row in rows]
        figure.add_scatter(
            x=(start if enters else end)[rows], y=(entries if enters else exits)[rows], name=f"{side}, {what}",
            mode="markers", legendgroup=side,
            marker={"symbol": symbol, "size": 9, "color": style.color, "line": {"color": GREY, "width": 1}},
            customdata=[
                [
                    round(100.0 * trade_return(trades[row]), 2),
                    label_of(trades[row].reason),
                    None if decisions is None else decisions(bar),
                ]
                for row, bar in zip(rows, bars, strict=True)
            ],
            hovertemplate=f"{side} {what} at %{{y:.6g}}<br>%{{customdata[0]:+.2f}} % net, closed by %{{customdata[1]}}"
            f"{of_decision}<extra></extra>",
        )  # fmt: skip


def drawn_trades(trades: Sequence[Trade], symbol: str) -> list[Trade]:
    """The trades of `symbol` that its candles show, in their order."""
    own = [trade for trade in trades if trade.symbol == symbol]
    if len(own) <= MOST_TRADES:
        return own
    drawn = {id(trade) for trade in sorted(own, key=lambda trade: -abs(trade.pnl))[:MOST_TRADES]}
    return [trade for trade in own if id(trade) in drawn]


def _short(prices: Sequence[float]) -> np.ndarray[Any, Any]:
    """Prices with the digits that a screen shows."""
    return np.array([float(f"{price:.7g}") for price in prices])
