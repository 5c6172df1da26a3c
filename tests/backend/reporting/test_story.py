"""The story of a training in three pictures: they show the figures that they were given, and claim no more."""

from __future__ import annotations

from typing import Any

import pytest

from backend.reporting.blocks import Picture
from backend.reporting.comparison.story import story_pictures

TEAMS = ("teacher", "warm_started, greedy", "trained, greedy", "holding")


def document(gain: float, low: float, high: float) -> dict[str, Any]:
    """Of five stretches the fourth has no state. All teams but the trained one do the same."""
    flat: dict[str, list[float | None]] = {name: [-0.5, -0.2, 0.0, None, 0.5] for name in TEAMS}
    return {
        "differences": [{"against": "teacher", "net_return": gain, "net_return_ci95": [low, high]}],
        "story": {
            "edges": [-1.0, -0.6, -0.2, 0.2, 0.6, 1.0],
            "states": [3, 2, 4, 0, 1],
            "position": flat,
            "net_return": flat | {"trained, greedy": [0.01, 0.0, 0.0, None, 0.02]},
            "lookups": {
                "market_analyst": {"get_trend": 1.0, "get_news": 0.25, "get_bars": 0.0},
                "risk_analyst": {"get_risk": 0.5},
                "trader": {"preview_order": None},
            },
        },
    }


def pictures(gain: float = 0.004, low: float = 0.001, high: float = 0.007) -> list[Picture]:
    return story_pictures(document(gain, low, high))


def test_there_are_three_small_pictures_and_each_has_a_dark_one() -> None:
    assert [picture.title[:2] for picture in pictures()] == ["1.", "2.", "3."]
    for picture in pictures():
        assert picture.figure.layout["height"] <= 300
        assert picture.dark.layout["font"]["color"] != picture.figure.layout["font"]["color"]
        assert picture.caption[0].isupper() and picture.caption.endswith(".")


def test_the_lines_are_the_figures_and_a_stretch_without_states_is_a_gap() -> None:
    teacher, _, learned = pictures()
    assert [trace["name"] for trace in teacher.figure.data] == ["teacher"]
    assert list(teacher.figure.data[0]["y"]) == [-0.5, -0.2, 0.0, None, 0.5]
    by_name = {trace["name"]: trace for trace in learned.figure.data}
    assert list(by_name["trained"]["y"]) == [100.0, 0.0, 0.0, None, 200.0]  # basis points
    assert list(by_name["trained"]["customdata"]) == [3, 2, 4, 0, 1]


def test_where_spreads_are_wide_for_days_it_shows_who_heeds_trader() -> None:
    shares = {"teacher": (0.62, 0.6), "warm_started, greedy": (0.67, 0.83), "trained, greedy": (0.88, 0.0)}
    rows: dict[str, dict[str, float | None]] = {
        name: {"traded_now": now, "traded_later": later} for name, (now, later) in shares.items()
    }
    learned = story_pictures(document(0.004, 0.001, 0.007) | {"rows": rows})[2]
    assert {trace["name"]: list(trace["y"]) for trace in learned.figure.data} == {
        "teacher": [62.0, 60.0], "before training": [67.0, 83.0], "trained": [88.0, 0.0]
    }  # fmt: skip
    assert "above its teacher by" in learned.caption
    rows["teacher"]["traded_later"] = None  # Trader never waits
    [*_, learned] = story_pictures(document(0.004, 0.001, 0.007) | {"rows": rows})
    assert learned.figure.data[0]["mode"] == "lines+markers"


def test_who_may_look_up_what_is_told_apart_from_who_does() -> None:
    [trace] = pictures()[1].figure.data
    cells = dict(zip(zip(trace["y"], trace["x"], strict=True), trace["hovertext"], strict=True))
    assert {tool for _, tool in cells} == {"trend", "news", "risk"}  # what nobody looked up is left out
    assert {cells["DeepTraderManager", tool] for tool in ("trend", "news", "risk")} == {"closed"}
    assert (cells["MarketAnalyst", "trend"], cells["MarketAnalyst", "news"]) == ("100 %", "25 %")
    assert (cells["MarketAnalyst", "risk"], cells["RiskAnalyst", "risk"]) == ("closed", "50 %")


@pytest.mark.parametrize(
    ("gain", "low", "high", "said"),
    [
        (0.004, 0.001, 0.007, "above its teacher by +40.0 bp a decision (95 % interval +10.0 to +70.0)"),
        (0.0, -0.001, 0.001, "cannot be told apart"),
        (-0.004, -0.007, -0.001, "below its teacher, -40.0 bp"),
    ],
)
def test_the_last_caption_follows_the_interval(gain: float, low: float, high: float, said: str) -> None:
    assert said in pictures(gain, low, high)[2].caption


def test_where_large_losses_count_it_is_the_outcome_that_is_compared() -> None:
    measured = document(0.004, 0.001, 0.007) | {"tail_weight": 0.3}
    measured["differences"][0] |= {"outcome": -0.002, "outcome_ci95": [-0.003, -0.001]}
    assert "below its teacher, -2.0 thousandths of the outcome" in story_pictures(measured)[2].caption


def test_a_run_that_was_measured_without_it_has_no_story() -> None:
    assert story_pictures({}) == []
    assert story_pictures({"differences": [], "story": None}) == []
