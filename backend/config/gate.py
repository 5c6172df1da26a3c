"""Settings of the gate: what a team must show before it may take the place of one that trades."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from backend.config.base import Names, Section, suggestion

OWN_BEGINNING = "warm_started"  # the team as its training began
_RIVALS = (OWN_BEGINNING, "scripted", "hold", "flat", "equal_weight", "always_short", "sma_cross", "volatility_target",
           "matched_random")  # fmt: skip


class GateConfig(Section):
    """What `evaluate --gate` asks of a team, and `paper promote` besides. No team's folder can say it."""

    better_than: Names = Field(
        (OWN_BEGINNING, "flat"),
        description="whom the team must beat on held-out windows, by the whole of its interval: warm_started, "
        "scripted, or baselines of the evaluation",
    )
    decisions: int = Field(50, ge=20, le=1_000_000, description="decisions as a shadow before a promotion")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.better_than:
            raise ValueError("gate.better_than names nobody: name at least warm_started")
        for name in self.better_than:
            if name not in _RIVALS:
                near = suggestion(name, _RIVALS)
                known = ", ".join(_RIVALS)
                raise ValueError(f"gate.better_than: nobody called '{name}' can be beaten{near}; there are {known}")
        return self
