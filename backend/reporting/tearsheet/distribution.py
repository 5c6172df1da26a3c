"""How the returns of single days are distributed, as a picture with the four figures that describe it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from backend.reporting import charts
from backend.reporting.blocks import Missing, Picture
from backend.reporting.drawing.figure import PlainFigure, trace
from backend.reporting.labels import number_text, title_of
from backend.reporting.run_summary import WindowResult
from simulator.backtest import metrics
from simulator.market.timeframes import DAY_MS

_TITLE = "Distribution of daily returns"
_FEWEST = 10  # days
_MOST_BINS = 60


def daily_returns(times: Sequence[int], equity: Sequence[float]) -> dict[int, float]:
    """The compounded return of each day (UTC), by the day's start in ms. `times` (n,) are closes, `equity` (n,).

    A return belongs to the day in which its bar ran, so a close at midnight ends the day before; a bar longer than a
    day counts as the day on which it ended. The days multiply up to the total return.
    """
    returns = metrics.returns_of(np.asarray(equity, np.float64))
    if not len(returns):
        return {}
    days = (np.asarray(times[1:], np.int64) - 1) // DAY_MS * DAY_MS
    starts = np.flatnonzero(np.diff(days, prepend=-1))
    growth = np.multiply.reduceat(1.0 + returns, starts) - 1.0
    return dict(zip(days[starts].tolist(), growth.tolist(), strict=True))


def distribution_block(window: WindowResult) -> Picture | Missing:
    """The histogram of the main team's days beside those of holding."""
    days = {window.main: _days(window, window.main)}
    if len(days[window.main]) < _FEWEST:
        return Missing(_TITLE, f"the run is too short: it needs {_FEWEST} days")
    if window.hold is not None and window.main != "hold":
        days["hold"] = _days(window, "hold")
    returns = days[window.main]
    skewness, kurtosis = moments_of(returns)
    shape = (
        "" if skewness is None or kurtosis is None else f", skewness {skewness:+.2f}, excess kurtosis {kurtosis:+.2f}"
    )
    caption = (
        f"Days (UTC) of {title_of(window.main)}: best {number_text(returns.max(), 'change')}, worst "
        f"{number_text(returns.min(), 'change')}, {number_text(float(np.mean(returns > 0.0)), 'share')} above 0{shape}."
        " Good: the left tail is no longer than the right one, and the worst day is one that you could sit through."
    )
    return Picture(_TITLE, caption, _histogram(days, window.main))


def moments_of(returns: NDArray[np.float64]) -> tuple[float | None, float | None]:
    """Skewness and excess kurtosis (0 for a normal distribution), the biased estimators of Fisher and Pearson; None
    where nothing varies."""
    centred = returns - returns.mean()
    spread = float(np.sqrt(np.mean(centred**2)))
    if spread <= 1e-12:
        return None, None
    standard = centred / spread
    return float(np.mean(standard**3)), float(np.mean(standard**4)) - 3.0


def _days(window: WindowResult, name: str) -> NDArray[np.float64]:
    result = window.results[name]
    return np.array(list(daily_returns(result.times, result.equity).values()))


def _histogram(days: Mapping[str, NDArray[np.float64]], main: str) -> PlainFigure:
    together = np.concatenate(list(days.values()))
    # Freedman and Diaconis' width, over all that is shown, so that the bars stand on the same bins.
    edges = np.histogram_bin_edges(together, bins="fd")
    if len(edges) > _MOST_BINS + 1 or len(edges) < 6:
        edges = np.histogram_bin_edges(together, bins=_MOST_BINS if len(edges) > 6 else 10)
    middles = 50.0 * (edges[1:] + edges[:-1])
    figure = charts.blank_figure("return of a day, %", "days", "")
    for name, returns in days.items():
        counts = np.histogram(returns, bins=edges)[0]
        figure.add_trace(
            trace(
                "bar",
                x=[round(float(middle), 4) for middle in middles],
                y=counts.tolist(),
                name=charts.label_of(title_of(name)),
                marker={"color": charts.BLUE if name == main else charts.GREY},
                opacity=1.0 if name == main else 0.45,
                hovertemplate="%{y} days",
            )
        )
    figure.add_vline(x=0.0, line={"color": charts.INK, "width": 1, "dash": "dot"})
    figure.update_layout(barmode="overlay", bargap=0.05, height=300)
    return figure
