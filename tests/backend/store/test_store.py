"""The store: idempotent writes, readers, and where it may lie."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.store.errors import StoreError
from backend.store.records import (
    AdapterRecord,
    BacktestRecord,
    DecisionRecord,
    EvaluationRecord,
    MetricRecord,
    PublishedRecord,
    QueryRecord,
    RewardRecord,
    RolloutRecord,
    RunRecord,
    ShardRecord,
    TrajectoryRecord,
)
from backend.store.store import Store

RUN = RunRecord("r", "train", 1, "hash", 1_000, {"training": {"seed": 1, "note": None}})


def conversation(
    role: str, ordinal: int = 0, caller: tuple[str, int] | None = None, run: str = "r", step: int = 0, rollout: int = 0
) -> TrajectoryRecord:
    return TrajectoryRecord(
        run, step, 0, rollout, role, ordinal, "v1", (1, 2), (False, True), (0.0, -1.5), caller=caller
    )


def a_step(step: int, rollouts: int) -> tuple[list[RolloutRecord], list[TrajectoryRecord], list[RewardRecord]]:
    """A manager, an analyst and two traders per rollout, of 100 tokens each."""
    tokens = (tuple(range(100)), (True,) * 100, (-0.25,) * 100)
    told, spoken, paid = [], [], []
    for rollout in range(rollouts):
        calls = {"market_analyst": 1, "risk_analyst": 0, "trader": 2}
        told.append(RolloutRecord("r", step, 0, rollout, 5, True, 0.5, calls, {"fees": 0.1}))
        for role, ordinal in (("manager", 0), ("market_analyst", 0), ("trader", 0), ("trader", 1)):
            caller = None if role == "manager" else ("manager", 0)
            spoken.append(TrajectoryRecord("r", step, 0, rollout, role, ordinal, "v1", *tokens, caller=caller))
            paid.append(RewardRecord("r", step, 0, rollout, role, ordinal, 0.5, {"format": 1.0}, 0.1))
    return told, spoken, paid


def test_every_kind_of_record_comes_back(store: Store) -> None:
    query = QueryRecord("r", 2, 0, 1, ("BTCUSDT", "ETHUSDT"), 77, 1_700_000_000_000, 9)
    adapter = AdapterRecord("r", "trader", "trader@2", 2, "adapters/trader-2.safetensors", "ab" * 32)
    evaluation = EvaluationRecord("r", "held_out", 2, {"difference": 0.1, "ci95": [0.0, 0.2]})
    backtest = BacktestRecord("r", "team", {"equity": [1.0, 2.0], "note": None})
    decision = DecisionRecord("r", "team", 0, 1_700_000_000_000, {"messages": ["'; DELETE run; --"]})
    store.add_run(RUN)
    store.put(query)
    store.put(adapter)
    store.put(evaluation)
    store.put(backtest)
    store.put(decision)
    told, spoken, paid = a_step(2, rollouts=2)
    store.put(*told)
    store.put(*spoken)
    store.put(*paid)
    assert store.runs() == [RUN] == [store.run("r")]
    assert store.queries("r") == [query]
    assert store.adapters("r") == [adapter]
    assert store.evaluations("r") == [evaluation]
    assert store.backtests("r") == [backtest]
    assert store.decisions("r", "team") == store.decisions("r") == [decision]
    assert store.rollouts("r", 2) == told
    assert store.trajectories("r", 2) == spoken
    assert store.rewards("r") == paid


def test_writing_twice_leaves_one_and_the_latter_holds(store: Store) -> None:
    told, spoken, paid = a_step(0, rollouts=3)
    for _ in range(2):
        store.resume_run(RUN)
        store.put(*told)
        store.put(*spoken)
        store.put(*paid)
        store.add_metrics("r", 0, {"a": 1.0})
    assert (len(store.runs()), len(store.rollouts("r")), len(store.metrics("r"))) == (1, 3, 1)
    assert (len(store.trajectories("r", 0)), len(store.rewards("r"))) == (12, 12)
    store.put(*[replace(paid[0], total=0.75, parts={"expert": 0.2})])
    assert store.rewards("r")[0].parts == {"expert": 0.2}
    assert store.rewards("r")[0].total == 0.75


def test_metrics_of_a_step_add_up(store: Store) -> None:
    store.add_metrics("r", 4, {"manager/reward/mean": 0.5, "old": 1.0})
    store.add_metrics("r", 4, {"validation.return": 0.25, "old": 2.0})
    assert store.metrics("r") == [
        MetricRecord("r", 4, {"manager/reward/mean": 0.5, "old": 2.0, "validation.return": 0.25})
    ]


def test_readers_filter_and_sort(store: Store) -> None:
    store.add_run(replace(RUN, run="old", started_at=1))
    store.add_run(replace(RUN, run="new", started_at=2))
    assert [record.run for record in store.runs()] == ["new", "old"]
    for step in (10, 9, 2):
        store.add_metrics("new", step, {"x": float(step)})
    store.add_metrics("old", 1, {})
    assert [record.step for record in store.metrics("new")] == [2, 9, 10]
    store.put(*[conversation("trader", n) for n in (1, 0)] + [conversation("manager")])
    store.put(conversation("manager", step=1), conversation("manager", run="other"))
    assert [(record.role, record.ordinal) for record in store.trajectories("r", 0)] == [
        ("manager", 0), ("trader", 0), ("trader", 1),
    ]  # fmt: skip
    assert [record.ordinal for record in store.trajectories("r", 0, "trader")] == [0, 1]
    for version, step in (("b", 10), ("a", 2)):
        store.put(AdapterRecord("r", "manager", version, step, "p", "c"))
    assert [record.step for record in store.adapters("r")] == [2, 10]


# Names of which one begins with another, and those that come before and after each other in any order of characters.
NAMES = ("team", "team ", "team\x01", "team!", "team-1", "teal", "tea", "teams", "Ünï", "\U0001f600")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(("r", "r-1", "r.", "R")), st.sampled_from(NAMES), st.integers(-2, 2))))
def test_a_range_of_keys_holds_what_it_names_and_nothing_else(keys: list[tuple[str, str, int]]) -> None:
    with Store.open("mem://") as store:
        store.put(*[DecisionRecord(run, name, ordinal, 0, {}) for run, name, ordinal in keys])
        there = sorted({*keys})
        for run in ("r", "r-1", "r.", "R"):
            of_run = [key for key in there if key[0] == run]
            assert store.count(DecisionRecord, run) == len(of_run) == len(list(store.each(DecisionRecord, run)))
            for name in NAMES:
                found = [(one.run, one.backtest, one.ordinal) for one in store.decisions(run, name)]
                assert found == [key for key in of_run if key[1] == name]
        assert store.delete_run("r") == sum(key[0] == "r" for key in there)
        assert store.count(DecisionRecord, "r-1") == sum(key[0] == "r-1" for key in there)


def test_a_run_ends(store: Store) -> None:
    store.add_run(RUN)
    before = int(time.time() * 1000)
    store.finish_run("r", "failed", "the disk was full")
    ended = store.run("r")
    assert (ended.status, ended.message, ended.config) == ("failed", "the disk was full", RUN.config)
    assert ended.finished_at is not None and before <= ended.finished_at <= time.time() * 1000
    with pytest.raises(StoreError, match="has no run 'q'; its newest runs: r"):
        store.finish_run("q", "finished")


@pytest.mark.parametrize("hostile", ["x' OR true --", "'; REMOVE TABLE run; --", "⟩", "`", "$run", "r\n"])
def test_text_is_never_a_query(store: Store, hostile: str) -> None:
    store.add_run(RUN)
    store.add_metrics("r", 0, {hostile: 1.0})
    store.put(BacktestRecord("r", hostile, {}))
    store.put(replace(conversation("manager"), role=hostile))
    assert store.metrics("r")[0].values == {hostile: 1.0}
    assert [record.name for record in store.backtests("r")] == [hostile]
    assert [record.role for record in store.trajectories("r", 0, hostile)] == [hostile]
    assert store.backtests(hostile) == []
    with pytest.raises(StoreError, match="has no run"):
        store.run(hostile)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(1, 3)), min_size=1, max_size=6))
def test_a_shard_is_there_whole_and_the_first_stays(attempts: list[tuple[int, int, int]]) -> None:
    """Attempts at shards, as of workers of which one was thought dead: each leaves all of its records or none."""
    kept: dict[tuple[int, int], int] = {}
    with Store.open("mem://") as store:
        for step, shard, number in attempts:
            queries = [QueryRecord("r", step, shard, 2, ("A",), 7, 1_000, number)]
            rollouts = [RolloutRecord("r", step, shard, n, number, True, 0.5, {"trader": 1}, {}) for n in range(number)]
            talks = [
                TrajectoryRecord(
                    "r", step, shard, n, role, 0, f"v{number}", (number,), (True,), (-0.5,),
                    caller=None if role == "manager" else ("manager", 0),
                )
                for n in range(number)
                for role in ("manager", "trader")
            ]  # fmt: skip
            store.add_shard(ShardRecord("r", step, shard, 1, number, 2 * number), queries, rollouts, talks)
            kept.setdefault((step, shard), number)
        for (step, shard), number in kept.items():
            [mark] = [one for one in store.shards("r", step) if one.shard == shard]
            assert mark.rollouts == number
            assert [one.seed for one in store.queries("r", step) if one.query == shard] == [number]
            assert [one.seed for one in store.rollouts("r", step) if one.query == shard] == [number] * number
            assert {one.ids for one in store.trajectories("r", step) if one.query == shard} == {(number,)}


def test_a_shard_that_no_server_takes_is_refused(store: Store) -> None:
    many = 2_000_000
    talk = TrajectoryRecord("r", 0, 0, 0, "manager", 0, "v", (1,) * many, (True,) * many, (0.0,) * many)
    with pytest.raises(StoreError, match=r"holds 18 MB, and 12 MB go in one transaction: give training\.shards"):
        store.add_shard(ShardRecord("r", 0, 0, 1, 0, 1), [], [], [talk])
    assert not store.shards("r")


def test_the_first_weights_of_a_step_stay(store: Store) -> None:
    first = PublishedRecord("r", "trader", 1, "a", "p", "c", {"loss": 0.1, "failure": None})
    assert store.add_published(first) and store.add_published(first), "a lost answer is not a loss"
    assert not store.add_published(replace(first, version="b"))
    assert store.published("r", 1) == [first]


def test_a_folder_that_cannot_be_used_is_told_and_let_go(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match=r"file: cannot use this folder \(.*\); choose one that can be written"):
        Store.open(tmp_path / "file")
    (tmp_path / "db").write_text("not a database")
    for _ in range(2):
        with pytest.raises(StoreError, match="has schema 'unknown' and this program uses schema"):
            Store.open(tmp_path)


def test_a_closed_store_says_so(store: Store) -> None:
    store.close()
    store.close()
    with pytest.raises(StoreError, match="is closed"):
        store.runs()


def test_threads_may_share_a_store(store: Store) -> None:
    def write(step: int) -> None:
        for number in range(20):
            store.add_metrics("r", step, {f"m{number}": 1.0})

    threads = [threading.Thread(target=write, args=(step,)) for step in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(record.values) for record in store.metrics("r")] == [20] * 4


@pytest.mark.parametrize("name", ["Ünï cødé 数据", "a%20b", "a#b", "a&b+c", "a:b", "a'b", "a\\b"])
def test_a_store_lies_in_the_very_folder_that_was_named(name: str, tmp_path: Path) -> None:
    with Store.open(tmp_path / name):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name / "db" / "manifest").is_dir()


def test_a_path_that_the_engine_would_cut_short_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    """It would open `a` for `a?b` and for `a?c`: two stores in one."""
    with pytest.raises(StoreError, match="choose another folder"):
        Store.open(tmp_path / "a?b" / "store")
    assert not list(tmp_path.iterdir())
