"""Mean and variance of a random gradient from independent steps, without bias, and how sure they are.

A step s of S is a fresh batch, so the gradients g_s are independent draws of one law. With G_st = g_s . g_t

    signal    |E g|^2, by the mean of G_st over s != t: the two are independent, so no noise is in the product
    variance  E |g - E g|^2, the trace of the covariance: the mean of |g_s|^2 less the signal

Where a step has gradients of several random draws (`duplicate_drop`), g_s in G is their mean, which changes no
expectation, and |g_s|^2 is the mean of theirs, so that the variance is that of a gradient of one draw.

Everything is computed from G alone, so the sum over several roles, which share no parameter, is the sum of theirs.
Intervals are percentiles over resamples of the steps, in which a pair of copies of one step is no pair; p-values are
those of the signs' flips: without a mean, g_s and -g_s are alike where the law is symmetric.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class Moments:
    """Gradients of one way over S steps, as far as they are needed.

    products     (S, S) inner products of the steps' gradients, each the mean over its draws
    squares      (S,) squared norm of a gradient, mean over the draws
    differences  (S, S) inner products of the differences from the way that it is compared with
    """

    products: FloatArray
    squares: FloatArray
    differences: FloatArray

    def __add__(self, other: Moments) -> Moments:
        """Those of both gradients side by side."""
        return Moments(
            self.products + other.products, self.squares + other.squares, self.differences + other.differences
        )


def moments(means: FloatArray, squares: FloatArray, against: FloatArray) -> Moments:
    """From the gradients (S, P), the mean over the draws of each step, squares (S,) and the gradients (S, P) of the way
    that it is compared with, on the same steps."""
    gradients, others = np.asarray(means, np.float64), np.asarray(against, np.float64)
    apart = gradients - others
    return Moments(gradients @ gradients.T, np.asarray(squares, np.float64), apart @ apart.T)


def off_diagonal_mean(products: FloatArray, counts: IntArray) -> FloatArray:
    """The mean of products (S, S) over pairs of different steps, (R,), where resample r has step s counts (R, S)
    times."""
    count = np.asarray(counts, np.float64)
    pairs = np.einsum("rs,st,rt->r", count, products, count, optimize=True) - count**2 @ np.diag(products)
    return np.asarray(pairs / (count.sum(1) ** 2 - (count**2).sum(1)))


def signal(products: FloatArray, counts: IntArray | None = None) -> FloatArray:
    """|E g|^2 of each resample, (R,); of the steps as they are, (1,), without `counts`."""
    return off_diagonal_mean(products, _each_once(products) if counts is None else counts)


def variance(one: Moments, counts: IntArray | None = None) -> FloatArray:
    """E |g - E g|^2 of each resample, (R,), as in `signal`."""
    count = _each_once(one.products) if counts is None else counts
    return count @ one.squares / count.sum(1) - off_diagonal_mean(one.products, count)


def resamples(steps: int, number: int, seed: int) -> IntArray:
    """How often each step is in each of `number` resamples of as many steps, (number, steps)."""
    rng = np.random.default_rng(seed)
    return np.asarray(rng.multinomial(steps, np.full(steps, 1.0 / steps), size=number), np.int64)


def p_of_no_mean(products: FloatArray, number: int, seed: int) -> float:
    """How often the signal is at least as large as it is, where `number` times the signs of steps are drawn anew."""
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(number, len(products)))
    apart = products - np.diag(np.diag(products))
    drawn = np.einsum("rs,st,rt->r", signs, apart, signs, optimize=True)
    return float((1 + np.count_nonzero(drawn >= apart.sum())) / (1 + number))


def interval(values: FloatArray) -> tuple[float, float]:
    """Ends of the middle 95 % of the resamples' values."""
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def _each_once(products: FloatArray) -> IntArray:
    return np.ones((1, len(products)), np.int64)
