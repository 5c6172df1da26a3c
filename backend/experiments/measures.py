"""The figures that an experiment may compare, and how each is written: on its page, in the terminal, in the
application.

`total_return` is of a window that was traded: one course of many, so windows are noisy.
`held_out_value` is the expected outcome score (0 to 1) of a decision, over states × scenarios that all arms have in
common (`backend.experiments.held_out`): one value for each seed, which is the unit that is paired.
"""

from __future__ import annotations

from dataclasses import dataclass

from backend.config.base import suggestion
from cryptosentinel.protocol.untrusted import visible
from simulator.errors import UserError

STATES_MEASURE = "held_out_value"


@dataclass(frozen=True)
class Measure:
    """How a figure is written.

    Attributes:
        words: what it is, inside a sentence. each: what it is of, as "a window".
        scale, digits: it is shown times `scale`, with so many digits behind the point.
        unit: behind a difference, with its blank. axis: behind a value on a picture's axis and in a heading.
    """

    words: str
    each: str
    scale: float
    unit: str
    axis: str
    digits: int = 2

    def signed(self, value: float) -> str:
        """A value or an end of an interval, without its unit."""
        return f"{self.scale * value:+.{self.digits}f}"


_MEASURES = {
    "total_return": Measure("return", "a window", 100.0, " points", " %"),
    STATES_MEASURE: Measure("held-out value", "a decision", 1.0, "", "", 4),
}


def measure_called(name: str) -> Measure:
    """The measure of that name. Raises `UserError` where there is none, as in a result that was written by hand."""
    if name not in _MEASURES:
        raise UserError(
            f"no measure '{visible(name)}'{suggestion(name, list(_MEASURES))}; there are {', '.join(_MEASURES)}"
        )
    return _MEASURES[name]
