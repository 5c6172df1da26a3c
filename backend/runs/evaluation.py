"""The use case evaluate: a trained team against the initial team, its teacher and the baselines, on held-out data.

What it measures, as `demo` does, is cut into pieces of work that processes share. The teams play the held-out windows,
and decide in the same held-out states; the trained team also decides in states of the no-edge control. All take their
likeliest answers. A piece is the same in any process: each loads the markets and the teams from the configuration and
the team's folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from backend.builders.loaded_team import LoadedTeam, scripted_team
from backend.builders.market import account_of, load_market, other_costs, remembered_market, venue_record
from backend.builders.teams import configured_team
from backend.config.schema import SCRIPTED, Config
from backend.evaluation.answer import ANSWER, TEACHER, answer_of, answer_text
from backend.evaluation.evaluate import (
    TRAINED,
    WARM_STARTED,
    Measurement,
    held_out_windows,
    measure,
    play_held_out,
    summary_record,
    verdict,
)
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
from backend.evaluation.trials import IN_SAMPLE, overlaps
from backend.models.manifest import MANIFEST, read_manifest, team_folder
from backend.processes import Workers, WorkReport, started
from backend.reporting.report import write_report
from backend.reporting.training_sections import CONTROL_VALUE, HELD_OUT_VALUE
from backend.runs.backtest import notes_on_headlines
from backend.runs.outcomes import EvaluationOutcome
from backend.runs.requests import RUNS, SILENT, STORE, EvaluateRequest, Observer, RunStart
from backend.store.records import EvaluationRecord, RunRecord
from backend.store.run_record import new_run_id, recorded_run, store_at, stored_config
from backend.store.store import Store
from backend.training.curriculum.queries import Query
from backend.training.rl_job import processes_for
from cryptosentinel.episode import EpisodeResult
from simulator.backtest.run import Window
from simulator.market.market import Market

_TRAININGS = ("train", "sft", "demo")  # kinds of runs that make a team


def evaluate_team(
    request: EvaluateRequest,
    store: Store | str | Path = STORE,
    runs: Path = RUNS,
    observer: Observer = SILENT,
) -> EvaluationOutcome:
    """Measure the team in the request's folder, record it in `store`, and write its report into a folder below `runs`.

    Raises `UserError` for a request that cannot be met; then nothing is recorded.
    """
    with store_at(store) as opened:
        trained = training_of(opened, team_folder(request.folder))
    config, notes = _settings(request, trained)
    market = load_market(config.market, config.costs)
    name = str(request.folder)
    team = configured_team(name, config).renamed(TRAINED)
    windows = held_out_windows(config, market)
    whole = Window(min(one.start for one in windows), max(one.stop for one in windows), 1)
    first, last = (int(market.open_time[bar]) + market.interval for bar in (whole.start, whole.stop))
    marked = overlaps([name], config, market, first, last, allowed=request.in_sample)
    notes += tuple(marked.values())
    marks: dict[str, Any] = {IN_SAMPLE: marked} if marked else {}
    notes += tuple(notes_on_headlines([team], market, whole))
    account = account_of(config, market)
    run, began = new_run_id("evaluate"), time.monotonic()
    folder = runs / run
    observer.started(RunStart(run, folder, config, market, account, notes=notes))
    with store_at(store) as opened:
        with recorded_run(
            opened, run, "evaluate", config.evaluation_seed, market.content_hash, config, team=name,
            venue=venue_record(account, market), notes=list(notes), **marks,
        ):  # fmt: skip
            with started(processes_for(config)) as workers:
                result = measure_team(
                    MeasuredTeam(config, name), opened, run, workers, observer.progress,
                    lambda: time.monotonic() - began,
                )  # fmt: skip
            folder_of_team = team_folder(request.folder)
            has_manifest = (folder_of_team / MANIFEST).is_file()
            trained_at = read_manifest(folder_of_team).costs if has_manifest else None
            said = "" if result.answer is None else answer_text(result.answer)
            sentence = verdict(result.windows.result, other_costs(trained_at or config.costs, config.costs), said)
            if marked:
                sentence = f"{'. '.join(marked.values())}. {sentence}"
            opened.put(summary_record(run, sentence, time.monotonic() - began))
        report = write_report(opened, run, folder)
    held_out, value, answer = result.windows.result, result.value, result.answer
    return EvaluationOutcome(run, folder, report, config, sentence, held_out, value=value, answer=answer)


def training_of(store: Store, folder: Path) -> RunRecord | None:
    """The run of this store that trained the team in `folder`; None for a team of any other origin."""
    where = folder.resolve()
    trainings = (one for one in store.runs() if one.kind in _TRAININGS and not one.imported)
    return next((one for one in trainings if one.run == where.name or one.config.get("folder") == str(where)), None)


def _settings(request: EvaluateRequest, trained: RunRecord | None) -> tuple[Config, tuple[str, ...]]:
    """The configuration of the request, or that of the team's training with the request's overrides; and what a reader
    must know of it."""
    if not request.config and trained is not None:
        return request.on(stored_config(trained)), ()
    config = request.settings()
    if request.config:
        return config, ()
    measured_on = config.market.data or "the market of the preset demo"
    return config, (f"no run in this store trained {request.folder}: it is measured on {measured_on} (see --config)",)


# -- what is measured --------------------------------------------------------------------------------------------------


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

    def reported(what: str, done: int, total: int) -> None:
        finished = names.index(what) * total + done
        report(f"{piece.control} {piece.first}", finished // len(teams), total)  # states in which all have decided

    values = state_values(config, queries, teams, reported)
    known = config.market.kind == "private" and config.market.edge and not config.team.portfolio
    return [], values, allowed_above_holding(config, queries) if known else None


def _summed(report: WorkReport, states: int) -> WorkReport:
    """One bar for all pieces: each reports how many of its own states are done."""
    done: dict[str, int] = {}

    def reported(piece: str, finished: int, total: int) -> None:
        done[piece] = finished
        report("held-out states", sum(done.values()), states)

    return reported
