"""`store.keep`: old conversations leave the store while a training runs, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config.schema import Config, StoreConfig
from backend.store.records import KINDS, Record, TrajectoryRecord
from backend.store.store import Store
from simulator.errors import Interrupted
from tests.small_world import RUN, smaller_config, train_as_told, tree

STEPS = 4


def keeping(nano: Path, keep: int) -> Config:
    return smaller_config(base_model=str(nano), validation_queries=1).model_copy(
        update={"store": StoreConfig(keep=keep)}
    )


def records(store: Store, kind: type[Record]) -> list[Record]:
    return list(store.each(kind, RUN))


def test_only_old_conversations_go_and_a_resumed_run_is_equal(nano: Path, tmp_path: Path) -> None:
    """A run that kept all before, or was killed between its checkpoint and the deletion, drops what it has too much;
    and in the end it has the bits of an undisturbed one that keeps all."""
    with Store.open("mem://") as everything, Store.open("mem://") as last_only:
        train_as_told(keeping(nano, 0), tmp_path / "all", everything)
        for step, keep, kept in ((2, 0, [0, 1]), (3, 1, [2])):
            with pytest.raises(Interrupted):
                train_as_told(keeping(nano, keep), tmp_path / "last", last_only, stop_after=step)
            assert last_only.steps(TrajectoryRecord, RUN) == kept, "dropped while it runs"
        train_as_told(keeping(nano, 1), tmp_path / "last", last_only)
        assert tree(tmp_path / "all") == tree(tmp_path / "last")
        for kind in KINDS[:-1]:
            expected = records(everything, kind)
            if kind is TrajectoryRecord:
                expected = [one for one in expected if vars(one)["step"] == STEPS - 1]
            assert records(last_only, kind) == expected, kind.table
        assert last_only.run(RUN).config["config"]["store"] == {"keep": 1}
