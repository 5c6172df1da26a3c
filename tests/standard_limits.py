"""The guard's limits for tests and benchmarks: the configuration's defaults, with some of them changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from backend.builders.market import limits_of
from backend.config.schema import GuardConfig
from cryptosentinel.guard.limits import GuardLimits


def guard_limits(**changes: Any) -> GuardLimits:
    """What is not named has its default."""
    return replace(limits_of(GuardConfig()), **changes)
