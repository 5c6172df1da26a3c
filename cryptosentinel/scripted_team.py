"""The scripted team: expert rules for each role, and a novice that gives valid answers at random.

A policy maps a conversation (as `ChatFormat.messages` gives it) and a seed to the assistant's next turn. The expert
ignores the seed. If MarketAnalyst or RiskAnalyst is not in the team, the manager looks up the same data and applies
the same rules itself. Nobody takes over Trader's work.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Collection
from itertools import pairwise
from typing import Any

from cryptosentinel.agents.instructions import opening_results
from cryptosentinel.agents.market_analyst import Analysis, reply
from cryptosentinel.agents.registry import SPEAKERS, STANDARD
from cryptosentinel.agents.risk_analyst import Verdict
from cryptosentinel.llm.chat_format import ChatMessages
from cryptosentinel.llm.scripted import ScriptedPolicy
from cryptosentinel.protocol.tool_calls import MalformedCall, parse, render_call

ToolExchange = tuple[str, dict[str, Any], dict[str, Any]]  # tool name, its arguments, its result

_COIN_LINE = re.compile(
    r"^(\S+): held (-?[\d.]+), day (\S+|not available), volatility (\S+|not available)$", re.MULTILINE
)
EXPOSURES = (0.5, 1.0)
LOOKED_UP = ("get_trend", "get_news", "get_funding")  # what an outlook is made of
_TONE = {"very good": 2.0, "good": 1.0, "bad": -1.0, "very bad": -2.0}
_TREND = {"strong up": 2.0, "up": 1.0, "down": -1.0, "strong down": -2.0}
# (up, flat, down) by strength of the evidence, from strongly down to strongly up.
_LEVELS = ((0.2, 0.2, 0.6), (0.3, 0.2, 0.5), (0.4, 0.2, 0.4), (0.5, 0.2, 0.3), (0.6, 0.2, 0.2))


def expert_policies(team: Collection[str] = STANDARD) -> dict[str, ScriptedPolicy]:
    """The rules of a scripted team of the sub-agents `team`, by role."""
    return {
        "manager": lambda messages, seed: _expert_manager(messages, team),
        "market_analyst": lambda messages, seed: _expert_analyst(messages),
        "risk_analyst": lambda messages, seed: _expert_risk(messages),
        "trader": lambda messages, seed: _expert_trader(messages),
    }


def novice_policies(team: Collection[str] = STANDARD) -> dict[str, ScriptedPolicy]:
    """Valid answers of a team of the sub-agents `team` drawn at random, by role."""
    return {
        "manager": lambda messages, seed: _novice_manager(messages, random.Random(seed), team),
        "market_analyst": lambda messages, seed: _novice_analyst(messages, random.Random(seed)),
        "risk_analyst": lambda messages, seed: _novice_risk(messages, random.Random(seed)),
        "trader": lambda messages, seed: _novice_trader(messages, random.Random(seed)),
    }


def exchanges(messages: ChatMessages, role: str) -> list[ToolExchange]:
    """The calls so far with their results; what the first message of a full prompt tells counts as called. Calls that
    do not parse, and results that are no JSON object, are left out."""
    user = next((message["content"] for message in messages if message["role"] == "user"), "")
    found: list[ToolExchange] = [(name, {}, result) for name, result in opening_results(SPEAKERS[role], user).items()]
    types = SPEAKERS[role].argument_types()
    for said, heard in pairwise(messages):
        if said["role"] != "assistant" or heard["role"] != "tool":
            continue
        call = parse(said["content"], types)
        if isinstance(call, MalformedCall):
            continue
        result = json.loads(heard["content"])
        if isinstance(result, dict):
            found.append((call.name, call.arguments.model_dump(), result))
    return found


def _expert_manager(messages: ChatMessages, team: Collection[str]) -> str:
    done = exchanges(messages, "manager")
    positions: list[dict[str, Any]] = []
    for symbol, held in _coins(messages):
        asked = [(name, args, result) for name, args, result in done if args.get("symbol") == symbol]
        heard = {name: result for name, _, result in reversed(asked)}  # the first answer to each question
        if "market_analyst" in team:
            if "consult_market_analyst" not in heard:
                return render_call("consult_market_analyst", {"symbol": symbol})
            if "lean" not in heard["consult_market_analyst"]:  # no valid answer: do not trade on it
                continue
            lean = str(heard["consult_market_analyst"]["lean"])
            reason = f"analyst: {lean}"
        else:
            missing = next((tool for tool in LOOKED_UP if tool not in heard), None)
            if missing is not None:
                return render_call(missing, {"symbol": symbol})
            lean, reason = _lean(_level(heard)), _evidence(heard)
        exposure = 0.0 if lean == "none" else 1.0 if lean.startswith("strong") else 0.5
        side = "long" if lean.endswith("up") else "short"
        signed = exposure if side == "long" else -exposure
        if exposure == 0.0 or abs(signed - held) < 0.3:
            continue
        question = {"symbol": symbol, "side": side, "exposure": exposure}
        if "risk_analyst" in team:
            if "consult_risk_analyst" not in heard:
                return render_call("consult_risk_analyst", question)
            vetoed = heard["consult_risk_analyst"].get("verdict") == "veto"
        else:
            if "get_risk" not in heard:
                return render_call("get_risk", {"symbol": symbol, "side": side})
            exposure = Verdict.model_validate(_verdict(heard["get_risk"])).cap(exposure)
            vetoed = exposure == 0.0
        if vetoed:
            continue
        if "trader" in team and "consult_trader" not in heard:
            return render_call("consult_trader", question)
        positions.append({"symbol": symbol, "reason": reason, "side": side, "exposure": exposure})
    return render_call("submit_decision", {"positions": positions})


def _novice_manager(messages: ChatMessages, rng: random.Random, team: Collection[str]) -> str:
    coins = _coins(messages)
    symbol = rng.choice(coins)[0] if coins else "C1"
    done = exchanges(messages, "manager")
    choice = rng.random()
    if len(done) < 4 and choice < 0.62:
        if choice < 0.36:
            asks = "market_analyst" in team
            return render_call("consult_market_analyst" if asks else rng.choice(LOOKED_UP), {"symbol": symbol})
        question = {"symbol": symbol, "side": rng.choice(("long", "short")), "exposure": rng.choice(EXPOSURES)}
        if choice < 0.5 and "risk_analyst" not in team:
            return render_call("get_risk", {"symbol": symbol, "side": question["side"]})
        if choice < 0.5 or "trader" in team:
            return render_call("consult_risk_analyst" if choice < 0.5 else "consult_trader", question)
    positions: list[dict[str, Any]] = []
    for name, _ in coins:
        side = rng.choice(("long", "short", "flat", "keep"))
        if side == "keep":
            continue
        exposure = 0.0 if side == "flat" else rng.choice(EXPOSURES)
        reason = _advice(done, name) if "market_analyst" in team else _evidence(_about(done, name))
        positions.append({"symbol": name, "reason": reason, "side": side, "exposure": exposure})
    return render_call("submit_decision", {"positions": positions})


def _advice(done: list[ToolExchange], symbol: str) -> str:
    """The analyst's last lean for a coin. A novice reads it as an expert does, but decides at random."""
    leans = [result["lean"] for _, arguments, result in done if arguments.get("symbol") == symbol and "lean" in result]
    return f"analyst: {leans[-1]}" if leans else "no advice"


def _about(done: list[ToolExchange], symbol: str) -> dict[str, dict[str, Any]]:
    """What was looked up about a coin, by tool."""
    return {name: result for name, arguments, result in done if arguments.get("symbol") == symbol}


def _expert_analyst(messages: ChatMessages) -> str:
    heard = {name: result for name, _, result in exchanges(messages, "market_analyst")}
    for tool in LOOKED_UP:
        if tool not in heard:
            return render_call(tool, {})
    return _analysis(_level(heard), heard)


def _level(heard: dict[str, dict[str, Any]]) -> int:
    """Which of `_LEVELS` trend, news and funding speak for."""
    score = 0.9 * _TREND.get(str(heard["get_trend"].get("trend")), 0.0)
    score += 0.7 * _TONE.get(str(heard["get_news"].get("tone")), 0.0)
    score += {"longs pay": 0.9, "shorts pay": -0.9}.get(str(heard["get_funding"].get("funding")), 0.0)
    return 4 if score > 2.0 else 3 if score > 0.7 else 0 if score < -2.0 else 1 if score < -0.7 else 2


def _lean(level: int) -> str:
    """The word with which MarketAnalyst's reply to its manager begins at a level."""
    up, flat, down = _LEVELS[level]
    return str(reply(Analysis(up=up, flat=flat, down=down))["lean"])


def _novice_analyst(messages: ChatMessages, rng: random.Random) -> str:
    heard = {name: result for name, _, result in exchanges(messages, "market_analyst")}
    missing = [tool for tool in LOOKED_UP if tool not in heard]
    if missing and rng.random() < 0.7:
        return render_call(rng.choice(missing), {})
    return _analysis(rng.randrange(len(_LEVELS)), heard)


def _analysis(level: int, heard: dict[str, dict[str, Any]]) -> str:
    """An analysis of a level of strength, with what the tools said before it."""
    up, flat, down = _LEVELS[level]
    return render_call("submit_analysis", {"reason": _evidence(heard), "up": up, "flat": flat, "down": down})


def _evidence(heard: dict[str, dict[str, Any]]) -> str:
    """What trend, news and funding said, as far as they were looked up."""
    said = [
        str(heard[tool].get(key, "not available"))
        for tool, key in zip(LOOKED_UP, ("trend", "tone", "funding"), strict=True)
        if tool in heard
    ]
    return ", ".join(said) or "no data"


def _expert_risk(messages: ChatMessages) -> str:
    heard = {name: result for name, _, result in exchanges(messages, "risk_analyst")}
    if "get_risk" not in heard:
        return render_call("get_risk", {})
    return render_call("submit_verdict", _verdict(heard["get_risk"]))


def _verdict(numbers: dict[str, Any]) -> dict[str, Any]:
    """The verdict that follows from the loss quantiles of `get_risk`."""
    known = [float(numbers[key]) for key in ("var", "historical") if isinstance(numbers.get(key), int | float)]
    if not known:
        return {"verdict": "veto", "loss": 20}
    loss = min(100, round(sum(known) / len(known)))
    return {"verdict": "reduce", "to": 0.5, "loss": loss} if loss > 14 else {"verdict": "approve", "loss": loss}


def _novice_risk(messages: ChatMessages, rng: random.Random) -> str:
    if not exchanges(messages, "risk_analyst") and rng.random() < 0.8:
        return render_call("get_risk", {})
    verdict = rng.choice(("approve", "approve", "approve", "reduce", "veto"))
    answer: dict[str, Any] = {"verdict": verdict}
    if verdict == "reduce":
        answer["to"] = 0.5
    return render_call("submit_verdict", {**answer, "loss": rng.randint(2, 16)})


def _expert_trader(messages: ChatMessages) -> str:
    heard = {name: result for name, _, result in exchanges(messages, "trader")}
    if "preview_order" not in heard:
        return render_call("preview_order", {})
    wait = 2 if heard["preview_order"].get("state") == "wide" else 0
    return render_call("submit_orders", {"type": "market", "wait": wait, "slices": 1})


def _novice_trader(messages: ChatMessages, rng: random.Random) -> str:
    if not exchanges(messages, "trader") and rng.random() < 0.8:
        return render_call("preview_order", {})
    return render_call("submit_orders", {"type": "market", "wait": rng.randint(0, 4), "slices": rng.randint(1, 3)})


def _coins(messages: ChatMessages) -> list[tuple[str, float]]:
    """The coins in the manager's brief with the exposure held."""
    user = next((message["content"] for message in messages if message["role"] == "user"), "")
    return [(match.group(1), float(match.group(2))) for match in _COIN_LINE.finditer(user)]
