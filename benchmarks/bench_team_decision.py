"""What a decision of the whole team costs beside the model: briefs, tools, tokens, protocol, RiskAnalyst's cap, orders,
guard and the account, one thread, against a limit of 5 ms.

The scripted team decides on one coin a time over a window of the synthetic market, as in a backtest, in which every
decision consults all three sub-agents. The engine's own time is taken off. The rows below the first say where the rest
goes; what is in none of them is the team's own bookkeeping.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import cryptosentinel.team as team_module
from backend.builders.loaded_team import scripted_team
from backend.config.schema import Config
from benchmarks.run import Result, at_most
from cryptosentinel.agents.role import Role, Tool
from cryptosentinel.episode import play
from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.engine import Completion, Engine, Request
from cryptosentinel.scheduler import run_all
from simulator.backtest.run import BacktestRun, Window
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.standard_limits import guard_limits

REPETITIONS = 5
MOST_MS = 5.0
DECISIONS = 60


class _Clock:
    """Seconds by name, of functions that do not call one another."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

        return run


class _TimedEngine:
    """An engine whose time is known."""

    def __init__(self, engine: Engine, clock: _Clock) -> None:
        self.name = engine.name
        self.policy_version = engine.policy_version
        self.generate: Callable[[Sequence[Request]], list[Completion]] = clock.timed("model", engine.generate)


def run() -> list[Result]:
    """`team.decision` in seconds, and its parts as shares of it."""
    market = generate(SyntheticConfig(bars=400, seed=2, symbols=("AAAUSDT",)))
    times: list[dict[str, float]] = []
    for repetition in range(REPETITIONS + 1):
        clock = _Clock()
        loaded = scripted_team(Config().team)
        game = BacktestRun(market, Window(150, 150 + 4 * DECISIONS, 4))
        with ExitStack() as patches:
            for target, attribute, name in (
                (team_module, "parse", "protocol"), (team_module, "orders_for_target", "orders"),
                (Guard, "review", "guard"),
            ):  # fmt: skip
                patches.enter_context(patch.object(target, attribute, clock.timed(name, getattr(target, attribute))))
            patches.enter_context(patch.object(Role, "tool", _timed_tools(clock)))
            start = time.perf_counter()
            engine = _TimedEngine(loaded.engine, clock)
            [episode] = run_all([play(loaded.team, game, guard_limits(), repetition)], engine)
            whole = time.perf_counter() - start
        calls = [len(decision.transcripts) for _, decision in episode.decisions]
        if len(calls) != DECISIONS or max(calls) < 4:
            raise RuntimeError(
                f"team.decision: {len(calls)} decisions of up to {max(calls)} conversations; expected all"
            )
        if repetition > 0:  # the first run warms up
            times.append({**clock.seconds, "whole": whole - clock.seconds["model"]})
    median = {name: statistics.median(one[name] for one in times) / DECISIONS for name in times[0]}
    whole = median["whole"]
    rows = [at_most("team.decision", 1e3 * whole, "ms", MOST_MS)]
    for name in ("tools", "protocol", "orders", "guard"):
        rows.append(_row(f"team.decision.{name}", median[name], whole, f"the decision: {1e3 * whole:.3g} ms"))
    return rows


def _row(name: str, seconds: float, most: float, against: str) -> Result:
    return Result(
        name=name, value=1e3 * seconds, unit="ms", against=against, ratio=seconds / most, target="<= 1.0",
        met=seconds <= most,
    )  # fmt: skip


def _timed_tools(clock: _Clock) -> Callable[[Role, str], Tool]:
    """`Role.tool` that hands out tools whose computing is timed."""
    plain = Role.tool

    def tool(role: Role, name: str) -> Tool:
        found = plain(role, name)
        if found.run is None:
            return found
        return Tool(found.name, found.description, found.arguments, clock.timed("tools", found.run))

    return tool
