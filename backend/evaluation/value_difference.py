"""By which figure the value of two teams' decisions is compared, and in which unit it is written: the same in the
verdict in words and in the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def shown_difference(difference: Mapping[str, Any], tail_weight: float) -> tuple[float, float, float, str]:
    """The mean, the ends of its 95 % interval, and the unit: the net return in basis points. Of teams that are to avoid
    large losses (`tail_weight` above 0) that says too little; then it is the outcome score.

    `difference` is one of `differences` in the document of `backend.evaluation.held_out_value`.
    """
    key, scale, unit = "net_return", 1e4, "bp"
    if tail_weight > 0.0:
        key, scale, unit = "outcome", 1e3, "thousandths of the outcome"
    low, high = difference[f"{key}_ci95"]
    return scale * difference[key], scale * low, scale * high, unit
