"""Plotly figures from plain numbers: the same pictures on the page and in the report.

Colours are those of Okabe and Ito, which people with colour blindness can tell apart; what they separate is also told
by dashes, symbols or labels. Titles stand outside the figures, as headings and captions.
"""

from __future__ import annotations

import html
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, overload

import numpy as np

from backend.reporting.drawing.figure import PlainFigure, Trace, trace
from backend.reporting.labels import title_of
from backend.statistics.path_band import PathBand
from cryptosentinel.agents.registry import role_title
from cryptosentinel.protocol.untrusted import visible
from simulator.arrays import FloatArray

BLUE, ORANGE, GREEN, VERMILION = "#0072b2", "#e69f00", "#009e73", "#d55e00"
SKY, PINK, GREY, INK = "#56b4e9", "#cc79a7", "#767676", "#1f2933"
_PALE, _FAINT, _LABEL = "#e6e9ed", "#3a4149", "#262b33"  # on a dark ground: words, grids, the ground of labels
# What `in_dark` does, for the script of the report.
DARK = {"words": _PALE, "grid": _FAINT, "label": _LABEL, "line": GREY, "ink": INK}
ROLE_COLOURS = {"manager": BLUE, "market_analyst": ORANGE, "risk_analyst": VERMILION, "trader": GREEN}
_ROLE_DASHES = {"manager": "solid", "market_analyst": "dash", "risk_analyst": "dot", "trader": "dashdot"}
# Name of a team or baseline -> colour, dash, width. Others take the next of `_OTHERS`.
_STYLES = {
    "trained": (BLUE, "solid", 3.0),
    "warm_started": (VERMILION, "solid", 2.5),
    "teacher": (PINK, "solid", 2.0),
    "scripted": (PINK, "dashdot", 2.0),
    "oracle": (GREEN, "dash", 2.0),
    "hold": (INK, "dash", 1.5),
    "always_short": (ORANGE, "dot", 1.5),
    "sma_cross": (ORANGE, "solid", 1.5),
    "volatility_target": (SKY, "solid", 1.5),
    "flat": (GREY, "dot", 1.5),
    "matched_random": (GREY, "dashdot", 1.5),
}
_OTHERS = ((ORANGE, "solid"), (SKY, "solid"), (PINK, "dash"), (GREEN, "dot"), (VERMILION, "dashdot"), (INK, "dot"))
MOST_POINTS = 1_500  # of a line: more cannot be seen on a screen
_BAND_POINTS, _BAND_COLOUR = 250, "rgba(0,114,178,0.14)"

# Baselines that wait in the legend where nothing else is said: eight lines are too many.
_IN_THE_LEGEND = ("flat", "always_short", "volatility_target")

# What the toolbar of each figure offers; the report's scripts and the page share it.
# Where nothing can hover, as on a phone, it stands over the legend all the time, so it is short: what is left out, a
# drag and a double click do too.
CONFIG: dict[str, Any] = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtonsToRemove": ["lasso2d", "select2d", "zoomIn2d", "zoomOut2d", "autoScale2d"],
}


@dataclass(frozen=True)
class Event:
    """Something that happened at a step of training. `kind` is "stage", "rollback", "best" or "finding"."""

    step: int
    kind: str
    label: str


_WHOLE = slice(None)


def date_of(time: int) -> str:
    """Milliseconds since the epoch as a UTC time that plotly reads as a date."""
    return datetime.fromtimestamp(time / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M")


def moments(times: Sequence[int]) -> list[str]:
    """`date_of` each, all of them at once: a figure of a long window has tens of thousands."""
    written = np.datetime_as_string(np.array(times, "datetime64[ms]"), unit="m").tolist()
    return [text.replace("T", " ") for text in written]


class Moments(Sequence[str]):
    """`moments` of many times, each written when it is asked for: of a long window few are drawn."""

    def __init__(self, times: Sequence[int]) -> None:
        self._times = times

    def __len__(self) -> int:
        return len(self._times)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Moments: ...
    def __getitem__(self, index: int | slice) -> str | Moments:
        return Moments(self._times[index]) if isinstance(index, slice) else date_of(self._times[index])

    def at(self, places: Sequence[int]) -> list[str]:
        """Those at these places."""
        return moments([self._times[place] for place in places])


def equity_chart(
    curves: Mapping[str, Sequence[float]],
    x: Sequence[Any],
    x_title: str,
    main: str,
    waiting: Collection[str] = _IN_THE_LEGEND,
    shown: slice = _WHOLE,
    band: PathBand | None = None,
) -> PlainFigure:
    """Return since the start of each curve over `x` (of the same length), in percent.

    `main` stands out; those of `waiting` are in the legend for a click. Of a part of the curves, `shown`, as many
    points are drawn as of the whole, so it is finer. `band` is drawn behind the lines.
    """
    figure = blank_figure(x_title, "return since the start", "%")
    if band is not None:
        _add_band(figure, x, shown, band, band.low, band.high)
    for number, (name, equity) in enumerate(curves.items()):
        if not len(equity) or not equity[0]:
            continue
        xs, ys = thin(x[shown], _percent_of(equity[shown], equity[0]))
        figure.add_trace(curve(name, number, xs, ys, name == main, name in waiting))
    figure.add_hline(y=0.0, line={"color": "#c5cdd5", "width": 1})
    return figure


def accounts_chart(
    curves: Mapping[str, tuple[Sequence[int], Sequence[float]]], title: str = "return so far"
) -> PlainFigure:
    """Return since the start, in percent, of accounts with times of their own: their times (ms) and values."""
    figure = blank_figure("", title, "%")
    figure.update_layout(height=280, uirevision="kept")
    for number, (name, (times, equity)) in enumerate(curves.items()):
        if equity and equity[0]:
            xs, ys = thin(Moments(times), _percent_of(equity, equity[0]))
            figure.add_trace(curve(name, number, xs, ys, number == 0, False))
    figure.add_hline(y=0.0, line={"color": "#c5cdd5", "width": 1})
    return figure


def in_dark(figure: PlainFigure) -> PlainFigure:
    """The figure on a dark ground: what was dark is light, and grids stay faint."""
    changed = figure.copy()
    changed.update_layout(paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", font={"color": _PALE})
    changed.update_xaxes(gridcolor=_FAINT, linecolor=GREY)
    changed.update_yaxes(gridcolor=_FAINT, linecolor=GREY)
    changed.update_layout(hoverlabel={"bgcolor": _LABEL, "font": {"color": _PALE}})
    for drawn in (*changed.data, *changed.layout.get("shapes", [])):
        _lighten(drawn)
    for words in changed.layout.get("annotations", []):
        words["font"] = {**words.get("font", {}), "color": _PALE}
        words["bgcolor"] = "rgba(0,0,0,0)"
    return changed


def _lighten(drawn: Trace) -> None:
    """Replace the ink of a trace's or shape's line, or of a trace's marks, which cannot be seen on a dark ground."""
    for part in (drawn.get("line"), drawn.get("marker")):
        if part is not None and part.get("color") == INK:
            part["color"] = _PALE


def drawdown_chart(
    curves: Mapping[str, Sequence[float]],
    x: Sequence[Any],
    x_title: str,
    main: str,
    waiting: Collection[str] = _IN_THE_LEGEND,
    shown: slice = _WHOLE,
    band: PathBand | None = None,
) -> PlainFigure:
    """How far each curve lies below its own peak so far, in percent; the others as in `equity_chart`."""
    figure = blank_figure(x_title, "below the peak", "%")
    if band is not None:
        _add_band(figure, x, shown, band, band.deep, band.shallow)
    for number, (name, equity) in enumerate(curves.items()):
        money = np.asarray(equity, np.float64)
        peaks = np.maximum.accumulate(money)
        depths = 100.0 * (np.divide(money, peaks, out=np.ones_like(money), where=peaks > 0.0) - 1.0)
        xs, ys = thin(x[shown], depths[shown])
        figure.add_trace(curve(name, number, xs, ys, name == main, name in waiting))
    return figure


def exposure_chart(
    times: Sequence[int], exposure: Sequence[Sequence[float]], symbols: Sequence[str], shown: slice = _WHOLE
) -> PlainFigure:
    """Signed exposure of each symbol, in percent of the equity: above 0 long, below 0 short; `shown` as in
    `equity_chart`.

    More symbols than can be distinguished are summed: all that is long, all that is short, and the two together.
    """
    figure = blank_figure("", "exposure", "%")
    x, shares = Moments(times[shown]), np.asarray(exposure[shown], np.float64).reshape(-1, len(symbols))
    lines = {symbol: shares[:, number] for number, symbol in enumerate(symbols)}
    if len(symbols) > len(_OTHERS) + 1:
        long, short = np.maximum(shares, 0.0).sum(axis=1), np.minimum(shares, 0.0).sum(axis=1)
        lines = {name: values for name, values in (("long", long), ("short", short)) if values.any()}
        if len(lines) != 1:
            lines["net"] = shares.sum(axis=1)
    for number, (name, values) in enumerate(lines.items()):
        colour, dash = ((BLUE, "solid"), *_OTHERS)[number]
        xs, ys = thin(x, 100.0 * values)
        line = {"color": colour, "dash": dash, "width": 1.5, "shape": "hv"}
        figure.add_trace(
            trace(
                "scatter",
                x=xs, y=_rounded(ys), name=label_of(name), mode="lines", line=line, hovertemplate="%{y:.0f} %",
                showlegend=True,
            )
        )  # fmt: skip
    figure.add_hline(y=0.0, line={"color": "#c5cdd5", "width": 1})
    return figure


def step_chart(
    series: Mapping[str, tuple[Sequence[int], Sequence[float]]],
    events: Sequence[Event],
    y_title: str = "",
) -> PlainFigure:
    """A metric over the steps, one line a role (or other name): thin as it was, thick as its moving mean.

    The moving mean looks back over a tenth of the steps; short runs are drawn as they are. A NaN leaves a hole.
    Vertical lines mark `events`.
    """
    figure = blank_figure("training step", y_title, "")
    every = [step for steps, _ in series.values() for step in steps]
    first, last = min(every, default=0), max(every, default=1)
    for number, (name, (steps, values)) in enumerate(series.items()):
        colour = ROLE_COLOURS.get(name, _OTHERS[number % len(_OTHERS)][0])
        dash = _ROLE_DASHES.get(name, "solid")
        shown: list[float | None] = [value if math.isfinite(value) else None for value in values]
        span = len(values) // 10
        style = {"color": colour, "dash": dash, "width": 2.5}
        hover = "%{y:.3f}"
        mode = "lines" if len(values) > 12 else "lines+markers"
        if span >= 2:
            figure.add_trace(
                trace(
                    "scatter",
                    x=list(steps), y=shown, mode="lines", line={"color": colour, "width": 1}, opacity=0.3,
                    showlegend=False, hoverinfo="skip", legendgroup=name,
                )
            )  # fmt: skip
            shown = _moving_mean(shown, span)
        figure.add_trace(
            trace(
                "scatter",
                x=list(steps),
                y=shown,
                name=role_title(name),
                mode=mode,
                line=style,
                hovertemplate=hover,
                legendgroup=name,
            )
        )
    styles = {
        "stage": (INK, "solid"),
        "rollback": (VERMILION, "dot"),
        "best": (GREEN, "dash"),
        "finding": (PINK, "dashdot"),
    }
    for level, event in enumerate(sorted(events, key=lambda item: item.step)):
        colour, dash = styles[event.kind]
        left = event.step <= (first + last) / 2  # the label stands on the side with more room
        figure.add_vline(x=event.step, line={"color": colour, "width": 1.2, "dash": dash})
        figure.add_annotation(
            x=event.step, y=0.02 + 0.075 * (level % 4), yref="paper", text=event.label, showarrow=False,
            xanchor="left" if left else "right", xshift=3 if left else -3, yanchor="bottom",
            font={"size": 11, "color": colour}, bgcolor="rgba(255,255,255,0.75)",
        )  # fmt: skip
    margin = 0.02 * max(1, last - first)
    figure.update_xaxes(range=[first - margin, last + margin])
    return figure


def calls_chart(histogram: Mapping[str, Mapping[int, int]]) -> PlainFigure:
    """Per sub-agent: in what share of the rollouts it was called how many times."""
    figure = blank_figure("calls in one decision", "share of rollouts", "%")
    for role, counts in histogram.items():
        total = sum(counts.values()) or 1
        calls = sorted(counts)
        figure.add_trace(
            trace(
                "bar",
                x=calls,
                y=[100.0 * counts[number] / total for number in calls],
                name=role_title(role),
                marker={"color": ROLE_COLOURS.get(role, GREY), "pattern": {"shape": _PATTERNS.get(role, "")}},
                hovertemplate="%{y:.1f} %",
            )
        )
    figure.update_layout(barmode="group", bargap=0.25)
    figure.update_xaxes(dtick=1)
    return figure


def difference_chart(rows: Mapping[str, Mapping[str, Any]], dot: str = "one window", unit: str = " %") -> PlainFigure:
    """Mean paired difference of each comparison with its interval, over its dots; the line at 0 is "no change".

    `rows` maps a label to `{"mean", "ci95": [low, high], "per_window": [...]}`, fractions. `dot` says what each value
    of `per_window` is of: one window, or one seed; `unit` what stands behind a hundred times a value.
    """
    figure = blank_figure("difference of return", "", "")
    labels = list(rows)
    for number, (label, row) in enumerate(rows.items()):
        colour = BLUE if number == 0 else GREY
        dots = [100.0 * value for value in row.get("per_window", [])]
        diamond = {"color": "#ffffff", "size": 13, "symbol": "diamond", "line": {"color": colour, "width": 3}}
        traces = (
            (dot, dots, -0.22, {"mode": "markers", "marker": {"color": colour, "size": 7, "opacity": 0.6}}),
            (
                "95 % interval of the mean",
                [100.0 * value for value in row["ci95"]],
                0.0,
                {"mode": "lines", "line": {"color": colour, "width": 7}},
            ),
            ("mean difference", [100.0 * row["mean"]], 0.0, {"mode": "markers", "marker": diamond}),
        )
        for name, x, shift, style in traces:
            hover = f"%{{x:.2f}}{unit}<extra>{label}: {name}</extra>"
            y = [number + shift] * len(x)
            figure.add_trace(
                trace("scatter", x=x, y=y, name=name, showlegend=number == 0, hovertemplate=hover, **style)
            )
    figure.add_vline(x=0.0, line={"color": INK, "width": 1.5, "dash": "dot"})
    figure.update_yaxes(tickvals=list(range(len(labels))), ticktext=labels, range=[len(labels) - 0.4, -0.6])
    figure.update_xaxes(ticksuffix=unit, zeroline=False)
    figure.update_layout(height=130 + 105 * len(labels), hovermode="closest")
    return figure


def thin(x: Sequence[Any], y: Sequence[float] | FloatArray) -> tuple[list[Any], list[float]]:
    """The points of a line that can be seen: its ends, and the lowest and highest of each stretch."""
    count = min(len(x), len(y))
    values = np.asarray(y[:count], np.float64)
    if count <= MOST_POINTS:
        return _at(x, range(count)), values.tolist()
    stretch = math.ceil(2 * count / MOST_POINTS)
    whole = count // stretch * stretch
    stretches = values[:whole].reshape(-1, stretch)
    starts = np.arange(0, whole, stretch)
    kept = [np.array([0, count - 1]), starts + stretches.argmin(axis=1), starts + stretches.argmax(axis=1)]
    if whole < count:
        kept.append(whole + np.array([values[whole:].argmin(), values[whole:].argmax()]))
    order = np.unique(np.concatenate(kept)).tolist()
    return _at(x, order), values[order].tolist()


def _at(x: Sequence[Any], places: Sequence[int]) -> list[Any]:
    return x.at(places) if isinstance(x, Moments) else [x[place] for place in places]


def _add_band(
    figure: PlainFigure, x: Sequence[Any], shown: slice, band: PathBand, low: FloatArray, high: FloatArray
) -> None:
    """The ground between `low` and `high`, shares at the bars of `band`, for the part of `x` that is shown."""
    first, stop, _ = shown.indices(len(x))
    if stop - first < 2:
        return
    places = np.unique(np.linspace(first, stop - 1, min(stop - first, MOST_POINTS, _BAND_POINTS)).round().astype(int))
    moments_shown = _at(x, places.tolist())
    edge = {"mode": "lines", "line": {"width": 0, "color": BLUE}, "hoverinfo": "skip", "legendgroup": "band"}
    for values, more in (
        (low, {"showlegend": False}),
        (high, {"fill": "tonexty", "fillcolor": _BAND_COLOUR, "name": f"{100 * band.level:.0f} % band"}),
    ):
        y = _rounded((100.0 * np.interp(places, band.bars, values)).tolist())
        figure.add_trace(trace("scatter", x=moments_shown, y=y, **edge, **more))


def _percent_of(money: Sequence[float], start: float) -> FloatArray:
    """The return since the start at each value, in percent."""
    return 100.0 * (np.asarray(money, np.float64) / start - 1.0)


_PATTERNS = {"market_analyst": "", "risk_analyst": "/", "trader": "."}


def _moving_mean(values: Sequence[float | None], span: int) -> list[float | None]:
    """Mean of the last `span` values that are there; None where the value itself is not."""
    means: list[float | None] = []
    for index, value in enumerate(values):
        known = [item for item in values[max(0, index - span + 1) : index + 1] if item is not None]
        means.append(None if value is None else sum(known) / len(known))
    return means


def label_of(text: str) -> str:
    """`text` for a label of a figure, where plotly would read tags in it as a part of its markup."""
    return html.escape(visible(text), quote=False)


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    """Values in percent or the like, as exact as can be seen: it makes a page a third smaller."""
    return [None if value is None else round(value, 3) for value in values]


def curve(
    name: str,
    number: int,
    x: Sequence[Any],
    y: Sequence[float | None],
    main: bool,
    waiting: bool,
    unit: str = " %",
) -> Trace:
    """The line of a team or baseline, the `number`-th of its figure; `main` stands out, one that is `waiting` is drawn
    at a click in the legend. None leaves a hole."""
    colour, dash, width = _STYLES.get(name, (*_OTHERS[number % len(_OTHERS)], 1.5))
    if main:
        colour, dash, width = BLUE, "solid", 3.0
    return trace(
        "scatter",
        x=list(x),
        y=_rounded(y),
        name=label_of(title_of(name)),
        mode="lines",
        line={"color": colour, "dash": dash, "width": width},
        hovertemplate=f"%{{y:.2f}}{unit}",
        visible="legendonly" if waiting and not main else True,
    )


def blank_figure(x_title: str, y_title: str, y_suffix: str) -> PlainFigure:
    """A figure in the style of all, with titles of the axes and the unit of the y axis, empty for none."""
    figure = PlainFigure()
    axis = {"gridcolor": "#e4e7eb", "linecolor": "#9aa5b1", "zeroline": False, "automargin": True}
    figure.update_layout(
        paper_bgcolor="#ffffff",
        plot_bgcolor="#ffffff",
        font={"family": "system-ui, sans-serif", "size": 13, "color": INK},
        margin={"l": 10, "r": 10, "t": 10, "b": 10},
        height=360,
        hovermode="x unified",
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "xanchor": "left", "x": 0.0},
        xaxis={**axis, "title": {"text": x_title, "font": {"size": 13}}},
        yaxis={**axis, "title": {"text": y_title, "font": {"size": 13}}, "ticksuffix": y_suffix and f" {y_suffix}"},
    )
    return figure
