"""The scripted team: expert rules for each role, and a novice that gives valid answers at random.

A policy maps a conversation (as `ChatFormat.messages` gives it) and a seed to the assistant's next turn. The expert
ignores the seed. If MarketAnalyst or RiskAnalyst is not in the team, the manager looks up the same data and applies
the same rules itself, where it inherits their tools. Nobody takes over Trader's work.

On a portfolio the expert manager asks about all coins side by side, shares its budget of exposure out by the strength
of each lean and by inverse volatility, halves a book that could lose too much, and leaves the rest as cash.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cryptosentinel.agents.manager import ASK_SEVERAL, MAX_QUESTIONS, MOST_POSITIONS
from cryptosentinel.agents.market_analyst import Analysis, reply
from cryptosentinel.agents.registry import STANDARD
from cryptosentinel.agents.risk_analyst import Verdict
from cryptosentinel.llm.chat_format import ChatMessages
from cryptosentinel.llm.scripted import ScriptedPolicy
from cryptosentinel.protocol.tool_calls import render_call
from cryptosentinel.scripted_reading import (
    BookCoin,
    ToolExchange,
    added_policies,
    answers_by_coin,
    exchanges,
    question_to_added,
    read_brief,
    read_coins,
    read_limits,
    read_portfolio,
    read_proposed,
)
from cryptosentinel.teachers import (
    EXPERT_WEIGHTS,
    LOOKED_UP,
    MOST_LOSS,
    NO_LEAN,
    NOT_ASKED,
    OUTLOOKS,
    SKIPPED_SHARE,
    SourceWeights,
    Teacher,
    level_of,
    plan_by_rule,
    random_plan,
    random_verdict,
    verdict_of,
)

EXPOSURES = (0.5, 1.0)
_GRID = 0.05  # sizes in a portfolio are multiples of it
_SMALLEST_PART = 0.3  # of a position: a smaller change is not worth its costs


def expert_policies(
    team: Collection[str] = STANDARD, *, portfolio: bool = False, teacher: Teacher = "expert", inherits: bool = True
) -> dict[str, ScriptedPolicy]:
    """The rules of a scripted team of the sub-agents `team`, by role, as `teacher` has them (`teachers.py`); with
    `portfolio` of one that decides on all coins at once. Unless the manager `inherits` the tools of absent roles, it
    trades nothing without MarketAnalyst, and caps nothing without RiskAnalyst; `random_all` draws the direction there.
    Raises `ValueError` for another teacher than the expert on a portfolio."""
    if portfolio and teacher != "expert":
        raise ValueError(f"the teacher {teacher} decides coin by coin")
    at_random = teacher == "random_all"
    weights = None if at_random else EXPERT_WEIGHTS

    def manager(messages: ChatMessages, seed: int) -> str:
        if portfolio:
            return _expert_portfolio(messages, team, weights, inherits)
        return _expert_manager(messages, team, teacher, inherits, random.Random(seed))

    return added_policies(team, novice=False) | {
        "manager": manager,
        "market_analyst": lambda messages, seed: _expert_analyst(messages, weights),
        "risk_analyst": lambda messages, seed: _expert_risk(messages, portfolio, at_random, random.Random(seed)),
        "trader": lambda messages, seed: _expert_trader(messages, at_random, random.Random(seed)),
    }


def novice_policies(
    team: Collection[str] = STANDARD, *, portfolio: bool = False, inherits: bool = True
) -> dict[str, ScriptedPolicy]:
    """Valid answers of a team of the sub-agents `team` drawn at random, by role; with `portfolio` of one that decides
    on all coins at once. `inherits` as for `expert_policies`."""
    manager = _novice_portfolio if portfolio else _novice_manager
    return added_policies(team, novice=True) | {
        "manager": lambda messages, seed: manager(messages, random.Random(seed), team, inherits),
        "market_analyst": lambda messages, seed: _novice_analyst(messages, random.Random(seed)),
        "risk_analyst": lambda messages, seed: _novice_risk(messages, random.Random(seed), portfolio),
        "trader": lambda messages, seed: _novice_trader(messages, random.Random(seed)),
    }


def _expert_manager(
    messages: ChatMessages, team: Collection[str], teacher: Teacher, inherits: bool, rng: random.Random
) -> str:
    at_random = teacher == "random_all"
    weights = None if at_random else EXPERT_WEIGHTS
    done = exchanges(messages, "manager")
    positions: list[dict[str, Any]] = []
    for symbol, held in read_coins(messages):
        asked = [(name, args, result) for name, args, result in done if args.get("symbol") == symbol]
        heard = {name: result for name, _, result in reversed(asked)}  # the first answer to each question
        if "market_analyst" in team:
            if "consult_market_analyst" not in heard:
                return render_call("consult_market_analyst", {"symbol": symbol})
            if "lean" not in heard["consult_market_analyst"]:  # no valid answer: do not trade on it
                continue
            lean = str(heard["consult_market_analyst"]["lean"])
            reason = f"analyst: {lean}"
        elif not inherits:
            lean, reason = _lean(_random_level(messages, symbol) if at_random else NO_LEAN), _evidence({})
        else:
            missing = next((tool for tool in LOOKED_UP if tool not in heard), None)
            if missing is not None:
                return render_call(missing, {"symbol": symbol})
            lean, reason = _lean(level_of(heard, weights)), _evidence(heard)
        exposure, side = _wish(lean)
        if at_random and exposure != 0.0:
            exposure = EXPOSURES[-1]
        signed = exposure if side == "long" else -exposure
        if exposure == 0.0 or abs(signed - held) < 0.3:
            continue
        question = {"symbol": symbol, "side": side, "exposure": exposure}
        order = [role for role in ("risk_analyst", "trader") if role in team]
        if at_random:
            order = [role for role in rng.sample(order, len(order)) if rng.random() >= NOT_ASKED]
        unasked = next((role for role in order if f"consult_{role}" not in heard), None)
        if "risk_analyst" in team or not inherits:
            vetoed = heard.get("consult_risk_analyst", {}).get("verdict") == "veto"
        else:
            if "get_risk" not in heard:
                return render_call("get_risk", {"symbol": symbol, "side": side})
            exposure = Verdict.model_validate(verdict_of(heard["get_risk"])).cap(exposure)
            vetoed = exposure == 0.0
        if vetoed:
            continue
        if unasked is not None:
            return render_call(f"consult_{unasked}", question)
        reason += _timing(heard.get("consult_trader", {}))
        if teacher != "expert" and rng.random() < SKIPPED_SHARE:
            positions.append({"symbol": symbol, "reason": reason, "side": "keep"})
        else:
            positions.append({"symbol": symbol, "reason": reason, "side": side, "exposure": exposure})
    return render_call("submit_decision", {"positions": positions})


def _random_level(messages: ChatMessages, symbol: str) -> int:
    """One of `OUTLOOKS`. It is drawn from the brief, so it is the same in every turn of a conversation."""
    return random.Random(f"{symbol} {read_brief(messages)}").randrange(len(OUTLOOKS))


def _timing(plan: Mapping[str, Any]) -> str:
    """What Trader's words add to a reason. Said again before the side, they are where a small model looks."""
    return "".join(f", {name}{plan[key]}" for name, key in (("trader: ", "timing"), ("", "rule")) if key in plan)


def _wish(lean: str) -> tuple[float, str]:
    """The exposure, as a part of what a coin may have, and the side that a lean speaks for."""
    exposure = 0.0 if lean == "none" else 1.0 if lean.startswith("strong") else 0.5
    return exposure, "long" if lean.endswith("up") else "short"


def coin_size(coins: int) -> float:
    """The exposure that a portfolio of that number of coins gives one of mean volatility and a strong lean: half of
    the coins fill the account."""
    return min(1.0, 2.0 / max(1, coins))


def _expert_portfolio(
    messages: ChatMessages, team: Collection[str], weights: SourceWeights | None, inherits: bool
) -> str:
    coins, heard = read_portfolio(messages), answers_by_coin(exchanges(messages, "manager"))
    missing = _not_heard(coins, heard, team) if inherits or "market_analyst" in team else None
    if missing is not None:
        return missing
    leans: dict[str, tuple[str, str]] = {}  # by coin: the lean and its reason
    for coin in coins:
        of_coin = heard.get(coin.name, {})
        if "market_analyst" not in team:
            leans[coin.name] = _lean(level_of(of_coin, weights) if inherits else NO_LEAN), _evidence(of_coin)
        elif "lean" in of_coin["consult_market_analyst"]:  # else no valid answer: do not trade on it
            lean = str(of_coin["consult_market_analyst"]["lean"])
            leans[coin.name] = lean, f"analyst: {lean}"
    book = _book(coins, {name: lean for name, (lean, _) in leans.items()}, read_limits(messages))
    if not book:
        return render_call("submit_decision", {"positions": []})
    tried = heard.get("", {}).get("what_if_book")
    if tried is None:
        asked = [{"symbol": name, "exposure": exposure} for name, exposure in book.items()]
        return render_call("what_if_book", {"positions": asked})
    loss = tried.get("var")
    if not isinstance(loss, int | float):
        return render_call("submit_decision", {"positions": []})
    if loss > MOST_LOSS:
        book = {
            name: math.copysign(_rounded_down(abs(exposure) / 2, len(coins)), exposure)
            for name, exposure in book.items()
        }
    questions: list[dict[str, Any]] = [
        {"symbol": name, "side": "long" if exposure > 0.0 else "short", "exposure": abs(exposure)}
        for name, exposure in book.items()
        if exposure != 0.0
    ]
    if "risk_analyst" in team:
        missing = _asking("risk_analyst", questions, heard)
        if missing is not None:
            return missing
        vetoed = {name for name in book if heard.get(name, {}).get("consult_risk_analyst", {}).get("verdict") == "veto"}
    elif not inherits:
        vetoed = set()
    else:
        unknown = next((one for one in questions if "get_risk" not in heard.get(one["symbol"], {})), None)
        if unknown is not None:
            return render_call("get_risk", {"symbol": unknown["symbol"], "side": unknown["side"]})
        verdicts = {one["symbol"]: verdict_of(heard[one["symbol"]]["get_risk"], one["exposure"]) for one in questions}
        vetoed = {name for name, verdict in verdicts.items() if verdict["verdict"] == "veto"}
        book |= {name: math.copysign(verdicts[name].get("to", abs(book[name])), book[name]) for name in verdicts}
    questions = [one for one in questions if one["symbol"] not in vetoed]
    if "trader" in team:
        missing = _asking("trader", questions, heard)
        if missing is not None:
            return missing
    positions = [
        {
            "symbol": name,
            "reason": leans[name][1],
            **_side_of(exposure),
        }
        for name, exposure in book.items()
        if name not in vetoed
    ]
    return render_call("submit_decision", {"positions": positions})


def _book(coins: Sequence[BookCoin], leans: Mapping[str, str], limits: tuple[float, float]) -> dict[str, float]:
    """The signed exposures that change, by coin.

    A coin with a lean gets a part of `coin_size` by the strength of the lean and by inverse volatility; all together at
    most the gross limit. What is held without a lean stays as long as there is room for it, since to close it costs,
    and is closed otherwise. A coin without an answer, or of unknown volatility, stays as it is.
    """
    gross, of_coin = limits
    wishes = {coin.name: _wish(leans[coin.name]) for coin in coins if coin.name in leans and coin.volatility}
    wanted = {coin.name: coin for coin in coins if wishes.get(coin.name, (0.0,))[0] > 0.0}
    frozen = sum(abs(coin.held) for coin in coins if coin.name not in wishes)
    size, inverse = coin_size(len(coins)), {name: 1.0 / (coin.volatility or 1.0) for name, coin in wanted.items()}
    mean = sum(inverse.values()) / max(1, len(inverse))
    target = {name: min(of_coin, wishes[name][0] * size * inverse[name] / mean) for name in wanted}
    room = max(0.0, gross - frozen)
    factor = min(1.0, room / sum(target.values())) if target else 1.0
    book: dict[str, float] = {}
    for name, exposure in target.items():
        signed = _rounded_down(exposure * factor, len(coins)) * (1.0 if wishes[name][1] == "long" else -1.0)
        held = wanted[name].held
        if signed != 0.0 and abs(signed - held) >= _SMALLEST_PART * max(abs(signed), abs(held)):
            book[name] = signed
        room -= max(abs(signed), abs(held)) if name not in book else abs(signed)
    for coin in coins:
        if coin.name in wishes and coin.name not in wanted and coin.held != 0.0:
            if abs(coin.held) > room + 1e-9:
                book[coin.name] = 0.0
            else:
                room -= abs(coin.held)
    return dict([(coin.name, book[coin.name]) for coin in coins if coin.name in book][:MOST_POSITIONS])


def _rounded_down(exposure: float, coins: int) -> float:
    """To the grid of sizes, which is finer where many coins share the account."""
    step = _GRID if coins <= 8 else _GRID / 5.0
    return round(math.floor(exposure / step + 1e-9) * step, 2)


def _not_heard(coins: Sequence[BookCoin], heard: Mapping[str, dict[str, Any]], team: Collection[str]) -> str | None:
    """The call that asks for an outlook on the coins that have none yet; None if all have."""
    if "market_analyst" in team:
        return _asking("market_analyst", [{"symbol": coin.name} for coin in coins], heard)
    for coin in coins:
        missing = next((tool for tool in LOOKED_UP if tool not in heard.get(coin.name, {})), None)
        if missing is not None:
            return render_call(missing, {"symbol": coin.name})
    return None


def _asking(role: str, questions: Sequence[dict[str, Any]], heard: Mapping[str, dict[str, Any]]) -> str | None:
    """The call that puts those of the questions to a role that it has not answered, side by side; None if it has
    answered all."""
    left = [one for one in questions if f"consult_{role}" not in heard.get(one["symbol"], {})]
    if not left:
        return None
    left = left[:MAX_QUESTIONS]
    if len(left) == 1:
        return render_call(f"consult_{role}", left[0])
    return render_call(ASK_SEVERAL, {"questions": [{"ask": role, **one} for one in left]})


def _novice_portfolio(messages: ChatMessages, rng: random.Random, team: Collection[str], inherits: bool) -> str:
    coins = read_portfolio(messages)
    names = [coin.name for coin in coins] or ["C1"]
    done, choice = exchanges(messages, "manager"), rng.random()
    size = coin_size(len(coins))
    done = [one for one in done if one[0] != "get_limits"]
    if len(done) < 4 and choice < 0.66:
        chosen = rng.sample(names, min(len(names), rng.randint(1, min(len(names), MAX_QUESTIONS))))
        several = sorted(chosen, key=names.index)  # in one order: a model that learns it names no coin twice
        asks = "market_analyst" in team
        if choice < 0.3 and (asks or inherits):
            if not asks:
                return render_call(rng.choice(LOOKED_UP), {"symbol": several[0]})
            return _asking("market_analyst", [{"symbol": name} for name in several], {}) or ""
        if choice < 0.36:
            return render_call("get_correlations", {})
        questions: list[dict[str, Any]] = [
            {"symbol": name, "side": rng.choice(("long", "short")), "exposure": _size(rng, size, len(coins))}
            for name in several
        ]
        if choice < 0.44:
            signs = {"long": 1.0, "short": -1.0}
            asked = [{"symbol": one["symbol"], "exposure": signs[one["side"]] * one["exposure"]} for one in questions]
            return render_call("what_if_book", {"positions": asked})
        if choice < 0.55 and "risk_analyst" in team:
            return _asking("risk_analyst", questions, {}) or ""
        if choice < 0.55 and inherits:
            return render_call("get_risk", {"symbol": questions[0]["symbol"], "side": questions[0]["side"]})
        if "trader" in team:
            return _asking("trader", questions, {}) or ""
    heard = answers_by_coin(done)
    positions: list[dict[str, Any]] = []
    for name in names if coins else ():
        side = rng.choice(("long", "short", "flat", "keep"))
        if side == "keep":
            continue
        of_coin = heard.get(name, {})
        lean = of_coin.get("consult_market_analyst", {}).get("lean")
        advice = "no advice" if lean is None else f"analyst: {lean}"
        reason = advice if "market_analyst" in team else _evidence(of_coin)
        exposure = 0.0 if side == "flat" else _size(rng, size, len(coins)) * (1.0 if side == "long" else -1.0)
        positions.append({"symbol": name, "reason": reason, **_side_of(exposure)})
    return render_call("submit_decision", {"positions": positions})


def _side_of(exposure: float) -> dict[str, Any]:
    """Side and size of a position; to be flat has none, so that there is nothing to contradict it."""
    if exposure == 0.0:
        return {"side": "flat"}
    return {"side": "long" if exposure > 0.0 else "short", "exposure": abs(exposure)}


def _size(rng: random.Random, size: float, coins: int) -> float:
    """A size of the grid up to `size`."""
    return max(_rounded_down(rng.uniform(0.0, size), coins), _rounded_down(size / 4.0, coins), 0.01)


def _novice_manager(messages: ChatMessages, rng: random.Random, team: Collection[str], inherits: bool) -> str:
    coins = read_coins(messages)
    symbol = rng.choice(coins)[0] if coins else "C1"
    done = exchanges(messages, "manager")
    asking = question_to_added(team, symbol, rng, EXPOSURES) if len(done) < 4 else None
    if asking is not None:
        return asking
    choice = rng.random()
    if len(done) < 4 and choice < 0.62:
        asks = "market_analyst" in team
        if choice < 0.36 and (asks or inherits):
            return render_call("consult_market_analyst" if asks else rng.choice(LOOKED_UP), {"symbol": symbol})
        question = {"symbol": symbol, "side": rng.choice(("long", "short")), "exposure": rng.choice(EXPOSURES)}
        if choice < 0.5 and "risk_analyst" in team:
            return render_call("consult_risk_analyst", question)
        if choice < 0.5 and inherits:
            return render_call("get_risk", {"symbol": symbol, "side": question["side"]})
        if "trader" in team:
            return render_call("consult_trader", question)
    positions: list[dict[str, Any]] = []
    for name, _ in coins:
        side = rng.choice(("long", "short", "flat", "keep"))
        if side == "keep":
            continue
        exposure = 0.0 if side == "flat" else rng.choice(EXPOSURES)
        reason = _advice(done, name) if "market_analyst" in team else _evidence(_about(done, name))
        reason += _timing(_about(done, name).get("consult_trader", {}))
        positions.append({"symbol": name, "reason": reason, "side": side, "exposure": exposure})
    return render_call("submit_decision", {"positions": positions})


def _advice(done: list[ToolExchange], symbol: str) -> str:
    """The analyst's last lean for a coin. A novice reads it as an expert does, but decides at random."""
    leans = [result["lean"] for _, arguments, result in done if arguments.get("symbol") == symbol and "lean" in result]
    return f"analyst: {leans[-1]}" if leans else "no advice"


def _about(done: list[ToolExchange], symbol: str) -> dict[str, dict[str, Any]]:
    """What was looked up about a coin, by tool."""
    return {name: result for name, arguments, result in done if arguments.get("symbol") == symbol}


def _expert_analyst(messages: ChatMessages, weights: SourceWeights | None) -> str:
    heard = {name: result for name, _, result in exchanges(messages, "market_analyst")}
    for tool in LOOKED_UP:
        if tool not in heard:
            return render_call(tool, {})
    return render_call("submit_analysis", _analysis(level_of(heard, weights), heard))


def _lean(level: int) -> str:
    """The word with which MarketAnalyst's reply to its manager begins at a level."""
    up, flat, down = OUTLOOKS[level]
    return str(reply(Analysis(up=up, flat=flat, down=down))["lean"])


def _novice_analyst(messages: ChatMessages, rng: random.Random) -> str:
    heard = {name: result for name, _, result in exchanges(messages, "market_analyst")}
    missing = [tool for tool in LOOKED_UP if tool not in heard]
    if missing and rng.random() < 0.7:
        return render_call(rng.choice(missing), {})
    return render_call("submit_analysis", _analysis(rng.randrange(len(OUTLOOKS)), heard))


def _analysis(level: int, heard: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """An analysis of a level of strength, with what the tools said before it."""
    up, flat, down = OUTLOOKS[level]
    return {"reason": _evidence(heard), "up": up, "flat": flat, "down": down}


def _evidence(heard: dict[str, dict[str, Any]]) -> str:
    """What trend, news and funding said, as far as they were looked up."""
    said = [
        str(heard[tool].get(key, "not available"))
        for tool, key in zip(LOOKED_UP, ("trend", "tone", "funding"), strict=True)
        if tool in heard
    ]
    return ", ".join(said) or "no data"


def _expert_risk(messages: ChatMessages, portfolio: bool, at_random: bool, rng: random.Random) -> str:
    heard = {name: result for name, _, result in exchanges(messages, "risk_analyst")}
    if "get_risk" not in heard:
        return render_call("get_risk", {})
    if at_random:
        verdict = random_verdict(heard["get_risk"], read_proposed(messages), rng)
        return render_call("submit_verdict", verdict)
    return render_call("submit_verdict", verdict_of(heard["get_risk"], read_proposed(messages) if portfolio else 1.0))


def _novice_risk(messages: ChatMessages, rng: random.Random, portfolio: bool) -> str:
    if not exchanges(messages, "risk_analyst") and rng.random() < 0.8:
        return render_call("get_risk", {})
    return render_call("submit_verdict", _drawn_verdict(rng, 0.5 * read_proposed(messages) if portfolio else 0.5))


def _drawn_verdict(rng: random.Random, half: float) -> dict[str, Any]:
    """A verdict at random; what is reduced is reduced to `half`."""
    verdict = rng.choice(("approve", "approve", "approve", "reduce", "veto"))
    answer: dict[str, Any] = {"verdict": verdict}
    if verdict == "reduce":
        answer["to"] = round(half, 3)
    return {**answer, "loss": rng.randint(2, 16)}


def _expert_trader(messages: ChatMessages, at_random: bool, rng: random.Random) -> str:
    heard = {name: result for name, _, result in exchanges(messages, "trader")}
    if "preview_order" not in heard:
        return render_call("preview_order", {})
    preview = heard["preview_order"]
    plan = random_plan(preview, rng) if at_random else plan_by_rule(preview)
    return render_call("submit_orders", plan)


def _novice_trader(messages: ChatMessages, rng: random.Random) -> str:
    if not exchanges(messages, "trader") and rng.random() < 0.8:
        return render_call("preview_order", {})
    return render_call("submit_orders", _drawn_plan(rng))


def _drawn_plan(rng: random.Random) -> dict[str, Any]:
    """Market orders at random."""
    return {"type": "market", "wait": rng.randint(0, 4), "slices": rng.randint(1, 3)}
