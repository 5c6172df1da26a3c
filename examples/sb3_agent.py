"""PPO of Stable-Baselines3 in the Gymnasium environment, beside holding the coin.

    pip install stable-baselines3
    python sb3_agent.py

Whatever it learns on a random walk is luck: put a market of your own in its place, and test on bars after those that it
was trained on, as here.
"""

from __future__ import annotations

import numpy as np
from gymnasium.wrappers import FlattenObservation
from own_data import load

import cryptosentinel as cs

TRAINED_ON, LENGTH = 600, 60  # bars of the history, and of an episode


def environment(first: int, last: int) -> FlattenObservation:
    """Episodes on the bars [first, last) of the example's market."""
    market = cs.Market.from_frame(load().iloc[first:last], "BTCUSDT")
    return FlattenObservation(cs.TradingEnv(market, cs.EnvConfig(length=LENGTH, window=4)))


def train(steps: int = 20_000, seed: int = 1):  # type: ignore[no-untyped-def] # the library is not a dependency
    """A policy that PPO has trained for so many steps."""
    from stable_baselines3 import PPO

    return PPO("MlpPolicy", environment(0, TRAINED_ON), n_steps=256, batch_size=64, seed=seed, device="cpu").learn(
        steps
    )


def returns(policy, episodes: int = 10) -> list[float]:  # type: ignore[no-untyped-def]
    """What the policy earned in episodes after the bars that it was trained on, as log returns."""
    env, earned = environment(TRAINED_ON, 900), []
    for seed in range(episodes):
        observation, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            action, _ = policy.predict(np.nan_to_num(observation), deterministic=True)
            observation, reward, ended, cut, _ = env.step(int(action))
            total, over = total + float(reward), ended or cut
        earned.append(total)
    return earned


def main() -> None:
    """Train, and print what came of it on later bars."""
    earned = returns(train())
    print(f"{len(earned)} episodes after the training: {100 * np.mean(earned):+.2f} % log return each on average")


if __name__ == "__main__":
    main()
