"""The page of experiments: the ledger of trials and a finished experiment."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from backend.store.records import TrialRecord
from backend.store.store import Store
from tests.stored_runs import add_backtest_run
from tests.ui.browsing import ROOT
from tests.ui.page_client import open_page, words

_PAGE = "views/experiments.py"


def test_it_says_what_to_do_where_nothing_is(here: Path) -> None:
    app = open_page(_PAGE)
    said = words(app)
    assert not app.exception and not app.error
    assert "No trial yet" in said and "No experiment was run" in said


def published_experiment(here: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """The folder of an experiment of the documentation, as if it had been run here, and its result."""
    folder = here / "runs" / "experiments" / name
    shutil.copytree(ROOT / "docs" / "research" / "experiments" / name, folder)
    result: dict[str, Any] = json.loads((folder / "results.json").read_text())
    state = {"run": result["run"], "digest": "d", "seeds": [1], "config": {}, "question": result["question"]}
    (folder / "experiment.json").write_text(json.dumps(state))
    return folder, result


def test_trials_are_counted_and_an_experiment_shown(here: Path) -> None:
    with Store.open(here / "store") as store:
        add_backtest_run(store, "backtest-1")
        for number in range(3):
            store.put(TrialRecord("backtest-1", f"team {number}", "hash", 0, 86_400_000, f"d{number}", 5))
    folder, result = published_experiment(here, "e8_four_hours")
    app = open_page(_PAGE)
    assert not app.exception and not app.error
    [ledger] = [frame.value for frame in app.dataframe if "looks (runs)" in frame.value]
    assert list(ledger["ways of trading"]) == [3] and list(ledger["looks (runs)"]) == [1]
    assert result["sentence"][:40] in words(app).replace("\\", "")
    assert len(app.get("plotly_chart")) == 1
    drawn = app.get("plotly_chart")[0].proto.spec
    assert '"one seed"' in drawn and "one window" not in drawn, "each dot is the mean of a seed's windows"
    (folder / "results.json").write_text("{}")
    app = open_page(_PAGE)
    assert not app.exception and "cannot be read" in app.error[0].value


def test_decisions_on_held_out_states_are_shown_as_scores_from_0_to_1(here: Path) -> None:
    _, result = published_experiment(here, "e2_knowledge")
    app = open_page(_PAGE)
    assert not app.exception and not app.error
    assert f"{result['states']} held-out states each" in words(app)
    [arms] = [frame.value for frame in app.dataframe if "held out value" in frame.value.columns]
    first = result["arms"][0]
    assert arms["held out value"][0] == f"{first['means']['held_out_value']:.4f}"
    assert arms["interval"][0] == "-0.0289 to -0.0229"
    drawn = app.get("plotly_chart")[0].proto.spec
    assert "a decision beyond" in words(app) or "difference of held out value" in drawn
