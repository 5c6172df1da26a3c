"""A backtest of one window says how sure it is."""

import math
from dataclasses import replace

import numpy as np
import pytest

from backend.decisions.backtest_document import BacktestDocument
from backend.evaluation import evidence
from backend.evaluation.evidence import evidence_of
from backend.reporting.backtest_sections import numbers_section, tiles
from backend.reporting.blocks import Missing, Table
from backend.reporting.labels import EVIDENCE_COLUMNS, interval_text
from backend.reporting.run_summary import RunSummary, WindowResult
from backend.statistics.bootstrap import Interval, window_intervals
from simulator.backtest import metrics
from simulator.market.timeframes import YEAR_MS


def evidence_table(window: WindowResult) -> Table | Missing:
    [block] = [one for one in numbers_section(window).blocks if one.title == "How sure is that?"]
    assert isinstance(block, Table | Missing)
    return block


def test_the_intervals_are_those_of_the_stored_equity(window: WindowResult) -> None:
    own, hold = window.main_result, window.hold
    assert hold is not None
    curves = [metrics.returns_of(np.asarray(one.equity)) for one in (own, hold)]
    per_year = YEAR_MS / (own.times[1] - own.times[0])
    found = window.evidence[window.main]
    assert found.intervals == window_intervals(curves[0], per_year, curves[1])
    assert found.intervals is not None
    assert found.intervals.total_return.value == pytest.approx(own.total_return)
    assert found.intervals.sharpe.value == pytest.approx(own.metrics["sharpe"])
    assert found.intervals.max_drawdown.value == pytest.approx(own.metrics["max_drawdown"])


def test_an_interval_is_made_once_and_only_for_the_same_numbers(
    window: WindowResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, hold = window.main_result, window.hold
    assert hold is not None
    doubled = hold.model_copy(update={"equity": [2.0 * hold.equity[0], *hold.equity[1:]]})
    known = [evidence_of(own, other, 1).intervals for other in (hold, doubled, None)]
    assert known[0] is not None and known[0] != known[1] and known[1] != known[2]
    monkeypatch.setattr(evidence, "window_intervals", None)  # which can no longer be called
    assert [evidence_of(own, other, 1).intervals for other in (hold, doubled, None)] == known


def test_the_table_and_the_first_tile_carry_them(window: WindowResult) -> None:
    table = evidence_table(window)
    assert isinstance(table, Table) and [row.main for row in table.rows] == [True, False]
    assert set(table.rows[0].values) == {column.key for column in EVIDENCE_COLUMNS}
    found = window.evidence[window.main].intervals
    assert found is not None
    notes = {tile.label: tile.note for tile in tiles(window)}
    assert interval_text(found.total_return, "change") in notes["Did it make money?"]
    facts = window.evidence[window.main].facts()
    assert facts["intervals"]["sharpe"] == found.sharpe and facts["trials"] == 1


def test_the_number_of_trials_is_taken_off(window: WindowResult) -> None:
    one, many = (replace(window, trials=trials).evidence[window.main] for trials in (1, 200))
    assert one.deflated == one.probabilistic == many.probabilistic > many.deflated


def test_the_count_of_the_run_is_used(summary: RunSummary) -> None:
    counted = replace(summary, run=replace(summary.run, config={**summary.run.config, "trials": 37}))
    assert counted.windows()[0].trials == 37
    assert summary.windows()[0].trials == 1


def test_a_run_that_is_too_short_says_how_much_it_takes(window: WindowResult) -> None:
    def shortened(name: str) -> BacktestDocument:
        one = window.results[name]
        return one.model_copy(
            update={"times": one.times[:10], "equity": one.equity[:10], "exposure": one.exposure[:10]}
        )

    short = replace(window, results={name: shortened(name) for name in window.results})
    block = evidence_table(short)
    assert isinstance(block, Missing) and "it takes 30, and there are 9" in block.reason
    assert all("interval" not in tile.note for tile in tiles(short))


def test_a_holding_of_other_bars_is_not_compared(window: WindowResult) -> None:
    assert window.hold is not None
    later = window.hold.model_copy(update={"times": [time + 1 for time in window.hold.times]})
    found = evidence_of(window.main_result, later, 1)
    assert found.intervals is not None and found.intervals.against is None


def test_the_cost_of_trading_at_which_nothing_is_left(window: WindowResult) -> None:
    own = window.main_result
    traded = math.fsum(abs(fill.quantity) * fill.price for fill in own.fills)
    before_costs = own.equity[-1] - own.equity[0] + sum(own.costs.values())
    assert evidence_of(own, None, 1).break_even == pytest.approx(before_costs / traded)
    assert evidence_of(own.model_copy(update={"fills": ()}), None, 1).break_even is None


def test_an_interval_in_words() -> None:
    assert interval_text(Interval(0.0, -0.0123, 0.0456), "change") == "-1.23 to +4.56 %"
    assert interval_text(None, "ratio") == "–"
    assert interval_text(Interval(0.0, -math.inf, 1.0), "ratio") == "– to 1.00"
