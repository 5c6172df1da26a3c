"""Which part of a difference lower costs explain: right for every combination of signs."""

from __future__ import annotations

import pytest

from backend.evaluation.evidence import attribution


@pytest.mark.parametrize(
    ("gain", "saved", "text"),
    [
        (0.0, 0.0066, "lower trading costs +0.66, trading itself -0.66"),
        (0.01, 0.0066, "lower trading costs +0.66, trading itself +0.34"),
        (0.01, -0.002, "higher trading costs -0.20, trading itself +1.20"),
        (-0.01, -0.002, "higher trading costs -0.20, trading itself -0.80"),
        (0.01, 0.0, "trading itself +1.00, trading costs the same"),
        (0.0, 0.0, "trading itself +0.00, trading costs the same"),
    ],
)
def test_the_parts_have_their_own_signs_and_make_the_whole(gain: float, saved: float, text: str) -> None:
    assert attribution(gain, saved) == text


def test_units_are_the_caller_s() -> None:
    assert attribution(0.0, 0.0066, unit=" %") == "lower trading costs +0.66 %, trading itself -0.66 %"
