"""The example of `docs/concepts/mgrpo.md` and its pictures: the numbers are those that the training computes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from backend.training.algorithm.advantages import group_advantages
from backend.training.algorithm.alignment import align
from backend.training.algorithm.rewards import main_reward, sub_reward

DOCS = Path(__file__).resolve().parents[1] / "docs"
OUTCOMES = (0.60, 0.40, 0.80, 0.40)
# (rollout, expert score) of each call of MarketAnalyst.
CALLS = ((0, 0.7), (0, 0.5), (1, 0.9), (3, 0.5))


def texts(picture: str) -> list[str]:
    """What a picture says, in the order of the file."""
    source = (DOCS / "images" / picture).read_text(encoding="utf-8")
    return re.findall(r"<text[^>]*>([^<]*)</text>", source)


def row(rollout: int, weight: float, reward: float, advantage: float) -> list[str]:
    return [str(rollout + 1), f"1/{round(1 / weight)}", f"{reward:.2f}", f"{advantage:+.2f}".replace("-", "−")]


def rows(picture: str, count: int) -> list[list[str]]:
    """The rows of the groups: four texts each, the first of them a rollout's number."""
    words = texts(picture)
    starts = [at for at, word in enumerate(words) if re.fullmatch(r"\d", word)]
    assert len(starts) == count
    return [words[at : at + 4] for at in starts]


def test_the_pictures_show_what_the_algorithm_computes() -> None:
    team = [main_reward(True, 1.0, outcome) for outcome in OUTCOMES]
    advantages, _ = group_advantages(team)
    manager = [row(k, 0.25, reward, value) for k, (reward, value) in enumerate(zip(team, advantages, strict=True))]

    counts = [sum(k == rollout for rollout, _ in CALLS) for k in range(len(OUTCOMES))]
    weights = align(counts, "fractional", 1, np.random.default_rng(0))
    rewards = [sub_reward(True, 1.0, OUTCOMES[rollout], expert) for rollout, expert in CALLS]
    assert None not in rewards
    advantages, _ = group_advantages(np.asarray(rewards, np.float64), weights)
    analyst = [
        row(rollout, float(weight), float(reward or 0), float(value))
        for (rollout, _), weight, reward, value in zip(CALLS, weights, rewards, advantages, strict=True)
    ]
    assert rows("mgrpo-groups.svg", 8) == [*manager, *analyst]


def test_the_rollouts_of_the_picture_are_those_of_the_example() -> None:
    words = texts("mgrpo-rollouts.svg")
    starts = [at for at, word in enumerate(words) if word.startswith("k = ")]
    stretches = [words[at:end] for at, end in zip(starts, [*starts[1:], len(words)], strict=True)]
    assert [stretch.count("MarketAnalyst") for stretch in stretches] == [2, 1, 0, 1]
    assert [f"{outcome:.2f}" in stretch for outcome, stretch in zip(OUTCOMES, stretches, strict=True)] == [True] * 4


def test_the_page_names_the_same_numbers() -> None:
    page = (DOCS / "concepts" / "mgrpo.md").read_text(encoding="utf-8")
    assert "0.1 + 0.9 × 0.60 = 0.64" in page and "0.1 + 0.4 × 0.60 + 0.5 × 0.70 = 0.69" in page
    assert "+1.03" in page and "−0.90" in page
