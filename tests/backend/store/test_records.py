"""Records: what goes in comes out, what the database would store wrongly is refused, and a run is added once."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.store import run_record
from backend.store.errors import StoreError
from backend.store.records import (
    BacktestRecord,
    Record,
    RewardRecord,
    RolloutRecord,
    RunRecord,
    TrajectoryRecord,
    valid_run_id,
)
from backend.store.run_record import new_run_id
from backend.store.store import Store
from tests.backend.store.servers import server_thread

INT32 = st.integers(-(2**31), 2**31 - 1)
FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
# Without NUL and lone surrogates, which are refused.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
RUN = RunRecord("r", "train", 1, "hash", 0, {})
TRAJECTORY = TrajectoryRecord("r", 0, 0, 0, "manager", 0, "v", (1,), (True,), (-0.5,))
REWARD = RewardRecord("r", 0, 0, 0, "manager", 0, 1.0, {"format": 1.0})
ROLLOUT = RolloutRecord("r", 0, 0, 0, 5, True, 0.5, {"trader": 1}, {"fees": 0.1})


@st.composite
def trajectories(draw: st.DrawFn) -> TrajectoryRecord:
    tokens = draw(st.lists(st.tuples(INT32, st.booleans(), FLOAT32), max_size=50))
    return TrajectoryRecord(
        run="r",
        step=draw(st.integers(0, 2**63 - 1)),
        query=draw(st.integers(0, 100)),
        rollout=draw(st.integers(0, 100)),
        role=draw(TEXT),
        ordinal=draw(st.integers(0, 100)),
        policy_version=draw(TEXT),
        ids=tuple(token[0] for token in tokens),
        mask=tuple(token[1] for token in tokens),
        sampled_logps=tuple(token[2] for token in tokens),
        valid=draw(st.booleans()),
        truncated=draw(st.booleans()),
        reason=draw(st.none() | TEXT),
    )


@given(trajectories())
@settings(max_examples=60, deadline=None)
def test_a_trajectory_comes_back_equal(record: TrajectoryRecord) -> None:
    with Store.open("mem://") as store:
        store.put(record)
        assert store.trajectories("r", record.step) == [record]


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=4))
@settings(max_examples=60, deadline=None)
def test_a_document_comes_back_equal(document: dict[str, object]) -> None:
    with Store.open("mem://") as store:
        store.put(BacktestRecord("r", "team", document))
        assert store.backtests("r") == [BacktestRecord("r", "team", document)]


def test_a_metric_may_be_nan(store: Store) -> None:
    store.add_metrics("r", 0, {"manager/loss": float("nan"), "manager/kl": float("inf")})
    values = store.metrics("r")[0].values
    assert np.isnan(values["manager/loss"]) and np.isposinf(values["manager/kl"])


def test_numpy_scalars_become_plain_numbers(store: Store) -> None:
    numbers: dict[str, Any] = {"total": np.float32(0.5), "parts": {"format": np.float64(1.0)}, "step": np.int64(3)}
    record = replace(REWARD, **numbers)
    store.put(record)
    store.put(BacktestRecord("r", "team", {"equity": [np.float64(1.5), np.int32(2)]}))
    (back,) = store.rewards("r")
    assert (back.total, back.parts, back.step) == (0.5, {"format": 1.0}, 3)
    assert type(back.total) is float and type(back.step) is int
    assert store.backtests("r")[0].result == {"equity": [1.5, 2]}


@pytest.mark.parametrize(
    ("record", "wrong", "complaint"),
    [
        (REWARD, {"total": float("nan")}, r"reward .*: total is nan; only finite"),
        (REWARD, {"parts": {"expert": float("inf")}}, r"parts\['expert'\] is inf"),
        (REWARD, {"advantage": float("nan")}, "advantage is nan"),
        (ROLLOUT, {"seed": 2**63}, "seed is 9223372036854775808, which does not fit 64 bits"),
        (ROLLOUT, {"outcome": float("nan")}, "outcome is nan"),
        (ROLLOUT, {"parts": {"fees": np.zeros(2)}}, "has type ndarray"),
        (RUN, {"kind": "a\0b"}, "NUL"),
        (RUN, {"kind": "half \ud800 pair"}, "surrogate"),
        (RUN, {"run": "../escape"}, "run id '../escape'"),
        (RUN, {"run": ""}, "run id ''"),
        (RUN, {"config": {"lr": float("nan")}}, "config cannot be stored as JSON"),
        (RUN, {"config": {"when": object()}}, "config cannot be stored as JSON: a value of type object"),
        (TRAJECTORY, {"sampled_logps": (float("nan"),)}, "sampled_logps holds a value that is not finite"),
        (TRAJECTORY, {"ids": (2**31,)}, "ids holds a value that does not fit int32"),
        (TRAJECTORY, {"ids": ("x",)}, "ids: invalid literal"),
        (TRAJECTORY, {"mask": (2,)}, "mask holds a value that does not fit bool"),
        # The database knows no types.
        (RUN, {"status": "sleeping"}, "status is 'sleeping': Input should be 'running'"),
        (RUN, {"started_at": 1.5}, "started_at is 1.5: Input should be a valid integer"),
        (RUN, {"config": ["a"]}, "config has type list, and a document is expected"),
        (ROLLOUT, {"valid": 1}, "valid is 1: Input should be a valid boolean"),
        (ROLLOUT, {"calls": {"trader": 0.5}}, "calls is .*: Input should be a valid integer"),
        (REWARD, {"total": None}, "total is None: Input should be a valid number"),
        (TRAJECTORY, {"caller": ("manager",)}, "caller is .*: Field required"),
    ],
)
def test_what_would_be_stored_wrongly_is_refused(record: Record, wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(StoreError, match=complaint):
        replace(record, **wrong).row()


def test_what_a_model_says_cannot_break_a_record(store: Store) -> None:
    store.add_run(RUN)
    store.finish_run("r", "failed", "a\0b \ud800 ⟩'")
    assert store.run("r").message == "a?b ? ⟩'"
    store.put(replace(TRAJECTORY, reason="\0"))
    assert store.trajectories("r", 0)[0].reason == "?"


def test_lengths_are_checked_at_once() -> None:
    with pytest.raises(StoreError, match="2 ids, 1 mask and 1 sampled_logps"):
        replace(TRAJECTORY, ids=(1, 2))


# -- ids and ownership of runs -----------------------------------------------------------------------------------------


@given(kind=st.sampled_from(("train", "backtest", "evaluate", "paper", "sft", "demo", "experiment")))
def test_an_id_has_its_kind_and_a_time_that_people_can_read(kind: str) -> None:
    run = new_run_id(kind)
    made, day, time, chance = run.split("-")
    assert made == kind and len(chance) == 10 and valid_run_id(run) == run
    assert abs((datetime.now(UTC) - datetime.strptime(day + time + "+0000", "%Y%m%d%H%M%S%z")).total_seconds()) < 60


def test_a_clock_that_stands_still_makes_no_id_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    class Frozen(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Frozen:
            return cls(2026, 11, 27, 12, 0, 0, tzinfo=UTC)

    monkeypatch.setattr(run_record, "datetime", Frozen)
    assert len({new_run_id("train") for _ in range(20_000)}) == 20_000


@pytest.mark.parametrize("status", ["running", "finished"])
def test_a_run_is_added_once(status: Any, tmp_path: Path) -> None:
    first = RunRecord("r", "backtest", 1, "h", 1, {"of": "first"}, status)
    other = RunRecord("r", "train", 2, "x", 2, {"of": "other"}, status)
    with server_thread() as server:
        for where in ("mem://", str(tmp_path / "store"), server.url):
            with Store.open(where) as store:
                store.add_run(first)
                for again in (first, other):
                    with pytest.raises(StoreError, match=r"run r is in store .* already: nothing was written"):
                        store.add_run(again)
                assert store.runs() == [first]


def test_an_answer_that_was_lost_is_no_second_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is sent again, and is then known by its token."""
    with Store.open(tmp_path / "store") as store:
        channel = store.connection._channel
        assert channel is not None
        query, lost = channel.query_raw, [True]

        def losing(text: str, parameters: dict[str, Any]) -> Any:
            answer = query(text, parameters)
            return query(text, parameters) if "THROW" in text and lost.pop() else answer

        monkeypatch.setattr(channel, "query_raw", losing)
        store.add_run(RunRecord("r", "backtest", 1, "h", 1, {}))
        assert not lost and store.run("r").status == "running"
