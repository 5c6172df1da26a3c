"""How good the teachers of a warm start are, without any training: `make bench ONLY=learning.teachers`.

Each teacher of `nano.teacher` decides as a scripted team on the markets and held-out windows of
`learning.oracle_share`. Its row is its share of what the oracle earns above flat; `none` is a team of valid answers
drawn at random. A training that begins with a poor teacher and ends far above it has learnt what nobody showed it. The
rows meet their target if the whole teacher earns something, and more than each of the others, with the interval over
seeds and windows.
"""

from __future__ import annotations

from typing import get_args

import numpy as np
import numpy.typing as npt

from backend.builders.loaded_team import scripted_team
from backend.builders.market import account_of, limits_of, load_market, split
from backend.evaluation.compare import baselines, play_windows, split_windows
from benchmarks.bench_learning_oracle_share import EVERYBODY, SEEDS, config_of, share_interval
from benchmarks.run import Result
from cryptosentinel.teachers import Teacher

TEACHERS: tuple[Teacher, ...] = get_args(Teacher)
ORACLE = "oracle"
BY_NAME_ONLY = True  # it says something of the market and the rules, not of the code


def run() -> list[Result]:
    """A row `learning.teachers.TEACHER` for each teacher."""
    seeds = [_returns(seed) for seed in SEEDS]
    returns = {name: np.array([one[name] for one in seeds]) for name in seeds[0]}
    return [_row(name, returns) for name in TEACHERS]


def _row(name: Teacher, returns: dict[str, npt.NDArray[np.float64]]) -> Result:
    oracle = returns[ORACLE]
    share, low, high = share_interval(returns[name], oracle)
    below, least, _ = share_interval(returns["whole"] - returns[name], oracle)
    best = name == "whole"
    each = ", ".join(f"{one:.0%}" for one in returns[name].sum(1) / oracle.sum(1))
    return Result(
        name=f"learning.teachers.{name}",
        value=100 * share,
        unit="% of the oracle's earnings",
        against=f"oracle, {100 * oracle.mean():+.2f} % a window of {oracle.shape[1]}; 95 % interval {low:.0%} to "
        f"{high:.0%}, seeds {each}" + ("" if best else f"; {below:.0%} below the whole teacher, at least {least:.0%}"),
        ratio=share,
        target="interval > 0" if best else "below the whole teacher",
        met=low > 0.0 if best else least > 0.0,
    )


def _returns(seed: int) -> dict[str, list[float]]:
    """Returns of a seed's held-out windows by teacher, and the oracle's."""
    config = config_of(seed, EVERYBODY)
    market = load_market(config.market, config.costs)
    account, evaluation, every = account_of(config, market), config.evaluation, config.team.decide_every
    held_out = split(market, config.market, config.team.horizon_bars).held_out
    windows = split_windows(*held_out, evaluation.windows, evaluation.decisions_per_window, every)
    limits, played = limits_of(config.guard), {}
    for teacher in TEACHERS:
        team = scripted_team(config.team, teacher)
        runs = play_windows(team, market, windows, account, limits, evaluation.seed, lambda what, done, total: None)
        played[str(teacher)] = [one.result for one in runs]
    played |= baselines((ORACLE,), market, windows, account, played["whole"], evaluation.seed)
    return {name: [one.metrics["total_return"] for one in runs] for name, runs in played.items()}
