"""How much of what the evidence allows the tools of a team show at all: `make bench ONLY=learning.shown`.

The evidence of `learning.private` is all public data of all coins, filtered with the market's law. A team reads less:
of one coin the drift, the balance of its headlines and whether they are confirmed, the mean funding; the crowding; the
spread. Here a regression with all of these as numbers learns, on states of the training part, what each exposure is
worth given all evidence, and then decides in held-out states. So its share is about the most that any team can reach
that reads these tools, whoever trains it. A second row has the filter of all public data in the place of
MarketAnalyst's tools: what it misses of 100 % is the regression's fault.

No team is trained. Intervals are Student's over the means of the markets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from backend.builders.market import load_market, split
from backend.config.schema import Config
from backend.training.curriculum.queries import Query, pools_of
from backend.training.rollout.collect import RolloutSettings, rollout_settings
from backend.training.rollout.expected_value import LIMIT_LEVELS, evidence_values
from benchmarks.bench_learning_private import config_of, interval
from benchmarks.run import Result
from cryptosentinel.conversation.masking import Mask
from cryptosentinel.protocol.tool_calls import NoArguments
from cryptosentinel.tools import market as tools
from cryptosentinel.tools.context import ToolContext
from simulator.arrays import FloatArray
from simulator.synthetic.truth import truth_of

BY_NAME_ONLY = True  # it says something of the market and the tools, not of the code
SEEDS = (21, 22, 23, 24, 25)
BARS = 15_000
STATES = 4_000  # that the regression learns from
HELD_OUT = 1_000
NETWORKS = 4  # whose mean is taken
STEPS = 1_500


def run() -> list[Result]:
    """The rows `learning.shown.tools`, `.pooled` and `.filter`."""
    tools, pooled, known = zip(*map(_shares, SEEDS), strict=True)
    return [
        _row("tools", tools, "what the tools show as numbers"),
        _row("pooled", pooled, "the same with the trend that reads the other coins too"),
        _row("filter", known, "the filter of all public data instead of MarketAnalyst's tools"),
    ]


def _shares(seed: int) -> tuple[float, float, float]:
    """Of a market: the shares of what the evidence allows, above holding, by the tools, by those of `team.pooled_trend`
    and by the filter."""
    config = config_of(seed, f"market.bars={BARS}", "training.scenario_paths=128")
    settings, (learn, held_out) = rollout_settings(config, 1), _states(config)
    worth = [_above_holding(queries, settings) for queries in (learn, held_out)]
    best = float(np.mean([_of_both(one, one[::-1].argmax(axis=1)) for one in worth[1]]))
    alone, pooled = (
        [np.array([_shown(query, wide) for query in queries]) for queries in (learn, held_out)]
        for wide in (False, True)
    )
    known = [np.array([_filtered(query) for query in queries]) for queries in (learn, held_out)]
    shares = []
    for inputs in (alone, pooled, known):
        expected = _regressed(inputs[0], worth[0].mean(axis=1), inputs[1])
        expected[np.arange(HELD_OUT), [_held(query) for query in held_out]] = 0.0
        chosen = expected.argmax(axis=1)
        shares.append(
            float(np.mean([one[:, place].mean() for one, place in zip(worth[1], chosen, strict=True)])) / best
        )
    return shares[0], shares[1], shares[2]


def _states(config: Config) -> tuple[list[Query], list[Query]]:
    """States of the training part and of the held-out part, with beliefs."""
    market, horizon = load_market(config.market, config.costs), config.team.horizon_bars
    parts = split(market, config.market, horizon)
    learn, held_out = pools_of(config.training, market, [parts.train, parts.held_out], horizon)
    seed = config.evaluation.seed
    return learn.draw(seed, 0, STATES, easy=False), held_out.draw(seed, 0, HELD_OUT, easy=False)


def _held(query: Query) -> int:
    """The level of the exposure held."""
    return int(np.argmin(np.abs(np.asarray(LIMIT_LEVELS) - query.exposure)))


def _above_holding(queries: Sequence[Query], settings: RolloutSettings) -> FloatArray:
    """(N, 2, L): what each exposure is worth given all evidence, less holding, on two sets of scenarios."""
    values = [one.utilities for one in evidence_values(queries, settings)]
    return np.stack([row - row[:, [_held(query)]] for query, row in zip(queries, values, strict=True)])


def _of_both(values: FloatArray, places: FloatArray) -> float:
    """The mean of a choice a set, each valued on the other set."""
    return float(np.mean([row[place] for row, place in zip(values, places, strict=True)]))


def _shown(query: Query, pooled: bool) -> list[float]:
    """What MarketAnalyst's tools show as numbers, and what is known beside it."""
    mask = Mask(query.symbols, enabled=True)
    context = ToolContext(query.view(), query.account(), mask, query.symbols, 9, 1.0, query.symbol, pooled_trend=pooled)
    trend, news, rates = (tool(context, NoArguments()) for tool in (tools.trend, tools.news, tools.funding))
    drift, funding = trend.get("drift", 0.0), rates.get("funding_bps", 0.0)
    balance, confirmed = float(news.get("balance", 0.0)), float(news.get("press") == "confirmed")
    return [drift, balance, confirmed, balance * confirmed, funding, *_beside(query)]


def _filtered(query: Query) -> list[float]:
    """The filter's beliefs, and what is known beside them."""
    assert query.belief is not None
    bear, neither, bull = query.belief
    return [bull - bear, neither, *_beside(query)]


def _beside(query: Query) -> list[float]:
    """What RiskAnalyst's and Trader's tools show, and the brief: crowding, half spread, exposure, volatility."""
    private = truth_of(query.market).private
    assert private is not None
    spread = float(query.market.half_spread[query.bar, 0])
    return [float(private.crowded[query.bar, 0]), 100.0 * spread, query.exposure, float(np.log(query.volatility))]


def _regressed(inputs: FloatArray, worth: FloatArray, asked: FloatArray) -> FloatArray:
    """(N, L): the mean of what several networks learned to expect of each exposure, at `asked`."""
    mean, spread = inputs.mean(axis=0), inputs.std(axis=0) + 1e-9
    given, wanted = (torch.tensor((one - mean) / spread, dtype=torch.float32) for one in (inputs, asked))
    unit = float(worth.std())
    target = torch.tensor(worth / unit, dtype=torch.float32)
    answers = []
    for seed in range(NETWORKS):
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Linear(given.shape[1], 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, worth.shape[1])
        )
        optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=0.1)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        for _ in range(STEPS):
            batch = torch.randint(len(given), (512,))
            loss = (network(given[batch]) - target[batch]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            answers.append(network(wanted).numpy())
    expected: FloatArray = unit * np.mean(answers, axis=0).astype(np.float64)
    return expected


def _row(name: str, shares: Sequence[float], what: str) -> Result:
    mean, low, high = interval(shares)
    return Result(
        name=f"learning.shown.{name}",
        value=100.0 * mean,
        unit="% of what the evidence allows above holding",
        against=f"the evidence; {what}; 95 % interval {low:.0%} to {high:.0%}, markets "
        + ", ".join(f"{one:.0%}" for one in shares),
        ratio=mean,
        target="reported",
        met=True,
    )
