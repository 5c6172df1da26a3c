"""A store of SurrealDB 2 is recognised, left alone, and converted: whole or not at all, and never with less in it.

The former engine is not installed for the fast tests. A script stands in for its Python: it prints lines that
`export_2.py` wrote of a real folder of engine 2, which `old_records.py` had made.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backend.store import ServiceRecord, ShardRecord, Store, StoreError
from backend.store.folder_swap import WORKPLACE, finish_swap
from backend.store.former_engine import conversion
from backend.store.former_engine.conversion import convert_store
from backend.store.lock import FolderLock
from backend.store.maintenance.tables import Tables
from tests.backend.store import old_records
from tests.command_line import Run, program

RECORDED = Path(__file__).with_name("former_engine_2.jsonl")
REAL = Path(__file__).parents[3] / ".venv-former-engine" / "bin" / "python"
needs_real = [
    pytest.mark.slow,
    pytest.mark.skipif(not REAL.exists(), reason="the former engine is not installed: run `make .venv-former-engine`"),
]
RECORDS = {
    "run": 2, "trajectory": 2, "decision": 2, "query": 1, "rollout": 1, "delegated": 1, "reward": 1, "shard": 1,
    "published": 1, "adapter": 1, "evaluation": 1, "backtest": 1, "metric": 1, "service": 1,
}  # fmt: skip


@pytest.fixture
def former(tmp_path: Path) -> Path:
    """A folder that looks as engine 2 left it and engine 3 tried to open it."""
    folder = tmp_path / "store"
    for name in ("clog", "manifest", "wal", "vlog", "sstables"):
        (folder / "db" / name).mkdir(parents=True)
    (folder / "db" / "LOCK").touch()
    (folder / "db" / "clog" / "0.clog").write_bytes(bytes(5000))
    return folder


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """command("runs", ...) runs the program in an empty folder, as the shell would."""
    (tmp_path / "cwd").mkdir()
    return program(tmp_path / "cwd", monkeypatch, capsys)


def content(folder: Path) -> dict[str, bytes | None]:
    """All files and folders below a folder, but for the lock."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if path.name != "lock"
    }


def stand_in(folder: Path, script: str, lines: bytes | None = None) -> Path:
    """A Python that runs a shell script, in which $LINES are the lines to print and $3 is the database to read."""
    recorded = folder / "lines.jsonl"
    recorded.write_bytes(RECORDED.read_bytes() if lines is None else lines)
    python = folder / "python"
    python.write_text(f"#!/bin/sh\nLINES='{recorded}'\n{script}\n")
    python.chmod(0o755)
    return python


def nothing(what: str, done: int, total: int) -> None:
    pass


def lines_with(change: Callable[[list[Any]], None]) -> bytes:
    """The recorded lines after a change, with a last line that fits them."""
    documents = [json.loads(line) for line in RECORDED.read_bytes().splitlines()][:-1]
    change(documents)
    lines = [json.dumps(document).encode() + b"\n" for document in documents]
    counts: dict[str, int] = {}
    for document in documents[1:]:
        counts[document[0]] = counts.get(document[0], 0) + 1
    end = {"records": counts, "sha256": hashlib.sha256(b"".join(lines)).hexdigest()}
    return b"".join(lines) + json.dumps(end).encode() + b"\n"


def check(store: Store) -> None:
    """Everything that `old_records.py` wrote is there, with its types."""
    by_id = {run.run: run for run in store.runs()}
    assert set(by_id) == {"old", "killed"}
    assert (by_id["killed"].status, by_id["killed"].config) == ("interrupted", {"a": 1.0})
    assert "former engine" in str(by_id["killed"].message)
    manager, trader = store.trajectories("old", 0)
    assert (manager.ids, manager.mask, manager.sampled_logps) == ((1, 2), (False, True), (0.0, -0.5))
    assert (manager.caller, trader.caller) == (None, ("manager", 0))
    assert [(edge.caller, edge.role) for edge in store.delegations("old", 0)] == [(("manager", 0), "trader")]
    (query,), (rollout,), (reward,) = store.queries("old", 0), store.rollouts("old", 0), store.rewards("old", 0)
    assert (query.seed, query.time, query.symbols) == (-(2**63), 2**41, ("C1", "C2"))
    assert (rollout.parts, rollout.calls) == ({"fees": -0.1, "net": 1e-300}, {"trader": 1, "analyst": 0})
    assert (reward.total, str(reward.advantage)) == (0.1 + 0.2, "-0.0")
    (metric,) = store.metrics("old")
    assert math.isnan(metric.values.pop("loss")) and metric.values == {"steps": 3.0, "manager/reward/mean": 0.1}
    assert store.evaluations("old")[0].result == {"a": [1, 2.5, "ü数"]}
    assert [record.document for record in store.decisions("old")] == [json.loads(old_records.STORY)] * 2


def test_it_is_refused_and_left_as_it_was(former: Path, command: Run) -> None:
    before = content(former)
    for _ in range(2):  # the second time shows that the first let the folder go
        with pytest.raises(StoreError, match=r"former engine .SurrealDB 2.*`cryptosentinel store convert .*store`"):
            Store.open(former)
    for arguments in (["runs"], ["store", "check"], ["store", "compact"]):
        done = command(*arguments, "--store", former)
        assert (done.code, "store convert" in done.err) == (2, True), (arguments, done.err)
    assert content(former) == before


def test_it_is_converted_with_every_record_and_the_original_is_kept(former: Path, tmp_path: Path) -> None:
    before = content(former / "db")
    told: dict[str, tuple[int, int]] = {}

    def tell(what: str, done: int, total: int) -> None:
        told[what] = (done, total)

    # Engine 2 must not see what engine 3 left.
    python = stand_in(tmp_path, '[ "$(ls "$3" | tr "\\n" " ")" = "clog manifest " ] && cat "$LINES"')
    converted = convert_store(former, python, tell)
    total = sum(RECORDS.values())
    assert {table: count for table, count in converted.records.items() if count} == RECORDS
    assert told == {"converted": (total, total), "verified": (total, total)}
    assert (converted.kept, converted.dropped) == (former / "db-engine-2", 0)
    assert content(converted.kept) == before
    assert not (former / WORKPLACE).exists()
    with Store.open(former) as store:
        check(store)
        assert Tables(store).identity == "the store"
        (run,) = Tables(store).run_ids(ShardRecord)
        assert (Tables(store).total(ShardRecord, run), Tables(store).total(ServiceRecord, run)) == (1, 1)
    with pytest.raises(StoreError, match="nothing to convert"):
        convert_store(former, python, nothing)


def test_the_command_converts_and_says_where_the_original_is(
    former: Path, tmp_path: Path, command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", nowhere)  # the machine's folder for temporary files is full
    monkeypatch.setenv("CRYPTOSENTINEL_FORMER_PYTHON", str(stand_in(tmp_path, 'cat "$LINES"')))
    (former / "db-engine-2").mkdir()  # of another conversion
    done = command("store", "convert", former)
    assert (done.code, done.err) == (0, "")
    assert "2 runs with 17 records" in done.out and "db-engine-2-2" in done.out
    assert (former / "db-engine-2-2" / "clog").is_dir()
    done = command("store", "convert", tmp_path / "nowhere")
    assert (done.code, "holds no store" in done.err) == (2, True)


def test_a_missing_former_engine_is_named_with_the_way_to_get_it(former: Path, tmp_path: Path) -> None:
    before = content(former)
    with pytest.raises(StoreError, match=r"cannot be run: run `make .venv-former-engine`.*--former-python"):
        convert_store(former, tmp_path / "python", nothing)
    assert content(former) == before


def test_a_store_in_use_is_refused(former: Path, tmp_path: Path) -> None:
    lock = FolderLock(former)
    with pytest.raises(StoreError, match="in use by this very process"):
        convert_store(former, stand_in(tmp_path, 'cat "$LINES"'), nothing)
    lock.release()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ('head -n 9 "$LINES"; kill -9 $$', "was killed by signal 9"),
        ('head -n 9 "$LINES"', "ended with exit code 0"),
        ('cat "$LINES"; echo "no room" >&2; exit 3', "ended with exit code 3: no room"),
        ('cat "$LINES" "$LINES"', "something follows its end"),
        ('sed 10d "$LINES"', "its sum is another one"),
        ('sed "s/-0.5/-0.25/;s/0.30000000000000004/0.3/" "$LINES"', "its sum is another one"),
        ('echo "["', "JSONDecodeError|ValueError"),
        ("head -c 200000 /dev/zero", "Error in line 2"),
        ("true", "ended with exit code 0"),
    ],
)
def test_what_the_former_engine_does_not_give_whole_changes_nothing(
    former: Path, tmp_path: Path, script: str, reason: str
) -> None:
    before = content(former)
    with pytest.raises(StoreError, match=reason):
        convert_store(former, stand_in(tmp_path, script), nothing)
    assert content(former) == before
    convert_store(former, stand_in(tmp_path, 'cat "$LINES"'), nothing)  # it can be started again


def _set(line: int, **fields: Any) -> Callable[[list[Any]], None]:
    def change(documents: list[Any]) -> None:
        (documents[line] if line == 0 else documents[line][2]).update(fields)

    return change


def _key(documents: list[Any]) -> None:
    documents[3][1][1] = 7


def _less(documents: list[Any]) -> None:
    del documents[2]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_set(0, schema=99), "version 99 of the schema"),
        (_set(0, schema="3"), "version 3 of the schema"),
        (_set(0, format="another"), "its format is unknown"),
        (_set(0, identity=7), "its identity is no text"),
        (_set(0, records={"coins": 3}), "a table that is not of this program, coins"),
        (_set(1, bar="9"), "table query is damaged .*its bar"),
        (_set(3, ids={"base64": "A"}), "damaged"),
        (_set(3, ids={"base64": "AQAAAA=="}), "the lengths must be equal"),
        (_set(5, caller=["trader", 0]), "joins other conversations than it says"),
        (_set(5, **{"in": None}), "joins other conversations than it says"),
        (_set(14, values={"x": "1"}), "table metric is damaged"),
        (_set(15, run="../x"), "damaged .*run id"),
        (_key, "has the fields of another one"),
        (_less, "0 of 1 records of the table rollout"),
    ],
)
def test_a_record_that_is_none_of_ours_is_refused_and_named(
    former: Path, tmp_path: Path, change: Callable[[list[Any]], None], reason: str
) -> None:
    before = content(former)
    with pytest.raises(StoreError, match=reason):
        convert_store(former, stand_in(tmp_path, 'cat "$LINES"', lines_with(change)), nothing)
    assert content(former) == before


def test_a_log_that_the_former_engine_cuts_is_refused_unless_asked_for(former: Path, tmp_path: Path) -> None:
    python = stand_in(tmp_path, 'truncate -s 3000 "$3/clog/0.clog"; cat "$LINES"')
    before = content(former)
    with pytest.raises(StoreError, match=r"3,000 of its 5,000 bytes .17 records.*--salvage"):
        convert_store(former, python, nothing)
    assert content(former) == before
    assert convert_store(former, python, nothing, salvage=True).dropped == 2000
    assert (former / "db-engine-2" / "clog" / "0.clog").stat().st_size == 5000


def test_ctrl_c_ends_the_former_engine_and_changes_nothing(former: Path, tmp_path: Path) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    before = content(former)
    python = stand_in(tmp_path, f'echo $$ > "{tmp_path}/process"; cat "$LINES"; exec sleep 60')
    with pytest.raises(KeyboardInterrupt):
        convert_store(former, python, interrupt)
    assert content(former) == before
    process = int((tmp_path / "process").read_text())
    assert subprocess.run(["kill", "-0", str(process)], capture_output=True).returncode != 0


@pytest.mark.parametrize("renamed", [0, 1, 2])
def test_cut_short_while_the_databases_change_places_it_is_finished_by_the_next_opener(
    former: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renamed: int
) -> None:
    before = content(former / "db")

    def die(folder: Path) -> None:
        """As `finish_swap`, up to a rename; at its first call there is nothing to exchange."""
        if (folder / WORKPLACE / "ready").exists():
            if renamed > 0:
                (folder / "db").rename(folder / "db-engine-2")
            if renamed > 1:
                (folder / WORKPLACE / "db").rename(folder / "db")
            raise OSError(5, "Input/output error")
        finish_swap(folder)

    monkeypatch.setattr(conversion, "finish_swap", die)
    with pytest.raises(StoreError, match="nothing of it is lost"):
        convert_store(former, stand_in(tmp_path, 'cat "$LINES"'), nothing)
    with Store.open(former) as store:
        check(store)
    assert content(former / "db-engine-2") == before
    assert not (former / WORKPLACE).exists()


def test_what_a_killed_conversion_left_is_removed(former: Path, tmp_path: Path) -> None:
    before = content(former)
    for name in ("db", "source"):
        (former / WORKPLACE / name).mkdir(parents=True)
        (former / WORKPLACE / name / "part").write_text("part")
    with pytest.raises(StoreError, match="store convert"):
        Store.open(former)
    assert content(former) == before


# -- with the former engine itself -------------------------------------------------------------------------------------


def write_real(folder: Path, version: int, steps: int = 1) -> None:
    script = Path(old_records.__file__)
    subprocess.run([str(REAL), "-I", str(script), str(folder), str(version), str(steps)], check=True)


class TestReal:
    """Folders that SurrealDB 2 itself wrote."""

    pytestmark = needs_real

    @pytest.mark.parametrize("version", [1, 2, 3])
    def test_a_store_of_each_version_is_converted(self, tmp_path: Path, version: int) -> None:
        write_real(tmp_path / "store", version)
        before = content(tmp_path / "store" / "db")
        converted = convert_store(tmp_path / "store", REAL, nothing)
        absent = ("shard", "service", "published") if version == 1 else ()
        wanted = {table: count for table, count in RECORDS.items() if table not in absent}
        assert {table: count for table, count in converted.records.items() if count} == wanted
        assert content(converted.kept) == before
        with Store.open(tmp_path / "store") as store:
            check(store)
            assert version == 1 or Tables(store).identity == "the store"

    def test_the_recorded_lines_are_those_of_the_exporter(self, tmp_path: Path) -> None:
        write_real(tmp_path / "store", 3)
        exporter = Path(conversion.__file__).with_name("export_2.py")
        tables = [json.loads(line)[0] for line in RECORDED.read_bytes().splitlines()[1:-1]]
        command = [str(REAL), "-I", str(exporter), str(tmp_path / "store" / "db"), *dict.fromkeys(tables)]
        assert subprocess.run(command, capture_output=True, check=True).stdout == RECORDED.read_bytes()

    def test_a_flipped_bit_anywhere_in_the_log_is_never_a_smaller_store(self, tmp_path: Path) -> None:
        write_real(tmp_path / "whole", 3)
        (log,) = (tmp_path / "whole" / "db" / "clog").iterdir()
        data = log.read_bytes()
        for at in range(3, len(data), len(data) // 25):
            folder = tmp_path / f"at {at}"
            shutil.copytree(tmp_path / "whole", folder)
            changed = bytearray(data)
            changed[at] ^= 1 << at % 8
            (folder / "db" / "clog" / log.name).write_bytes(changed)
            before = content(folder)
            try:
                converted = convert_store(folder, REAL, nothing)
            except StoreError:
                assert content(folder) == before
            else:
                assert {table: count for table, count in converted.records.items() if count} == RECORDS, at

    def test_what_is_no_store_of_this_program_is_refused(self, tmp_path: Path) -> None:
        text = (
            "import sys; from surrealdb import BlockingEmbeddedSurrealConnection as C\n"
            "with C('surrealkv://' + sys.argv[1]) as c: c.use('n', 'd'); c.query_raw('CREATE coins:1')"
        )
        (tmp_path / "store").mkdir()
        subprocess.run([str(REAL), "-I", "-c", text, str(tmp_path / "store" / "db")], check=True)
        with pytest.raises(StoreError, match="no version of the schema: it is no store of this program"):
            convert_store(tmp_path / "store", REAL, nothing)
