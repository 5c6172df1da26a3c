"""How well the analysts' probabilities fit what came, for each team of a window: a reliability plot and its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.builders.variants import Variant
from backend.evaluation.reliability import FEWEST, Reliability, judged_forecasts, reliability_of
from backend.reporting import charts
from backend.reporting.blocks import Missing, Picture, ReportBlock, ReportSection, Table, TableRow
from backend.reporting.drawing.figure import PlainFigure, trace
from backend.reporting.labels import Column, interval_text, title_of
from backend.reporting.run_summary import WindowResult
from backend.store.records import RunRecord
from simulator.errors import UserError
from simulator.market.market import Market

TITLE = "Forecasts"
_HORIZON = 18  # of runs whose record does not say it
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


def forecast_section(
    window: WindowResult, run: RunRecord, settings: Mapping[str, Any], market: Market
) -> ReportSection:
    """The plot and the table of all teams of the window whose analyst was asked; `market` is that of the run."""
    team = settings.get("team")
    horizon = team.get("horizon_bars", _HORIZON) if isinstance(team, dict) else _HORIZON
    fits: dict[str, Reliability] = {}
    blocks: list[ReportBlock] = []
    for name, decisions in window.decisions.items():
        try:
            traded = _market_of(name, window, run, market)
        except UserError as error:
            blocks.append(Missing(title_of(name), str(error)))
            continue
        judged = judged_forecasts(decisions, traded, int(horizon))
        fit = reliability_of(judged, traded.interval)
        if fit is None:
            reason = f"{len(judged)} forecasts can be judged, and {FEWEST} are the fewest that say anything"
            blocks.append(Missing(title_of(name), reason))
        else:
            fits[name] = fit
    if fits:
        rows = tuple(TableRow(title_of(name), _values(fit), main=name == window.main) for name, fit in fits.items())
        blocks[:0] = [
            Picture("What was stated, and what came", _CAPTION, reliability_chart(fits)),
            Table("Fit of the probabilities", "As in training: flat is a move of less than 0.3 volatilities.",
                  _COLUMNS, rows),
        ]  # fmt: skip
    return ReportSection(TITLE, tuple(blocks or [Missing(TITLE, "no decisions are stored")]))


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


def _market_of(name: str, window: WindowResult, run: RunRecord, market: Market) -> Market:
    """The market that a team traded: of a variant on an altered one, that is made again as it was then."""
    sources = run.config.get("sources")
    source = sources.get(name) if isinstance(sources, dict) else None
    text = source.get("variant") if isinstance(source, dict) else None
    if not isinstance(text, str) or not text:
        return market
    variant, result = Variant.parse(text), window.results[name]
    return variant.market(market, result.start, result.start + len(result.times) - 1, run.seed)
