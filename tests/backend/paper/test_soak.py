"""A session over a bad network that is killed again and again has the books of the one that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bench_paper_soak import slope_of, soak


@pytest.mark.slow
def test_a_day_of_minutes_over_a_bad_network_with_ten_kills(tmp_path: Path) -> None:
    found = soak(tmp_path, 1440, 10)
    assert found.kills == 10 and found.bars == 1440 and found.fills > 5
    assert found.differences == () and found.broken == () and found.unequal == 0
    # A kill changes what is known of about three bars (581 to 589 bars in three months with 200 kills each).
    assert found.other_inputs <= 6 * found.kills


def test_the_slope_of_memory_is_seen_and_noise_is_not() -> None:
    flat = [(bar, 10_000_000 + 4096 * (bar % 7)) for bar in range(0, 40_000, 100)]
    slope, error = slope_of(flat)
    assert abs(slope) <= error
    slope, error = slope_of([(bar, memory + 100 * bar) for bar, memory in flat])
    assert slope - error > 90.0
