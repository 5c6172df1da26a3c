"""Files of other programs become catalogs: nothing unsound gets in, nothing stored is lost, whatever is imported, in
whatever order, and whenever it is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
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
from simulator.data.archive import write_market
from simulator.data.catalog import Catalog
from simulator.data.importing import ImportReport, import_tree
from simulator.errors import DataError
from simulator.market.timeframes import parse_time
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from simulator.tables import timestamp_array

ROOT = Path(__file__).resolve().parents[3]
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


def table(path: Path, rows: list[int], **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"timestamp": timestamp_array(START + HOUR * np.array(rows, np.int64)), **columns}), path)


def bars_csv(root: Path, rows: list[int]) -> Path:
    put(root / "somewhere/BTCUSDT-1h.csv", text(rows))
    return root


def bars_parquet(root: Path, rows: list[int]) -> Path:
    price = np.array(rows, np.float64) + 100
    table(
        root / "somewhere/BTCUSDT-1h.parquet", rows, **dict.fromkeys(("open", "high", "low", "close", "volume"), price)
    )
    return root


def beside(root: Path, rows: list[int]) -> Path:
    """Funding of these hours, beside bars of all hours."""
    bars_csv(root, list(range(ROWS)))
    table(root / "somewhere/BTCUSDT-funding.parquet", rows, funding_rate=np.array(rows, np.float64) / 1e6)
    return root


def stored(path: Path) -> list[dict[str, Any]]:
    return list(pq.read_table(path).to_pylist())


def outcomes(report: ImportReport) -> dict[str, str]:
    return {str(one.path): one.outcome for one in report.sources}


def refusals(report: ImportReport) -> dict[str, str]:
    return {str(one.path): one.detail for one in report.sources if one.outcome == "refused"}


def states(report: ImportReport) -> Counter[str]:
    return Counter(change.state for _, change in report.written)


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two venues of one symbol, funding beside them, and files of which nothing can be taken."""
    root, hours = tmp_path / "tree", list(range(48))
    bars_parquet(root / "a", hours)
    (root / "a/somewhere").rename(root / "coins")
    put(root / "coins/ETHUSDT-1h.csv", text(hours))
    put(root / "perp/BTCUSDT-1h.csv", text(hours, close={3: 103.5}))
    table(root / "perp/BTCUSDT-funding.parquet", [0, 8, 16], funding_rate=[1e-4] * 3)
    (root / "a").rmdir()
    # Nothing to be taken:
    (root / "coins/SOLUSDT-1h.parquet").write_bytes(b"no parquet")
    put(root / "coins/XRPUSDT-1h.csv", text(hours, high={5: 1.0}))
    put(root / "coins/hours.csv", text(hours))
    table(root / "misc/ZZZUSDT-funding.parquet", [0], funding_rate=[0.1])
    table(root / "misc/news.parquet", [0], title=["ether"])
    return root


def test_every_file_is_recognized_and_stands_where_it_belongs(tree: Path, tmp_path: Path) -> None:
    before, steps, out = snapshot(tree), list[tuple[int, int]](), tmp_path / "out"
    report = import_tree(tree, out, progress=lambda done, total: steps.append((done, total)))
    assert snapshot(tree) == before
    said = {str(one.path): (one.outcome, one.detail) for one in report.sources}
    for path, (outcome, reason) in {
        "coins/SOLUSDT-1h.parquet": ("refused", "not a readable Parquet file"),
        "coins/XRPUSDT-1h.csv": ("refused", "line 7: the first of 1 rows that are impossible"),
        "coins/hours.csv": ("refused", "its symbol is not known"),
        "misc/ZZZUSDT-funding.parquet": ("refused", "no bars of ZZZUSDT"),
        "misc/news.parquet": ("unknown", "not a table of bars or funding; it has the columns timestamp, title"),
    }.items():
        assert said[path][0] == outcome and reason in said[path][1]
    assert sum(outcome == "taken" for outcome, _ in said.values()) == 4
    assert len(report.sources) == len(before) == steps[-1][0] == steps[-1][1]
    assert [path.name for path in report.catalogs] == ["coins", "perp"] and set(states(report)) == {"written"}
    assert sorted(path.name for path in (out / "coins").glob("*.parquet")) == [
        "BTCUSDT-1h.parquet",
        "ETHUSDT-1h.parquet",
    ]
    spot, perp = (Catalog(out / venue).load(timeframe="1h") for venue in ("coins", "perp"))
    assert spot.close[:, 0].tolist() == [100.0 + hour for hour in range(48)]
    assert perp.close[3, 0] == 103.5 and len(perp.funding["BTCUSDT"]) == 3 and not spot.funding
    assert not [issue for venue in ("coins", "perp") for issue in Catalog(out / venue).check() if issue.fatal]


def test_importing_again_changes_nothing_and_other_content_is_refused(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = import_tree(tree, out)
    before = snapshot(out)
    again = import_tree(tree, out)
    assert states(again) == {"unchanged": len(first.written)} and snapshot(out) == before
    put(tree / "perp/BTCUSDT-1h.csv", text(list(range(48)), close={3: 103.25}))
    refused = import_tree(tree, out)
    assert outcomes(refused)["perp/BTCUSDT-1h.csv"] == "refused" and snapshot(out) == before
    narrow = import_tree(tree, out, ["BTCUSDT"])
    assert set(states(narrow)) == {"unchanged"} and outcomes(narrow)["coins/ETHUSDT-1h.csv"] == "left out"


def test_what_makes_an_import_impossible_is_one_clear_error(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("in the way")
    cases: list[tuple[Path, Path, list[str] | None, str]] = [
        (tmp_path / "nowhere", tmp_path / "out", None, "no such folder or file"),
        (tmp_path / "empty", tmp_path / "out", None, "holds no file that ends with .parquet"),
        (tree, tree / "out", None, "lies in the tree that is imported"),
        (tree, tree, None, "lies in the tree that is imported"),
        (tree / "coins", tree, None, "coins: lies in the tree that is imported"),
        (tree, tmp_path / "out", ["DOGEUSDT"], "no bars of DOGEUSDT"),
        (tree, tmp_path / "file", None, "cannot be written"),
    ]
    before = snapshot(tree)
    for source, out, symbols, message in cases:
        with pytest.raises(DataError, match=message) as caught:
            import_tree(source, out, symbols)
        assert "\n" not in str(caught.value)
    assert snapshot(tree) == before


def test_a_written_market_is_never_mixed_with_imported_files(tree: Path, tmp_path: Path) -> None:
    write_market(generate(SyntheticConfig(bars=9, seed=1)), tmp_path / "out/coins")
    before = snapshot(tmp_path / "out")
    report = import_tree(tree, tmp_path / "out")
    assert [path.name for path in report.catalogs] == ["perp"]
    assert outcomes(report)["coins/BTCUSDT-1h.parquet"] == "refused"
    assert before.items() <= snapshot(tmp_path / "out").items()


def test_the_command_reports_every_file_and_fails_only_if_nothing_could_be_used(tree: Path, tmp_path: Path) -> None:
    runner, out = CliRunner(), str(tmp_path / "out")
    done = runner.invoke(data_app, ["import", str(tree), "--out", out])
    assert done.exit_code == 1, "files were refused"
    for path in snapshot(tree):
        assert path in done.output
    assert "refused   coins/XRPUSDT-1h.csv: line 7: " in done.output
    put(tree / "perp/BTCUSDT-1h.csv", text(list(range(48)), close={3: 103.25}))
    done = runner.invoke(data_app, ["import", str(tree / "perp/BTCUSDT-1h.csv"), "--out", out])
    assert done.exit_code == 1 and "move the stored file away to replace it" in done.output
    only = runner.invoke(data_app, ["import", str(tree / "misc"), "--out", str(tmp_path / "none")])
    assert isinstance(only.exception, DataError) and "nothing could be used" in str(only.exception)
    assert not (tmp_path / "none").exists()


# What is stored stays


@pytest.mark.parametrize("make", [bars_csv, bars_parquet, beside])
@settings(max_examples=8, deadline=None)
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
            if rows:  # a file whose bars are all hours apart is one of another timeframe
                rows = sorted({0, 1, *rows})
                assert not refusals(import_tree(make(root / f"part{part}", rows), root / "many"))
        whole = {path.name: stored(path) for path in (root / "one/somewhere").glob("*.parquet")}
        assert {path.name: stored(path) for path in (root / "many/somewhere").glob("*.parquet")} == whole
        assert all(len(rows) == ROWS for rows in whole.values())


def test_two_months_one_after_the_other_are_two_months(tmp_path: Path) -> None:
    january_file = put(tmp_path / "in/BTCUSDT-1h-2024-01.csv", text(list(range(24))))
    february_file = put(tmp_path / "in/BTCUSDT-1h-2024-02.csv", text(list(range(744, 768))))
    for file in (february_file, january_file):
        done = CliRunner().invoke(data_app, ["import", str(file), "--out", str(tmp_path / "out")])
        assert done.exit_code == 0
    assert f"extended  {tmp_path / 'out/in/BTCUSDT-1h.parquet'}: 24 rows added" in done.output
    assert len(stored(tmp_path / "out/in/BTCUSDT-1h.parquet")) == 48


def test_only_the_file_that_disagrees_with_what_is_stored_is_refused_with_its_first_bar(tmp_path: Path) -> None:
    target = tmp_path / "out/somewhere/BTCUSDT-1h.parquet"
    import_tree(bars_csv(tmp_path / "first", list(range(12))), tmp_path / "out")
    before = stored(target)
    put(tmp_path / "second/somewhere/BTCUSDT-1h-2024-01.csv", text(list(range(8, 14)), close={9: 109.5, 11: 111.5}))
    put(tmp_path / "second/somewhere/BTCUSDT-1h-2024-02.csv", text(list(range(10, 20))))
    assert refusals(import_tree(tmp_path / "second", tmp_path / "out")) == {
        "somewhere/BTCUSDT-1h-2024-01.csv": f"close of 2024-01-01 09:00 is 109.5 here and 110 in {target} (2 of 4"
        " common rows differ); move the stored file away to replace it"
    }
    after = stored(target)
    assert len(after) == 20 and after[:12] == before


def test_columns_that_other_rows_lack_are_never_made_up(tmp_path: Path) -> None:
    target = tmp_path / "out/somewhere/BTCUSDT-1h.parquet"
    price = np.arange(3.0) + 100
    columns = dict.fromkeys(("open", "high", "low", "close", "volume"), price)
    table(target, [0, 1, 2], **columns, half_spread=price / 1e6)
    before = target.read_bytes()
    reason = refusals(import_tree(bars_csv(tmp_path / "second", [3, 4]), tmp_path / "out"))
    assert f"{target} has the column half_spread, which the imported file lacks" in reason["somewhere/BTCUSDT-1h.csv"]
    assert target.read_bytes() == before


def test_a_damaged_stored_file_is_not_overwritten(tmp_path: Path) -> None:
    target = put(tmp_path / "out/somewhere/BTCUSDT-1h.parquet", "damaged")
    report = import_tree(bars_csv(tmp_path / "first", [0, 1]), tmp_path / "out")
    assert "the stored file cannot be extended" in refusals(report)["somewhere/BTCUSDT-1h.csv"]
    assert target.read_text() == "damaged"


def test_two_imports_at_once_never_lose_rows(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    source = bars_csv(tmp_path / "first", [0, 1])
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


@pytest.mark.parametrize("at", [0, 1])
def test_a_killed_import_leaves_whole_files_and_the_same_command_finishes_it(tmp_path: Path, at: int) -> None:
    out = tmp_path / "out"
    import_tree(beside(tmp_path / "first", [0, 1]), out)
    later = beside(tmp_path / "later", [2, 3])
    before = {path.name: stored(path) for path in (out / "somewhere").glob("*.parquet")}
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(at), str(later), str(out)], timeout=300, check=False)
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
def test_what_is_not_a_file_is_refused_and_hangs_nothing(tmp_path: Path, kind: str) -> None:
    for suffix in (".csv", ".zip", ".json", ".parquet", ".feather", ".csv.gz"):
        path = special(tmp_path / f"in/{kind}{suffix}/BTCUSDT-1h{suffix}", kind)
        with pytest.raises(DataError, match=r"it is a FIFO, device or socket|there is no such folder or file"):
            import_tree(path, tmp_path / "out")
    done = CliRunner().invoke(data_app, ["import", str(tmp_path / "in"), "--out", str(tmp_path / "out")])
    assert "nothing could be used" in str(done.exception) and "refused" in done.output
    bars_csv(tmp_path / "in/more", [0, 1])
    done = CliRunner().invoke(data_app, ["import", str(tmp_path / "in"), "--out", str(tmp_path / "out")])
    assert done.exit_code == 1 and len(stored(tmp_path / "out/somewhere/BTCUSDT-1h.parquet")) == 2


@pytest.mark.parametrize("name", ["BTCUSDT-1h.parquet", "BTCUSDT-funding.parquet", "news.parquet", "instruments.json"])
def test_a_catalog_with_what_is_not_a_file_hangs_nothing(tmp_path: Path, name: str) -> None:
    import_tree(bars_csv(tmp_path / "first", [0, 1]), tmp_path / "out")
    for kind in KINDS[:4]:
        (tmp_path / "out/somewhere" / name).unlink(missing_ok=True)
        (tmp_path / "out/somewhere/hidden").unlink(missing_ok=True)
        special(tmp_path / "out/somewhere" / name, kind)
        done = CliRunner().invoke(data_app, ["check", str(tmp_path / "out/somewhere")])
        assert isinstance(done.exception, DataError)


def test_the_recorded_bars_and_funding_are_taken_and_their_flash_wicks_reported(tmp_path: Path) -> None:
    base = Path(os.environ.get("CRYPTOSENTINEL_SHARED", ROOT.parent / "shared")) / "market-data"
    if not base.is_dir():
        pytest.skip(f"no recorded market data at {base} (set CRYPTOSENTINEL_SHARED to the folder that holds it)")
    report = import_tree(base, tmp_path)
    assert all("there are no bars of" in reason for reason in refusals(report).values())
    assert [path.name for path in report.catalogs] == ["binance", "binance-usdm", "yahoo"]
    traded = {catalog.name: {one.kind for one in kinds.values()} for catalog, kinds in report.kinds.items()}
    assert traded == {"binance": {"spot"}, "binance-usdm": {"perpetual"}, "yahoo": {"spot"}}
    perp = Catalog(tmp_path / "binance-usdm").load(["BTCUSDT"], "1h", end=parse_time("2019-12-01"))
    assert perp.funding["BTCUSDT"][0].time == parse_time("2019-09-10T08:00")
    for venue, symbol, reply in (
        ("binance", "LINKUSDT", "2020-03-12 10:00"),
        ("binance-usdm", "ETHUSDT", "2020-03-13 02:00"),
        ("binance-usdm", "ADAUSDT", "2020-02-28 17:00"),
    ):
        wicks = [one for one in Catalog(tmp_path / venue).check([symbol], "1h") if one.kind == "flash_wick"]
        assert len(wicks) == 1 and not wicks[0].fatal and wicks[0].count < 20
        assert f"the furthest at {reply}" in wicks[0].detail
