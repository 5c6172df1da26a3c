"""What a team's thinking took in a backtest: as it is stored with the result, and what it leaves of the return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from cryptosentinel.conversation.budget import Ledger
from cryptosentinel.scheduler import Throughput

THINKING = "thinking"  # key beside the result's own


def thinking_of(ledger: Ledger, throughput: Throughput, played: bool = False) -> dict[str, Any]:
    """What to store beside a backtest's result: spending in all and by role, conversations that ended for want of
    budget, and how busy the engine was, but for one that was `played` from a cassette. Empty for a team that thinks by
    rules."""
    if not ledger.run.tokens and not ledger.exhausted:
        return {}
    roles = {role: asdict(spent) for role, spent in ledger.roles.items()}
    engine = {} if played else throughput.metrics()
    told = {**asdict(ledger.run), "roles": roles, "exhausted": ledger.exhausted, "engine": engine}
    return {THINKING: told}


def thinking_money(result: Mapping[str, Any]) -> float:
    """Money that thinking took, of a stored result; 0 where none was recorded."""
    return float(result.get(THINKING, {}).get("money", 0.0))


def return_after_thinking(result: Mapping[str, Any]) -> float:
    """Total return less what thinking cost, as a share of the equity at the start."""
    return float(result["metrics"]["total_return"]) - thinking_money(result) / float(result["equity"][0])


def thinking_line(result: Mapping[str, Any]) -> str | None:
    """The same in a sentence; None where nothing was recorded."""
    spent = result.get(THINKING)
    if spent is None:
        return None
    engine = spent["engine"]
    told = f"thinking took {spent['calls']:,} requests and {spent['tokens']:,} tokens in {spent['seconds']:,.1f} s"
    if engine:
        told += f" ({engine['tokens_per_second']:,.0f} sampled a second, {100 * engine['prefix_reuse']:.0f} % of the "
        told += "prompts known from before)"
    if spent["money"]:
        told += (
            f"; it cost {spent['money']:,.4g}, which leaves a return of {100 * return_after_thinking(result):+.2f} %"
        )
    if spent["exhausted"]:
        told += f"; {spent['exhausted']} conversations ended because the budget was spent"
    if engine and engine["failures"]:
        told += f"; {engine['failures']:.0f} requests failed"
    return told
