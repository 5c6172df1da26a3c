"""Folders with any name that a file system takes: spaces, emoji, combining characters, bytes that are no UTF-8."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from backend.store.store import Store
from tests.killable import Killable

SAMPLE = Path(__file__).parents[3] / "data" / "synthetic"
WINDOW = ("--symbols", "AAAUSDT", "--start", "2021-05-01", "--end", "2021-05-03")
# Quotes, a space at the end, an emoji, an e with a combining accent (another file than the one letter), what Rich reads
# as markup, and what a format string would take for a place.
UNICODE = "my 'own' \"runs\" 🚀 cafe\u0301 [red]x[/red] {0} %s "
# A shell would take it for an option, the store for a comment, a format for a place.
TEAM = "-x 'my' \"team\" 🚀 cafe\u0301 [red]x[/red] {0} %s %2F #1 ; "
SFT = ("states=8", "steps=2", "score_states=2")
EVALUATION = ("windows=2", "decisions_per_window=2")
NO_UTF_8 = os.fsdecode(b"run\xff\xfes")


def test_every_folder_may_have_any_name(killable: Killable, tmp_path: Path) -> None:
    """Data, runs, store, home and strategy in such a folder; what was stored there is found again."""
    folder = tmp_path / UNICODE
    (folder / "home").mkdir(parents=True)
    shutil.copytree(SAMPLE, folder / "data")
    home = {"HOME": str(folder / "home"), "XDG_STATE_HOME": str(folder / "home" / "state")}
    places = ("--store", folder / "store", "--runs", folder / "runs")
    played = killable(folder, "backtest", "--data", folder / "data", *WINDOW, *places, environment=home)
    assert played.code == 0, played.said
    [report] = (folder / "runs").glob("backtest-*/report.html")
    assert report.read_text(encoding="utf-8").rstrip().endswith("</html>")
    run = report.parent.name
    listed = killable(folder, "runs", "--store", folder / "store", environment=home)
    assert listed.code == 0 and run in listed.said, listed.said
    copied = killable(folder, "store", "backup", folder / "copy", "--store", folder / "store", environment=home)
    assert copied.code == 0, copied.said
    with Store.open(folder / "copy") as store:
        assert [one.run for one in store.runs()] == [run]


def test_a_name_that_is_no_utf_8_is_refused_before_anything_is_stored(killable: Killable, tmp_path: Path) -> None:
    """A configuration is text, and is stored with the run."""
    folder = tmp_path / NO_UTF_8
    shutil.copytree(SAMPLE, folder / "data")
    refused = killable(tmp_path, "backtest", "--data", folder / "data", *WINDOW)
    assert refused.code == 2 and "market.data" in refused.said and "Traceback" not in refused.said, refused.said
    assert [path.name for path in tmp_path.iterdir()] == [NO_UTF_8]


@pytest.mark.slow
def test_a_team_may_have_any_name(killable: Killable, nano: Path, tmp_path: Path) -> None:
    """It is made under that name, trained further, measured and played, and found again by what was stored."""
    small = [*(f"sft.{one}" for one in SFT), f"training.base_model={nano}", "market.bars=900", "market.coins=1"]
    made = killable(tmp_path, "sft", "--config", "quick", *options(small), "--out", TEAM)
    assert made.code == 0, made.said
    assert (tmp_path / TEAM / "team.json").is_file()
    measured = killable(tmp_path, "evaluate", *options([f"evaluation.{one}" for one in EVALUATION]), "--", TEAM)
    assert measured.code == 0, measured.said
    played = killable(tmp_path, "backtest", "--team", TEAM, "--data", SAMPLE, *WINDOW, "--baselines", "hold")
    assert played.code == 0, played.said
    assert "[red]x[/red]" in played.said, "a name is not markup"
    with Store.open(tmp_path / "runs" / "store") as store:
        names = {one.name for run in store.runs() for one in store.backtests(run.run)}
    assert TEAM in names
    for report in (tmp_path / "runs").glob("*/report.html"):
        assert "[red]x[/red]" in report.read_text(encoding="utf-8")


def options(settings: list[str]) -> list[str]:
    return [word for one in settings for word in ("--set", one)]
