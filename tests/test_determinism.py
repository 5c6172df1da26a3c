"""Property tests have the same examples in every run, and none that an earlier run kept."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def drawn() -> list[str]:
    """The examples of a property, with the settings of this suite."""
    seen: list[str] = []

    @given(st.lists(st.floats(), max_size=5))
    def draws(values: list[float]) -> None:
        seen.append(repr(values))

    draws()
    assert len(seen) > 40
    return seen


@pytest.mark.skipif(bool(os.environ.get("EVERY_EXAMPLE")), reason="`make test-all` draws others each time")
def test_two_runs_have_the_same_examples() -> None:
    assert drawn() == drawn()


def test_no_property_fails_by_the_clock() -> None:
    profile = settings()
    assert profile.deadline is None and profile.database is None
    assert HealthCheck.too_slow in profile.suppress_health_check
