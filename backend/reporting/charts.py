"""Plotly figures from plain numbers: the same pictures on the page, in the report and in Python.

The colors are those of Okabe and Ito, which people with color blindness can tell apart; what they separate also differs
in dashes, symbols or labels. `LIGHT` and `DARK` are the two themes: all else of a figure suits both.
"""

from __future__ import annotations

import html
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from backend.reporting.labels import title_of
from backend.statistics.bootstrap import PathBand
from cryptosentinel.agents.registry import role_title
from cryptosentinel.protocol.untrusted import visible
from simulator.arrays import FloatArray

BLUE, ORANGE, GREEN, VERMILION = "#0072b2", "#e69f00", "#009e73", "#d55e00"
SKY, PINK, GREY, INK = "#56b4e9", "#cc79a7", "#7f8790", "#1f2933"
ROLE_STYLES = {
    "manager": (BLUE, "solid"),
    "market_analyst": (ORANGE, "dash"),
    "risk_analyst": (VERMILION, "dot"),
    "trader": (GREEN, "dashdot"),
}
# Name of a team or baseline -> color, dash, width. Others take the next of `_OTHERS`.
_STYLES = {
    "trained": (BLUE, "solid", 3.0),
    "warm_started": (VERMILION, "solid", 2.5),
    "teacher": (PINK, "solid", 2.0),
    "scripted": (PINK, "dashdot", 2.0),
    "oracle": (GREEN, "dash", 2.0),
    "hold": (GREY, "dash", 2.0),
    "flat": (GREY, "dot", 1.5),
    "matched_random": (GREY, "dashdot", 1.5),
}
_OTHERS = ((ORANGE, "solid"), (SKY, "solid"), (PINK, "dash"), (GREEN, "dot"), (VERMILION, "dashdot"), (ORANGE, "dot"))
MOST_POINTS = 1_500  # of a line: more cannot be seen on a screen
_BAND_POINTS, _BAND_COLOR = 250, "rgba(0,114,178,0.16)"

# What the toolbar of each figure offers. Where nothing can hover, as on a phone, it covers the legend all the time, so
# it is short: a drag and a double click do what is left out.
CONFIG: dict[str, Any] = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtonsToRemove": ["lasso2d", "select2d", "zoomIn2d", "zoomOut2d", "autoScale2d"],
}


def _theme(ground: str, words: str, grid: str, label: str) -> go.layout.Template:
    title = {"font": {"size": 13}}
    axis = {"gridcolor": grid, "linecolor": GREY, "zeroline": False, "automargin": True, "title": title}
    return go.layout.Template(
        layout={
            "paper_bgcolor": ground,
            "plot_bgcolor": ground,
            "font": {"family": "system-ui, sans-serif", "size": 13, "color": words},
            "margin": {"l": 10, "r": 10, "t": 10, "b": 10},
            "hovermode": "x unified",
            "hoverlabel": {"bgcolor": label, "font": {"color": words}},
            "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "xanchor": "left", "x": 0.0},
            "shapedefaults": {"line": {"color": GREY, "width": 1}},
            "xaxis": axis,
            "yaxis": axis,
        }
    )


LIGHT = _theme("#ffffff", INK, "#e4e7eb", "#ffffff")
DARK = _theme("rgba(0,0,0,0)", "#e6e9ed", "#3a4149", "#262b33")


@dataclass(frozen=True)
class Event:
    """Something that happened at a step of training. `kind` is "stage", "rollback" or "best"."""

    step: int
    kind: str
    label: str


@dataclass(frozen=True)
class IntervalBar:
    """A mean with its interval, and the values that it is the mean of."""

    mean: float
    low: float
    high: float
    dots: Sequence[float] = ()
    color: str = BLUE


def blank_figure(x_title: str, y_title: str, unit: str = "", height: int = 360, **layout: Any) -> go.Figure:
    """A figure in the style of all, with titles of the axes and the unit of the y axis, empty for none."""
    axes = {"xaxis": {"title": {"text": x_title}}, "yaxis": {"title": {"text": y_title}, "ticksuffix": unit}}
    return go.Figure(layout={"template": LIGHT, "height": height, **axes, **layout})


def moments(times: ArrayLike) -> NDArray[np.datetime64]:
    """Milliseconds since the epoch as UTC times of an axis, to the minute."""
    return np.asarray(times, np.int64).astype("datetime64[ms]").astype("datetime64[m]")


def label_of(text: str) -> str:
    """`text` for a label of a figure, where plotly would read tags in it as a part of its markup."""
    return html.escape(visible(text), quote=False)


def equity_chart(
    curves: Mapping[str, Sequence[float]],
    x: ArrayLike,
    main: str,
    waiting: Collection[str] = (),
    band: PathBand | None = None,
) -> go.Figure:
    """Return since the start of each curve over `x` (of the same length), in percent.

    `main` stands out; those of `waiting` are in the legend for a click. `band` is drawn behind the lines.
    """
    figure = blank_figure("", "return since the start", " %")
    if band is not None:
        _add_band(figure, np.asarray(x), band, band.low, band.high)
    for number, (name, equity) in enumerate(curves.items()):
        if len(equity) and equity[0]:
            percent = 100.0 * (np.asarray(equity, np.float64) / equity[0] - 1.0)
            add_curve(figure, name, number, *thin(np.asarray(x), percent), name == main, name in waiting)
    figure.add_hline(y=0.0)
    return figure


def drawdown_chart(
    curves: Mapping[str, Sequence[float]],
    x: ArrayLike,
    main: str,
    waiting: Collection[str] = (),
    band: PathBand | None = None,
) -> go.Figure:
    """How far each curve lies below its own peak so far, in percent; the others as in `equity_chart`."""
    figure = blank_figure("", "below the peak", " %")
    if band is not None:
        _add_band(figure, np.asarray(x), band, band.deep, band.shallow)
    for number, (name, equity) in enumerate(curves.items()):
        money = np.asarray(equity, np.float64)
        peaks = np.maximum.accumulate(money)
        depths = 100.0 * (np.divide(money, peaks, out=np.ones_like(money), where=peaks > 0.0) - 1.0)
        add_curve(figure, name, number, *thin(np.asarray(x), depths), name == main, name in waiting)
    return figure


def accounts_chart(
    curves: Mapping[str, tuple[Sequence[int], Sequence[float]]], title: str = "return so far"
) -> go.Figure:
    """Return since the start, in percent, of accounts with times of their own: by label, times (ms) and values."""
    figure = blank_figure("", title, " %", 280, uirevision="kept")
    for number, (name, (times, equity)) in enumerate(curves.items()):
        if equity and equity[0]:
            x, y = thin(moments(times), 100.0 * (np.asarray(equity, np.float64) / equity[0] - 1.0))
            add_curve(figure, name, number, x, y, number == 0, False, label=name)
    figure.add_hline(y=0.0)
    return figure


def exposure_chart(times: ArrayLike, exposure: ArrayLike, symbols: Sequence[str]) -> go.Figure:
    """Signed exposure (n, symbols) in percent of the equity: above 0 long, below 0 short.

    More symbols than can be distinguished are summed: all that is long, all that is short, and the two together.
    """
    figure = blank_figure("", "exposure", " %", 300)
    shares = 100.0 * np.asarray(exposure, np.float64).reshape(-1, len(symbols))
    lines = {symbol: shares[:, number] for number, symbol in enumerate(symbols)}
    if len(symbols) > len(_OTHERS) + 1:
        long, short = np.maximum(shares, 0.0).sum(axis=1), np.minimum(shares, 0.0).sum(axis=1)
        lines = {name: values for name, values in (("long", long), ("short", short)) if values.any()}
        if len(lines) != 1:
            lines["net"] = shares.sum(axis=1)
    for number, (name, values) in enumerate(lines.items()):
        color, dash = ((BLUE, "solid"), *_OTHERS)[number]
        x, y = thin(moments(times), values)
        line = {"color": color, "dash": dash, "width": 1.5, "shape": "hv"}
        figure.add_scatter(x=x, y=y, name=label_of(name), mode="lines", line=line, hovertemplate="%{y:.0f} %",
                           showlegend=True)  # fmt: skip
    figure.add_hline(y=0.0)
    return figure


def step_chart(series: Mapping[str, tuple[Sequence[int], Sequence[float]]], events: Sequence[Event]) -> go.Figure:
    """A metric over the steps, one line a role (or other name): thin as it was, thick as its moving mean.

    The moving mean looks back over a tenth of the steps; short runs are drawn as they are. A NaN leaves a hole.
    Vertical lines mark `events`.
    """
    every = [step for steps, _ in series.values() for step in steps]
    first, last = min(every, default=0), max(every, default=1)
    margin = 0.02 * max(1, last - first)
    figure = blank_figure("training step", "")
    figure.update_xaxes(range=[first - margin, last + margin])
    for number, (name, (steps, values)) in enumerate(series.items()):
        color, dash = ROLE_STYLES.get(name, (_OTHERS[number % len(_OTHERS)][0], "solid"))
        shown = np.array(values, np.float64)
        shown[~np.isfinite(shown)] = np.nan
        span = len(values) // 10
        if span >= 2:
            figure.add_scatter(x=steps, y=shown, mode="lines", line={"color": color, "width": 1}, opacity=0.3,
                               showlegend=False, hoverinfo="skip", legendgroup=name)  # fmt: skip
            shown = pd.Series(shown).rolling(span, min_periods=1).mean().where(np.isfinite(shown)).to_numpy()
        figure.add_scatter(
            x=steps, y=shown, name=role_title(name), mode="lines" if len(values) > 12 else "lines+markers",
            line={"color": color, "dash": dash, "width": 2.5}, hovertemplate="%{y:.3f}", legendgroup=name,
        )  # fmt: skip
    _add_events(figure, events, (first + last) / 2)
    return figure


_EVENT_STYLES = {
    "stage": (GREY, "solid"),
    "rollback": (VERMILION, "dot"),
    "best": (GREEN, "dash"),
}


def _add_events(figure: go.Figure, events: Sequence[Event], middle: float) -> None:
    for level, event in enumerate(sorted(events, key=lambda item: item.step)):
        color, dash = _EVENT_STYLES[event.kind]
        side = ("left", 3) if event.step <= middle else ("right", -3)  # the side with more room
        figure.add_vline(x=event.step, line={"color": color, "width": 1.2, "dash": dash})
        figure.add_annotation(
            x=event.step, y=0.02 + 0.075 * (level % 4), yref="paper", text=event.label, showarrow=False,
            xanchor=side[0], xshift=side[1], yanchor="bottom", font={"size": 11, "color": color},
        )  # fmt: skip


def interval_chart(
    rows: Mapping[str, IntervalBar], x_title: str, unit: str, digits: int = 2, dot: str = "one window",
    bars: bool = False,
) -> go.Figure:  # fmt: skip
    """The mean of each row with its interval, over its dots; the line at 0 is "no difference". `dot` says what a dot
    is of; `unit` follows each number. With `bars`, a bar from 0 to the mean lies behind."""
    figure = blank_figure(x_title, "", "", 120 + 56 * len(rows), hovermode="closest", showlegend=False)
    for number, (name, row) in enumerate(rows.items()):
        label, color = label_of(name), row.color
        shared = {"name": label, "hovertemplate": f"%{{x:+.{digits}f}}{unit}<extra>{label}</extra>"}
        if row.dots:
            dots = {"color": color, "size": 7, "opacity": 0.55}
            figure.add_scatter(x=list(row.dots), y=[number - 0.24] * len(row.dots), mode="markers", marker=dots,
                               **{**shared, "name": dot})  # fmt: skip
        if bars:
            figure.add_bar(x=[row.mean], y=[number], orientation="h", width=0.5, opacity=0.4, marker={"color": color},
                           **shared)  # fmt: skip
        line, mark = {"color": color, "width": 6}, {"color": "#ffffff", "size": 11, "symbol": "diamond"}
        figure.add_scatter(x=[row.low, row.high], y=[number] * 2, mode="lines", line=line, **shared)
        figure.add_scatter(x=[row.mean], y=[number], mode="markers",
                           marker={**mark, "line": {"color": color, "width": 3}}, **shared)  # fmt: skip
        # Below its mean: beside the interval it would leave a narrow screen.
        figure.add_annotation(x=row.mean, y=number, text=f"<b>{row.mean:+.{digits}f}{unit}</b>", showarrow=False,
                              yshift=-20)  # fmt: skip
    ends = [end for row in rows.values() for end in (row.low, row.high, *row.dots)]
    low, high = min(0.0, *ends), max(0.0, *ends)
    room = (high - low) or 1.0
    labels = [label_of(name) for name in rows]
    figure.update_yaxes(tickvals=list(range(len(labels))), ticktext=labels, range=[len(labels) - 0.4, -0.6])
    figure.update_xaxes(range=[low - 0.08 * room, high + 0.08 * room], ticksuffix=unit)
    figure.add_vline(x=0.0, line={"dash": "dot"})
    return figure


def thin(x: NDArray[Any], y: FloatArray) -> tuple[NDArray[Any], FloatArray]:
    """The points of a line that can be seen: its ends, and the lowest and highest of each stretch."""
    count = min(len(x), len(y))
    values = np.asarray(y[:count], np.float64)
    if count <= MOST_POINTS:
        return x[:count], values
    stretch = math.ceil(2 * count / MOST_POINTS)
    whole = count // stretch * stretch
    stretches = values[:whole].reshape(-1, stretch)
    starts = np.arange(0, whole, stretch)
    kept = [np.array([0, count - 1]), starts + stretches.argmin(axis=1), starts + stretches.argmax(axis=1)]
    if whole < count:
        kept.append(whole + np.array([values[whole:].argmin(), values[whole:].argmax()]))
    order = np.unique(np.concatenate(kept))
    return x[order], values[order]


def add_curve(
    figure: go.Figure,
    name: str,
    number: int,
    x: NDArray[Any],
    y: FloatArray,
    main: bool,
    waiting: bool,
    label: str = "",
) -> None:
    """The line of a team or baseline, the `number`-th of its figure; `main` stands out, one that is `waiting` is drawn
    at a click in the legend. NaN leaves a hole. `label` is its name in the legend where that is not its title."""
    color, dash, width = _STYLES.get(name, (*_OTHERS[number % len(_OTHERS)], 1.5))
    if main:
        color, dash, width = BLUE, "solid", 3.0
    figure.add_scatter(
        x=x, y=np.round(y, 3), name=label_of(label or title_of(name)), mode="lines", hovertemplate="%{y:.2f} %",
        line={"color": color, "dash": dash, "width": width}, visible="legendonly" if waiting and not main else True,
    )  # fmt: skip


def _add_band(figure: go.Figure, x: NDArray[Any], band: PathBand, low: FloatArray, high: FloatArray) -> None:
    """The ground between `low` and `high`, shares at the bars of `band`."""
    if len(x) < 2:
        return
    places = np.unique(np.linspace(0, len(x) - 1, min(len(x), _BAND_POINTS)).round().astype(int))
    edge = {"mode": "lines", "line": {"width": 0, "color": BLUE}, "hoverinfo": "skip", "legendgroup": "band"}
    for values, more in (
        (low, {"showlegend": False}),
        (high, {"fill": "tonexty", "fillcolor": _BAND_COLOR, "name": f"{100 * band.level:.0f} % band"}),
    ):
        y = np.round(100.0 * np.interp(places, band.bars, values), 3)
        figure.add_scatter(x=x[places], y=y, **edge, **more)
