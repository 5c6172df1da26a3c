"""What an experiment found: the arms' means with intervals, the differences that the plan asks for, and one sentence.

The p-values of all comparisons are one family, with Holm's correction. Whatever was not traded in the
same windows of the same data is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from backend.experiments.cells import Cell, experiment_cells
from backend.experiments.measures import STATES_MEASURE, measure_called
from backend.experiments.plan import TEST_LEVEL, ExperimentFile
from backend.statistics.mean_interval import GridInterval, grid_interval, holm
from simulator.arrays import FloatArray
from simulator.errors import DataError, UserError

Documents = Mapping[str, Mapping[str, Any]]  # of finished cells, by name
_SHOWN = ("total_return", "sharpe", "max_drawdown", "turnover", "costs", "calls")
_SHOWN_HELD_OUT = ("net_return", "questions", "traded")  # and the value itself


@dataclass(frozen=True)
class ArmResult:
    """An arm.

    Attributes:
        values: the measure, (seeds, windows); of held-out states (seeds, 1).
        means: of what is shown beside it, None where an arm has none.
        interval: of the mean; None where there are too few values, for the reason in `problem`.
        tokens: that the trainings took, a seed's mean; None where nothing was trained.
        share: of the achievable value beyond leaving all positions as they are, what the arm gets: the mean of the
            seeds' shares; None where that is not known, and of the arm that leaves them.
    """

    arm: str
    values: list[list[float]]
    means: dict[str, float | None]
    interval: GridInterval | None
    problem: str
    tokens: float | None
    share: GridInterval | None = None


@dataclass(frozen=True)
class Comparison:
    """What an arm has beyond another, window by window with the same seed. `adjusted` is the p-value after Holm's
    correction; `different` whether that is below 5 %."""

    arm: str
    against: str
    interval: GridInterval
    adjusted: float
    different: bool
    values: list[list[float]]


@dataclass(frozen=True)
class ExperimentResult:
    """All of it. `windows`: that each seed traded. `problem`: why nothing can be compared. `looks`: runs that looked at
    the windows of the first seed, this one included; `trials`: different ways of trading that were tested there."""

    name: str
    question: str
    run: str
    measure: str
    against: str
    seeds: list[int]
    windows: int
    nested: bool
    arms: list[ArmResult]
    comparisons: list[Comparison]
    problem: str
    sentence: str
    trials: int
    looks: int
    programs: list[str]
    seconds: float
    states: int = 0  # held-out states of a seed, where these are what was measured
    scenario_paths: int = 0  # of each

    def to_dict(self) -> dict[str, Any]:
        """All of it for programs."""
        return asdict(self)


def analyse(experiment: ExperimentFile, run: str, cells: Documents, trials: int, looks: int) -> ExperimentResult:
    """The result of an experiment whose cells are all finished. Raises `UserError` for cells that cannot be
    compared."""
    plan = experiment.plan
    check_alike(experiment, cells)
    arms, comparisons, problem = _compared(experiment, cells)
    first = cells[experiment_cells(experiment)[0].name]
    held_out = first.get("held_out") or {"states": 0, "scenario_paths": 0}
    return ExperimentResult(
        name=experiment.name,
        question=plan.question,
        run=run,
        measure=plan.test.measure,
        against=plan.reference,
        seeds=list(experiment.seeds),
        windows=_windows_of_a_seed(experiment, cells),
        nested=experiment.nested,
        arms=arms,
        comparisons=comparisons,
        problem=problem,
        sentence=_sentence(experiment, comparisons, problem),
        states=held_out["states"],
        scenario_paths=held_out["scenario_paths"],
        trials=trials,
        looks=looks,
        programs=sorted({str(cell.get("code", "")) for cell in cells.values()}),
        seconds=float(sum(cell["seconds"] for cell in cells.values())),
    )


def _windows_of_a_seed(experiment: ExperimentFile, cells: Documents) -> int:
    first = experiment_cells(experiment)[0]
    return len(cells[first.name]["windows"])


def check_alike(experiment: ExperimentFile, cells: Documents) -> None:
    """Raise `UserError` where arms traded other data or other windows than the first arm did."""
    by_seed: dict[int, tuple[str, Mapping[str, Any]]] = {}
    for cell in experiment_cells(experiment):
        document = cells[cell.name]
        first, known = by_seed.setdefault(cell.seed, (cell.arm, document))
        for what, ours, theirs in (
            ("data", document["data_hash"], known["data_hash"]),
            ("windows", _spans(document), _spans(known)),
            ("held-out states", _states(document), _states(known)),
        ):
            if ours != theirs:
                raise UserError(
                    f"arm '{cell.arm}' has other {what} than '{first}' for seed {cell.seed}: "
                    "nothing can be compared. Did the files of the data change half-way? Remove the cells of one of "
                    "them to run these again"
                )


def _spans(document: Mapping[str, Any]) -> list[tuple[int, int]]:
    return [(window["start"], window["stop"]) for window in document["windows"]]


def _states(document: Mapping[str, Any]) -> str | None:
    """A hash of the held-out states that a cell decided in; None where it decided in none."""
    held_out = document.get("held_out")
    return None if held_out is None else str(held_out["states_hash"])


def _compared(experiment: ExperimentFile, cells: Documents) -> tuple[list[ArmResult], list[Comparison], str]:
    """The arms, the comparisons, and why there are none, empty where there are."""
    plan = experiment.plan
    documents = {arm.name: [cells[cell.name] for cell in _of(experiment, arm.name)] for arm in plan.arms}
    tables = {name: _table(rows, plan.test.measure) for name, rows in documents.items()}
    arms = [_arm(experiment, name, documents[name], tables[name]) for name in tables]
    if plan.test.measure == STATES_MEASURE:
        allowed = {name: _allowed(rows) for name, rows in documents.items()}
        arms = _with_shares(arms, tables, allowed)
    reference = tables[plan.reference]
    others = [name for name in tables if name != plan.reference]
    found: list[tuple[str, GridInterval, FloatArray]] = []
    try:
        for name in others:
            gains = tables[name] - reference
            found.append((name, grid_interval(gains, nested=experiment.nested, level=TEST_LEVEL), gains))
    except DataError as error:
        return arms, [], str(error)
    adjusted = holm([interval.p_value for _, interval, _ in found]).tolist() if found else []
    comparisons = [
        Comparison(name, plan.reference, interval, chance, chance < 1.0 - TEST_LEVEL, gains.tolist())
        for (name, interval, gains), chance in zip(found, adjusted, strict=True)
    ]
    return arms, comparisons, ""


def _of(experiment: ExperimentFile, arm: str) -> list[Cell]:
    return [cell for cell in experiment_cells(experiment) if cell.arm == arm]


def _table(rows: Sequence[Mapping[str, Any]], measure: str) -> FloatArray:
    """(seeds, windows), or (seeds, 1) of a measure that a seed has one value of. Raises `UserError` where
    a seed has other windows than another in number."""
    if measure == STATES_MEASURE:
        return np.array([[row["held_out"]["outcome"]] for row in rows], np.float64)
    values = [[window[measure] for window in row["windows"]] for row in rows]
    if len({len(row) for row in values}) > 1:
        cell = rows[0]["cell"]
        raise UserError(f"the seeds of cell {cell} have unequal numbers of windows: remove its cells to run them again")
    return np.array(values, np.float64)


def _allowed(rows: Sequence[Mapping[str, Any]]) -> FloatArray:
    """(seeds, 1): how much more than to leave all positions the evidence allows, not a number where a cell of the arm
    does not know it."""
    return np.array([[row["held_out"].get("allowed")] for row in rows], np.float64)


def _arm(experiment: ExperimentFile, name: str, rows: Sequence[Mapping[str, Any]], values: FloatArray) -> ArmResult:
    windows = [window for row in rows for window in row["windows"]]
    means = {key: _known_mean([window.get(key) for window in windows]) for key in _SHOWN}
    measured = [row["held_out"] for row in rows if row.get("held_out")]
    means |= {key: _known_mean([one[key] for one in measured]) for key in _SHOWN_HELD_OUT}
    means[STATES_MEASURE] = _known_mean([one["outcome"] for one in measured])
    tokens = [row["training"]["tokens"] for row in rows if row["training"]]
    try:
        interval, problem = grid_interval(values, nested=experiment.nested, level=TEST_LEVEL), ""
    except DataError as error:
        interval, problem = None, str(error)
    return ArmResult(name, values.tolist(), means, interval, problem, float(np.mean(tokens)) if tokens else None)


def _with_shares(
    arms: list[ArmResult], tables: Mapping[str, FloatArray], allowed: Mapping[str, FloatArray]
) -> list[ArmResult]:
    """The arms with their shares of the achievable value; as they are where no arm leaves all positions and so
    knows it. `allowed` (seeds, 1) is that of each arm, not a number where it is unknown."""
    holding = next((arm.arm for arm in arms if np.all(allowed[arm.arm] > 0.0)), None)
    if holding is None:
        return arms
    return [
        arm
        if arm.arm == holding
        else replace(
            arm,
            share=grid_interval((tables[arm.arm] - tables[holding]) / allowed[holding], nested=True, level=TEST_LEVEL),
        )
        for arm in arms
    ]


def _known_mean(values: Sequence[float | None]) -> float | None:
    """The mean of what is known, None where nothing is."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _sentence(experiment: ExperimentFile, comparisons: Sequence[Comparison], problem: str) -> str:
    """What the comparisons say."""
    test = experiment.plan.test
    if problem:
        return f"No difference can be judged: {problem}."
    if not comparisons:
        return "Nothing was compared: there is one arm."
    sure = [one for one in comparisons if one.different]
    basis = f"statistically significant at {100 * (1 - TEST_LEVEL):g} % after Holm's correction"
    count = f"{len(comparisons)} difference{'s' if len(comparisons) > 1 else ''}"
    if not sure:
        return f"None of {count} from {experiment.plan.reference} is {basis}."
    measure = measure_called(test.measure)
    said = "; ".join(f"{one.arm} {difference_text(test.measure, one.interval)}" for one in sure)
    return (
        f"{len(sure)} of {count} from {experiment.plan.reference} in {measure.words} {measure.each} "
        f"{'is' if len(sure) == 1 else 'are'} {basis}: {said}."
    )


def difference_text(measure: str, interval: GridInterval) -> str:
    """A difference with its interval, as +1.20 points (+0.30 to +2.10)."""
    shown = measure_called(measure)
    return f"{shown.signed(interval.mean)}{shown.unit} ({shown.signed(interval.low)} to {shown.signed(interval.high)})"
