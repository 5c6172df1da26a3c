from itertools import combinations

import numpy as np
import pytest

from backend.statistics.overfitting import overfitting
from simulator.errors import DataError


def test_a_choice_among_noise_is_worth_nothing_and_one_of_skill_is() -> None:
    rng = np.random.default_rng(1)
    noise = [overfitting(rng.standard_normal((320, 10)), 8).probability for _ in range(12)]
    assert np.mean(noise) == pytest.approx(0.5, abs=0.12)
    skilled = rng.standard_normal((320, 10))
    skilled[:, 3] += 0.5
    found = overfitting(skilled, 8)
    assert found.probability == 0.0 and found.loss_probability < 0.05 and found.splits == 70


def test_overfitting_as_a_plain_loop() -> None:
    returns = np.random.default_rng(3).standard_normal((45, 4))  # one bar is left over
    blocks = returns[1:].reshape(4, 11, 4)
    worse, lost = [], []
    for chosen in combinations(range(4), 2):
        rest = [part for part in range(4) if part not in chosen]
        seen, unseen = (np.concatenate(blocks[list(half)]) for half in (chosen, rest))
        ratios = [half.mean(axis=0) / half.std(axis=0) for half in (seen, unseen)]
        best = int(ratios[0].argmax())
        rank = (1 + int((ratios[1] < ratios[1][best]).sum())) / 5
        worse.append((rank < 0.5) + 0.5 * (rank == 0.5))
        lost.append(unseen.mean(axis=0)[best] < 0.0)
    found = overfitting(returns, 4)
    assert found.probability == pytest.approx(np.mean(worse))
    assert found.loss_probability == pytest.approx(np.mean(lost))


def test_overfitting_says_what_it_needs() -> None:
    with pytest.raises(DataError, match="needs 32 returns for 16 parts, there are 31"):
        overfitting(np.zeros((31, 2)))
    with pytest.raises(DataError, match="two ways"):
        overfitting(np.zeros((64, 1)))
    with pytest.raises(ValueError, match="even"):
        overfitting(np.zeros((64, 2)), 5)
