"""How well the analysts' probabilities fit what came, for each team of a window: a reliability plot and its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backend.builders.variants import Variant
from backend.decisions.document import StoredDecision
from backend.evaluation.reliability import FEWEST, Reliability, judged_forecasts, reliability_of
from backend.reporting import charts
from backend.reporting.blocks import Missing, Picture, ReportBlock, Table, TableRow
from backend.reporting.drawing.figure import PlainFigure, trace
from backend.reporting.labels import Column, interval_text, title_of
from backend.reporting.run_summary import WindowResult
from backend.store.records import RunRecord
from simulator.market.market import Market

_COLUMNS = (
    Column("forecasts", "Forecasts", "count", "answers about one coin whose horizon has passed"),
    Column("brier", "Brier", "ratio", "half the squared distance of the probabilities from what came; 0 is best"),
    Column("skill", "Skill", "share", "how much less that is than for always stating how often each outcome came"),
    Column("interval", "95 % interval", "text", "of the skill; one that holds 0 says: not proven"),
    Column("gap", "Gap", "share", "mean distance between what was stated and what came"),
)
_CAPTION = (
    "Of all times that it stated a probability, in how many did it come so? On the line: the numbers can be taken at "
    "their word. Above it in the right half too timid, below it too sure. Bars: 95 %, by a bootstrap of blocks of time."
)
_COLOURS = (charts.BLUE, charts.ORANGE, charts.VERMILION, charts.GREEN, charts.PINK, charts.SKY)
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star")


def forecast_blocks(
    decisions: Mapping[str, Sequence[StoredDecision]], markets: Mapping[str, Market], horizon: int, main: str
) -> list[ReportBlock]:
    """The plot and the table of all teams whose analyst was asked. By team: its decisions, and the market that it
    traded; `horizon` (bars) is that of a forecast that does not say it."""
    fits: dict[str, Reliability] = {}
    blocks: list[ReportBlock] = []
    for name, stored in decisions.items():
        judged = judged_forecasts(stored, markets[name], horizon)
        fit = reliability_of(judged, markets[name].interval)
        if fit is None:
            reason = f"{len(judged)} forecasts can be judged, and {FEWEST} are the fewest that say anything"
            blocks.append(Missing(title_of(name), reason))
        else:
            fits[name] = fit
    if fits:
        rows = tuple(TableRow(title_of(name), _values(fit), main=name == main) for name, fit in fits.items())
        blocks[:0] = [
            Picture("What was stated, and what came", _CAPTION, reliability_chart(fits)),
            Table("Fit of the probabilities", "As in training: flat is a move of less than 0.3 volatilities.",
                  _COLUMNS, rows),
        ]  # fmt: skip
    return blocks


def reliability_chart(fits: Mapping[str, Reliability]) -> PlainFigure:
    """The share that came over the probability that was stated, in percent, of each team; the larger a mark, the more
    often it was stated."""
    figure = charts.blank_figure("stated probability", "came so", "%")
    figure.add_trace(
        trace(
            "scatter",
            x=[0, 100], y=[0, 100], mode="lines", name="taken at its word", hoverinfo="skip",
            line={"color": charts.INK, "width": 1.2, "dash": "dot"},
        )
    )  # fmt: skip
    for number, (name, fit) in enumerate(fits.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        most = max((one.count for one in fit.bins), default=1)
        label = charts.label_of(title_of(name))
        figure.add_trace(
            trace(
                "scatter",
                x=[100.0 * one.stated for one in fit.bins],
                y=[100.0 * one.came.value for one in fit.bins],
                error_y={
                    "type": "data", "symmetric": False, "color": colour, "thickness": 1.2,
                    "array": [100.0 * max(0.0, one.came.high - one.came.value) for one in fit.bins],
                    "arrayminus": [100.0 * max(0.0, one.came.value - one.came.low) for one in fit.bins],
                },
                name=label,
                mode="lines+markers",
                line={"color": colour, "width": 1.5},
                marker={
                    "symbol": _SYMBOLS[number % len(_SYMBOLS)], "color": colour,
                    "size": [7.0 + 9.0 * (one.count / most) ** 0.5 for one in fit.bins],
                },
                customdata=[[one.count] for one in fit.bins],
                hovertemplate=f"stated %{{x:.0f}} %, came %{{y:.0f}} %, %{{customdata[0]}} times<extra>{label}</extra>",
            )
        )  # fmt: skip
    figure.update_xaxes(range=[-2, 102], ticksuffix=" %")
    figure.update_yaxes(range=[-2, 102])
    figure.update_layout(hovermode="closest", height=420)
    return figure


def _values(fit: Reliability) -> dict[str, Any]:
    return {
        "forecasts": fit.forecasts,
        "brier": fit.brier,
        "skill": fit.skill.value,
        "interval": interval_text(fit.skill, "share"),
        "gap": fit.gap,
    }


def traded_market(name: str, window: WindowResult, run: RunRecord, market: Market) -> Market:
    """The market that a team traded: of a variant on an altered one, that is made again as it was then."""
    sources = run.config.get("sources")
    source = sources.get(name) if isinstance(sources, dict) else None
    text = source.get("variant") if isinstance(source, dict) else None
    if not isinstance(text, str) or not text:
        return market
    variant, result = Variant.parse(text), window.results[name]
    return variant.market(market, result.start, result.start + len(result.times) - 1, run.seed)
