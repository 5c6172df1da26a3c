"""The measurements of a demo's teams, cut into pieces of work that its processes share.

A piece is the same whoever does it: each process loads the market and the teams from the configuration and the run's
folder, and no engine remembers anything of the piece before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from backend.builders.loaded_team import LoadedTeam, scripted_team
from backend.builders.market import remembered_market
from backend.builders.teams import load_team
from backend.config.schema import SCRIPTED, Config
from backend.evaluation.evaluate import TRAINED, WARM_STARTED, play_held_out
from backend.evaluation.held_out_value import (
    STATES_AT_ONCE,
    TRAINED_GREEDY,
    WARM_STARTED_GREEDY,
    StateValues,
    greedy_teams,
    held_out_states,
    joined_values,
    state_values,
    value_document,
)
from backend.processes import Workers, WorkReport
from backend.training.curriculum.queries import Query
from cryptosentinel.episode import EpisodeResult
from simulator.market.market import Market

ON_WINDOWS = (TRAINED, WARM_STARTED, TRAINED_GREEDY, WARM_STARTED_GREEDY, SCRIPTED)
ON_THE_TWIN = (TRAINED, WARM_STARTED)


@dataclass(frozen=True)
class DemoPlace:
    """Where the teams of a demo lie, and its configuration."""

    config: Config
    run: str
    folder: Path


class DemoParts:
    """What is measured, loaded when it is first asked for."""

    def __init__(self, place: DemoPlace) -> None:
        self.place = place
        self.config = place.config

    @cached_property
    def market(self) -> Market:
        """The market that the team was trained in."""
        return remembered_market(self.config.market, self.config.costs)

    @cached_property
    def twin(self) -> Market:
        """Its no-edge twin."""
        return remembered_market(self.config.market.model_copy(update={"edge": False}), self.config.costs)

    @cached_property
    def states(self) -> list[Query]:
        """The held-out states of which decisions are scored."""
        return held_out_states(self.config, self.market)

    def team(self, name: str) -> LoadedTeam:
        """The team called `name`, one of `ON_WINDOWS`."""
        if name == SCRIPTED:
            return scripted_team(self.config.team)
        loaded = self._trained if name in (TRAINED, TRAINED_GREEDY) else self._warm_started
        greedy = name in (TRAINED_GREEDY, WARM_STARTED_GREEDY)
        return (loaded.at_temperature(0.0) if greedy else loaded).renamed(name)

    @cached_property
    def _trained(self) -> LoadedTeam:
        return load_team(str(self.place.folder), self.config.team, base=self.config.training.base_model)

    @cached_property
    def _warm_started(self) -> LoadedTeam:
        base = self.config.training.base_model
        return load_team(str(self.place.folder), self.config.team, trained=False, base=base)


_OPENED: list[DemoParts] = []  # in this process, of the demo that it measures


def demo_parts(place: DemoPlace) -> DemoParts:
    """The parts of a demo in this process, loaded once."""
    if not _OPENED or _OPENED[0].place != place:
        _OPENED[:] = [DemoParts(place)]
    return _OPENED[0]


@contextmanager
def measured(place: DemoPlace) -> Iterator[DemoParts]:
    """The parts of a demo for the time of a block; nothing of them is kept then."""
    try:
        yield demo_parts(place)
    finally:
        _OPENED.clear()


Seat = tuple[str, bool]  # a team's name, and whether it is on the twin
# Who is played side by side: teams with the same weights share an engine, which is busier the more there are.
_TOGETHER: tuple[tuple[Seat, ...], ...] = (
    ((TRAINED, False), (TRAINED_GREEDY, False), (TRAINED, True)),
    ((WARM_STARTED, False), (WARM_STARTED_GREEDY, False), (WARM_STARTED, True)),
    ((SCRIPTED, False),),
)


@dataclass(frozen=True)
class _WindowsTask:
    place: DemoPlace
    seats: tuple[Seat, ...]


@dataclass(frozen=True)
class _StatesTask:
    place: DemoPlace
    first: int
    stop: int


def windows_played(
    place: DemoPlace, workers: Workers, report: WorkReport
) -> tuple[dict[str, list[EpisodeResult]], dict[str, list[EpisodeResult]]]:
    """The backtests of all teams on the held-out windows, and of some on those of the twin, by the team's name."""
    tasks = [_WindowsTask(place, seats) for seats in _TOGETHER]
    by_seat: dict[Seat, list[EpisodeResult]] = {}
    for task, of_seats in zip(tasks, workers.each(_play, tasks, report), strict=True):
        by_seat |= dict(zip(task.seats, of_seats, strict=True))
    return {name: by_seat[name, False] for name in ON_WINDOWS}, {name: by_seat[name, True] for name in ON_THE_TWIN}


def states_decided(place: DemoPlace, workers: Workers, report: WorkReport) -> dict[str, Any]:
    """What decisions of the trained team, its beginning and its teacher are worth (`held_out_value`)."""
    number = place.config.evaluation.states
    tasks = [
        _StatesTask(place, first, min(first + STATES_AT_ONCE, number)) for first in range(0, number, STATES_AT_ONCE)
    ]
    parts = workers.each(_decide, tasks, _summed(report, number))
    here = demo_parts(place)
    return value_document(place.config, here.states, joined_values(parts), here.team(TRAINED).team)


def _play(task: _WindowsTask, report: WorkReport) -> list[list[EpisodeResult]]:
    parts = demo_parts(task.place)
    seats = [(parts.team(name), parts.twin if twin else parts.market) for name, twin in task.seats]

    def told(what: str, done: int, total: int) -> None:
        report(f"windows of {what}", done, total)

    return play_held_out(parts.config, seats, told)


def _decide(task: _StatesTask, report: WorkReport) -> Mapping[str, StateValues]:
    parts = demo_parts(task.place)
    teams = greedy_teams(parts.config, parts.team(TRAINED), parts.team(WARM_STARTED))
    names = [f"value of {team.name}" for team in teams]

    def told(what: str, done: int, total: int) -> None:
        finished = names.index(what) * total + done
        report(str(task.first), finished // len(teams), total)  # in states that all teams have decided in

    return state_values(parts.config, parts.states[task.first : task.stop], teams, told)


def _summed(report: WorkReport, states: int) -> WorkReport:
    """One bar for all pieces: each says how many of its own states are done."""
    done: dict[str, int] = {}

    def told(piece: str, finished: int, total: int) -> None:
        done[piece] = finished
        report("held-out states", sum(done.values()), states)

    return told
