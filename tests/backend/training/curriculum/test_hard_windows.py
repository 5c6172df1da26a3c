"""Windows that the team handles badly: what counts as one, and that choosing them tilts nothing within a situation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.store.records import QueryRecord, RolloutRecord
from backend.store.store import Store
from backend.training.curriculum import hard_windows
from backend.training.curriculum.hard_windows import CELLS, SHRUNK, VOLATILITIES, Hard, cell_gaps, cells_of
from backend.training.curriculum.queries import QueryPool
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from simulator.synthetic.truth import truth_of
from tests.small_world import RUN, open_trainer, smaller_config

MARKET = generate(SyntheticConfig(bars=1500, seed=9, drift_ratio=0.45))
COINS = [MARKET.select((symbol,)) for symbol in MARKET.symbols]
BARS = np.arange(260, 1400)


def group(*rollouts: tuple[float, float]) -> list[RolloutRecord]:
    """Rollouts of one query, each an exposure and an outcome."""
    return [
        RolloutRecord("run", 3, 0, number, 1, True, outcome, {}, {"exposure": exposure})
        for number, (exposure, outcome) in enumerate(rollouts)
    ]


def test_a_choice_that_is_better_and_not_always_made_leaves_a_gap() -> None:
    torn = group((1.0, 0.7), (1.0, 0.7), (-1.0, 0.3), (-1.0, 0.3))
    left = cell_gaps([(2, torn), (2, torn), (4, group((1.0, 0.9), (0.5, 0.9)))])
    assert left[2] == pytest.approx(4 * 0.2 / (4 + SHRUNK))
    assert left[4] == 0.0, "all choose alike: however it went, nothing is left that they know of"
    assert left[0] == pytest.approx((left[2] + left[4]) / 2), "not met: as the others on average"
    assert len(left) == CELLS
    assert cell_gaps([]) == ()


def test_luck_of_single_windows_is_no_gap() -> None:
    """Long is right in one window of a cell and as wrong in the next: what is better cannot be known there."""
    right = group((1.0, 0.7), (-1.0, 0.3), (0.0, 0.5))
    wrong = group((1.0, 0.3), (-1.0, 0.7), (0.0, 0.5))
    assert cell_gaps([(1, right), (1, wrong)] * 5)[1] == pytest.approx(0.0, abs=1e-12)


@given(
    cells=st.lists(st.integers(-1, CELLS - 1), min_size=1, max_size=60),
    left=st.lists(st.floats(0, 1), min_size=CELLS, max_size=CELLS),
    share=st.floats(0, 1),
)
def test_states_of_a_cell_are_drawn_alike(cells: list[int], left: list[float], share: float) -> None:
    places = np.array(cells)
    chances = Hard(share, tuple(left)).chances(places)
    assert chances.sum() == pytest.approx(1.0)
    assert (chances >= (1.0 - share) / len(places) - 1e-12).all(), "no situation is given up"
    for cell in set(cells):
        assert np.ptp(chances[places == cell]) == pytest.approx(0.0, abs=1e-12)
    known = places[places >= 0]
    if share == 1.0 and np.asarray(left)[known].any():
        by_gap = np.where(places >= 0, np.asarray(left)[places], 0.0)
        assert chances == pytest.approx(by_gap / by_gap.sum())


def test_cells_know_nothing_of_later_bars() -> None:
    later = MARKET.close.copy()
    later[901:] *= np.random.default_rng(1).uniform(0.5, 2.0, later[901:].shape)
    other = [replace(coin, close=later[:, [row]]) for row, coin in enumerate(COINS)]
    drift, changed = (cells_of(coins, BARS) // VOLATILITIES for coins in (COINS, other))
    known = BARS <= 900
    assert (drift[:, known] == changed[:, known]).all()
    assert (drift[:, ~known] != changed[:, ~known]).any()


def test_states_with_too_little_history_have_no_cell() -> None:
    close = COINS[0].close.copy()
    close[:700] = np.nan
    gone = replace(COINS[1], close=np.full_like(close, np.nan))
    cells = cells_of([replace(COINS[0], close=close), gone], BARS)
    assert (cells[0, BARS < 720] == -1).all() and (cells[0, BARS >= 721] >= 0).all()
    assert (cells[1] == -1).all()


def test_cells_differ_in_what_is_believed_and_grade_volatility_evenly() -> None:
    cells = cells_of(COINS, BARS)
    regimes = truth_of(MARKET).regime[BARS].T
    means = [regimes[cells // VOLATILITIES == grade].mean() for grade in range(CELLS // VOLATILITIES)]
    assert means == sorted(means) and means[-1] - means[0] > 0.5
    shares = np.bincount(cells[cells >= 0] % VOLATILITIES) / cells.size
    assert shares == pytest.approx(1 / VOLATILITIES, abs=0.01)


def test_the_pool_draws_them_more_often_and_no_other_way_when_not_asked() -> None:
    pool = QueryPool(MARKET, 260, 1400, 6)
    left = tuple(float(cell == 0) for cell in range(CELLS))
    usual, hard = (pool.draw(1, 0, 400, False, how) for how in (None, Hard(0.5, left)))
    among = [np.mean([pool.cell_of(one.symbol, one.bar) == 0 for one in drawn]) for drawn in (usual, hard)]
    assert among[1] == pytest.approx(0.5 + 0.5 * among[0], abs=0.07)
    assert usual == pool.draw(1, 0, 400, easy=False)


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open("mem://") as opened:
        yield opened


def test_a_run_draws_by_its_records_and_a_resumed_one_the_same(nano: Path, tmp_path: Path, store: Store) -> None:
    def seen(stores: Store) -> list[Any]:
        return [(one.step, one.query, one.symbols, one.bar) for step in range(3) for one in stores.queries(RUN, step)]

    few: dict[str, Any] = {"stage1_max_steps": 1, "stage2_steps": 2, "queries_per_step": 4, "validation_queries": 1}
    config = smaller_config(hard_share=0.8, **few)
    open_trainer(config, nano, tmp_path / "whole", store).run()
    told = [one.values for one in store.metrics(RUN)]
    assert any(one.get("hard/gap/max", 0.0) > 0.0 for one in told)
    with Store.open("mem://") as other:
        first = open_trainer(config, nano, tmp_path / "halves", other)
        first.trainer.start()
        for _ in range(2):
            first.step()
        second = open_trainer(config, nano, tmp_path / "halves", other)
        assert second.trainer.resume()
        second.run()
        assert seen(other) == seen(store)
    even = smaller_config(**few)
    with Store.open("mem://") as other:
        open_trainer(even, nano, tmp_path / "even", other).run()
        assert seen(other) != seen(store)


def test_only_the_last_steps_are_remembered(store: Store) -> None:
    watched = hard_windows.Gaps(store, RUN, lambda symbol, bar: 0)
    for step in range(3):
        store.add_queries([QueryRecord(RUN, step, 0, 2, ("AAAUSDT",), 100, 0, 1)])
        store.add_rollouts(
            [replace(one, run=RUN, step=step) for one in group((1.0, 0.5 + 0.1 * step), (-1.0, 0.5 - 0.1 * step))]
        )
    assert watched.before(0) == ()
    assert watched.before(1)[0] == 0.0, "both choices of step 0 were worth the same"
    worth = [0.0, 0.1, 0.2]
    assert watched.before(3)[0] == pytest.approx(sum(worth) / (3 + SHRUNK))
    assert watched.before(hard_windows.MEMORY_STEPS + 2)[0] == pytest.approx(worth[2] / (1 + SHRUNK))
    assert watched.before(hard_windows.MEMORY_STEPS + 3) == ()
