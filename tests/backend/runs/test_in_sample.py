import json
import shutil
from pathlib import Path

import pytest

from backend.builders.market import load_market
from backend.builders.spans import spans_trained_on
from backend.config.load import load_config
from backend.evaluation.paired_runs import compared_result, marks_within
from backend.evaluation.trials import IN_SAMPLE
from backend.experiments.run import ExperimentRequest, run_experiment
from backend.models.manifest import TeamManifest, write_manifest
from backend.runs.backtest import backtest_teams
from backend.runs.requests import BacktestRequest
from backend.store.store import Store
from simulator.data.archive import write_market
from simulator.errors import UserError
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.small_world import small_config


@pytest.fixture
def bars(tmp_path: Path) -> Path:
    write_market(generate(SyntheticConfig(bars=600, seed=3, symbols=("AAAUSDT",))), tmp_path / "bars")
    return tmp_path / "bars"


@pytest.fixture
def team(tmp_path: Path, bars: Path, nano: Path) -> Path:
    """A team that was trained on the first part of these bars."""
    config = load_config(small_config(), [f"market.data={bars}"])
    spans = spans_trained_on(config, load_market(config.market, config.costs))
    folder = tmp_path / "team"
    shutil.copytree(nano, folder / "nano")
    write_manifest(folder, TeamManifest.of(config, base="nano", adapters=None, trained_on=spans))
    return folder


def test_a_window_of_the_training_is_refused_and_marked_for_ever_where_it_is_allowed(
    team: Path, bars: Path, tmp_path: Path
) -> None:
    def played(*teams: str, start: str = "1970-01-01", in_sample: bool = False) -> str:
        request = BacktestRequest(
            config=small_config(), data=bars, baselines=("hold",), teams=teams, decide_every=100, start=start,
            in_sample=in_sample,
        )  # fmt: skip
        return backtest_teams(request, tmp_path / "store", tmp_path / "runs").run

    with pytest.raises(UserError, match=r"was trained or chosen on bars until .*--in-sample"):
        played(str(team))
    with Store.open(tmp_path / "store") as store:
        assert not store.runs(), "nothing is recorded of what is refused"
    run = played(str(team), in_sample=True)
    other = played("ema_cross:fast=5,slow=20", start="2020-01-21T08:00")  # the same window
    with Store.open(tmp_path / "store") as store:
        record = store.run(run).config
        assert list(record[IN_SAMPLE]) == [str(team)] and record["notes"][0].startswith("IN SAMPLE")
        assert IN_SAMPLE not in store.run(other).config
        results = [compared_result(store, one) for one in (other, run)]
    page = (tmp_path / "runs" / run / "report.html").read_text()
    assert "IN SAMPLE" in page
    [mark] = marks_within(results)
    assert mark.startswith("IN SAMPLE")


def test_an_experiment_refuses_such_an_arm_before_anything_is_run(team: Path, bars: Path, tmp_path: Path) -> None:
    plan = f"""
question = "Does a team know what it was trained on?"
config = "quick"
set = {json.dumps([f"market.data={bars}", "market.shares=[0.3, 0.1]"])}
seeds = "1"
[windows]
count = 2
decisions = 2
[[arms]]
name = "flat"
team = "flat"
[[arms]]
name = "theirs"
team = {json.dumps(str(team))}
"""
    file = tmp_path / "mine.toml"
    file.write_text(plan)
    request = ExperimentRequest(file=file, workers=1)
    with pytest.raises(UserError, match=r"arm 'theirs': IN SAMPLE: .* take later windows, or another team"):
        run_experiment(request, tmp_path / "store", tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
