"""A reward of one's own.

    cryptosentinel train --config quick -s training.reward=own_reward:cautious

It is a number from 0 to 1. M-GRPO compares rewards within a group of rollouts from the same state, so what counts is
how they differ there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

FEAR = 2.0  # how much a loss weighs beside a gain


def cautious(net_returns: Any, volatility: float) -> float:
    """The outcome of a decision: losses weigh twice. `net_returns` (n,) are the account's over the horizon in each
    scenario, net of all costs; `volatility` is the market's over the same time."""
    felt = np.where(net_returns < 0.0, FEAR * net_returns, net_returns)
    return float(np.mean(0.5 * (1.0 + np.tanh(felt / volatility))))
