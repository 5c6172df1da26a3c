"""Figures as plain documents: what plotly.js reads is what plotly would have written."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from backend.reporting import charts
from backend.reporting.drawing.figure import PlainFigure, trace


def without_template(document: dict[str, Any]) -> dict[str, Any]:
    layout = {name: value for name, value in document["layout"].items() if name != "template"}
    return {"data": document["data"], "layout": layout}


def drawn() -> list[PlainFigure]:
    curves = {"hold": [1.0, 1.2, 1.1], "ema_cross": [1.0, 0.9, 1.3]}
    marked = {"arm": {"mean": 0.1, "ci95": [0.0, 0.2], "per_window": [0.1]}}
    return [
        charts.equity_chart(curves, [0, 1, 2], "days", "ema_cross"),
        charts.drawdown_chart(curves, [0, 1, 2], "", "hold"),
        charts.exposure_chart([0, 1000], [[0.5, 0.0], [0.25, -0.5]], ["A", "B"]),
        charts.step_chart({"trader": ([1, 2], [0.5, math.nan])}, [charts.Event(2, "stage", "stage 2")]),
        charts.calls_chart({"trader": {0: 3, 1: 1}}),
        charts.difference_chart(marked),
        charts.in_dark(charts.difference_chart(marked)),
    ]


@pytest.mark.parametrize("figure", drawn())
def test_it_is_what_plotly_makes_of_it(figure: PlainFigure) -> None:
    """Which refuses an attribute that plotly.js does not know."""
    own, checked = json.loads(figure.to_json()), json.loads(figure.plotly().to_json())
    assert without_template(own) == without_template(checked)


def test_lines_and_words_are_added_and_axes_changed_key_by_key() -> None:
    figure = PlainFigure()
    figure.update_xaxes(title={"text": "step"}, showgrid=False)
    figure.update_xaxes(title={"font": {"size": 9}})
    figure.add_hline(2.0, {"color": "red"})
    figure.add_vline(3.0, {"color": "red"})
    assert figure.layout["xaxis"] == {"title": {"text": "step", "font": {"size": 9}}, "showgrid": False}
    level, upright = figure.plotly().layout.shapes
    assert (level.y0, level.y1, level.xref, level.yref) == (2.0, 2.0, "x domain", "y")
    assert (upright.x0, upright.x1, upright.xref, upright.yref) == (3.0, 3.0, "x", "y domain")


def test_a_copy_is_changed_alone() -> None:
    figure = PlainFigure([trace("bar", x=[1], marker={"color": "red"})], {"xaxis": {"title": {"text": "a"}}})
    copied = figure.copy()
    copied.data[0]["marker"]["color"] = "blue"
    copied.update_xaxes(title={"text": "b"})
    assert figure.data[0]["marker"] == {"color": "red"} and figure.layout["xaxis"]["title"]["text"] == "a"


def test_what_is_not_finite_is_a_hole() -> None:
    figure = PlainFigure([trace("scatter", y=[1.0, math.nan, math.inf])])
    assert json.loads(figure.to_json())["data"][0]["y"] == [1.0, None, None]


def test_long_lists_are_arrays_for_plotly_with_the_same_numbers_words_and_holes() -> None:
    count = 500
    values = [None if bar % 7 == 0 else bar / 3 for bar in range(count)]
    words, mixed = [f"2020-01-01 00:{bar % 60:02}" for bar in range(count)], [0, "a"] * (count // 2)
    figure = PlainFigure([trace("scatter", x=words, y=values), trace("scatter", x=mixed, y=list(range(count)))])
    first, second = figure.plotly().data
    assert list(first.x) == words and list(second.x) == mixed and list(second.y) == list(range(count))
    assert [None if math.isnan(value) else value for value in first.y] == values
    assert first.y.dtype == float and figure.data[0]["y"] is values


def test_a_word_that_plotly_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="colour"):
        PlainFigure([trace("scatter", colour="red")]).plotly()
