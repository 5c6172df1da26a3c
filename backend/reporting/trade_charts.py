"""Figures of one backtest: rolling Sharpe, what trading cost, candles with the trades, how far trades went.

What is long and what is short differs by shape and by line, not by colour alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from backend.reporting.charts import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PINK,
    SKY,
    VERMILION,
    blank_figure,
    curve,
    label_of,
    moments,
)
from backend.reporting.decision.on_candles import Cut, CutKind, DecisionsOnCandles
from backend.reporting.drawing.figure import PlainFigure, Trace, trace
from backend.reporting.labels import COST_TITLES, title_of
from backend.reporting.result_stats import RollingSharpe, trade_return
from simulator.backtest.trades import Trade
from simulator.exchange.exchange_records import Fill
from simulator.market.market import Bars

MOST_TRADES = 400  # drawn in one figure
MOST_CUTS = 400  # of each kind

_COST_STYLES = {
    "fees": (BLUE, ""),
    "spread": (ORANGE, "/"),
    "impact": (GREEN, "x"),
    "funding": (VERMILION, "."),
    "borrow": (PINK, "-"),
    "liquidation": (INK, "+"),
}


class _Side(NamedTuple):
    """How one side of the market is drawn: the sign of its quantity, colour, dash, symbols of entry and of the exits
    by what closed the trade."""

    sign: int
    colour: str
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
# What was cut, its words in the legend, symbol and colour.
_CUTS: dict[CutKind, tuple[str, str, str]] = {
    "veto": ("vetoed by RiskAnalyst", "octagon", VERMILION),
    "reduced": ("reduced by RiskAnalyst", "octagon-open", ORANGE),
    "guard": ("cut by the guard", "diamond-open", PINK),
}
_ABOVE = 0.03  # how far above its candle a cut stands, as a share of the picture's height


def rolling_sharpe_chart(rolling: Mapping[str, RollingSharpe], main: str, waiting: Collection[str]) -> PlainFigure:
    """The rolling Sharpe ratio of each name; a hole where nothing varied. `waiting` as in `charts.equity_chart`."""
    figure = blank_figure("", "Sharpe ratio, annual", "")
    for number, (name, one) in enumerate(rolling.items()):
        figure.add_trace(curve(name, number, moments(one.times), one.values, name == main, name in waiting, unit=""))
    figure.add_hline(y=0.0, line={"color": "#c5cdd5", "width": 1})
    return figure


def costs_chart(costs: Mapping[str, Mapping[str, float]], start: Mapping[str, float]) -> PlainFigure:
    """What trading cost each name, kind by kind, in percent of the equity at its start; left of 0 was received.

    Kinds that cost nobody anything are left out.
    """
    figure = blank_figure("of the equity at the start", "", "")
    names = list(costs)
    for kind, (colour, pattern) in _COST_STYLES.items():
        amounts = [100.0 * costs[name].get(kind, 0.0) / start[name] for name in names]
        if not any(amounts):
            continue
        figure.add_trace(
            trace(
                "bar",
                x=[round(amount, 4) for amount in amounts],
                y=[label_of(title_of(name)) for name in names],
                orientation="h",
                name=COST_TITLES[kind],
                marker={"color": colour, "pattern": {"shape": pattern, "fillmode": "overlay", "solidity": 0.2}},
                hovertemplate="%{x:.2f} %",
                showlegend=True,
            )
        )
    figure.add_vline(x=0.0, line={"color": INK, "width": 1})
    figure.update_layout(barmode="relative", height=130 + 34 * len(names), bargap=0.3, hovermode="y unified")
    figure.update_xaxes(ticksuffix=" %")
    figure.update_yaxes(autorange="reversed")
    return figure


def candles_chart(
    bars: Bars, trades: Sequence[Trade], fills: Sequence[Fill], decisions: DecisionsOnCandles | None = None
) -> PlainFigure:
    """Candles of one symbol with its trades, each a line from its first fill to its last; an absent bar leaves a hole.

    `trades` and `fills` (of the stored result) may hold those of other symbols, which are left out. Of more than
    `MOST_TRADES` those with the largest profits and losses are drawn. With `decisions` what RiskAnalyst and the guard
    took stands above the candles, at most `MOST_CUTS` of a kind, and the last of a mark's `customdata` is the number
    of its decision, None where there is none.
    """
    figure = blank_figure("", "price", "")
    here = bars.present
    prices = {name: _short(getattr(bars, name)[here].tolist()) for name in ("open", "high", "low", "close")}
    figure.add_trace(
        trace(
            "candlestick",
            x=moments([int(time) for time in bars.open_time[here]]),
            **prices,
            name=label_of(bars.symbol),
            increasing={"line": {"color": SKY, "width": 1}, "fillcolor": "#ffffff"},
            decreasing={"line": {"color": GREY, "width": 1}, "fillcolor": "#9aa5b1"},
            showlegend=False,
        )
    )
    # A position that grew step by step has a mean entry price that the market may never have had at its entry.
    first_price = {
        (fill.time, fill.quantity > 0.0): fill.price for fill in reversed(fills) if fill.symbol == bars.symbol
    }
    own = drawn_trades(trades, bars.symbol)
    for side in _SIDES:
        chosen = [trade for trade in own if trade.quantity * _SIDES[side].sign > 0.0]
        entries = [first_price.get((one.entry_time, one.quantity > 0.0), one.entry_price) for one in chosen]
        exits = [one.exit_price if one.closing_price is None else one.closing_price for one in chosen]
        figure.add_traces(_trade_marks(side, chosen, _short(entries), _short(exits), decisions) if chosen else [])
    if decisions is not None and here.any():
        figure.add_traces(_cut_marks(bars, decisions))
    figure.update_xaxes(rangeslider={"visible": False})
    figure.update_layout(hovermode="closest", height=420)
    return figure


def _trade_marks(
    side: str,
    trades: Sequence[Trade],
    entries: Sequence[float],
    exits: Sequence[float],
    decisions: DecisionsOnCandles | None,
) -> list[Trace]:
    """Lines from entries to exits, and the marks at both ends: an exit's shape says what closed the trade."""
    style = _SIDES[side]
    start, end = (moments([trade.entry_time for trade in trades]), moments([trade.exit_time for trade in trades]))
    way = [moment for pair in zip(start, end, strict=True) for moment in (*pair, None)]
    height = [price for pair in zip(entries, exits, strict=True) for price in (*pair, None)]
    line = {"color": style.colour, "width": 1.6, "dash": style.dash}
    marks = [
        trace("scatter", x=way, y=height, mode="lines", line=line, legendgroup=side, hoverinfo="skip", showlegend=False)
    ]
    ends = [_EXITS.get(trade.reason, "exit") for trade in trades]
    for what, symbol in {"entry": style.entry, **style.exits}.items():
        enters = what == "entry"
        rows = [row for row, kind in enumerate(ends) if enters or kind == what]
        if not rows:
            continue
        bars = [trades[row].entry_bar if enters else trades[row].exit_bar for row in rows]
        marks.append(
            trace(
                "scatter",
                x=[(start if enters else end)[row] for row in rows],
                y=[(entries if enters else exits)[row] for row in rows],
                name=f"{side}, {what}",
                mode="markers",
                legendgroup=side,
                marker={"symbol": symbol, "size": 9, "color": style.colour, "line": {"color": INK, "width": 1}},
                customdata=[
                    [
                        round(100.0 * trade_return(trades[row]), 2),
                        label_of(trades[row].reason),
                        None if decisions is None else decisions.number(bar),
                    ]
                    for row, bar in zip(rows, bars, strict=True)
                ],
                hovertemplate=f"{side} {what} at %{{y:.6g}}<br>%{{customdata[0]:+.2f}} % net, closed by "
                f"%{{customdata[1]}}{_OF_DECISION if decisions is not None else ''}<extra></extra>",
            )
        )
    return marks


_OF_DECISION = "<br>decision %{customdata[2]}"


def _cut_marks(bars: Bars, decisions: DecisionsOnCandles) -> list[Trace]:
    """What RiskAnalyst and the guard took, above the candle at whose close they did."""
    here = bars.present
    times, highs = bars.open_time[here], bars.high[here]
    gap = _ABOVE * float(highs.max() - bars.low[here].min())
    last = int(times[-1]) + (int(times[1] - times[0]) if len(times) > 1 else 0)
    by_kind: dict[CutKind, list[Cut]] = {}
    for cut in decisions.cuts():
        if times[0] < cut.time <= last:
            by_kind.setdefault(cut.kind, []).append(cut)
    marks = []
    for kind, (name, symbol, colour) in _CUTS.items():
        cuts = by_kind.get(kind, [])
        cuts = cuts[:: -(-len(cuts) // MOST_CUTS) or 1]
        if not cuts:
            continue
        rows = np.searchsorted(times, [cut.time - 1 for cut in cuts], side="right") - 1
        marks.append(
            trace(
                "scatter",
                x=moments([cut.time for cut in cuts]),
                y=_short((highs[rows] + gap).tolist()),
                name=name,
                mode="markers",
                marker={"symbol": symbol, "size": 9, "color": colour, "line": {"width": 1.5}},
                customdata=[[name, label_of(cut.text), cut.decision] for cut in cuts],
                hovertemplate=f"%{{customdata[0]}}<br>%{{customdata[1]}}{_OF_DECISION}<extra></extra>",
            )
        )
    return marks


def drawn_trades(trades: Sequence[Trade], symbol: str) -> list[Trade]:
    """The trades of `symbol` that its candles show, in their order."""
    own = [trade for trade in trades if trade.symbol == symbol]
    if len(own) <= MOST_TRADES:
        return own
    drawn = {id(trade) for trade in sorted(own, key=lambda trade: -abs(trade.pnl))[:MOST_TRADES]}
    return [trade for trade in own if id(trade) in drawn]


def excursions_chart(trades: Sequence[Trade]) -> PlainFigure:
    """Of each trade: how far the price went against it, and what it returned in the end. In percent of the entry.

    Trades whose excursions are not known are left out.
    """
    figure = blank_figure("worst excursion of the price (MAE)", "net return", "%")
    known = [trade for trade in trades if trade.mae is not None]
    known = sorted(known, key=lambda trade: -abs(trade.pnl))[:MOST_TRADES]
    for side, style in _SIDES.items():
        chosen = [trade for trade in known if trade.quantity * style.sign > 0.0]
        figure.add_trace(
            trace(
                "scatter",
                x=[round(100.0 * (trade.mae or 0.0), 3) for trade in chosen],
                y=[round(100.0 * trade_return(trade), 3) for trade in chosen],
                name=side,
                mode="markers",
                marker={"symbol": style.entry, "size": 9, "color": style.colour, "opacity": 0.75},
                customdata=[
                    [label_of(trade.symbol), moments([trade.entry_time])[0], round(100.0 * (trade.mfe or 0.0), 2)]
                    for trade in chosen
                ],
                hovertemplate="%{customdata[0]} from %{customdata[1]}<br>worst %{x:.2f} %, best %{customdata[2]:.2f} %,"
                " net %{y:.2f} %<extra></extra>",
                showlegend=True,
            )
        )
    figure.add_hline(y=0.0, line={"color": INK, "width": 1, "dash": "dot"})
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(ticksuffix=" %")
    return figure


def _short(prices: Sequence[float]) -> list[float]:
    """Prices with the digits that a screen shows."""
    return [float(f"{price:.7g}") for price in prices]
