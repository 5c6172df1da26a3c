"""What `demo` and `evaluate` measure of a trained team, cut into pieces of work that their processes share.

The team, the initial team and the teacher play the held-out windows, and decide in the same held-out states; the team
also decides in states of the no-edge control. All take their likeliest answers. A piece is the same in any process:
each loads the markets and the teams from the configuration and the team's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from backend.builders.loaded_team import LoadedTeam, scripted_team
from backend.builders.market import load_market, remembered_market
from backend.builders.teams import configured_team
from backend.config.schema import SCRIPTED, Config
from backend.evaluation.answer import ANSWER, TEACHER, answer_of
from backend.evaluation.evaluate import TRAINED, WARM_STARTED, Measurement, measure, play_held_out
from backend.evaluation.held_out_value import (
    STATES_AT_ONCE,
    StateValues,
    allowed_above_holding,
    greedy_teams,
    held_out_states,
    joined_values,
    state_values,
    teacher_of,
    value_document,
)
from backend.processes import Workers, WorkReport
from backend.reporting.training_sections import CONTROL_VALUE, HELD_OUT_VALUE
from backend.store.records import EvaluationRecord
from backend.store.store import Store
from backend.training.curriculum.queries import Query
from cryptosentinel.episode import EpisodeResult
from simulator.market.market import Market

CONTROL_SHARE = 0.5  # states of the control, of those of the market: its answer needs no share of the achievable value


@dataclass(frozen=True)
class MeasuredTeam:
    """The team in the folder `name`, and the configuration that it is measured with."""

    config: Config
    name: str


class TeamParts:
    """What is measured, loaded when it is first used."""

    def __init__(self, measured: MeasuredTeam) -> None:
        self.measured, self.config = measured, measured.config

    @cached_property
    def market(self) -> Market:
        """The market of the configuration."""
        return remembered_market(self.config.market, self.config.costs)

    @property
    def is_simulated(self) -> bool:
        """Whether decisions can be scored over scenarios: the market's truth is known, and states are asked for."""
        return self.config.evaluation.states > 0 and self.market.truth is not None

    @property
    def has_control(self) -> bool:
        """Whether there is a no-edge control of the market."""
        return self.is_simulated and self.config.market.edge and not self.config.market.data

    @cached_property
    def control_config(self) -> Config:
        """The configuration of the no-edge control."""
        states = max(2, round(CONTROL_SHARE * self.config.evaluation.states))
        return self.config.model_copy(
            update={
                "market": self.config.market.model_copy(update={"edge": False}),
                "evaluation": self.config.evaluation.model_copy(update={"states": states}),
            }
        )

    @cached_property
    def states(self) -> list[Query]:
        """The held-out states."""
        return held_out_states(self.config, self.market)

    @cached_property
    def control_states(self) -> list[Query]:
        """Those of the control."""
        config = self.control_config
        return held_out_states(config, load_market(config.market, config.costs))

    @cached_property
    def teams(self) -> dict[str, LoadedTeam]:
        """Those of `greedy_teams`, by their names."""
        teams = greedy_teams(self.config, self._team(trained=True), self._team(trained=False))
        return {one.name: one for one in teams}

    def team(self, name: str) -> LoadedTeam:
        """One of `teams`, or the scripted team where it is the teacher itself."""
        return self.teams[name] if name in self.teams else scripted_team(self.config.team)

    def _team(self, *, trained: bool) -> LoadedTeam:
        return configured_team(self.measured.name, self.config, trained=trained)


_LOADED: list[TeamParts] = []  # in this process, of the team that it measures


def _parts(measured: MeasuredTeam) -> TeamParts:
    if not _LOADED or _LOADED[0].measured != measured:
        _LOADED[:] = [TeamParts(measured)]
    return _LOADED[0]


@dataclass(frozen=True)
class _Windows:
    """A piece: the held-out windows of one team."""

    measured: MeasuredTeam
    team: str


@dataclass(frozen=True)
class _States:
    """A piece: the decisions of all teams in some of the states; of the control those of the trained team."""

    measured: MeasuredTeam
    first: int
    stop: int
    control: bool = False


_Piece = _Windows | _States
Played = tuple[
    list[EpisodeResult], Mapping[str, StateValues], float | None
]  # windows, or values and what is achievable


@dataclass(frozen=True)
class TeamResult:
    """What was measured of a team: its held-out `windows`; where decisions can be scored over scenarios, what they are
    worth on held-out states and on those of the no-edge `control`, and the `answer` made of both (`answer_of`)."""

    windows: Measurement
    value: dict[str, Any] | None = None
    control: dict[str, Any] | None = None
    answer: dict[str, Any] | None = None


def measure_team(
    measured: MeasuredTeam, store: Store, run: str, workers: Workers, report: WorkReport, seconds: Callable[[], float]
) -> TeamResult:
    """Measure a team and store all of it. `seconds` gives how long its run has taken. Nothing loaded is kept."""
    try:
        parts = _parts(measured)
        windows = _on_windows(parts, store, run, workers, report)
        if not parts.is_simulated:
            return TeamResult(windows)
        value, control = _in_states(parts, workers, report)
        answer = answer_of(value, control, seconds())
        for name, document in ((HELD_OUT_VALUE, value), (CONTROL_VALUE, control), (ANSWER, answer)):
            if document is not None:
                store.put(EvaluationRecord(run, name, 0, document))
        return TeamResult(windows, value, control, answer)
    finally:
        _LOADED.clear()


def _on_windows(parts: TeamParts, store: Store, run: str, workers: Workers, report: WorkReport) -> Measurement:
    """The held-out windows of all teams and baselines, stored as `held_out`."""
    names = [TRAINED, WARM_STARTED, SCRIPTED, *([] if teacher_of(parts.config) == "expert" else [TEACHER])]
    played = workers.each(_do, [_Windows(parts.measured, name) for name in names], report)
    episodes = {name: of_team for name, (of_team, _, _) in zip(names, played, strict=True)}
    teams = [parts.team(name) for name in names]
    return measure(parts.config, parts.market, teams, "held_out", store, run, episodes)


def _in_states(parts: TeamParts, workers: Workers, report: WorkReport) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """What decisions are worth in the held-out states, and in those of the no-edge control where there is one."""
    own = _cut(parts.measured, parts.config.evaluation.states, control=False)
    other = _cut(parts.measured, parts.control_config.evaluation.states, control=True)
    pieces = [*own, *(other if parts.has_control else ())]
    done = workers.each(_do, pieces, _summed(report, sum(one.stop - one.first for one in pieces)))
    value = value_document(
        parts.config, parts.states, joined_values([one for _, one, _ in done[: len(own)]]), _mean_of(own, done)
    )
    if not parts.has_control:
        return value, None
    values = joined_values([one for _, one, _ in done[len(own) :]])
    return value, value_document(parts.control_config, parts.control_states, values)


def _cut(measured: MeasuredTeam, states: int, *, control: bool) -> list[_States]:
    size = STATES_AT_ONCE
    return [_States(measured, at, min(at + size, states), control) for at in range(0, states, size)]


def _mean_of(pieces: list[_States], done: list[Played]) -> float | None:
    """What is achievable above holding over all states; None where it is not known."""
    known = [(one.stop - one.first, allowed) for one, (_, _, allowed) in zip(pieces, done, strict=False)]
    if any(allowed is None for _, allowed in known):
        return None
    return float(np.average([allowed or 0.0 for _, allowed in known], weights=[states for states, _ in known]))


def _do(piece: _Piece, report: WorkReport) -> Played:
    parts = _parts(piece.measured)
    if isinstance(piece, _Windows):

        def shown(what: str, done: int, total: int) -> None:
            report(f"windows of {what}", done, total)

        episodes = play_held_out(parts.config, parts.team(piece.team), parts.market, shown)
        return episodes, {}, None
    config = parts.control_config if piece.control else parts.config
    queries = (parts.control_states if piece.control else parts.states)[piece.first : piece.stop]
    teams = [team for name, team in parts.teams.items() if name == TRAINED or not piece.control]
    names = [f"value of {team.name}" for team in teams]

    def told(what: str, done: int, total: int) -> None:
        finished = names.index(what) * total + done
        report(f"{piece.control} {piece.first}", finished // len(teams), total)  # states in which all have decided

    values = state_values(config, queries, teams, told)
    known = config.market.kind == "private" and config.market.edge and not config.team.portfolio
    return [], values, allowed_above_holding(config, queries) if known else None


def _summed(report: WorkReport, states: int) -> WorkReport:
    """One bar for all pieces: each reports how many of its own states are done."""
    done: dict[str, int] = {}

    def told(piece: str, finished: int, total: int) -> None:
        done[piece] = finished
        report("held-out states", sum(done.values()), states)

    return told
