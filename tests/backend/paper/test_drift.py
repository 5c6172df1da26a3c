"""Each week of a session beside what a backtest of the bars before it lets one expect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backend.builders.market import limits_of
from backend.paper.journal import entries_of, history_from_json
from backend.paper.review.decision_figures import DecisionFigures, figures_of_session
from backend.paper.review.drift import (
    LEAST_OF_HISTORY,
    LEAST_OF_WEEK,
    DriftReport,
    compared_week,
    drift_report,
    expected_interval,
    paper_drift,
    weeks_of,
)
from backend.paper.sessions import PaperRequest, run_paper
from backend.store.records import JournalRecord
from backend.store.store import Store
from simulator.market.timeframes import DAY_MS, HOUR_MS, WEEK_MS
from tests.backend.paper import paper_scenes as scene

ROOT = Path(__file__).resolve().parents[3]
DAY = DecisionFigures(
    time=0, returned=0.001, costs=0.0002, traded=1000.0, slipped=0.5, asked=2, held=1, vetoed=0, due=True, late=False
)


def days(count: int, seed: int, **changed: Any) -> list[DecisionFigures]:
    """Decisions a day apart with returns around a mean."""
    drawn = np.random.default_rng(seed).normal(0.0, 0.01, count)
    return [
        replace(DAY, time=DAY_MS * n, **({"returned": float(one)} | changed)) for n, one in enumerate(drawn)
    ]  # fmt: skip


def inside(week: list[DecisionFigures], expected: list[DecisionFigures]) -> dict[str, bool | None]:
    return {row.name: row.inside for row in compared_week(0, week, expected, 1, 7).rows}


def test_what_is_as_before_is_inside_and_what_is_not_is_outside() -> None:
    expected = days(60, 1)
    same = inside(days(7, 2), expected)
    assert len(same) == 6 and all(same.values()), same
    assert inside(days(7, 2, returned=-0.05), expected)["return per decision"] is False
    assert inside(days(7, 2, costs=0.002), expected)["costs per decision"] is False
    assert inside(days(7, 2, slipped=9.0), expected)["slippage against the decision's price"] is False
    assert inside(days(7, 2, held=2), days(60, 1, held=0))["decisions that change nothing"] is False
    assert inside(days(7, 2, vetoed=2), expected)["decisions with a veto"] is False
    assert inside([replace(one, late=True) for one in days(7, 2)], expected)["late decisions"] is False


def test_one_late_decision_in_a_month_is_no_alarm() -> None:
    """In the history there is none: the blocks alone would expect none for ever."""
    week = days(30, 2)
    assert inside([replace(week[0], late=True), *week[1:]], days(40, 1))["late decisions"]


@pytest.mark.parametrize("related", [0.0, 0.5])
def test_the_interval_holds_about_as_often_as_it_says(related: float) -> None:
    """Weeks of the same process as the history: decisions that are independent, and that follow each other."""
    generator = np.random.default_rng(11)
    length, history, held = 21, 80, 0
    for draw in range(60):
        noise = generator.normal(0.0, 0.01, history + length)
        for place in range(1, len(noise)):
            noise[place] += related * noise[place - 1]
        rows = np.stack([noise, np.ones(len(noise))], axis=1)
        low, high = expected_interval(rows[:history], length, np.random.default_rng(draw))
        held += low <= rows[history:, 0].mean() <= high
    assert held / 60 > 0.88 - 0.2 * related, held / 60


def test_weeks_begin_with_the_session_and_a_short_one_says_what_is_missing() -> None:
    figures = days(16, 3)
    weeks = weeks_of(figures)
    assert [len(week) for week in weeks] == [7, 7, 2] and weeks[1][0].time == WEEK_MS
    last = compared_week(2, weeks[2], days(60, 1), 24, 7)
    assert last.rows == () and f"{LEAST_OF_WEEK - 2} more decisions, {24 * (LEAST_OF_WEEK - 2)} bars" in last.missing


def test_a_figure_without_trades_cannot_be_compared() -> None:
    row = next(
        one for one in compared_week(0, days(7, 2), days(30, 1, traded=0.0), 1, 7).rows if "slippage" in one.name
    )
    assert row.inside is None and "nothing was traded in the backtest" in row.sentence()
    row = next(
        one for one in compared_week(0, days(7, 2, traded=0.0), days(30, 1), 1, 7).rows if "slippage" in one.name
    )
    assert row.inside is None and "nothing was traded this week" in row.sentence()


def drift(entries: list[JournalRecord]) -> DriftReport:
    team = scene.named_team()
    return drift_report(entries, team, scene.ACCOUNT, limits_of(scene.settings().guard), scene.SEED)


def test_figures_of_a_session_add_up_to_its_account(tmp_path: Path) -> None:
    with Store.open("mem://") as store:
        scene.begin(store, tmp_path)
        entries = entries_of(store, scene.RUN)
    mine = figures_of_session(entries)
    assert len(mine) == (scene.STOP - scene.START) // scene.DECIDE_EVERY and any(one.traded for one in mine)
    assert all(one.due and not one.late and one.asked == 2 for one in mine)
    equity = [one.document["account"]["equity"] for one in entries if one.kind == "bar"]
    assert np.prod([1.0 + one.returned for one in mine]) == pytest.approx(
        equity[scene.DECIDE_EVERY * len(mine) - 1] / 1e6
    )
    history = history_from_json(entries[0].document["history"])
    assert len(history) == scene.START + 1
    assert "more bars are missing" in drift(entries).missing, "141 bars are too short a history"


def test_the_report_of_a_session(tmp_path: Path) -> None:
    """Ten days: a week, and three days of the next one. What was decided before it began is what is expected."""
    with Store.open("mem://") as store:
        request = PaperRequest(
            session="paper-days", data=ROOT / "data" / "synthetic", timeframe="4h", start="2021-06-10",
            end="2021-06-20T08:00", decide_every=2, symbols=("AAAUSDT",),
            overrides=("paper.history_bars=180", "costs.thinking_time=20"),
        )  # fmt: skip
        run_paper(request, store, tmp_path)
        found = paper_drift("paper-days", store)
        assert found.missing == "" and found.expected_from == 29 >= LEAST_OF_HISTORY
        assert [week.decisions for week in found.weeks] == [21, 10] and all(len(week.rows) == 6 for week in found.weeks)
        for row in found.weeks[0].rows:
            assert "what was expected" in row.sentence() or "nothing was traded" in row.sentence()
        assert paper_drift("paper-days", store) == found, "the same session gives the same report"
        entries = entries_of(store, "paper-days")
        assert not any(one.late for one in figures_of_session(entries))
        [other] = [one for one in entries if one.kind == "decision"][3:4]
        other.document["decisions"][0]["thinking_ms"] = 5 * HOUR_MS
        assert sum(one.late for one in figures_of_session(entries)) == 1
