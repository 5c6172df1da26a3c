"""A run as a file: between stores, whole or not at all."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend.store import transfer
from backend.store.errors import StoreError
from backend.store.records import (
    AdapterRecord,
    BacktestRecord,
    DecisionRecord,
    EvaluationRecord,
    PublishedRecord,
    QueryRecord,
    RewardRecord,
    RolloutRecord,
    RunRecord,
    ShardRecord,
    TrajectoryRecord,
)
from backend.store.store import Store
from backend.store.transfer import export_run, import_run
from tests.backend.store.servers import server_thread

RUN = RunRecord("r", "train", 1, "hash", 1_000, {"training": {"note": None}}, "finished", 2_000, "done")
TOKENS = ((1, -2, 2**31 - 1), (False, True, True), (0.0, -0.1, -1e-40))


def fill(store: Store, run: str = "r", steps: int = 3) -> int:
    """A run with records of every kind; how many they are."""
    count = 1
    store.add_run(replace(RUN, run=run))
    for step in range(steps):
        store.put(QueryRecord(run, step, 0, 2, ("A", "B"), 7, 1_000, 9))
        store.put(RolloutRecord(run, step, 0, 0, 5, True, 0.1, {"trader": 1}, {"fees": 1.0}))
        talks = [
            TrajectoryRecord(run, step, 0, 0, "manager", 0, "v", *TOKENS, format_score=1.0),
            TrajectoryRecord(run, step, 0, 0, "trader", 0, "v", *TOKENS, reason="é\n", caller=("manager", 0)),
            TrajectoryRecord(run, step, 0, 0, "trader", 1, "v", *TOKENS, expert=0.1, caller=("trader", 0)),
        ]
        store.put(*talks)
        store.put(RewardRecord(run, step, 0, 0, "trader", 0, 0.3, {"expert": 0.1}, None))
        store.put(ShardRecord(run, step, 0, 1, 1, 3))
        store.add_published(PublishedRecord(run, "trader", step, "v", "p", "c", {"loss": 0.1}))
        store.add_metrics(run, step, {"loss": float("nan"), "grad": float("inf"), "x": 0.1})
        count += 1 + 1 + 3 + 1 + 1 + 1 + 1
    store.put(AdapterRecord(run, "trader", "v", 1, "p", "c"))
    store.put(EvaluationRecord(run, "held_out", 1, {"ci95": [0.1, None]}))
    store.put(BacktestRecord(run, "team", {"equity": [1.0, 2.5]}))
    store.put(*[DecisionRecord(run, "team", 0, 5, {"messages": ["'"]})])
    return count + 4


def everything(store: Store, run: str = "r") -> list[str]:
    return [line.decode() for line in transfer._lines(store, run)]


def test_a_run_moves_from_a_folder_to_a_server_and_back(tmp_path: Path) -> None:
    there, back = tmp_path / "sub" / "there.gz", tmp_path / "back.gz"
    with server_thread() as server, Store.open(tmp_path / "a") as folder, Store.open(server.url) as served:
        count = fill(folder)
        fill(folder, "other")
        assert export_run(folder, "r", there) == count
        assert import_run(served, there) == ("r", count)
        assert everything(served) == everything(folder)
        assert [record.run for record in served.runs()] == ["r"]
        assert served.run("r") == replace(RUN, imported=True)
        assert served.trajectories("r", 2) == folder.trajectories("r", 2)
        assert served.shards("r") == folder.shards("r")
        export_run(served, "r", back)
        assert back.read_bytes() == there.read_bytes()
        with Store.open("mem://") as third:
            import_run(third, back)
            assert everything(third) == everything(folder)


def test_a_run_that_is_there_must_be_the_very_same(tmp_path: Path, store: Store) -> None:
    fill(store)
    export_run(store, "r", tmp_path / "f")
    assert import_run(store, tmp_path / "f") == ("r", 0)
    store.add_metrics("r", 1, {"x": 0.2})
    before = everything(store)
    with pytest.raises(StoreError, match="the store has another run of this id: nothing was changed"):
        import_run(store, tmp_path / "f")
    assert everything(store) == before


def test_an_import_cut_short_shows_no_run_and_can_be_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open("mem://") as one, Store.open("mem://") as other:
        fill(one)
        export_run(one, "r", tmp_path / "f")
        put, calls = Store.put, iter(range(100))

        def dying(store: Store, *records: Any) -> None:
            if next(calls) == 4:
                raise KeyboardInterrupt
            put(store, *records)

        with monkeypatch.context() as patched:
            patched.setattr(Store, "put", dying)
            with pytest.raises(KeyboardInterrupt):
                import_run(other, tmp_path / "f")
        assert other.runs() == []
        import_run(other, tmp_path / "f")
        assert everything(other) == everything(one)


def test_an_export_cut_short_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = transfer._lines

    def dying(store: Store, run: str) -> Any:
        for number, line in enumerate(lines(store, run)):
            if number == 6:
                raise KeyboardInterrupt
            yield line

    with Store.open("mem://") as store:
        fill(store)
        monkeypatch.setattr(transfer, "_lines", dying)
        with pytest.raises(KeyboardInterrupt):
            export_run(store, "r", tmp_path / "f")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_exported_is_told(tmp_path: Path) -> None:
    with Store.open("mem://") as store:
        fill(store)
        with pytest.raises(StoreError, match="has no run 'q'"):
            export_run(store, "q", tmp_path / "f")
        (tmp_path / "there").write_text("mine")
        with pytest.raises(StoreError, match="there exists already: give another file, or remove it"):
            export_run(store, "r", tmp_path / "there")
        assert (tmp_path / "there").read_text() == "mine"
        with pytest.raises(StoreError, match=r"cannot be written \(.*\): give another file"):
            export_run(store, "r", tmp_path / "there" / "f")
        store.resume_run(replace(RUN, status="running"))
        with pytest.raises(StoreError, match="run r is still running: export it when it has ended"):
            export_run(store, "r", tmp_path / "f")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def _relined(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[bytes], bytes]:
    return lambda data: gzip.compress(b"".join(change(gzip.decompress(data).splitlines(keepends=True))))


def _header(**changed: object) -> Callable[[bytes], bytes]:
    def change(lines: list[bytes]) -> list[bytes]:
        return [json.dumps({**json.loads(lines[0]), **changed}).encode() + b"\n", *lines[1:]]

    return _relined(change)


DAMAGED, FOREIGN = "is damaged", "is not an exported run: give a file that `cryptosentinel runs export` wrote"
BROKEN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", FOREIGN),
    "text": (lambda data: b"hello\n", FOREIGN),
    "another archive": (lambda data: gzip.compress(b"hello\n"), FOREIGN),
    "other JSON": (lambda data: gzip.compress(b'{"format": "x", "version": 1, "schema": 1, "run": "r"}\n'), FOREIGN),
    "a list": (lambda data: gzip.compress(b"[1, 2]\n"), FOREIGN),
    "cut": (lambda data: data[: len(data) // 2], DAMAGED),
    "without its end": (lambda data: data[:-4], DAMAGED),
    "one bit": (lambda data: data[:-6] + bytes([data[-6] ^ 1]) + data[-5:], DAMAGED),
    "only the header": (_relined(lambda lines: lines[:1]), FOREIGN),
    "no last line": (_relined(lambda lines: lines[:-1]), FOREIGN),
    "a line behind the run": (_relined(lambda lines: [*lines, lines[3]]), FOREIGN),
    "a text for a number": (_relined(lambda lines: [lines[0], lines[1].replace(b"7", b'"7"'), *lines[2:]]), DAMAGED),
    "no record": (_relined(lambda lines: [lines[0], b"{}\n", *lines[2:]]), DAMAGED),
    "bytes that are none": (
        _relined(lambda lines: [line.replace(b'"base64":"', b'"base64":"!') for line in lines]), DAMAGED
    ),
    "another run's": (_header(run="q"), FOREIGN),
    "another schema": (_header(schema=99), "and this program reads"),
}  # fmt: skip


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_file_is_told_and_changes_nothing(tmp_path: Path, how: str) -> None:
    breaking, complaint = BROKEN[how]
    with Store.open("mem://") as one, Store.open("mem://") as other:
        fill(one)
        export_run(one, "r", tmp_path / "f")
        (tmp_path / "g").write_bytes(breaking((tmp_path / "f").read_bytes()))
        with pytest.raises(StoreError, match=complaint):
            import_run(other, tmp_path / "g")
        assert other.runs() == [] and other.metrics("r") == []


def test_a_file_that_is_not_there_is_told(tmp_path: Path, store: Store) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(StoreError, match=r"cannot be read \(.*\): give the file of an exported run"):
            import_run(store, path)
