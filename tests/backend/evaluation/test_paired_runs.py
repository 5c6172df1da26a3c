"""Runs are compared bar by bar, or refused with the difference."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from backend.evaluation.paired_runs import ComparedResult, compared_result, differing, paired_differences
from backend.store.store import Store
from simulator.errors import DataError, UserError
from tests.stored_runs import add_backtest_run


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with Store.open("mem://") as opened:
        for run in ("one", "two"):
            add_backtest_run(opened, run)
        yield opened


def settled(one: ComparedResult, **sections: object) -> ComparedResult:
    config = {**one.run.config, "config": {**one.run.config["config"], **sections}}
    return replace(one, run=replace(one.run, config=config))


def test_the_difference_is_that_of_the_stored_curves(store: Store) -> None:
    hold, team = compared_result(store, "one", "hold"), compared_result(store, "two")
    assert team.name == "scripted"
    [found] = paired_differences([hold, team])
    ratio = team.result.equity[-1] / hold.result.equity[-1]
    assert found.wealth.value == pytest.approx(ratio - 1.0)
    assert found.wealth.low < found.wealth.value < found.wealth.high
    assert found.sharpe == pytest.approx(team.result.metrics["sharpe"] - hold.result.metrics["sharpe"])
    assert 0.0 < found.p_value <= found.adjusted <= 1.0
    [same] = paired_differences([team, team])
    assert same.wealth == (0.0, 0.0, 0.0) and same.p_value == 1.0


def test_what_never_trades_is_compared_as_well(store: Store) -> None:
    """Its curve does not vary: its lead is the other's turned round, and of its Sharpe ratio nothing is shown."""
    team = compared_result(store, "two")
    first = team.result.equity[0]
    idle = replace(team, result=team.result.model_copy(update={"equity": [first] * len(team.result.equity)}))
    [ahead], [behind] = paired_differences([idle, team]), paired_differences([team, idle])
    assert behind.wealth.value == pytest.approx(1.0 / (1.0 + ahead.wealth.value) - 1.0)
    assert behind.wealth.low == pytest.approx(1.0 / (1.0 + ahead.wealth.high) - 1.0)
    assert behind.wealth.low < behind.wealth.value < behind.wealth.high
    assert ahead.p_value == behind.p_value == 1.0
    [same] = paired_differences([idle, idle])
    assert same.wealth == (0.0, 0.0, 0.0)


def test_several_comparisons_are_corrected_for(store: Store) -> None:
    hold, team = compared_result(store, "one", "hold"), compared_result(store, "two")
    alone, many = paired_differences([hold, team]), paired_differences([hold, team, team, team])
    assert many[0].p_value == alone[0].p_value
    assert many[0].adjusted == pytest.approx(min(1.0, 3.0 * alone[0].p_value))


def test_what_differs_is_said(store: Store) -> None:
    one = compared_result(store, "one")
    other = replace(one, run=replace(one.run, data_hash="f" * 64))
    with pytest.raises(UserError, match=r"the data differ \(.* and ffffffffffff\)"):
        paired_differences([one, other])
    later = one.result.model_copy(update={"times": [time + 1 for time in one.result.times]})
    assert "the windows differ" in differing(one, replace(one, result=later))[0]
    costs = differing(settled(one, costs={"taker_fee": 0.001}), settled(one, costs={"taker_fee": 0.002}))
    assert costs == ["the costs differ (costs.taker_fee 0.001 and 0.002)"]
    richer = one.result.model_copy(update={"equity": (np.array(one.result.equity) * 2).tolist()})
    assert "the capital differs" in differing(one, replace(one, result=richer))[0]


def test_what_cannot_be_compared_is_refused(store: Store) -> None:
    one = compared_result(store, "one")
    with pytest.raises(UserError, match="no result of 'nobody'; it has"):
        compared_result(store, "one", "nobody")
    with pytest.raises(UserError, match="two results or more"):
        paired_differences([one])
    short = one.result.model_copy(
        update={"times": one.result.times[:9], "equity": one.result.equity[:9], "exposure": one.result.exposure[:9]}
    )
    with pytest.raises(DataError, match="it takes 30, and there are 8"):
        paired_differences([replace(one, result=short)] * 2)
