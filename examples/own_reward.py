"""A reward of one's own, and an expert score of one's own for a role that is there already.

    cryptosentinel train --config quick -s training.reward=own_reward:cautious \\
        -s training.scores=market_analyst=own_reward:likelihood

Both are numbers from 0 to 1. M-GRPO compares them within a group of rollouts from the same state, so what counts is
how they differ there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

FEAR = 2.0  # how much a loss weighs beside a gain


def cautious(net_returns: Any, volatility: float) -> float:
    """The outcome of a decision: losses weigh twice. `net_returns` (n,) are the account's over the horizon in each
    scenario, net of all costs; `volatility` is the market's over the same time."""
    felt = np.where(net_returns < 0.0, FEAR * net_returns, net_returns)
    return float(np.mean(0.5 * (1.0 + np.tanh(felt / volatility))))


def likelihood(answer: Any, asked: Mapping[str, Any], moves: Any, volatility: float) -> float:
    """How probable MarketAnalyst called what came: the logarithmic score, cut at one percent, as a number from 0 to 1.
    `moves` (n,) are the coin's returns over the horizon in each scenario."""
    band = 0.3 * volatility
    stated = np.clip(answer.distribution(), 0.01, 1.0)  # of down, flat and up
    came = np.array([np.mean(moves < -band), np.mean(np.abs(moves) <= band), np.mean(moves > band)])
    return float(1.0 - np.sum(came * np.log(stated)) / np.log(0.01))
