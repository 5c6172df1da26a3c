import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from backend.builders.market import load_market
from backend.builders.spans import spans_trained_on, trained_span
from backend.config.load import config_from_dict, load_config
from backend.config.schema import Config
from backend.evaluation.paired_runs import compared_result, marks_within
from backend.evaluation.trials import IN_SAMPLE, marks_of, overlaps
from backend.experiments.run import ExperimentRequest, run_experiment
from backend.models.manifest import TeamManifest, write_manifest
from backend.runs.backtest import backtest_teams
from backend.runs.requests import BacktestRequest
from backend.store.store import Store
from simulator.data.archive import MARKET_MANIFEST, write_market
from simulator.errors import UserError
from simulator.market.market import Market
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.small_world import small_config


def settings(**market: Any) -> Config:
    small = {"bars": 600, "coins": 1, "seed": 3, **market}
    return config_from_dict({"market": small, "team": {"horizon_bars": 6}}, "test")


def loaded(config: Config) -> Market:
    return load_market(config.market, config.costs)


def team(folder: Path, trained: Config) -> str:
    """A team's folder as a training leaves it."""
    folder.mkdir()
    spans = spans_trained_on(trained, loaded(trained))
    write_manifest(folder, TeamManifest.of(trained, base="nano", adapters=None, trained_on=spans))
    return str(folder)


def closes(market: Market, start: int, stop: int) -> tuple[int, int]:
    return int(market.open_time[start]) + market.interval, int(market.open_time[stop]) + market.interval


def test_a_window_is_refused_from_the_bar_that_the_training_saw_and_marked_where_it_is_allowed(tmp_path: Path) -> None:
    config = settings()
    market, name = loaded(config), team(tmp_path / "team", config)
    until = trained_span(config, market).until
    edge = next(bar for bar in range(600) if closes(market, bar, bar)[0] == until)
    later = closes(market, edge, edge + 50)
    assert overlaps([name, "ema_cross"], config, market, *later, allowed=False) == {}
    early = closes(market, edge - 1, edge + 50)
    with pytest.raises(UserError, match=r"was trained or chosen on bars until .*--in-sample"):
        overlaps([name], config, market, *early, allowed=False)
    marked = overlaps([name], config, market, *early, allowed=True)
    assert list(marked) == [name] and marked[name].startswith("IN SAMPLE")
    assert marks_of({IN_SAMPLE: marked}) == [*marked.values()] and marks_of({}) == []


def test_another_generated_market_has_nothing_in_common_and_a_longer_one_has_its_beginning(tmp_path: Path) -> None:
    trained = settings()
    name = team(tmp_path / "team", trained)
    for other, refused in ((settings(seed=4), False), (settings(edge=False), False), (settings(bars=900), True)):
        market = loaded(other)
        window = closes(market, 200, 300)
        assert bool(overlaps([name], other, market, *window, allowed=True)) is refused


def recorded(folder: Path, seed: int) -> Path:
    """Bars that nothing marks as generated."""
    write_market(generate(SyntheticConfig(bars=600, seed=seed, symbols=("AAAUSDT",))), folder)
    (folder / MARKET_MANIFEST).unlink()
    return folder


def test_recorded_bars_are_compared_by_time_and_generated_ones_in_a_folder_by_what_they_are(tmp_path: Path) -> None:
    trained = settings(data=str(recorded(tmp_path / "one", 1)))
    name = team(tmp_path / "team", trained)
    other = settings(data=str(recorded(tmp_path / "two", 2)))
    market = loaded(other)
    assert overlaps([name], other, market, *closes(market, 200, 300), allowed=True), "coins move together"
    write_market(generate(SyntheticConfig(bars=600, seed=2, symbols=("AAAUSDT",))), tmp_path / "made")
    made = settings(data=str(tmp_path / "made"))
    market = loaded(made)
    assert overlaps([name], made, market, *closes(market, 200, 300), allowed=False) == {}


def test_what_a_team_began_with_was_trained_on_as_well(tmp_path: Path) -> None:
    first, second = settings(), settings(seed=4)
    team(tmp_path / "first", first)
    spans = spans_trained_on(second, loaded(second), tmp_path / "first")
    assert spans == (trained_span(first, loaded(first)), trained_span(second, loaded(second)))


@pytest.fixture
def bars(tmp_path: Path) -> Path:
    write_market(generate(SyntheticConfig(bars=600, seed=3, symbols=("AAAUSDT",))), tmp_path / "bars")
    return tmp_path / "bars"


@pytest.fixture
def trained_team(tmp_path: Path, bars: Path, nano: Path) -> Path:
    """A team that was trained on the first part of these bars."""
    config = load_config(small_config(), [f"market.data={bars}"])
    spans = spans_trained_on(config, load_market(config.market, config.costs))
    folder = tmp_path / "team"
    shutil.copytree(nano, folder / "nano")
    write_manifest(folder, TeamManifest.of(config, base="nano", adapters=None, trained_on=spans))
    return folder


def test_a_window_of_the_training_is_refused_and_marked_for_ever_where_it_is_allowed(
    trained_team: Path, bars: Path, tmp_path: Path
) -> None:
    def played(*teams: str, start: str = "1970-01-01", in_sample: bool = False) -> str:
        request = BacktestRequest(
            config=small_config(), data=bars, baselines=("hold",), teams=teams, decide_every=100, start=start,
            in_sample=in_sample,
        )  # fmt: skip
        return backtest_teams(request, tmp_path / "store", tmp_path / "runs").run

    with pytest.raises(UserError, match=r"was trained or chosen on bars until .*--in-sample"):
        played(str(trained_team))
    with Store.open(tmp_path / "store") as store:
        assert not store.runs(), "nothing is recorded of what is refused"
    run = played(str(trained_team), in_sample=True)
    other = played("ema_cross:fast=5,slow=20", start="2020-01-21T08:00")  # the same window
    with Store.open(tmp_path / "store") as store:
        record = store.run(run).config
        assert list(record[IN_SAMPLE]) == [str(trained_team)] and record["notes"][0].startswith("IN SAMPLE")
        assert IN_SAMPLE not in store.run(other).config
        results = [compared_result(store, one) for one in (other, run)]
    page = (tmp_path / "runs" / run / "report.html").read_text()
    assert "IN SAMPLE" in page
    [mark] = marks_within(results)
    assert mark.startswith("IN SAMPLE")


def test_an_experiment_refuses_such_an_arm_before_anything_is_run(
    trained_team: Path, bars: Path, tmp_path: Path
) -> None:
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
team = {json.dumps(str(trained_team))}
"""
    file = tmp_path / "mine.toml"
    file.write_text(plan)
    request = ExperimentRequest(file=file, workers=1)
    with pytest.raises(UserError, match=r"arm 'theirs': IN SAMPLE: .* take later windows, or another team"):
        run_experiment(request, tmp_path / "store", tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
