"""The page of data: what it shows of a folder, and what it hands over."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backend.jobs.queue import JobQueue
from backend.runs.requests import sample_data
from simulator.data.archive import bar_file
from tests.ui.page_client import address, field, open_page, words

_PAGE = "views/data.py"


def test_gaps_and_findings_of_a_folder_are_seen(here: Path) -> None:
    path = here / "data" / "synthetic" / bar_file("AAAUSDT", "4h")
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table.slice(0, 10), table.slice(15)]), path)
    app = open_page(_PAGE)
    assert not app.exception and not app.error
    assert address(app, "folder") == ["data/synthetic"]
    spec = json.loads(app.get("plotly_chart")[0].proto.spec)
    bars = {trace["name"]: trace for trace in spec["data"]}
    assert "AAAUSDT 4h" in bars["bars"]["y"] and {trace["name"] for trace in spec["data"]} >= {"bars", "absent", "news"}
    absent = dict(zip(bars["absent"]["y"], bars["absent"]["x"], strict=True))
    assert absent["AAAUSDT 4h"] >= 5 * 4 * 3_600_000, "five bars are absent"
    field(app.button, "Check all files").click().run()
    assert not app.exception and "gap" in " ".join(app.dataframe[-1].value["what"])


def test_an_import_never_writes_over_a_folder(here: Path, queue: JobQueue) -> None:
    app = open_page(_PAGE)
    field(app.text_input, "on this machine").set_value("data/synthetic")
    field(app.text_input, "new folder").set_value("synthetic")
    field(app.button, "Import").click().run()
    assert "is there already" in app.error[0].value and not queue.jobs()
    field(app.text_input, "new folder").set_value("mine")
    field(app.button, "Import").click().run()
    assert not app.exception and not app.error
    [job] = queue.jobs()
    assert job.request.command == ("data", "import", "--out=data/mine", "--", "data/synthetic")
    assert address(app, "job") == [job.name]


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
