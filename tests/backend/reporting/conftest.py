"""A stored backtest run, as reports and pages read it."""

from collections.abc import Iterator

import pytest

from backend.reporting.run_summary import RunSummary, WindowResult, summarise
from backend.store.store import Store
from tests.stored_runs import add_backtest_run


@pytest.fixture(scope="module")
def summary() -> Iterator[RunSummary]:
    with Store.open("mem://") as store:
        add_backtest_run(store, "backtest")
        yield summarise(store, "backtest")


@pytest.fixture(scope="module")
def window(summary: RunSummary) -> WindowResult:
    return summary.windows()[0]
