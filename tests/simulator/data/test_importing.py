"""A tree of recorded files becomes catalogs: nothing unsound gets in, nothing is dropped or overwritten in silence."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from backend.cli.data import data_app
from simulator.data.archive import write_market
from simulator.data.catalog import Catalog
from simulator.data.importing import ImportReport, import_tree
from simulator.errors import DataError
from simulator.market.timeframes import parse_time
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate

ROOT = Path(__file__).resolve().parents[3]
HOUR, DAY = 3_600_000, 86_400_000
START = 1_700_006_400_000  # 2023-11-15 00:00
Columns = dict[str, Any]


def hourly(bars: int = 48, seed: int = 0) -> Columns:
    close = 100 * np.exp(np.cumsum(np.random.default_rng(seed).normal(0, 0.01, bars)))
    open_ = np.concatenate([[100.0], close[:-1]])
    high, low = np.maximum(open_, close) * 1.01, np.minimum(open_, close) * 0.99
    columns: Columns = {"open": open_, "high": high, "low": low, "close": close, "volume": np.ones(bars)}
    return {"timestamp": START + HOUR * np.arange(bars, dtype=np.int64)} | columns


def put(path: Path, columns: Columns) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if "timestamp" in columns:
        columns = columns | {"timestamp": pa.array(columns["timestamp"], pa.int64()).cast(pa.timestamp("ms", "UTC"))}
    pq.write_table(pa.table(columns), path)


def days(**columns: list[float]) -> Columns:
    return {"timestamp": START + DAY * np.arange(len(next(iter(columns.values())))), **columns}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two venues of one symbol, all kinds of files beside them, and files of which nothing can be taken."""
    root = tmp_path / "tree"
    put(root / "spot/BTCUSDT-1h.parquet", hourly(seed=1))
    put(root / "spot/ETHUSDT-1h.parquet", hourly(seed=2) | {"trades": np.arange(48)})
    put(root / "perp/BTCUSDT-1h.parquet", hourly(seed=3))
    put(
        root / "funding/perp/BTCUSDT-funding.parquet",
        {"timestamp": START + 8 * HOUR * np.arange(3), "funding_rate": [1e-4] * 3},
    )
    put(root / "funding/ETHUSDT-funding.parquet", {"timestamp": [START + 8 * HOUR], "funding_rate": [2e-4]})
    book = {"bid_price_1": [99.0], "bid_size_1": [1.0], "ask_price_1": [101.0], "ask_size_1": [1.0]}
    put(root / "perp/BTCUSDT-book.parquet", {"time": [START + HOUR], **book})
    put(root / "news/a.parquet", {"timestamp": [START + HOUR], "asset": ["ETH"], "title": ["ether"]})
    put(root / "news/b.parquet", {"timestamp": [START + 2 * HOUR], "title": ["all coins"]})
    put(root / "onchain/new-BTC-1d.parquet", days(flow=[1.0, 2.0, 3.0]))
    put(root / "onchain/old-BTC-1d.parquet", days(flow=[7.0]))
    put(root / "sentiment/fear-greed-index-1d.parquet", days(value=[10.0, 90.0]) | {"label": ["fear", "greed"]})
    put(root / "sentiment/mood-1d.parquet", days(value=[0.5]))
    # Nothing to be taken:
    (root / "spot/SOLUSDT-1h.parquet").write_bytes(b"no parquet")
    put(root / "spot/XRPUSDT-1h.parquet", hourly() | {"high": np.ones(48)})
    put(root / "spot/hours.parquet", hourly())
    put(root / "misc/BTCUSDT-book.parquet", {"time": [START], **book})
    put(root / "misc/ZZZUSDT-funding.parquet", {"timestamp": [START], "funding_rate": [0.1]})
    put(root / "misc/numbers-1d.parquet", days(x=[1.0]))
    put(root / "misc/other.parquet", {"a": [1]})
    put(root / "onchain/hole-ETH-1d.parquet", days(flow=[1.0, float("nan")]))
    return root


def outcomes(report: ImportReport) -> dict[str, str]:
    return {str(one.path): one.outcome for one in report.sources}


def states(report: ImportReport) -> Counter[str]:
    return Counter(change.state for _, change in report.written)


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_every_file_is_recognised_and_stands_where_it_belongs(tree: Path, tmp_path: Path) -> None:
    before, steps = snapshot(tree), []
    report = import_tree(tree, tmp_path / "out", progress=lambda done, total: steps.append((done, total)))
    assert snapshot(tree) == before
    wrong = {path: outcome for path, outcome in outcomes(report).items() if outcome != "taken"}
    assert wrong == {
        "spot/SOLUSDT-1h.parquet": "refused",
        "spot/XRPUSDT-1h.parquet": "refused",
        "spot/hours.parquet": "unknown",
        "misc/BTCUSDT-book.parquet": "refused",
        "misc/ZZZUSDT-funding.parquet": "refused",
        "misc/numbers-1d.parquet": "unknown",
        "misc/other.parquet": "unknown",
        "onchain/hole-ETH-1d.parquet": "refused",
    }
    said = {str(one.path): one.detail for one in report.sources}
    for path, reason in {
        "spot/SOLUSDT-1h.parquet": "not a readable Parquet file",
        "spot/XRPUSDT-1h.parquet": "48 bars are impossible",
        "spot/hours.parquet": "name it like BTCUSDT-1h.parquet",
        "misc/BTCUSDT-book.parquet": "no bars of BTCUSDT for it to stand beside",
        "misc/ZZZUSDT-funding.parquet": "no bars of ZZZUSDT",
        "misc/other.parquet": "it has the columns a",
        "onchain/hole-ETH-1d.parquet": "record 1 (2023-11-17 00:00): flow is missing or not finite",
    }.items():
        assert reason in said[path]
    assert len(report.sources) == len(before) == steps[-1][0] == steps[-1][1]
    assert [path.name for path in report.catalogs] == ["perp", "spot"] and set(states(report)) == {"written"}
    everywhere = {
        "news.parquet", "series-onchain-BTC.parquet", "series-onchain-BTC-old.parquet",
        "series-sentiment-fear_greed.parquet", "series-sentiment-mood.parquet", "BTCUSDT-1h.parquet",
            "instruments.json",
    }  # fmt: skip
    own = {
        "perp": {"BTCUSDT-funding.parquet", "BTCUSDT-book.parquet"},
        "spot": {"ETHUSDT-1h.parquet", "ETHUSDT-funding.parquet"},
    }
    for venue in own:
        assert {path.name for path in (tmp_path / "out" / venue).iterdir()} == everywhere | own[venue]
        assert not [issue for issue in Catalog(tmp_path / "out" / venue).check() if issue.fatal]


def test_what_was_imported_is_known_when_it_was(tree: Path, tmp_path: Path) -> None:
    import_tree(tree, tmp_path / "out")
    spot, perp = (Catalog(tmp_path / "out" / venue).load(timeframe="1h") for venue in ("spot", "perp"))
    np.testing.assert_array_equal(spot.close[:, 0], hourly(seed=1)["close"])
    np.testing.assert_array_equal(perp.close[:, 0], hourly(seed=3)["close"])
    assert len(perp.funding["BTCUSDT"]) == 3 and set(spot.funding) == {"ETHUSDT"}
    assert [(item.symbol, item.text) for item in spot.news] == [("ETHUSDT", "ether"), (None, "all coins")]
    assert [item.text for item in perp.news] == ["all coins"], "ether is not traded there"
    assert all(item.known_at - item.time == 8 * HOUR for item in spot.news)
    first, second = spot.view(22), spot.view(23)  # the second closes with the first day
    assert first.series_names == ("sentiment/fear_greed",)
    assert first.series("sentiment/fear_greed", 9).columns["value"].tolist() == [10.0]
    assert second.series("sentiment/fear_greed", 9).columns["value"].tolist() == [10.0, 90.0]
    assert second.series("onchain/BTC", 9).columns["flow"].tolist() == [1.0], "a day is known when it is over"
    assert second.series("onchain/BTC-old", 9).columns["flow"].tolist() == [7.0]
    assert second.series("sentiment/mood", 9).columns["value"].tolist() == [0.5]
    book = perp.view(0).book("BTCUSDT")
    assert book is not None and book.ask_price.tolist() == [101.0]


def test_importing_again_changes_nothing_and_other_content_is_reported(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = import_tree(tree, out)
    before = snapshot(out)
    again = import_tree(tree, out)
    assert states(again) == {"unchanged": len(first.written)} and snapshot(out) == before
    put(tree / "spot/BTCUSDT-1h.parquet", hourly(seed=9))
    refused = import_tree(tree, out)
    assert outcomes(refused)["spot/BTCUSDT-1h.parquet"] == "refused" and snapshot(out) == before
    third = import_tree(tree, out, replace=True)
    assert [str(path.relative_to(out)) for path, change in third.written if change.state == "replaced"] == [
        "spot/BTCUSDT-1h.parquet"
    ]
    np.testing.assert_array_equal(Catalog(out / "spot").load(["BTCUSDT"]).close[:, 0], hourly(seed=9)["close"])
    # Some symbols only: the others stay, with their headlines.
    narrow = import_tree(tree, out, ["BTCUSDT"])
    assert set(states(narrow)) == {"unchanged"}
    assert outcomes(narrow)["spot/ETHUSDT-1h.parquet"] == "left out"
    assert len(Catalog(out / "spot").load().news) == 2


def test_a_catalog_that_was_imported_can_be_imported(tree: Path, tmp_path: Path) -> None:
    import_tree(tree, tmp_path / "one")
    report = import_tree(tmp_path / "one", tmp_path / "two")
    assert set(outcomes(report).values()) == {"taken"}
    for venue in ("spot", "perp"):
        one, two = (Catalog(tmp_path / name / venue).load().content_hash for name in ("one", "two"))
        assert one == two


def test_two_files_for_one_place_are_not_mixed(tree: Path, tmp_path: Path) -> None:
    put(tree / "z/spot/BTCUSDT-1h.parquet", hourly(seed=8))
    report = import_tree(tree, tmp_path / "out")
    said = {str(one.path): (one.outcome, one.detail) for one in report.sources}
    outcome, detail = said["z/spot/BTCUSDT-1h.parquet"]
    assert outcome == "refused" and "spot/BTCUSDT-1h.parquet says" in detail and "keep one of the files" in detail
    np.testing.assert_array_equal(Catalog(tmp_path / "out/spot").load(["BTCUSDT"]).close[:, 0], hourly(seed=1)["close"])


def test_what_makes_an_import_impossible_is_one_clear_error(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("in the way")
    cases: list[tuple[Path, Path, list[str] | None, str]] = [
        (tmp_path / "nowhere", tmp_path / "out", None, "no such folder or file"),
        (tmp_path / "empty", tmp_path / "out", None, "holds no file that ends with .parquet"),
        (tree, tree / "out", None, "lies in the tree that is imported"),
        (tree, tree, None, "lies in the tree that is imported"),
        (tree / "spot", tree, None, "spot: lies in the tree that is imported"),
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
    write_market(generate(SyntheticConfig(bars=9, seed=1)), tmp_path / "out/spot")
    before = snapshot(tmp_path / "out")
    report = import_tree(tree, tmp_path / "out")
    assert [path.name for path in report.catalogs] == ["perp"]
    assert outcomes(report)["spot/BTCUSDT-1h.parquet"] == "refused"
    assert before.items() <= snapshot(tmp_path / "out").items()


def test_the_command_reports_every_file_and_fails_only_if_nothing_could_be_used(tree: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    out = str(tmp_path / "out")
    done = runner.invoke(data_app, ["import", str(tree), "--out", out])
    assert done.exit_code == 1, "files were refused"
    for path in tree.rglob("*.parquet"):
        assert str(path.relative_to(tree)) in done.output
    assert "refused   spot/XRPUSDT-1h.parquet: 48 bars are impossible" in done.output
    put(tree / "spot/BTCUSDT-1h.parquet", hourly(seed=9))
    asked = ["import", str(tree / "spot/BTCUSDT-1h.parquet"), "--out", out]
    done = runner.invoke(data_app, asked)
    assert done.exit_code == 1 and "import the right one with --replace" in done.output
    done = runner.invoke(data_app, [*asked, "--replace"])
    assert done.exit_code == 0
    assert f"replaced  {tmp_path / 'out/spot/BTCUSDT-1h.parquet'}: 48 rows replaced" in done.output
    only = runner.invoke(data_app, ["import", str(tree / "news"), "--out", str(tmp_path / "none")])
    assert isinstance(only.exception, DataError) and "nothing could be used" in str(only.exception)
    assert "no venue of the tree has usable bars" in only.output and not (tmp_path / "none").exists()


# The recorded data


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ImportReport]:
    base = Path(os.environ.get("CRYPTOSENTINEL_SHARED", ROOT.parent / "shared")) / "market-data"
    if not base.is_dir():
        pytest.skip(f"no recorded market data at {base} (set CRYPTOSENTINEL_SHARED to the folder that holds it)")
    out = tmp_path_factory.mktemp("recorded")
    return out, import_tree(base, out)


def test_the_recorded_tree_is_taken_whole(recorded: tuple[Path, ImportReport]) -> None:
    out, report = recorded
    assert set(outcomes(report).values()) == {"taken"}
    assert [path.name for path in report.catalogs] == ["binance", "binance-usdm", "yahoo"]
    traded = {catalog.name: {one.kind for one in kinds.values()} for catalog, kinds in report.kinds.items()}
    assert traded == {"binance": {"spot"}, "binance-usdm": {"perpetual"}, "yahoo": {"spot"}}
    spot = Catalog(out / "binance").load(
        ["BTCUSDT"], "1h", start=parse_time("2023-01-01"), end=parse_time("2023-02-01"), resample="4h"
    )
    assert set(spot.series) == {
        "onchain/BTC", "onchain/BTC-coinmetrics", "onchain/BNB", "onchain/ETH", "onchain/SOL", "sentiment/fear_greed",
    }  # fmt: skip
    view = spot.view(len(spot) - 1)  # closes with January
    assert view.now == parse_time("2023-02-01")
    assert view.series("onchain/BTC", 1).known_at.tolist() == [view.now]
    assert view.series("onchain/BTC", 999).known_at[0] == parse_time("2023-01-02")
    assert view.series("sentiment/fear_greed", 1).known_at.tolist() == [view.now]
    assert view.news("BTCUSDT", 3) and len(view.bars("BTCUSDT", 99, "1d")) == 31
    perp = Catalog(out / "binance-usdm").load(["BTCUSDT"], "1h", end=parse_time("2019-12-01"))
    assert perp.funding["BTCUSDT"][0].time == parse_time("2019-09-10T08:00") and not spot.funding


def test_known_flash_wicks_are_reported(recorded: tuple[Path, ImportReport]) -> None:
    out, _ = recorded
    for venue, symbol, reply in (
        ("binance", "LINKUSDT", "2020-03-12 10:00"),
        ("binance-usdm", "ETHUSDT", "2020-03-13 02:00"),
        ("binance-usdm", "ADAUSDT", "2020-02-28 17:00"),
    ):
        wicks = [i for i in Catalog(out / venue).check([symbol], "1h") if i.kind == "flash_wick"]
        assert len(wicks) == 1 and not wicks[0].fatal and wicks[0].count < 20
        assert f"the longest at {reply}" in wicks[0].detail
