"""`store.keep`: old conversations leave the store while a training runs, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config.schema import Config, StoreConfig
from backend.store.records import KINDS, Record, TrajectoryRecord
from backend.store.run_record import recorded_run
from backend.store.store import Store
from backend.training.rl_job import run_rl
from backend.training.trainer import Progress
from simulator.errors import Interrupted
from tests.small_world import RUN, small_market, smaller_config, tree

STEPS = 4


def keeping(nano: Path, keep: int) -> Config:
    return smaller_config(base_model=str(nano), validation_queries=1).model_copy(
        update={"store": StoreConfig(keep=keep)}
    )


def train(config: Config, folder: Path, store: Store, stop_after: int | None = None) -> None:
    """Ctrl-C comes after `stop_after` steps."""

    def stop(progress: Progress) -> None:
        if progress.step == stop_after:
            raise KeyboardInterrupt

    with recorded_run(store, RUN, "train", 1, small_market().content_hash, config, resumes=True):
        run_rl(config, small_market(), store, RUN, folder, lambda what, done, total: None, stop)


def records(store: Store, kind: type[Record]) -> list[Record]:
    return list(store.each(kind, RUN))


def test_only_old_conversations_go_and_a_resumed_run_is_equal(nano: Path, tmp_path: Path) -> None:
    """With one step kept, interrupted after each step: the same bits as an undisturbed run that keeps all."""
    with Store.open("mem://") as everything, Store.open("mem://") as last_only:
        train(keeping(nano, 0), tmp_path / "all", everything)
        for step in range(1, STEPS):
            with pytest.raises(Interrupted):
                train(keeping(nano, 1), tmp_path / "last", last_only, stop_after=step)
            assert last_only.steps(TrajectoryRecord, RUN) == [step - 1], "dropped while it runs"
        train(keeping(nano, 1), tmp_path / "last", last_only)
        former, found = tree(tmp_path / "all"), tree(tmp_path / "last")
        assert former == found
        for kind in KINDS[:-1]:
            expected = records(everything, kind)
            if kind is TrajectoryRecord:
                expected = [one for one in expected if vars(one)["step"] == STEPS - 1]
            assert records(last_only, kind) == expected, kind.table
        assert last_only.run(RUN).config["config"]["store"] == {"keep": 1}


def test_what_an_interrupt_left_is_dropped_later(nano: Path, tmp_path: Path) -> None:
    """A run that was killed between its checkpoint and the deletion, or that kept more before."""
    with Store.open("mem://") as store:
        with pytest.raises(Interrupted):
            train(keeping(nano, 0), tmp_path, store, stop_after=3)
        assert store.steps(TrajectoryRecord, RUN) == [0, 1, 2]
        train(keeping(nano, 2), tmp_path, store)
        assert store.steps(TrajectoryRecord, RUN) == [2, 3]
