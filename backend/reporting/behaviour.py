"""What the teams of a window did, beside what it earned: the fit of their forecasts, the losses that RiskAnalyst
stated, what execution cost, and whom the managers asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from backend.builders.variants import Variant
from backend.decisions.document import StoredDecision
from backend.evaluation.behaviour import calls_of, judged_losses, loss_coverage, shortfall_of
from backend.evaluation.reliability import FEWEST, Reliability, judged_forecasts, reliability_of
from backend.reporting import charts
from backend.reporting.blocks import Missing, Picture, ReportBlock, ReportSection, Table, TableRow
from backend.reporting.labels import Column, interval_text, title_of
from backend.reporting.run_summary import WindowResult
from backend.store.records import RunRecord
from cryptosentinel.agents.registry import role_title
from simulator.errors import UserError
from simulator.market.market import Market

TITLE = "Behavior"
_HORIZON = 18  # bars; of runs whose record does not say it
_FORECASTS = (
    Column("forecasts", "Forecasts", "count", "answers about one coin whose horizon has passed"),
    Column("brier", "Brier", "ratio", "half the squared distance of the probabilities from the outcome; 0 is best"),
    Column("skill", "Skill", "share", "how much less that is than for always stating how often each outcome came"),
    Column("interval", "95 % interval", "text", "of the skill; if it includes 0: not statistically significant"),
    Column("gap", "Gap", "share", "mean distance between the stated probability and the frequency"),
)
_LOSSES = (
    Column("verdicts", "Verdicts", "count", "about one coin and side, whose horizon has passed"),
    Column("passed", "Passed", "share", "losses that were above the stated one; 5 % is right"),
    Column("passed_interval", "95 % interval", "text", "of the share passed"),
    Column("skill", "Skill", "share", "how much less the pinball loss is than for always stating the same loss"),
    Column("skill_interval", "95 % interval ", "text", "of the skill; if it includes 0: not statistically significant"),
)
_EXECUTION = (
    Column("fills", "Fills", "count", "of the team's own orders"),
    Column("shortfall", "Shortfall, bp", "ratio", "cost against the close at the decision, of the traded value"),
    Column("interval", "95 % interval", "text", "of the shortfall, over decisions"),
    Column("spread", "Spread and impact, bp", "ratio", "the part of it that the exchange charged in the price"),
    Column("fees", "Fees, bp", "ratio", "the part of it that was fees"),
    Column("timing", "Timing, bp", "ratio", "the rest: where the price went until the fill"),
)
_FIT = (
    "Of all times that a probability was stated, how often did the outcome come? On the line: the probabilities can be "
    "trusted. Above it in the right half too timid, below it too sure. Bars: 95 %, by a bootstrap of blocks of time."
)


def behaviour_section(
    window: WindowResult, run: RunRecord, settings: Mapping[str, Any], market: Market
) -> ReportSection:
    """All tables of the teams of a window; `market` is that of the run."""
    if not any(window.decisions.values()):
        return ReportSection(TITLE, (Missing(TITLE, "no decisions are stored"),))
    team = settings.get("team")
    horizon = int(team.get("horizon_bars", _HORIZON) if isinstance(team, dict) else _HORIZON)
    markets: dict[str, Market] = {}
    missing: list[ReportBlock] = []
    for name in window.decisions:
        try:
            markets[name] = _traded_market(name, window, run, market)
        except UserError as error:
            missing.append(Missing(title_of(name), str(error)))
    losses = _table(
        "Losses that RiskAnalyst stated",
        "Each is meant to be passed once in twenty times (95 % quantile).",
        _LOSSES,
        {name: _loss_values(window.decisions[name], markets[name], horizon) for name in markets},
        window.main,
        f"no team has {FEWEST} verdicts that can be judged, the fewest that say anything",
    )
    execution = _table(
        "What execution cost",
        "Against the last close before each decision, in basis points (0.01 %). Stops and targets are left out.",
        _EXECUTION,
        {name: _execution_values(name, window, markets[name]) for name in markets},
        window.main,
        "no order of a team was filled",
    )
    fit = _fit_blocks(window, markets, horizon)
    return ReportSection(TITLE, (*missing, *fit, losses, execution, _call_table(window, markets)))


def _table(
    title: str,
    caption: str,
    columns: tuple[Column, ...],
    values: Mapping[str, Mapping[str, Any] | None],
    main: str,
    reason: str,
) -> Table | Missing:
    """A row for each team with values; `reason` says why there is none."""
    rows = tuple(TableRow(title_of(name), one, main=name == main) for name, one in values.items() if one is not None)
    return Table(title, caption, columns, rows) if rows else Missing(title, reason)


def _loss_values(stored: Sequence[StoredDecision], market: Market, horizon: int) -> dict[str, Any] | None:
    coverage = loss_coverage(judged_losses(stored, market, horizon), market.interval)
    if coverage is None:
        return None
    return {
        "verdicts": coverage.verdicts,
        "passed": coverage.passed.value,
        "passed_interval": interval_text(coverage.passed, "share"),
        "skill": coverage.skill.value,
        "skill_interval": interval_text(coverage.skill, "share"),
    }


def _execution_values(name: str, window: WindowResult, market: Market) -> dict[str, Any] | None:
    result = window.results.get(name)
    found = None if result is None else shortfall_of(window.decisions[name], result, market)
    if found is None:
        return None
    own = {"fills": found.fills, "shortfall": found.total.value, "interval": interval_text(found.total, "ratio")}
    return own | {"spread": found.spread, "fees": found.fees, "timing": found.timing}


def _call_table(window: WindowResult, names: Mapping[str, Any]) -> Table | Missing:
    calls = {name: calls_of(window.decisions[name]) for name in names}
    roles = dict.fromkeys(role for asked in calls.values() for role in asked)
    columns = tuple(
        Column(role, role_title(role), "ratio", "conversations in a decision, on average") for role in roles
    )
    values = {name: {role: asked.get(role, 0.0) for role in roles} for name, asked in calls.items()} if roles else {}
    caption = "It is free to ask each as often as it wants, or not at all."
    return _table("Whom the manager asked", caption, columns, values, window.main, "nobody was asked")


def _fit_blocks(window: WindowResult, markets: Mapping[str, Market], horizon: int) -> list[ReportBlock]:
    """The plot and the table of all teams whose analyst was asked; `horizon` (bars) is that of a forecast that does not
    say it."""
    fits: dict[str, Reliability] = {}
    blocks: list[ReportBlock] = []
    for name, market in markets.items():
        judged = judged_forecasts(window.decisions[name], market, horizon)
        fit = reliability_of(judged, market.interval)
        if fit is None:
            reason = f"{len(judged)} forecasts can be judged, and {FEWEST} are the fewest that say anything"
            blocks.append(Missing(title_of(name), reason))
        else:
            fits[name] = fit
    if fits:
        values = {
            name: {"forecasts": fit.forecasts, "brier": fit.brier, "skill": fit.skill.value,
                   "interval": interval_text(fit.skill, "share"), "gap": fit.gap}
            for name, fit in fits.items()
        }  # fmt: skip
        caption = "As in training: flat is a move of less than 0.3 volatilities."
        blocks[:0] = [
            Picture("Stated probability and frequency", _FIT, reliability_chart(fits)),
            _table("Fit of the probabilities", caption, _FORECASTS, values, window.main, ""),
        ]
    return blocks


def reliability_chart(fits: Mapping[str, Reliability]) -> go.Figure:
    """The frequency over the stated probability, in percent, of each team; the larger a mark, the more often it was
    stated."""
    figure = charts.blank_figure("stated probability", "frequency", " %", 420, hovermode="closest")
    figure.add_scatter(x=[0, 100], y=[0, 100], mode="lines", name="perfect fit", hoverinfo="skip",
                       line={"color": charts.GREY, "width": 1.2, "dash": "dot"})  # fmt: skip
    for number, (name, fit) in enumerate(fits.items()):
        color = charts.COLORS[number % len(charts.COLORS)]
        most = max((one.count for one in fit.bins), default=1)
        label = charts.label_of(title_of(name))
        figure.add_scatter(
            x=[100.0 * one.stated for one in fit.bins],
            y=[100.0 * one.came.value for one in fit.bins],
            error_y={
                "type": "data", "symmetric": False, "color": color, "thickness": 1.2,
                "array": [100.0 * max(0.0, one.came.high - one.came.value) for one in fit.bins],
                "arrayminus": [100.0 * max(0.0, one.came.value - one.came.low) for one in fit.bins],
            },
            name=label, mode="lines+markers", line={"color": color, "width": 1.5},
            marker={
                "symbol": charts.SYMBOLS[number % len(charts.SYMBOLS)], "color": color,
                "size": [7.0 + 9.0 * (one.count / most) ** 0.5 for one in fit.bins],
            },
            customdata=[[one.count] for one in fit.bins],
            hovertemplate=f"stated %{{x:.0f}} %, came %{{y:.0f}} %, %{{customdata[0]}} times<extra>{label}</extra>",
        )  # fmt: skip
    figure.update_xaxes(range=[-2, 102], ticksuffix=" %")
    figure.update_yaxes(range=[-2, 102])
    return figure


def _traded_market(name: str, window: WindowResult, run: RunRecord, market: Market) -> Market:
    """The market that a team traded: of a variant on an altered one, that is made again as it was then."""
    sources = run.config.get("sources")
    source = sources.get(name) if isinstance(sources, dict) else None
    text = source.get("variant") if isinstance(source, dict) else None
    if not isinstance(text, str) or not text:
        return market
    variant, result = Variant.parse(text), window.results[name]
    return variant.market(market, result.start, result.start + len(result.times) - 1, run.seed)
