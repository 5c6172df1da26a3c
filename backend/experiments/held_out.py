"""The measure `held_out_value`: what an arm decides in each of many held-out states, with its likeliest answers, and
what that is worth on average over simulated scenarios of the state.

States, scenarios and the way in which outcomes are scored are those of the experiment's shared configuration, whatever
an arm sets for its training: all arms of a seed are measured alike. A decision is scored over scenarios that begin with
the regimes which the public data allows, so neither luck nor the hidden regime is noise; only a generated market has
such scenarios. The states of one seed share its market, so a seed gives one value.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from backend.builders.loaded_team import LoadedTeam
from backend.builders.strategies import NamedStrategy
from backend.config.schema import Config
from simulator.market.market import Market
from simulator.strategies import Flat

LEAVES_POSITIONS = Flat.name


def problem_with(config: Config, same_market: bool, subjects: dict[str, str]) -> str | None:
    """Why an experiment cannot be measured so, in a sentence; None where it can. `subjects` are who trades, by arm:
    those of strategies alone."""
    if config.market.data:
        return (
            "is of generated markets: recorded bars have one continuation and no scenarios; compare total_return "
            "over windows"
        )
    if same_market:
        return (
            "takes one value from each seed's own market: leave same_market out, or compare total_return over windows"
        )
    if config.team.portfolio:
        return (
            "is of decisions on one coin, and team.portfolio = true decides on all: compare total_return over windows"
        )
    if config.evaluation.states < 2:
        return (
            f"needs states to decide in, and evaluation.states = {config.evaluation.states}: write "
            'set = ["evaluation.states=500"], or compare total_return over windows'
        )
    others = [(arm, subject) for arm, subject in subjects.items() if subject != LEAVES_POSITIONS]
    for arm, subject in others:
        return (
            f"is of teams, and arm '{arm}' is the strategy {subject}, which decides by the bars that it traded before: "
            f"leave the arm out; team = '{LEAVES_POSITIONS}' leaves every position as it is"
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
