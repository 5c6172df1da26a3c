"""The compiled loop of the stationary block bootstrap: bars drawn in blocks of random length, and what each resample of
a window came to. `backend.statistics.bootstrap` makes intervals of it."""

from __future__ import annotations

import math

import numpy as np

from simulator.arrays import FloatArray
from simulator.kernel.jit import compiled

# Columns of what `resample` fills.
GROWTH, AHEAD, RATIO, DEPTH = range(4)
COLUMNS_OF_RESAMPLE = 4
SUMS_OF_BLOCK = 5


@compiled
def resample(
    returns: FloatArray, logs: FloatArray, gains: FloatArray, block: float, seed: int, sums: FloatArray, out: FloatArray
) -> None:
    """Fill a row of `out` for each resample of the bars.

    Args:
        returns: (n,) simple returns minus their mean. logs: (n,) log returns. gains: (n,) any other series.
        block: mean length of a block; at each bar a new one begins with the probability 1 / block, at any bar of the
            circle of all bars.
        sums: (n, `SUMS_OF_BLOCK`) to work in.
        out: (samples, `COLUMNS_OF_RESAMPLE`). `GROWTH` and `AHEAD`: distance of the mean of `logs` and `gains` from
            that of all bars, in standard errors of the resample. `RATIO`: the same of mean over standard deviation,
            for `returns` with the mean that `out[:, RATIO]` holds beforehand. `DEPTH`: the largest drawdown of the
            path of `logs`, as a log. A resample without spread has NaN.
    """
    count = len(returns)
    log_mean, gain_mean, square_mean = 0.0, 0.0, 0.0
    for bar in range(count):
        log_mean += logs[bar] / count
        gain_mean += gains[bar] / count
        square_mean += returns[bar] * returns[bar] / count
    state = np.uint64(seed)
    stay = 1.0 - 1.0 / block
    for row in range(len(out)):
        average = out[row, RATIO]  # of the returns
        blocks, bar = -1, 0
        wealth, peak, depth = 0.0, 0.0, 0.0
        for step in range(count):
            # SplitMix64 (Steele, Lea and Flood 2014).
            state = state + np.uint64(0x9E3779B97F4A7C15)
            mixed = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ (mixed >> np.uint64(31))
            # 26 bits say whether the block goes on, 38 others where a new one begins.
            if step == 0 or float(mixed >> np.uint64(38)) >= stay * 67108864.0:
                bar = int(float(mixed & np.uint64(0x3FFFFFFFFF)) * count / 274877906944.0)
                blocks += 1
                sums[blocks, 0] = sums[blocks, 1] = sums[blocks, 2] = sums[blocks, 3] = sums[blocks, 4] = 0.0
            else:
                bar = bar + 1 if bar + 1 < count else 0
            sums[blocks, 0] += 1.0
            sums[blocks, 1] += logs[bar]
            sums[blocks, 2] += gains[bar]
            sums[blocks, 3] += returns[bar]
            sums[blocks, 4] += returns[bar] * returns[bar]
            wealth += logs[bar]
            peak = max(peak, wealth)
            depth = max(depth, peak - wealth)
        growth, ahead, mean, variance = 0.0, 0.0, 0.0, 0.0
        for number in range(blocks + 1):
            growth += sums[number, 1] / count
            ahead += sums[number, 2] / count
            mean += sums[number, 3] / count
            variance += sums[number, 4] / count
        variance = max(variance - mean * mean, 0.0)
        deviation = math.sqrt(variance)
        ratio = (mean + average) / deviation
        growth_error, ahead_error, ratio_error = 0.0, 0.0, 0.0
        for number in range(blocks + 1):
            length = sums[number, 0]
            growth_error += (sums[number, 1] - length * growth) ** 2
            ahead_error += (sums[number, 2] - length * ahead) ** 2
            around = sums[number, 4] - 2.0 * mean * sums[number, 3] + length * mean * mean
            influence = (sums[number, 3] - length * mean) / deviation
            influence -= ratio / (2.0 * variance) * (around - length * variance)
            ratio_error += influence * influence
        out[row, GROWTH] = (growth - log_mean) * count / math.sqrt(growth_error)
        out[row, AHEAD] = (ahead - gain_mean) * count / math.sqrt(ahead_error)
        out[row, RATIO] = (ratio - average / math.sqrt(square_mean)) * count / math.sqrt(ratio_error)
        out[row, DEPTH] = depth
