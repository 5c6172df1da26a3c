"""The window of a run: what was asked, what is used, and why."""

from __future__ import annotations

import pytest

from backend.builders.strategies import made_ready, named_strategies, named_strategy
from backend.runs.requests import WindowRequest
from backend.runs.window import choose_window
from simulator.errors import DataError, UserError
from simulator.market.timeframes import format_time
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate

MARKET = generate(SyntheticConfig(bars=1_200, seed=1, symbols=("AAAUSDT",), timeframe="4h"))
BEGIN, END = "2020-01-01 00:00", "2020-07-19 00:00"


@pytest.mark.parametrize(
    ("start", "end", "warm_up", "first", "last", "why", "moved"),
    [
        ("2020-03-01", "2020-04-01", 121, "2020-03-01 00:00", "2020-04-01 00:00", "as asked", []),
        ("2020-03-01 01:00", "2020-04-01 01:00", 121, "2020-03-01 04:00", "2020-04-01 00:00", "as asked", []),
        ("2020-03-01", "", 0, "2020-03-01 00:00", END, "from the start as asked to the last bar", []),
        ("", "2020-06-01", 121, "2020-03-03 00:00", "2020-06-01 00:00", "the 90 days up to the end as asked", []),
        ("", "", 121, "2020-04-20 00:00", END, "the last 90 days", []),
        ("2020-01-02", "2020-04-01", 121, "2020-01-21 08:00", "2020-04-01 00:00", "not as asked", ["start"]),
        ("2020-01-02", "2020-04-01", 0, "2020-01-02 00:00", "2020-04-01 00:00", "as asked", []),
        ("2019-01-01", "2021-01-01", 0, "2020-01-01 04:00", END, "not as asked", ["start", "end"]),
        ("2020-03-01", "2020-07-19", 121, "2020-03-01 00:00", END, "as asked", []),
        ("", "2020-02-01", 121, "2020-01-21 08:00", "2020-02-01 00:00", "not as asked", ["start"]),
    ],
)
def test_what_is_used_is_what_was_asked_or_a_note_says_why_not(
    start: str, end: str, warm_up: int, first: str, last: str, why: str, moved: list[str]
) -> None:
    chosen = choose_window(MARKET, WindowRequest(start=start, end=end), warm_up)
    window = chosen.window
    used = [format_time(int(MARKET.open_time[bar]) + MARKET.interval) for bar in (window.start, window.stop)]
    assert used == [first, last]
    assert chosen.why.startswith(why)
    assert [note.split()[0] for note in chosen.notes] == moved
    asked = {"start": start or "90 days before the end", "end": end}
    for note, side in zip(chosen.notes, moved, strict=True):
        assert f"{side} {asked[side]} was asked for and {used[side == 'end']} UTC is used: " in note
        assert ("the data end there" if side == "end" else f"the data begin at {BEGIN}") in note
        assert (f"{warm_up} bars must come before" in note) == (side == "start" and warm_up > 0)


def test_a_window_without_a_decision_is_refused() -> None:
    with pytest.raises(DataError, match="the start 2020-07-19 lies after the data"):
        choose_window(MARKET, WindowRequest(start="2020-07-19"))
    with pytest.raises(DataError, match="1200 bars of history must come before"):
        choose_window(MARKET, WindowRequest(), 1200)
    with pytest.raises(UserError, match="decide_every is -1"):
        choose_window(MARKET, WindowRequest(decide_every=-1))


def test_every_baseline_names_the_bars_that_its_indicators_look_at() -> None:
    warm_ups = {name: made_ready(named_strategy(name))[1] for name in named_strategies()}
    assert {name for name, bars in warm_ups.items() if bars == 0} == {"flat", "hold", "always_short", "equal_weight"}
    assert warm_ups["sma_cross"] == 100
    assert made_ready(named_strategy("sma_cross:fast=3,slow=7"))[1] == 7
