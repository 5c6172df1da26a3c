"""Decisions per second of a backtest by a team of models: nano in every role, 32 episodes side by side.

Nano has the demo's size and a shorter warm start than the demo's, so that it holds the conversations that a
warm-started team holds; how many of them end in a valid answer is told beside the figure. It decides coin by coin, on
windows that its warm start has not seen. One process with one thread, as the project runs; other cores stay idle.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from backend.builders.loaded_team import LoadedTeam
from backend.builders.market import account_of, limits_of, load_market, split
from backend.builders.teams import model_team
from backend.config.load import load_config
from backend.config.schema import Config
from backend.policies.build import role_policies
from backend.training.start import begin
from benchmarks.run import TREND_MARKET, Result, at_least
from cryptosentinel.episode import play
from cryptosentinel.llm.local.engine import LocalEngine
from cryptosentinel.scheduler import Throughput, run_all
from simulator.backtest.run import BacktestRun, Window
from simulator.market.market import Market

REPETITIONS = 3
EPISODES = 32
BARS_DECIDED = 8  # an episode decides at so many bars, on every coin
LEAST_PER_SECOND = 20.0
MOST_OUTSIDE = 0.10
SETTINGS = ("market.bars=6000", "nano.decisions=1500", "nano.steps=600")


@dataclass(frozen=True)
class _Measured:
    """One run of all episodes."""

    per_second: float
    outside: float  # share of time that is not the engine's
    valid: float  # share of conversations with a valid answer
    requests: float  # of the model, a decision


def run() -> list[Result]:
    """`engine.backtest` in decisions per second, and `engine.backtest.outside`, the share of time that is not the
    model's."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            config = load_config(TREND_MARKET, SETTINGS)
            market = load_market(config.market, config.costs)
            base = begin(config, market, Path(folder), lambda what, done, total: None)
            policies, codec = role_policies(base, config.training)
            training = config.training
            loaded = model_team("nano", policies, codec, config.team, training.temperature, training.precision)
        runs = [_measure(config, market, loaded, seed) for seed in range(REPETITIONS + 1)][1:]  # the first warms up
    finally:
        torch.set_num_threads(threads)
    per_second, outside, valid, requests = (
        statistics.median(getattr(one, name) for one in runs) for name in ("per_second", "outside", "valid", "requests")
    )
    told = f"{EPISODES} episodes, {requests:.1f} requests a decision, {valid:.0%} of conversations valid, one thread"
    return [
        at_least("engine.backtest", per_second, "decisions/s", LEAST_PER_SECOND, told),
        Result(
            name="engine.backtest.outside", value=100 * outside, unit="% of time", against=f"{MOST_OUTSIDE:.0%}",
            ratio=outside / MOST_OUTSIDE, target="<= 1.0", met=outside <= MOST_OUTSIDE,
        ),
    ]  # fmt: skip


def _measure(config: Config, market: Market, loaded: LoadedTeam, seed: int) -> _Measured:
    """All episodes once, from an engine that remembers nothing."""
    assert isinstance(loaded.engine, LocalEngine)
    loaded.engine.forget()
    step = config.team.decide_every
    first, last = split(market, config.market, config.team.horizon_bars).held_out
    length = step * BARS_DECIDED
    terms = account_of(config, market).terms
    starts = [first + number * (last - length - first - 1) // EPISODES for number in range(EPISODES)]
    games = [BacktestRun(market, Window(start, start + length, step), **terms) for start in starts]
    throughput = Throughput()
    began = time.perf_counter()
    episodes = run_all(
        [play(loaded.team, game, limits_of(config.guard), 1000 * seed + number) for number, game in enumerate(games)],
        loaded.engine,
        throughput=throughput,
    )
    seconds = time.perf_counter() - began
    decisions = [decision for episode in episodes for _, decision in episode.decisions]
    if len(decisions) != EPISODES * BARS_DECIDED * len(market.symbols):
        raise RuntimeError(f"engine.backtest: {len(decisions)} decisions; every episode should have come to its end")
    valid = [transcript.valid for decision in decisions for transcript in decision.transcripts]
    return _Measured(
        per_second=len(decisions) / seconds,
        outside=throughput.metrics()["outside"],
        valid=sum(valid) / len(valid),
        requests=throughput.requests / len(decisions),
    )
