"""The page of data: what it shows of a folder, and what it hands over."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backend.jobs.queue import JobQueue
from backend.reporting.coverage import coverage_of, coverage_picture
from simulator.data.archive import bar_file
from simulator.folders import sample_data
from tests.ui.page_client import field, open_page, words

_PAGE = "views/data.py"


def test_gaps_and_findings_of_a_folder_are_seen(here: Path) -> None:
    path = here / "data" / "synthetic" / bar_file("AAAUSDT", "4h")
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table.slice(0, 10), table.slice(15)]), path)
    app = open_page(_PAGE)
    assert not app.exception and not app.error
    assert app.selectbox(key="folder chosen").value == "data/synthetic"
    assert len(app.get("plotly_chart")) == 1
    bars = {trace.name: trace for trace in coverage_picture(coverage_of(path.parent)).figure.data}
    assert "AAAUSDT 4h" in bars["bars"].y and bars.keys() >= {"bars", "absent", "news"}
    absent = dict(zip(bars["absent"].y, bars["absent"].x, strict=True))
    assert absent["AAAUSDT 4h"] == 5 * 4 * 3_600_000, "five bars are absent"
    field(app.button, "Check all files").click().run()
    assert not app.exception and "gap" in " ".join(app.dataframe[-1].value["what"])


ROWS = [f"2024-01-01 {hour:02d}:00:00,100,130,99,{100 + hour},5" for hour in range(24)]
CSV = ("Date,Open,High,Low,Close,Volume\n" + "\n".join(ROWS)).encode()


def test_a_file_of_another_program_is_imported_and_shown(here: Path) -> None:
    (here / "BTCUSDT-1h.csv").write_bytes(CSV)
    app = open_page(_PAGE)
    app.selectbox(key="folder chosen").set_value("another folder or file …").run()
    app.text_input(key="other folder").set_value("BTCUSDT-1h.csv").run()
    [error] = app.error
    assert "names no zone" in error.value.replace("\\", "") and "data import" in error.value.replace("\\", "")
    (here / "BTCUSDT-1h.csv").write_bytes(CSV.replace(b":00,100", b":00Z,100"))
    app.run()
    assert not app.exception and not app.error and "was imported into" in words(app)
    assert "BTCUSDT 1h" in app.get("plotly_chart")[0].proto.spec
    app = open_page("views/new_backtest.py")
    field(app.text_input, "Data folder or file").set_value("BTCUSDT-1h.csv").run()
    assert not app.exception and not app.error and app.multiselect[0].value == ["BTCUSDT"]


def test_a_download_is_handed_over_and_shown_as_a_command(here: Path, queue: JobQueue) -> None:
    app = open_page(_PAGE)
    field(app.text_input, "as the exchange writes them").set_value("SOL/USDT").run()
    [command] = [one.value for one in app.code]
    assert "data download --exchange=binance --market=spot --symbols=SOL/USDT --timeframe=1h" in command
    field(app.button, "Download").click().run()
    [job] = queue.jobs()
    assert job.request.command[:2] == ("data", "download") and "--out=data/binance-spot" in job.request.command
    field(app.text_input, "Folder, below data/").set_value("../x").run()
    assert not app.exception and "name of letters" in app.error[0].value
    assert "waits for its turn" in words(app)


def test_the_sample_is_there_whatever_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (sample_data() / "market.json").is_file(), "in an editable install that of the repository"
    (tmp_path / "data" / "synthetic").mkdir(parents=True)
    assert sample_data() == Path("data/synthetic"), "the current folder's own goes before"
