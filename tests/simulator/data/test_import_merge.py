"""An import adds to what is stored: nothing stored is lost, whatever is imported, in whatever order, and whenever it is
killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from backend.cli.data import data_app
from simulator.data import importing
from simulator.data.importing import ImportReport, import_tree
from simulator.errors import DataError
from simulator.tables import timestamp_array

HOUR = 3_600_000
START = 1_704_067_200_000  # 2024-01-01 00:00
ROWS = 24


def text(rows: list[int], **changed: dict[int, float]) -> str:
    """Hourly bars of these hours since `START` as a CSV file; `changed` has other values of a column by hour."""
    lines = ["timestamp,open,high,low,close,volume"]
    for hour in rows:
        open_ = 100.0 + hour
        bar = {"open": open_, "high": open_ + 2, "low": open_ - 1, "close": open_ + 1, "volume": 10.0 + hour}
        bar |= {name: values[hour] for name, values in changed.items() if hour in values}
        lines.append(",".join([str(START + HOUR * hour), *(str(value) for value in bar.values())]))
    return "\n".join(lines) + "\n"


def put(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def table(path: Path, columns: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def stored(path: Path) -> list[dict[str, Any]]:
    return list(pq.read_table(path).to_pylist())


def refusals(report: ImportReport) -> dict[str, str]:
    return {str(one.path): one.detail for one in report.sources if one.outcome == "refused"}


def bars_csv(root: Path, rows: list[int]) -> Path:
    return put(root / "somewhere/BTCUSDT-1h.csv", text(rows))


def bars_parquet(root: Path, rows: list[int]) -> Path:
    time, price = timestamp_array(START + HOUR * np.array(rows, np.int64)), np.array(rows, np.float64) + 100
    columns = {"timestamp": time, **dict.fromkeys(("open", "high", "low", "close", "volume"), price)}
    table(root / "somewhere/BTCUSDT-1h.parquet", columns | {"half_spread": price / 1e6})
    return root


def beside(root: Path, rows: list[int]) -> Path:
    """Funding, books, a series and headlines of these hours, beside bars of all hours."""
    bars_csv(root, list(range(ROWS)))
    time, value = timestamp_array(START + HOUR * np.array(rows, np.int64)), np.array(rows, np.float64)
    table(root / "somewhere/BTCUSDT-funding.parquet", {"timestamp": time, "funding_rate": value / 1e6})
    levels = {f"{side}_{what}_1": value + at for side, at in (("bid", 1), ("ask", 2)) for what in ("price", "size")}
    table(root / "somewhere/BTCUSDT-book.parquet", {"time": time, **levels})
    table(root / "somewhere/series-onchain-BTC.parquet", {"known_at": time, "flow": value})
    texts = pa.array([f"hour {row // 2}" for row in rows])
    news = {"time": time, "known_at": time, "symbol": pa.array(["BTCUSDT", None][row % 2] for row in rows)}
    table(root / "somewhere/news.parquet", news | {"text": texts})
    return root


@pytest.mark.parametrize("make", [bars_csv, bars_parquet, beside])
@settings(max_examples=12, deadline=None)
@given(
    owners=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True), min_size=ROWS, max_size=ROWS),
    order=st.permutations(range(4)),
)
def test_the_parts_of_a_series_in_any_order_give_the_whole(
    make: Callable[[Path, list[int]], Path], owners: list[list[int]], order: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        import_tree(make(root / "whole", list(range(ROWS))), root / "one")
        for part in order:  # parts overlap where an hour has two owners
            rows = [hour for hour in range(ROWS) if part in owners[hour]]
            if rows and make is bars_csv:  # a file whose bars are all hours apart is one of another timeframe
                rows = sorted({0, 1, *rows})
            if rows:
                assert not refusals(import_tree(make(root / f"part{part}", rows), root / "many", options=None))
        venue = next((root / "one").iterdir()).name
        whole = {path.name: stored(path) for path in (root / "one" / venue).glob("*.parquet")}
        assert {path.name: stored(path) for path in (root / "many" / venue).glob("*.parquet")} == whole
        assert all(len(rows) == ROWS for rows in whole.values())


def test_two_months_one_after_the_other_are_two_months(tmp_path: Path) -> None:
    january, february = list(range(24)), list(range(744, 768))
    january_file = put(tmp_path / "in/BTCUSDT-1h-2024-01.csv", text(january))
    february_file = put(tmp_path / "in/BTCUSDT-1h-2024-02.csv", text(february))
    out = str(tmp_path / "out")
    for file in (february_file, january_file):
        done = CliRunner().invoke(data_app, ["import", str(file), "--out", out])
        assert done.exit_code == 0
    assert f"extended  {tmp_path / 'out/in/BTCUSDT-1h.parquet'}: 24 rows added" in done.output
    assert len(stored(tmp_path / "out/in/BTCUSDT-1h.parquet")) == 48


def test_an_overlap_that_disagrees_is_refused_with_its_first_bar_and_replaced_on_request(tmp_path: Path) -> None:
    target = tmp_path / "out/somewhere/BTCUSDT-1h.parquet"
    import_tree(bars_csv(tmp_path / "first", list(range(12))).parents[1], tmp_path / "out")
    before = stored(target)
    second = put(tmp_path / "second/somewhere/BTCUSDT-1h.csv", text(list(range(8, 20)), close={9: 109.5, 11: 111.5}))
    assert refusals(import_tree(second.parents[1], tmp_path / "out")) == {
        "somewhere/BTCUSDT-1h.csv": f"close of 2024-01-01 09:00 is 109.5 here and 110 in {target} (2 of 4 common rows"
        " differ); import the right one with --replace"
    }
    assert stored(target) == before
    report = import_tree(second.parents[1], tmp_path / "out", replace=True)
    assert not refusals(report) and [(c.added, c.replaced) for _, c in report.written] == [(8, 2)]
    after = stored(target)
    assert len(after) == 20 and after[:8] == before[:8] and after[9]["close"] == 109.5 and after[10] == before[10]


def test_of_several_files_only_the_one_that_disagrees_is_refused(tmp_path: Path) -> None:
    import_tree(bars_csv(tmp_path / "first", list(range(12))).parents[1], tmp_path / "out")
    put(tmp_path / "second/somewhere/BTCUSDT-1h-2024-01.csv", text(list(range(6, 14)), low={7: 1.0}))
    put(tmp_path / "second/somewhere/BTCUSDT-1h-2024-02.csv", text(list(range(10, 20))))
    report = import_tree(tmp_path / "second", tmp_path / "out")
    assert list(refusals(report)) == ["somewhere/BTCUSDT-1h-2024-01.csv"]
    assert len(stored(tmp_path / "out/somewhere/BTCUSDT-1h.parquet")) == 20


def test_columns_that_other_rows_lack_are_never_made_up(tmp_path: Path) -> None:
    target = tmp_path / "out/somewhere/BTCUSDT-1h.parquet"
    import_tree(bars_csv(tmp_path / "first", [0, 1, 2]).parents[1], tmp_path / "out")
    before = target.read_bytes()
    for rows, replace in (([3, 4], True), ([1, 2, 3], True), ([3, 4], False)):
        reason = refusals(import_tree(bars_parquet(tmp_path / "second", rows), tmp_path / "out", replace=replace))
        assert f"the column half_spread is missing in {target}" in reason["somewhere/BTCUSDT-1h.parquet"]
    assert target.read_bytes() == before
    import_tree(bars_parquet(tmp_path / "second", [0, 1, 2, 3]), tmp_path / "out", replace=True)
    assert [row["half_spread"] > 0 for row in stored(target)] == [True] * 4


def test_a_damaged_stored_file_is_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "out/somewhere/BTCUSDT-1h.parquet"
    put(target, "damaged")
    report = import_tree(bars_csv(tmp_path / "first", [0, 1]).parents[1], tmp_path / "out", replace=True)
    assert "the stored file cannot be extended" in refusals(report)["somewhere/BTCUSDT-1h.csv"]
    assert target.read_text() == "damaged"


def test_funding_and_news_of_a_later_month_join_the_bars_that_are_stored(tmp_path: Path) -> None:
    import_tree(beside(tmp_path / "first", [0, 1]), tmp_path / "out")
    later = beside(tmp_path / "later", [2, 3])
    (later / "somewhere/BTCUSDT-1h.csv").unlink()
    assert not refusals(import_tree(later, tmp_path / "out"))
    for name in ("BTCUSDT-funding", "BTCUSDT-book", "series-onchain-BTC", "news"):
        assert len(stored(tmp_path / f"out/somewhere/{name}.parquet")) == 4


def test_two_imports_at_once_never_lose_rows(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    source = bars_csv(tmp_path / "first", [0, 1]).parents[1]
    with importing.import_lock(tmp_path / "out"), pytest.raises(DataError, match="another import is writing here"):
        import_tree(source, tmp_path / "out")
    assert not refusals(import_tree(source, tmp_path / "out"))


_KILLED = """
import os, signal, sys
from pathlib import Path
from simulator import tables
from simulator.data.importing import import_tree
at, done = int(sys.argv[1]), 0
write, replace = tables.pq.write_table, os.replace
def step(action, *arguments, **options):
    global done
    done += 1
    if done > at:
        os.kill(os.getpid(), signal.SIGKILL)
    return action(*arguments, **options)
def half(table, path, **options):
    write(table, path, **options)
    os.truncate(path, os.path.getsize(path) // 2)
    step(lambda: None)
    write(table, path, **options)
tables.pq.write_table = half
tables.os.replace = lambda *arguments: step(replace, *arguments)
import_tree(Path(sys.argv[2]), Path(sys.argv[3]))
"""


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_killed_import_leaves_whole_files_and_the_same_command_finishes_it(tmp_path: Path, at: int) -> None:
    out = tmp_path / "out"
    import_tree(beside(tmp_path / "first", [0, 1]), out)
    later = beside(tmp_path / "later", [2, 3])
    before = {path.name: stored(path) for path in (out / "somewhere").glob("*.parquet")}
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(at), str(later), str(out)], timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    for name, rows in before.items():
        assert stored(out / "somewhere" / name)[: len(rows)] == rows
    assert not refusals(import_tree(later, out))
    import_tree(beside(tmp_path / "whole", [0, 1, 2, 3]), tmp_path / "one")
    for path in (tmp_path / "one/somewhere").glob("*.parquet"):
        assert stored(out / "somewhere" / path.name) == stored(path)


def special(path: Path, kind: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as one:
            (near := Path(short) / "folder").symlink_to(path.parent)  # the name of a socket has at most 107 bytes
            one.bind(str(near / path.name))
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "link":
        os.mkfifo(path.with_name("hidden"))
        path.symlink_to(path.with_name("hidden"))
    else:
        path.symlink_to(path.with_name("nowhere"))
    return path


KINDS = ["fifo", "socket", "device", "link", "nowhere"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", [".csv", ".zip", ".json", ".parquet", ".feather", ".csv.gz"])
def test_what_is_not_a_file_is_refused_and_hangs_nothing(tmp_path: Path, kind: str, suffix: str) -> None:
    path = special(tmp_path / f"in/somewhere/BTCUSDT-1h{suffix}", kind)
    with pytest.raises(DataError, match=r"it is a FIFO, device or socket|there is no such folder or file"):
        import_tree(path, tmp_path / "out")
    done = CliRunner().invoke(data_app, ["import", str(tmp_path / "in"), "--out", str(tmp_path / "out")])
    assert "nothing could be used" in str(done.exception) and "refused" in done.output
    bars_csv(tmp_path / "in/more", [0, 1])
    done = CliRunner().invoke(data_app, ["import", str(tmp_path / "in"), "--out", str(tmp_path / "out")])
    assert done.exit_code == 1 and len(stored(tmp_path / "out/somewhere/BTCUSDT-1h.parquet")) == 2


@pytest.mark.parametrize("name", ["BTCUSDT-1h.parquet", "BTCUSDT-funding.parquet", "news.parquet", "instruments.json"])
@pytest.mark.parametrize("kind", KINDS[:4])
def test_a_catalog_with_what_is_not_a_file_hangs_nothing(tmp_path: Path, kind: str, name: str) -> None:
    import_tree(bars_csv(tmp_path / "first", [0, 1]).parents[1], tmp_path / "out")
    (tmp_path / "out/somewhere" / name).unlink(missing_ok=True)
    special(tmp_path / "out/somewhere" / name, kind)
    done = CliRunner().invoke(data_app, ["check", str(tmp_path / "out/somewhere")])
    assert isinstance(done.exception, DataError)
    done = CliRunner().invoke(
        data_app, ["import", str(beside(tmp_path / "later", [2])), "--out", str(tmp_path / "out")]
    )
    assert done.exit_code == 1
