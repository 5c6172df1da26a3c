"""The numbers behind the sections of a backtest, for programs and for the sections themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pydantic import ValidationError

from backend.config.market import CostsConfig
from backend.evaluation.guard_attribution import RuleWorth, by_rule, interventions
from backend.reporting import result_stats
from backend.reporting.market_reload import MarketReload
from backend.reporting.result_stats import Month, RollingSharpe
from backend.reporting.run_summary import WindowResult
from simulator.errors import DataError
from simulator.market.timeframes import format_time

TRADES_LISTED = 200


def backtest_facts(window: WindowResult, settings: Mapping[str, Any], reload: MarketReload) -> dict[str, Any]:
    """The numbers of the sections for programs: by name, and the trades of the main team as far as they are listed.

    `settings` is the config of the run. Times are ms UTC, money is in quote currency, all else fractions; None is what
    is not available.
    """
    rolling = rolling_of(window)
    by_name: dict[str, Any] = {}
    for name, result in window.results.items():
        months = result_stats.monthly_returns(result.times, result.equity)
        trades = result.trades
        regimes = regimes_of(window, name, reload)
        by_name[name] = {
            "monthly": [_month_fact(one) for one in months],
            "yearly": {str(year): value for year, value in result_stats.yearly_returns(months).items()},
            "rolling_sharpe": _rolling_fact(rolling.get(name), name == window.main),
            "trade_statistics": {
                side: result_stats.trade_summary(chosen, result.equity[0])
                for side, chosen in {"all": trades, **result_stats.by_side(trades)}.items()
            },
            "lookahead": None if result.lookahead is None else result.lookahead.model_dump(mode="json"),
            "cost_split": result_stats.cost_summary(result),
            "traded_notional": result_stats.traded_notional(result),
            "regimes": None if isinstance(regimes, str) else regimes,
            "regimes_problem": regimes if isinstance(regimes, str) else None,
        }
    own = window.main_result.trades
    withheld = withheld_of(window, settings, reload)
    return {
        "main": window.main,
        "from": format_time(window.main_result.times[0]),
        "to": format_time(window.main_result.times[-1]),
        "trades_in_all": len(own),
        "trades": [asdict(trade) for trade in own[:TRADES_LISTED]],
        "withheld": None if isinstance(withheld, str) else [asdict(one) for one in withheld],
        "withheld_problem": withheld if isinstance(withheld, str) else None,
        "by_name": by_name,
        "evidence": {name: one.facts() for name, one in window.evidence.items()},
    }


def _month_fact(month: Month) -> dict[str, Any]:
    return {"month": f"{month.year}-{month.month:02d}", "total_return": month.total_return, "whole": month.whole}


def _rolling_fact(rolling: RollingSharpe | None, with_series: bool) -> dict[str, Any] | None:
    if rolling is None:
        return None
    known = [value for value in rolling.values if value is not None]
    fact: dict[str, Any] = {
        "bars": rolling.bars,
        "days": rolling.days,
        "lowest": min(known, default=None),
        "highest": max(known, default=None),
        "above_zero": sum(value > 0.0 for value in known) / len(known) if known else None,
    }
    return fact | ({"times": rolling.times, "values": rolling.values} if with_series else {})


def regimes_of(window: WindowResult, name: str, reload: MarketReload) -> list[dict[str, Any]] | str:
    """`regime_rows` of one result against holding, or one sentence that says why there are none."""
    if reload.market is None:
        return f"the regimes need the run's data again: {reload.problem}"
    hold = window.hold if name != "hold" else None
    try:
        return result_stats.regime_rows(window.results[name], reload.market, hold, reload.regimes)
    except DataError as error:
        return str(error)


def withheld_of(window: WindowResult, settings: Mapping[str, Any], reload: MarketReload) -> list[RuleWorth] | str:
    """What the guard and RiskAnalyst withheld from the main team, by rule, or one sentence that says why that is not
    known."""
    decisions = window.decisions.get(window.main, [])
    if not decisions:
        return "only a team's decisions are reviewed by them, and the store holds none"
    if not any(
        decision.document.rulings or decision.document.clamps or decision.document.later for decision in decisions
    ):
        return []
    if reload.market is None:
        return f"what it was worth needs the run's data again: {reload.problem}"
    try:
        costs = CostsConfig.model_validate_json(json.dumps(settings.get("costs", {}))).costs()
    except ValidationError:
        return "the run's record holds no costs that this version can read"
    return by_rule(interventions(decisions, reload.market, costs, window.main_result.times[-1]))


def rolling_of(window: WindowResult) -> dict[str, RollingSharpe]:
    """The rolling Sharpe ratio of each result that is long enough."""
    rolling = {
        name: result_stats.rolling_sharpe(result.times, result.equity) for name, result in window.results.items()
    }
    return {name: sharpe for name, sharpe in rolling.items() if sharpe is not None}
