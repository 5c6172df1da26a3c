"""Uniform numbers that depend on the request alone, and the inverse CDF."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cryptosentinel.llm.local.sampling import sample, uniforms

seeds = st.integers(min_value=-(2**70), max_value=2**70)


@given(rows=st.lists(st.tuples(seeds, st.integers(0, 10_000)), min_size=1, max_size=5), steps=st.integers(1, 6))
def test_a_number_depends_on_seed_and_position_only(rows: list[tuple[int, int]], steps: int) -> None:
    together = uniforms([seed for seed, _ in rows], [start for _, start in rows], steps)
    assert together.shape == (len(rows), steps)
    for row, (seed, start) in enumerate(rows):
        for step in range(steps):
            assert together[row, step] == uniforms([seed], [start + step], 1)[0, 0]


def test_numbers_are_uniform_and_uncorrelated() -> None:
    numbers = uniforms(list(range(400)), [50] * 400, 250)
    assert numbers.min() >= 0.0 and numbers.max() < 1.0
    assert len(np.unique(numbers)) == numbers.size
    # 100,000 numbers: standard errors are 0.0009 for the mean, 0.0032 for a correlation; the bounds are five of them.
    assert abs(numbers.mean() - 0.5) < 0.0046
    assert np.abs(np.histogram(numbers, bins=20, range=(0, 1))[0] - 5000).max() < 5 * np.sqrt(5000)
    for a, b in ((numbers[:, :-1], numbers[:, 1:]), (numbers[:-1], numbers[1:])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.016


def test_impossible_tokens_are_never_drawn() -> None:
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")]]).repeat(3, 1)
    almost_one = 1 - 2.0**-40
    ids, _ = sample(logits, torch.ones(3), torch.tensor([0.0, 0.5, almost_one], dtype=torch.float64))
    assert ids.tolist() == [1, 3, 3]


def test_rare_tokens_are_not_lost_to_rounding() -> None:
    logits = torch.tensor([[0.0, -20.0]])  # the second token's probability is 2.1e-9
    ids, _ = sample(logits.repeat(2, 1), torch.ones(2), torch.tensor([1 - 4e-9, 1 - 1e-9], dtype=torch.float64))
    assert ids.tolist() == [0, 1]


def test_temperature_zero_is_greedy_with_unscaled_log_probs_beside_sampled_rows() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [0.0, 3.0, 1.0]])
    ids, logps = sample(logits, torch.tensor([0.0, 2.0]), torch.tensor([0.999, 0.999], dtype=torch.float64))
    assert ids.tolist() == [1, 2]
    torch.testing.assert_close(logps[0], torch.log_softmax(logits[0], -1)[1])
    torch.testing.assert_close(logps[1], torch.log_softmax(logits[1] / 2, -1)[2])


@given(
    seed=st.integers(0, 1000),
    words=st.sampled_from([7, 8192, 9001]),
    uniform=st.lists(st.floats(0, 1 - 2.0**-40), min_size=3, max_size=3),
)
@settings(max_examples=40, deadline=None)
def test_a_vocabulary_of_any_size_is_sampled_by_the_inverse_cdf(seed: int, words: int, uniform: list[float]) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0.0, 4.0, (3, words)).astype(np.float32)
    logits[:, rng.random(words) < 0.5] = -np.inf
    logits[1, 700:] = -np.inf  # whole blocks without a possible word
    logits[:, 0] = 0.0
    ids, logps = sample(
        torch.from_numpy(logits), torch.tensor([0.7, 1.0, 0.0]), torch.tensor(uniform, dtype=torch.float64)
    )
    for row, (token, temperature) in enumerate(zip(ids.tolist(), (0.7, 1.0, 1.0), strict=True)):
        scaled = logits[row].astype(np.float64) / temperature
        probabilities = np.exp(scaled - scaled.max())
        probabilities /= probabilities.sum()
        assert probabilities[token] > 0.0
        assert abs(logps[row].item() - np.log(probabilities[token])) < 2e-5
        if row == 2:
            assert token == logits[row].argmax()
        else:
            cdf = probabilities.cumsum()
            assert cdf[token] - probabilities[token] - 1e-6 <= uniform[row] <= cdf[token] + 1e-6
