"""Tags and notes of runs, and groups of seeds, on the page of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.cli.main import app as program
from backend.reporting.run_labels import RunLabels, read_labels, write_labels
from backend.store.records import RunRecord
from backend.store.store import Store
from backend.store.transfer import export_run, import_run
from simulator.errors import UserError
from tests.stored_runs import add_backtest_run
from tests.ui.page_client import address, field, open_page


def test_tags_and_notes_are_kept_and_filtered_by(here: Path) -> None:
    with Store.open(here / "store") as store:
        add_backtest_run(store, "one")
        add_backtest_run(store, "two")
    app = open_page(run="two")
    app.text_input(key="tags of two").set_value("keep, ![p](//x/p), keep")
    app.text_area(key="note of two").set_value("the first with costs")
    app.button(key="save labels of two").click().run()
    assert not app.exception and not app.error
    table = app.dataframe[0].value.set_index("run")
    assert table["tags"]["two"] == "keep, ![p](//x/p)" and table["note"]["two"] == "the first with costs"
    assert field(app.pills, "Tag").options == ["!\\[p\\](//x/p)", "keep"], "they would be read as Markdown"
    field(app.pills, "Tag").set_value(["keep"]).run()
    assert list(app.dataframe[0].value["run"]) == ["two"]


def test_labels_travel_with_their_run_and_go_with_it(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        add_backtest_run(store, "one")
        labels = RunLabels.of("a,b", "why")
        write_labels(store, "one", labels)
        export_run(store, "one", tmp_path / "one.jsonl")
        store.delete_run("one")
        assert read_labels(store) == {}
        import_run(store, tmp_path / "one.jsonl")
        assert read_labels(store) == {"one": labels}


def test_labels_that_are_too_long_are_refused() -> None:
    with pytest.raises(UserError, match="shorten"):
        RunLabels.of("x" * 50, "")
    with pytest.raises(UserError, match="shorten"):
        RunLabels.of("", "x" * 3_000)


def test_the_terminal_shows_the_labels_of_the_page(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(here / "store") as store:
        add_backtest_run(store, "one")
        write_labels(store, "one", RunLabels(("keep", "b"), "the first with costs"))
    for command in (("--long",), ("show", "one")):
        program(["runs", "--store", str(here / "store"), *command], standalone_mode=False)
        shown = capsys.readouterr().out
        assert "keep, b" in shown
    assert "note: the first with costs" in shown


def test_a_run_is_deleted_after_a_confirmation(here: Path) -> None:
    with Store.open(here / "store") as store:
        for name in ("one", "two", "three"):
            add_backtest_run(store, name)
    (here / "runs" / "two").mkdir(parents=True)
    (here / "runs" / "two" / "report.html").write_text("x" * 2_000_000)
    app = open_page(run="two")
    field(app.button, "Delete this run").click().run()
    assert not app.exception and "2.0 MB of files will be deleted" in app.warning[0].value
    app.button(key="keep").click().run()
    field(app.button, "Delete this run").click().run()
    assert set(app.dataframe[0].value["run"]) == {"one", "two", "three"}, "nothing goes with the first click"
    app.multiselect(key="open").set_value(["one"]).run()
    assert not [one for one in app.button if one.key == "delete for good"], "it was asked of another run"
    app.multiselect(key="open").set_value(["two"]).run()
    app.button(key="delete for good").click().run()
    assert not app.exception and not app.error and set(app.dataframe[0].value["run"]) == {"one", "three"}
    assert not (here / "runs" / "two").exists() and "two" not in address(app, "run")


def test_a_run_that_another_one_needs_stays(here: Path) -> None:
    base = here / "runs" / "one"
    base.mkdir(parents=True)
    with Store.open(here / "store") as store:
        add_backtest_run(store, "one")
        config = {"config": {"training": {"base_model": str(base)}}}
        store.add_run(RunRecord("two", "train", 1, "hash", 1, config))
        store.finish_run("two", "finished")
    app = open_page(run="one")
    field(app.button, "Delete this run").click().run()
    assert not app.exception and "one stays: the base model" in app.warning[0].value.replace("\\", "")
    assert not [button for button in app.button if button.key == "delete for good"]
