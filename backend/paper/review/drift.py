"""Whether a session does what a backtest of its own history lets one expect, week by week.

The team's backtest of the bars before the session gives what each decision brings there: its return, its costs, and so
on. From these decisions, stretches as long as the week are drawn in blocks that wrap around (Politis and Romano 1992,
circular block bootstrap). Their means say where that of a week lies if nothing has changed; what the history's own mean
leaves open is added, since it is one draw as well:

    mean of the history + mean of a drawn week - mean of a drawn history

Of a share, such as that of decisions that hold, the blocks say too little where it is near 0 or 1: the interval is at
least that of a week's count under the Jeffreys posterior of the history's (beta-binomial).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from backend.builders.loaded_team import LoadedTeam
from backend.builders.market import Account, limits_of
from backend.paper.feeds import account_again
from backend.paper.journal import entries_of, history_from_json
from backend.paper.records.stored import promotions_in, session_thinking_time, stored_session, team_in_place
from backend.paper.review.decision_figures import DecisionFigures, figures_of_backtest, figures_of_session
from backend.runs.requests import STORE
from backend.store.records import JournalRecord
from backend.store.run_record import store_at
from backend.store.store import Store
from backend.training.curriculum.queries import WARM_UP_BARS
from cryptosentinel.episode import ThinkingTime, play
from cryptosentinel.guard.limits import GuardLimits
from cryptosentinel.scheduler import run_all
from cryptosentinel.team import TeamDecision, derive_seed
from simulator.arrays import FloatArray
from simulator.backtest.run import BacktestRun, Window
from simulator.market.timeframes import WEEK_MS, format_time

LEAST_OF_WEEK, LEAST_OF_HISTORY = 5, 20  # decisions
SAMPLES, LEVEL = 2000, 0.95


@dataclass(frozen=True)
class Figure:
    """One figure of the report: a sum over decisions of `part`, divided by one of `whole`. `unit` and `scale` are for
    reading; of a `share`, both are counts."""

    name: str
    unit: str
    scale: float
    part: Callable[[DecisionFigures], float]
    whole: Callable[[DecisionFigures], float]
    share: bool = False


FIGURES = (
    Figure("return per decision", "bps", 1e4, lambda one: one.returned, lambda one: 1.0),
    Figure("costs per decision", "bps", 1e4, lambda one: one.costs, lambda one: 1.0),
    Figure("slippage against the decision's price", "bps", 1e4, lambda one: one.slipped, lambda one: one.traded),
    Figure("decisions that change nothing", "%", 100.0, lambda one: one.held, lambda one: one.asked, share=True),
    Figure("decisions with a veto", "%", 100.0, lambda one: one.vetoed, lambda one: one.asked, share=True),
    Figure("late decisions", "%", 100.0, lambda one: one.late, lambda one: one.due, share=True),
)


@dataclass(frozen=True)
class DriftRow:
    """A figure of a week, and the interval in which a backtest lets one expect it. None where nothing was traded."""

    name: str
    unit: str
    realised: float | None
    expected: float | None
    low: float
    high: float

    @property
    def inside(self) -> bool | None:
        """Whether it is what was expected; None where that cannot be told."""
        if self.realised is None or self.expected is None:
            return None
        room = 1e-9 * max(1.0, abs(self.low), abs(self.high))
        return self.low - room <= self.realised <= self.high + room

    def sentence(self) -> str:
        """In words."""
        if self.inside is None:
            where = "in the backtest" if self.expected is None else "this week"
            return f"{self.name}: nothing was traded {where}, so it cannot be compared"
        said = "inside" if self.inside else "outside"
        return (
            f"{self.name}: {self.realised:.3g} {self.unit}, {said} what was expected, {self.expected:.3g} "
            f"({self.low:.3g} to {self.high:.3g})"
        )


@dataclass(frozen=True)
class DriftWeek:
    """A week of a session, or what there is of it. `missing` says, where it is too short, by how much."""

    begun: int
    decisions: int
    rows: tuple[DriftRow, ...]
    missing: str = ""

    def __str__(self) -> str:
        return f"week from {format_time(self.begun)}, {self.decisions} decisions"


@dataclass(frozen=True)
class DriftReport:
    """All weeks. `expected_from` are the decisions of the backtest; `missing` says what the history lacks."""

    expected_from: int
    weeks: tuple[DriftWeek, ...]
    missing: str = ""


def paper_drift(run: str, store: Store | str | Path = STORE) -> DriftReport:
    """Compare each week of the session `run`, since its team is in place, with that team's backtest of the bars before
    the session. Raises `UserError`."""
    with store_at(store) as opened:
        record, config, start = stored_session(opened, run)
        account = account_again(config, history_from_json(start["history"]), start)
        entries = entries_of(opened, run)
        team = team_in_place(record, config, promotions_in(None, entries))
    return drift_report(entries, team, account, limits_of(config.guard), record.seed, session_thinking_time(config))


def drift_report(
    entries: Sequence[JournalRecord],
    loaded: LoadedTeam,
    account: Account,
    limits: GuardLimits,
    seed: int,
    thinking_time: ThinkingTime = 0.0,
) -> DriftReport:
    """Compare the session of the journal `entries` with a backtest of the bars that it began with."""
    start = entries[0].document
    history, every = history_from_json(start["history"]), int(start["decide_every"])
    since = max((entry.time for entry in entries if entry.kind == "promotion"), default=0) - history.interval
    weeks = weeks_of([one for one in figures_of_session(entries) if one.time > since])
    most = max((len(week) for week in weeks), default=0)
    there, needed = max(0, (len(history) - 1 - WARM_UP_BARS) // every), max(LEAST_OF_HISTORY, most)
    if there < needed:
        lacking = (needed - there) * every
        return DriftReport(
            there, (),
            f"the backtest of the bars before the session has {there} decisions, and {needed} are needed to say what "
            f"is expected of a week: {lacking} more bars are missing; begin a session with "
            f"paper.history_bars={len(history) + lacking}",
        )  # fmt: skip
    first = len(history) - 1 - there * every
    run = BacktestRun(history, Window(first, len(history) - 1, every), **account.terms)
    decided: list[tuple[int, TeamDecision]] = []
    task = play(
        loaded.team, run, limits, seed, decisions=decided, thinking_time=thinking_time, price=loaded.price
    )  # fmt: skip
    [episode] = run_all([task], loaded.engine)
    expected = figures_of_backtest(history, episode.result, every, decided)
    return DriftReport(
        len(expected),
        tuple(compared_week(number, week, expected, every, seed) for number, week in enumerate(weeks)),
    )


def weeks_of(figures: Sequence[DecisionFigures]) -> list[list[DecisionFigures]]:
    """The figures of each week since the first one."""
    weeks: dict[int, list[DecisionFigures]] = {}
    for one in figures:
        weeks.setdefault((one.time - figures[0].time) // WEEK_MS, []).append(one)
    return list(weeks.values())


def compared_week(
    number: int, week: Sequence[DecisionFigures], expected: Sequence[DecisionFigures], every: int, seed: int
) -> DriftWeek:
    """A week beside the decisions of the backtest."""
    if len(week) < LEAST_OF_WEEK:
        lacking = LEAST_OF_WEEK - len(week)
        missing = f"{lacking} more decisions, {lacking * every} bars, are missing for a comparison"
        return DriftWeek(week[0].time, len(week), (), missing)
    rows = []
    for place, figure in enumerate(FIGURES):
        mine, theirs = (
            np.array([[figure.part(one), figure.whole(one)] for one in figures], np.float64)
            for figures in (week, expected)
        )
        generator = np.random.default_rng(derive_seed(seed, "drift", number, place))
        if not theirs[:, 1].sum():
            rows.append(DriftRow(figure.name, figure.unit, _ratio(mine, figure.scale), None, 0.0, 0.0))
            continue
        low, high = expected_interval(theirs, len(mine), generator, whole=mine[:, 1].sum() if figure.share else None)
        rows.append(
            DriftRow(
                figure.name, figure.unit, _ratio(mine, figure.scale), _ratio(theirs, figure.scale), figure.scale * low,
                figure.scale * high,
            )
        )  # fmt: skip
    return DriftWeek(week[0].time, len(week), tuple(rows))


def expected_interval(
    history: FloatArray, length: int, generator: np.random.Generator, whole: float | None = None
) -> tuple[float, float]:
    """Where the ratio of sums of `length` further rows lies, 95 times out of 100.

    Args:
        history: (n, 2), a numerator and a denominator of each decision.
        whole: of a share, the further rows' sum of denominators.
    """
    n = len(history)
    total = float(history[:, 0].sum() / history[:, 1].sum())
    drawn = [_drawn_ratios(history, count, generator) for count in (length, n)]
    values = total + drawn[0] - drawn[1]
    tails = [(1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0]
    low, high = np.quantile(values[np.isfinite(values)], tails)
    if whole is not None:
        part, sum_of = history.sum(axis=0)
        chances = generator.beta(part + 0.5, sum_of - part + 0.5, SAMPLES)
        counted = generator.binomial(max(1, round(whole)), chances) / max(1, round(whole))
        least, most = np.quantile(counted, tails)
        low, high = max(0.0, min(low, least)), min(1.0, max(high, most))
    return float(low), float(high)


def block_means(values: FloatArray, length: int, generator: np.random.Generator) -> FloatArray:
    """(SAMPLES,) means of `length` of the `values` (n,), drawn in blocks that wrap around."""
    return _drawn_ratios(np.stack([values, np.ones(len(values))], axis=1), length, generator)


def _drawn_ratios(history: FloatArray, length: int, generator: np.random.Generator) -> FloatArray:
    """(SAMPLES,) ratios of `length` rows, drawn in blocks that wrap around; NaN where the denominators are 0."""
    n = len(history)
    block = min(n, max(1, round(length ** (1.0 / 3.0))))
    begins = generator.integers(n, size=(SAMPLES, -(-length // block)))
    rows = (begins[:, :, None] + np.arange(block)) % n
    sums = history[rows.reshape(SAMPLES, -1)[:, :length]].sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios: FloatArray = np.where(sums[:, 1] > 0.0, sums[:, 0] / sums[:, 1], np.nan)
    return ratios


def _ratio(rows: FloatArray, scale: float) -> float | None:
    part, whole = rows.sum(axis=0)
    return float(scale * part / whole) if whole else None
