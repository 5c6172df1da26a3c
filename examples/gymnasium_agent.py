"""An agent in the Gymnasium environment, without a library of reinforcement learning: the cross-entropy method.

    python gymnasium_agent.py

It draws linear policies, plays the same episodes with each, and draws the next ones around the best. Whatever it
learns on a random walk is luck: put a market of your own in its place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from own_data import load

import cryptosentinel as cs

Weights = np.ndarray[Any, Any]  # (actions, features)


def play(env: cs.TradingEnv, weights: Weights, seed: int) -> float:
    """The sum of rewards of one episode: at each step the allowed action with the highest score is taken."""
    observation, _ = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        row = np.append(np.tanh(np.nan_to_num(np.ravel(observation))), 1.0)
        scores = np.where(env.action_masks(), weights @ row, -np.inf)
        observation, reward, ended, cut, _ = env.step(int(scores.argmax()))
        total, over = total + reward, ended or cut
    return total


def train(env: cs.TradingEnv, rounds: int = 5, drawn: int = 16, kept: int = 4, seed: int = 1) -> list[float]:
    """The mean return of the best policies of each round."""
    rng = np.random.default_rng(seed)
    shape = (3, int(np.prod(env.observation_space.shape or ())) + 1)
    mean, spread, best = np.zeros(shape), np.ones(shape), []
    for number in range(rounds):
        policies = mean + spread * rng.normal(size=(drawn, *shape))
        returns = np.array([play(env, policy, seed=number) for policy in policies])
        chosen = policies[np.argsort(returns)[-kept:]]
        mean, spread = chosen.mean(axis=0), chosen.std(axis=0) + 0.05
        best.append(float(np.sort(returns)[-kept:].mean()))
    return best


def main() -> None:
    """Train on a market of one coin, and print what each round's best policies earned."""
    market = cs.Market.from_frame(load(), "BTCUSDT")
    env = cs.TradingEnv(market, cs.EnvConfig(length=60, window=4))
    for number, earned in enumerate(train(env), 1):
        print(f"round {number}: {100 * earned:+.2f} % log return an episode")


if __name__ == "__main__":
    main()
