"""What the teams of a window did, beside what it earned: the fit of their forecasts, the losses that RiskAnalyst
stated, what execution cost, and whom the managers asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backend.decisions.document import StoredDecision
from backend.evaluation.behaviour import LossCoverage, Shortfall, calls_of, judged_losses, loss_coverage, shortfall_of
from backend.evaluation.reliability import FEWEST
from backend.reporting.blocks import Missing, ReportBlock, ReportSection, Table, TableRow
from backend.reporting.decision.forecasts import forecast_blocks, traded_market
from backend.reporting.labels import Column, interval_text, title_of
from backend.reporting.run_summary import WindowResult
from backend.store.records import RunRecord
from cryptosentinel.agents.registry import ROLES
from simulator.errors import UserError
from simulator.market.market import Market

TITLE = "Behaviour"
_HORIZON = 18  # of runs whose record does not say it
_LOSSES = (
    Column("verdicts", "Verdicts", "count", "about one coin and side, whose horizon has passed"),
    Column("passed", "Passed", "share", "losses that were above the stated one; 5 % is right"),
    Column("passed_interval", "95 % interval", "text", "of the share passed"),
    Column(
        "skill", "Skill", "share", "how much less the pinball loss is than for always stating one and the same loss"
    ),
    Column("skill_interval", "95 % interval ", "text", "of the skill; one that holds 0 says: not proven"),
)
_EXECUTION = (
    Column("fills", "Fills", "count", "of the team's own orders"),
    Column("shortfall", "Shortfall, bp", "ratio", "cost against the close at the decision, of the traded value"),
    Column("interval", "95 % interval", "text", "of the shortfall, over decisions"),
    Column("spread", "Spread and impact, bp", "ratio", "the part of it that the exchange charged in the price"),
    Column("fees", "Fees, bp", "ratio", "the part of it that was fees"),
    Column("timing", "Timing, bp", "ratio", "the rest: where the price went until the fill"),
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
            markets[name] = traded_market(name, window, run, market)
        except UserError as error:
            missing.append(Missing(title_of(name), str(error)))
    decisions = {name: window.decisions[name] for name in markets}
    return ReportSection(
        TITLE,
        (
            *missing,
            *forecast_blocks(decisions, markets, horizon, window.main),
            _loss_table(decisions, markets, horizon, window.main),
            _execution_table(decisions, markets, window),
            _call_table(decisions, window.main),
        ),
    )


def _loss_table(
    decisions: Mapping[str, Sequence[StoredDecision]], markets: Mapping[str, Market], horizon: int, main: str
) -> ReportBlock:
    rows = []
    for name, stored in decisions.items():
        coverage = loss_coverage(judged_losses(stored, markets[name], horizon), markets[name].interval)
        if coverage is not None:
            rows.append(TableRow(title_of(name), _loss_values(coverage), main=name == main))
    title = "Losses that RiskAnalyst stated"
    if not rows:
        return Missing(title, f"no team has {FEWEST} verdicts that can be judged, the fewest that say anything")
    return Table(title, "Each is meant to be passed once in twenty times (95 % quantile).", _LOSSES, tuple(rows))


def _execution_table(
    decisions: Mapping[str, Sequence[StoredDecision]], markets: Mapping[str, Market], window: WindowResult
) -> ReportBlock:
    rows = []
    for name, stored in decisions.items():
        result = window.results.get(name)
        shortfall = None if result is None else shortfall_of(stored, result, markets[name])
        if shortfall is not None:
            rows.append(TableRow(title_of(name), _execution_values(shortfall), main=name == window.main))
    title = "What execution cost"
    if not rows:
        return Missing(title, "no order of a team was filled")
    caption = "Against the last close before each decision, in basis points (0.01 %). Stops and targets are left out."
    return Table(title, caption, _EXECUTION, tuple(rows))


def _call_table(decisions: Mapping[str, Sequence[StoredDecision]], main: str) -> ReportBlock:
    calls = {name: calls_of(stored) for name, stored in decisions.items()}
    roles = dict.fromkeys(role for asked in calls.values() for role in asked)
    title = "Whom the manager asked"
    if not roles:
        return Missing(title, "nobody was asked")
    columns = tuple(
        Column(role, ROLES[role].title if role in ROLES else role, "ratio", "conversations in a decision, on average")
        for role in roles
    )
    rows = (
        TableRow(title_of(name), {role: asked.get(role, 0.0) for role in roles}, main=name == main)
        for name, asked in calls.items()
    )
    return Table(title, "It is free to ask each as often as it wants, or not at all.", columns, tuple(rows))


def _loss_values(coverage: LossCoverage) -> dict[str, Any]:
    return {
        "verdicts": coverage.verdicts,
        "passed": coverage.passed.value,
        "passed_interval": interval_text(coverage.passed, "share"),
        "skill": coverage.skill.value,
        "skill_interval": interval_text(coverage.skill, "share"),
    }


def _execution_values(shortfall: Shortfall) -> dict[str, Any]:
    return {
        "fills": shortfall.fills,
        "shortfall": shortfall.total.value,
        "interval": interval_text(shortfall.total, "ratio"),
        "spread": shortfall.spread,
        "fees": shortfall.fees,
        "timing": shortfall.timing,
    }
