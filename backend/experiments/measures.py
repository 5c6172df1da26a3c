"""The figures that an experiment may compare, and how each is written.

`total_return` is of a window that was traded: one course of many, so windows are noisy.
`held_out_value` is the expected outcome score (0 to 1) of a decision, with the likeliest answers, over states ×
scenarios that all arms have in common: those of the shared configuration, whatever an arm sets for its training. The
scenarios begin with the regimes which the public data allows, so neither luck nor the hidden regime is noise. The
states of one seed share its market, so a seed gives one value, which is the unit that is paired.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backend.builders.loaded_team import LoadedTeam
from backend.builders.strategies import NamedStrategy
from backend.config.base import suggestion
from backend.config.schema import Config
from cryptosentinel.protocol.untrusted import visible
from simulator.errors import UserError
from simulator.market.market import Market
from simulator.strategies import Flat

STATES_MEASURE = "held_out_value"


@dataclass(frozen=True)
class Measure:
    """How a figure is written.

    Attributes:
        words: what it is, inside a sentence. each: what it is of, as "a window".
        scale, digits: it is shown times `scale`, with `digits` behind the point.
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


def problem_with_states(config: Config, strategies: dict[str, str]) -> str | None:
    """Why decisions of an experiment cannot be scored on held-out states, in a sentence; None where they can.
    `strategies` are those that trade, by arm."""
    windows = "compare total_return over windows"
    if config.market.data:
        return f"is of generated markets: recorded bars have one continuation and no scenarios; {windows}"
    if config.team.portfolio:
        return f"is of decisions on one coin, and team.portfolio = true decides on all: {windows}"
    if config.evaluation.states < 2:
        return (
            f"needs states to decide in, and evaluation.states = {config.evaluation.states}: write "
            f'set = ["evaluation.states=500"], or {windows}'
        )
    for arm, strategy in strategies.items():
        if strategy != Flat.name:
            return (
                f"is of teams, and arm '{arm}' is the strategy {strategy}, which decides by the bars that it traded "
                f"before: leave the arm out; team = '{Flat.name}' leaves every position as it is"
            )
    return None


def value_of_arm(
    subject: LoadedTeam | NamedStrategy, config: Config, market: Market, report: Callable[[str, int, int], None]
) -> dict[str, Any]:
    """What the decisions of `subject` are worth with the shared configuration `config` of a seed: means over
    `evaluation.states` states, and a hash by which arms are known to have decided in the same ones. With who leaves
    all positions as they are comes `allowed`: how much more the best decision given all evidence is worth in the mean,
    where that is known."""
    from backend.evaluation.held_out_value import HOLDING, SCENARIOS, allowed_above_holding, row_of, values_in

    teams = [subject.at_temperature(0.0)] if isinstance(subject, LoadedTeam) else []
    queries, values = values_in(config, market, teams, report)
    states = [(query.key, query.bar, query.symbol, query.exposures()[query.symbol]) for query in queries]
    is_known = config.market.kind == "private" and config.market.edge
    return {
        **row_of(values[teams[0].name if teams else HOLDING]),
        "allowed": allowed_above_holding(config, queries) if is_known and not teams else None,
        "states": len(queries),
        "scenario_paths": SCENARIOS,
        "states_hash": hashlib.sha256(json.dumps(states).encode()).hexdigest(),
    }
