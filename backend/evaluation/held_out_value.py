"""What decisions of the trained team, the initial team and the teacher are worth in expectation on held-out states.

Windows of a backtest are few, and what happened in them is one course of many. Here each team decides once in each of
many states, with its likeliest answers, and each decision is scored over the same simulated scenarios of its state.
Scenarios begin with the regimes that the public data allows (`QueryPool`'s beliefs), so neither luck nor the hidden
regime is noise. Only a market whose truth is known has scenarios.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from backend.builders.loaded_team import LoadedTeam, scripted_team
from backend.builders.market import split
from backend.config.schema import SCRIPTED, Config
from backend.evaluation.answer import HOLDING, TEACHER
from backend.evaluation.evaluate import TRAINED, WARM_STARTED
from backend.statistics.mean_interval import RESAMPLES, mean_interval
from backend.training.algorithm.rewards import Outcome
from backend.training.curriculum.queries import Query, gross_limit, pools_of
from backend.training.rollout.collect import Rollout, collect, rollout_settings
from backend.training.rollout.expected_value import evidence_values
from cryptosentinel.llm.engine import RememberingEngine
from cryptosentinel.teachers import Teacher
from simulator.arrays import FloatArray, IntArray
from simulator.market.market import Market
from simulator.synthetic.private import WIDE_SPREAD

CLEAR = 0.6  # least difference between the chances of a rising and a falling market
SCENARIOS = 256  # of each state, common to all teams: the mean of so many is known better than teams differ
STATES_AT_ONCE = 100  # decided side by side: the engine is busy, and the scenarios of no more are kept


@dataclass(frozen=True)
class StateValues:
    """Of one team over N states, (N,) each: net return and outcome score, questions, and whether it sent orders.
    `behaviors` are those of its roles."""

    net_return: FloatArray
    outcome: FloatArray
    questions: FloatArray
    traded: FloatArray
    behaviors: Mapping[str, FloatArray] = field(default_factory=dict)


def greedy_teams(config: Config, trained: LoadedTeam, warm_started: LoadedTeam) -> list[LoadedTeam]:
    """Who is compared: both teams with their likeliest answers, the teacher that the warm start learned from, and the
    scripted team that reads all evidence where that is another one."""
    teams = [
        trained.at_temperature(0.0).renamed(TRAINED),
        warm_started.at_temperature(0.0).renamed(WARM_STARTED),
        scripted_team(config.team, teacher_of(config)).renamed(TEACHER),
    ]
    return teams if teacher_of(config) == "expert" else [*teams, scripted_team(config.team)]


def teacher_of(config: Config) -> Teacher:
    """A base model that was not made here has learned from no teacher of ours, so the rules stand for one."""
    return "expert" if config.training.base_model else config.nano.teacher


def held_out_value(
    config: Config, market: Market, teams: Sequence[LoadedTeam], report: Callable[[str, int, int], None]
) -> dict[str, Any]:
    """What decisions are worth on `evaluation.states` held-out states, each scored over `SCENARIOS`
    scenarios, as `value_document` has it."""
    queries, values = values_in(config, market, teams, report)
    return value_document(config, queries, values)


def values_in(
    config: Config, market: Market, teams: Sequence[LoadedTeam], report: Callable[[str, int, int], None]
) -> tuple[list[Query], dict[str, StateValues]]:
    """The `evaluation.states` held-out states of a market, and what decisions are worth in them: of each team by its
    name, and of holding."""
    queries = held_out_states(config, market)
    parts = []
    for first in range(0, len(queries), STATES_AT_ONCE):

        def reported(what: str, done: int, total: int, before: int = first) -> None:
            report(what, before + done, len(queries))

        parts.append(state_values(config, queries[first : first + STATES_AT_ONCE], teams, reported))
    return queries, joined_values(parts)


def allowed_above_holding(config: Config, queries: Sequence[Query]) -> float:
    """How much more the best decision given all evidence is worth than to leave all positions as they are, in units of
    the outcome, mean over the states; without the price of questions. Raises `DataError` as `evidence_values` does."""
    settings = replace(rollout_settings(config, 1), scenario_paths=SCENARIOS)
    return float(np.mean([value.all - value.hold for value in evidence_values(queries, settings)]))


def held_out_states(config: Config, market: Market) -> list[Query]:
    """The states that are decided in, drawn from the held-out part by the evaluation's seed."""
    part = split(market, config.market, config.team.horizon_bars).held_out
    believed = config.training.model_copy(update={"scenario_source": "beliefs", "states": ""})
    [pool] = pools_of(believed, market, [part], config.team.horizon_bars, gross_limit(config))
    return pool.draw(config.evaluation_seed, 0, config.evaluation.states, easy=False)


def state_values(
    config: Config,
    queries: Sequence[Query],
    teams: Sequence[LoadedTeam],
    report: Callable[[str, int, int], None],
) -> dict[str, StateValues]:
    """What each team decides in each of the states, and what that is worth; also of leaving all positions as they are
    (holding). All are scored over the same scenarios, which are made once a state."""
    settings = replace(rollout_settings(config, 1), scenario_paths=SCENARIOS)
    scorers = [settings.scorer(query) for query in queries]
    values: dict[str, StateValues] = {}
    for team in teams:

        def finished(done: int, name: str = team.name) -> None:
            report(f"value of {name}", done, len(queries))

        groups = collect(team.team, team.engine, queries, settings, config.evaluation_seed, finished, scorers=scorers)
        if isinstance(team.engine, RememberingEngine):
            team.engine.forget()  # what it kept of these conversations helps no other, and is large
        values[team.name] = _values_of([rollout for [rollout] in groups])
    values[HOLDING] = _of_outcomes([scorer.outcome([]) for scorer in scorers])
    return values


def joined_values(parts: Sequence[Mapping[str, StateValues]]) -> dict[str, StateValues]:
    """The values of all states, where those of some stretches of them are in `parts`."""
    return {name: _joined([part[name] for part in parts]) for name in parts[0]}


def _joined(parts: Sequence[StateValues]) -> StateValues:
    arrays = {
        array.name: np.concatenate([getattr(part, array.name) for part in parts])
        for array in fields(StateValues)
        if array.name != "behaviors"
    }
    return StateValues(**arrays, behaviors=joined_behaviors([part.behaviors for part in parts]))


def value_document(
    config: Config, queries: Sequence[Query], values: Mapping[str, StateValues], allowed: float | None = None
) -> dict[str, Any]:
    """What decisions are worth: a row for each team and for holding, and what the trained team earns more than each of
    the others. `allowed` is that of `allowed_above_holding`, where it is known.

    States that lie near each other share bars. So an interval is not over states: the held-out part is cut into as many
    stretches as `evaluation.windows`, and the interval is that of the stretches' means.
    """
    evaluation = config.evaluation
    stretches = _stretches(queries, evaluation.windows)
    others = [name for name in (TEACHER, WARM_STARTED, SCRIPTED, HOLDING) if name in values]
    return {
        "states": len(queries),
        "scenario_paths": SCENARIOS,
        "stretches": len(stretches),
        "allowed": allowed,
        "rows": {name: _full_row(config, one, stretches) for name, one in values.items()},
        "differences": [
            _difference(config, values[TRAINED], values[other], stretches) | {"of": TRAINED, "against": other}
            for other in others
        ],
    }


def _full_row(config: Config, values: StateValues, stretches: Sequence[IntArray]) -> dict[str, Any]:
    means = [float(values.net_return[positions].mean()) for positions in stretches]
    interval = mean_interval(means, RESAMPLES, config.evaluation_seed)
    return {**row_of(values), "net_return_ci95": list(interval), "behaviors": shares(values.behaviors)}


def row_of(values: StateValues) -> dict[str, float]:
    """The means of one team over its states."""
    return {
        "net_return": float(values.net_return.mean()),
        "outcome": float(values.outcome.mean()),
        "questions": float(values.questions.mean()),
        "traded": float(values.traded.mean()),
    }


def _values_of(rollouts: Sequence[Rollout]) -> StateValues:
    return replace(
        _of_outcomes([rollout.outcome for rollout in rollouts]),
        questions=np.array([len(rollout.subs) for rollout in rollouts], np.float64),
        traded=np.array([bool(rollout.decision.orders) for rollout in rollouts], np.float64),
        behaviors=role_behaviors(rollouts),
    )


def _of_outcomes(outcomes: Sequence[Outcome]) -> StateValues:
    nothing = np.zeros(len(outcomes))
    return StateValues(
        np.array([outcome.net_return for outcome in outcomes]),
        np.array([outcome.score for outcome in outcomes]),
        nothing,
        nothing,
    )


def _stretches(queries: Sequence[Query], count: int) -> list[IntArray]:
    """The states of each of `count` equal stretches of the bars drawn from, as positions; without empty ones."""
    bars = np.array([query.bar for query in queries])
    edges = np.linspace(bars.min(), bars.max() + 1, count + 1)
    stretch = np.digitize(bars, edges[1:-1])
    return [np.flatnonzero(stretch == number) for number in np.unique(stretch)]


def _difference(config: Config, ours: StateValues, other: StateValues, stretches: Sequence[IntArray]) -> dict[str, Any]:
    difference: dict[str, Any] = {}
    for key in ("net_return", "outcome"):
        gains = getattr(ours, key) - getattr(other, key)
        means = [float(gains[positions].mean()) for positions in stretches]
        difference[key] = float(np.mean(means))
        difference[f"{key}_ci95"] = list(mean_interval(means, RESAMPLES, config.evaluation_seed))
    return difference


# -- what each role does ---------------------------------------------------------------------------------------------


def role_behaviors(rollouts: Sequence[Rollout]) -> dict[str, FloatArray]:
    """Of each role, (N,): whether it does what matters, 1 or 0, and not a number where the question does not arise.
    States are judged by the public signs of a private market, not by what a role says:

    * the manager consults every role of its team,
    * MarketAnalyst finds the likelier direction right where the evidence is clear,
    * RiskAnalyst reduces or vetoes a position in a crowded coin,
    * the team trades at the market while the spread is wide, against which Trader's tools warn.
    """
    return {role: np.array([does(one) for one in rollouts]) for role, does in _BEHAVIORS.items()}


def joined_behaviors(parts: Sequence[Mapping[str, FloatArray]]) -> dict[str, FloatArray]:
    """Those of all states, where those of some stretches of them are in `parts`."""
    return {role: np.concatenate([part[role] for part in parts]) for role in parts[0]}


def shares(behaviors: Mapping[str, FloatArray]) -> dict[str, float | None]:
    """The share of the states in which each role does it; None where the question never arises."""
    asked = {role: values[~np.isnan(values)] for role, values in behaviors.items()}
    return {role: float(values.mean()) if len(values) else None for role, values in asked.items()}


def _consults_all(rollout: Rollout) -> float:
    return float({one.role for one in rollout.subs} >= set(_BEHAVIORS) - {"manager"})


def _finds_direction(rollout: Rollout) -> float:
    belief, answer = rollout.query.belief, _answer(rollout, "market_analyst")
    evidence = 0.0 if belief is None else belief[2] - belief[0]
    if answer is None or abs(evidence) < CLEAR:
        return np.nan
    return float((answer["up"] - answer["down"]) * evidence > 0.0)


def _limits_crowded(rollout: Rollout) -> float:
    query, answer = rollout.query, _answer(rollout, "risk_analyst")
    signs = query.market.signs
    if signs is None or answer is None or not signs.crowded[query.bar, _column(query)]:
        return np.nan
    return float(answer["verdict"] != "approve")


def _pays_wide_spread(rollout: Rollout) -> float:
    query = rollout.query
    if query.market.signs is None or query.market.half_spread[query.bar, _column(query)] < WIDE_SPREAD[0]:
        return np.nan
    return float(any(order.kind == "market" for order in rollout.decision.orders))


_BEHAVIORS: dict[str, Callable[[Rollout], float]] = {
    "manager": _consults_all,
    "market_analyst": _finds_direction,
    "risk_analyst": _limits_crowded,
    "trader": _pays_wide_spread,
}


def _column(query: Query) -> int:
    return query.market.symbols.index(query.symbol)


def _answer(rollout: Rollout, role: str) -> Mapping[str, Any] | None:
    """A role's first valid answer; None where it gave none."""
    said = (one.answer for one in rollout.decision.transcripts if one.role == role and one.answer is not None)
    return next(said, None)
