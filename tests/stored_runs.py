"""Stored runs that look like real ones, for the tests of the report and of the page.

A small synthetic market is traded by the scripted team and two baselines; what follows from that is real. The
numbers of the training are made up: they only have to look like a training's.
"""

from __future__ import annotations

import json
import math
import time
from functools import cache
from typing import Any

from backend.decisions.backtest_document import BacktestDocument, write_backtest
from backend.decisions.document import EXAMPLE_DECISION, DecisionDocument, StoredDecision, write_decisions
from backend.decisions.recording import episode_decisions, stored_call
from backend.evaluation.answer import ANSWER, answer_of, answer_text
from backend.reporting.training_sections import CONTROL_VALUE, HELD_OUT_VALUE
from backend.store.records import EvaluationRecord, RunRecord
from backend.store.store import Store
from cryptosentinel.agents.registry import ROLES, SPEAKERS
from cryptosentinel.conversation.transcript import CalledTurn
from cryptosentinel.episode import EpisodeResult, play
from cryptosentinel.llm.chat_codec import ChatCodec, make_byte_codec
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.protocol.tool_calls import parse
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import expert_policies
from cryptosentinel.team import Team
from simulator.backtest.run import BacktestRun, Window, run_backtest
from simulator.market.market import Market
from simulator.strategies import Flat, Hold
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.standard_limits import guard_limits
from tests.team_scenes import standard_team

SYMBOLS = ("AAAUSDT", "BBBUSDT")
WINDOW = Window(180, 359, 6)  # the last 30 days, one decision a day


@cache
def small_market() -> Market:
    """Two coins, 60 days of 4h bars."""
    return generate(SyntheticConfig(bars=360, seed=3, symbols=SYMBOLS))


@cache
def codec() -> ChatCodec:
    """Every byte is a token."""
    return make_byte_codec()


@cache
def episode() -> EpisodeResult:
    """The scripted team on `WINDOW`."""
    team = Team(codec(), lambda role: "scripted", standard_team(horizon_bars=18))
    run = BacktestRun(small_market(), WINDOW)
    return run_all([play(team, run, guard_limits(), seed=1)], ScriptedEngine(codec(), expert_policies()))[0]


def add_backtest_run(store: Store, run_id: str, data: str = "data/synthetic") -> str:
    """Add a finished backtest of the scripted team beside two baselines; returns `run_id`."""
    market = small_market()
    config = {
        "config": {"market": {"data": data, "symbols": list(SYMBOLS), "timeframe": "4h"}},
        "versions": {"cryptosentinel": "1.0.0"},
        "teams": ["scripted"],
    }
    store.add_run(RunRecord(run_id, "backtest", 1, market.content_hash, _now(), config))
    write_backtest(store, run_id, "scripted", episode().result)
    for strategy in (Hold(), Flat()):
        write_backtest(store, run_id, strategy.name, run_backtest(market, strategy, WINDOW))
    write_decisions(store, episode_decisions(run_id, "scripted", codec(), episode()))
    store.finish_run(run_id, "finished")
    return run_id


def _now() -> int:
    return round(time.time() * 1000) - 75_000


def full_decision() -> StoredDecision:
    """The first decision for which all three sub-agents were asked."""
    decisions = episode_decisions("run", "scripted", codec(), episode())
    return next(decision for decision in decisions if len(decision.document.conversations) == 4)


def full_document() -> DecisionDocument:
    """What `full_decision` holds."""
    return full_decision().document


def altered(document: BacktestDocument, **changes: Any) -> BacktestDocument:
    """The document with other values of some keys."""
    return BacktestDocument.from_json({**json.loads(json.dumps(document.to_json())), **changes}, "test")


_SAID = {
    "ordinal": 0, "policy_version": "", "asked": {}, "messages": [], "answer": None, "problem": None,
    "truncated": False,
    "usage": {
        "prompt": 0, "sampled": 0, "turns": 0, "read": 0, "logp": None, "mean_logp": None, "cost": 0.0, "dropped": 0
    },
}  # fmt: skip


def decision_of(**written: Any) -> DecisionDocument:
    """A decision of which only some fields matter; in its conversations too."""
    lists: dict[str, Any] = {name: [] for name in ("symbols", "conversations", "rulings", "clamps", "orders")}
    said = [_with_calls({**_SAID, **one}) for one in written.pop("conversations", [])]
    ruled = [{"verdict": "reduce", "ordinal": 0, "verdicts": 1, **one} for one in written.pop("rulings", [])]
    document = {**lists, **written, "conversations": said, "rulings": ruled}
    return DecisionDocument.from_json(document, "test")


def _with_calls(conversation: dict[str, Any]) -> dict[str, Any]:
    """A conversation whose turns have the calls that they are, as if they had just been said."""
    types = SPEAKERS[conversation["role"]].argument_types()
    messages = []
    for message in conversation["messages"]:
        if message["role"] == "assistant" and "call" not in message:
            call = stored_call(CalledTurn(parse(message["content"], types))).model_dump()
            message = {**message, "call": call}
        messages.append(message)
    return {**conversation, "messages": messages}


def add_demo_run(store: Store, run_id: str) -> str:
    """Add a finished demo with 30 steps of training; returns `run_id`."""
    config = {
        "config": {"market": {"data": ""}, "training": {"stage1_steps": 10}},
        "versions": {"cryptosentinel": "1.0.0", "torch": "2.13.0"},
    }
    store.add_run(RunRecord(run_id, "demo", 7, small_market().content_hash, _now(), config))
    for step in range(31):
        store.add_metrics(run_id, step, _metrics(step))
    store.put(EvaluationRecord(run_id, "held_out", 30, comparison(0.02)))
    store.put(EvaluationRecord(run_id, HELD_OUT_VALUE, 30, decision_values()))
    store.put(EvaluationRecord(run_id, CONTROL_VALUE, 30, control_values()))
    answer = answer_of(decision_values(), control_values(), 431.2)
    store.put(EvaluationRecord(run_id, ANSWER, 30, answer))
    store.put(EvaluationRecord(run_id, EXAMPLE_DECISION, 30, full_decision().example().to_json()))
    closing = {
        "verdict": answer_text(answer),
        "wall_seconds": 431.2,
        "peak_memory_mb": 1234.5,
        "stages": [{"stage": 1, "from_step": 0}, {"stage": 2, "from_step": 10}],
        "rollbacks": [{"step": 17, "role": "trader"}],
        "best_step": 25,
    }
    store.put(EvaluationRecord(run_id, "summary", 30, closing))
    store.finish_run(run_id, "finished")
    return run_id


def decision_values(gain: float = 0.001) -> dict[str, Any]:
    """What decisions are worth on held-out states, as `held_out_value` says it: the trained team earns `gain` more than
    its teacher, and that more than the initial team."""
    names = ("trained", "teacher", "warm_started", "holding")
    shares = {
        "trained": {"manager": 0.9, "market_analyst": 0.8, "risk_analyst": 0.9, "trader": 0.03},
        "teacher": {"manager": 0.4, "market_analyst": 0.6, "risk_analyst": 0.5, "trader": 0.6},
        "warm_started": {"manager": 0.5, "market_analyst": 0.6, "risk_analyst": 0.5, "trader": 0.82},
        "holding": {},
    }
    rows = {}
    for place, name in enumerate(names):
        mean = 0.0031 - place * gain
        rows[name] = {
            "net_return": mean, "net_return_ci95": [mean - 0.0004, mean + 0.0004], "outcome": 0.58 - place / 1e2,
            "questions": 2.0, "traded": 0.6, "behaviors": shares[name],
        }  # fmt: skip
    return {
        "states": 1000, "scenario_paths": 256, "stretches": 24, "allowed": 0.0375, "rows": rows,
        "differences": [
            {
                "of": names[0], "against": name, "net_return": place * gain,
                "net_return_ci95": [place * gain - 0.0004, place * gain + 0.0004], "outcome": place / 1e2,
                "outcome_ci95": [place / 1e2 - 0.004, place / 1e2 + 0.004],
            }
            for place, name in enumerate(names) if place
        ],
    }  # fmt: skip


def control_values(gain: float = -0.0001) -> dict[str, Any]:
    """The same on the no-edge control, where the trained team earns `gain` more than holding."""
    document = decision_values()
    against = {"of": "trained", "against": "holding", "net_return": gain,
               "net_return_ci95": [gain - 0.0002, gain + 0.0002]}  # fmt: skip
    return {**document, "allowed": None, "differences": [against]}


def comparison(gain: float) -> dict[str, Any]:
    """An evaluation's result in which the trained team earns `gain` more a window."""
    days = [number / 6 for number in range(49)]
    means = {
        "warm_started": 0.001, "trained": 0.001 + gain, "scripted": 0.025, "hold": 0.004, "flat": 0.0,
        "matched_random": -0.003, "oracle": 0.06,
    }  # fmt: skip
    rows = {
        name: {
            "total_return": mean,
            "sharpe": 40 * mean,
            "max_drawdown": 0.03,
            "exposure": 0.6,
            "trades": 4.25,
            "long_share": 0.55,
            "turnover": 3.5,
            "costs": 0.0031,
            "hold_rate": 0.4 if name in ("warm_started", "trained", "scripted") else None,
            "per_window": [mean + 0.01 * math.sin(number) for number in range(12)],
        }
        for name, mean in means.items()
    }
    differences = [gain + 0.015 * math.sin(2 * number) for number in range(12)]
    return {
        "windows": 12,
        "rows": rows,
        "difference": {
            "of": "trained",
            "against": "warm_started",
            "mean": gain,
            "ci95": [gain - 0.006, gain + 0.007],
            "costs_saved": 0.001,
            "per_window": differences,
        },
        "equity": {
            name: [1 + mean * day / 8 + 0.002 * math.sin(7 * day + mean) * (day > 0) for day in days]
            for name, mean in means.items()
        },
        "equity_days": days,
    }


def _metrics(step: int) -> dict[str, float]:
    values: dict[str, float] = {"stage": 1.0 if step <= 10 else 2.0}
    for number, role in enumerate(ROLES):
        if step > 0:
            slope = 0.002 + 0.001 * number
            values[f"{role}/reward/mean"] = 0.45 + 0.06 * number + slope * step + 0.02 * math.sin(3 * step + number)
            values[f"{role}/valid"] = min(1.0, 0.9 + 0.01 * step - 0.02 * (number == 3 and 15 < step < 18))
            values[f"{role}/calls"] = 0.3 + 0.2 * number
        if step > 0 and role != "manager":
            values[f"{role}/expert/mean"] = math.nan if step == 5 else 0.4 + 0.05 * number + 0.004 * step
    if step % 5 == 0:
        values["validation/outcome"] = 0.48 + 0.004 * step
        values["validation/hold_share"] = 0.5 - 0.005 * step
    return values
