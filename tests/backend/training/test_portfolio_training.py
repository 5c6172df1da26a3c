"""Training of a team that decides on the whole portfolio: it resumes, and on services it is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from backend.builders.loaded_team import team_settings
from backend.builders.teams import load_team
from backend.config.load import config_from_dict
from backend.config.schema import Config, NanoConfig
from backend.store.store import Store
from backend.training.curriculum.queries import QueryPool
from backend.training.sft.warm_start import make_nano
from cryptosentinel.agents.registry import ROLES
from simulator.errors import Interrupted
from simulator.market.market import Market
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.backend.distributed.services_here import begin_run, last_parameters, open_run
from tests.small_world import HORIZON, RUN, smaller_config, train_as_told, tree

COINS = ("AAAUSDT", "BBBUSDT")
STEPS = 2


@pytest.fixture(scope="module")
def market() -> Market:
    return generate(SyntheticConfig(bars=400, seed=3, symbols=COINS))


@pytest.fixture(scope="module")
def config(market: Market, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Two steps with a nano that was warm-started on portfolios, and two shards."""
    folder = tmp_path_factory.mktemp("portfolio") / "nano"
    options: dict[str, Any] = {"stage1_max_steps": 1, "stage2_steps": 1, "shards": 2, "base_model": str(folder)}
    document = smaller_config(**options).to_dict()
    made = config_from_dict({**document, "team": {**document["team"], "portfolio": True}}, "portfolio")
    nano = NanoConfig(hidden_size=64, layers=2, decisions=60, steps=150)
    pool = QueryPool(market, 0, 300, HORIZON, gross_limit=1.0)
    make_nano(folder, [pool], team_settings(made.team, 1.0), nano, 1, lambda what, done, total: None)
    return made


def stored(store: Store) -> list[Any]:
    found: list[Any] = []
    for step in range(STEPS):
        found += [*store.queries(RUN, step), *store.rollouts(RUN, step), *store.trajectories(RUN, step)]
        found += store.rewards(RUN, step)
    return found


def test_interrupted_and_resumed_or_on_services_it_is_bit_equal_and_the_team_keeps_its_mode(
    config: Config, market: Market, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Store.open("mem://") as once,
        Store.open("mem://") as twice,
        Store.open("mem://") as apart,
    ):
        train_as_told(config, tmp_path / "once", once, market=market)
        with pytest.raises(Interrupted):
            train_as_told(config, tmp_path / "twice", twice, stop_after=1, market=market)
        train_as_told(config, tmp_path / "twice", twice, market=market)
        first, second = tree(tmp_path / "once"), tree(tmp_path / "twice")
        assert {name for name in first if first[name] != second.get(name)} <= {"team.json"}

        begin_run(apart, config, market)
        nano = Path(config.training.base_model)
        open_run(config, nano, tmp_path / "apart", apart, monkeypatch, market=market)[0].run()
        for role in ROLES:
            mine, theirs = (last_parameters(tmp_path / name, role) for name in ("once", "apart"))
            assert mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)
        assert stored(once) == stored(twice) == stored(apart)
        assert {query.symbols for query in once.queries(RUN, 1)} == {COINS}
    team = load_team(str(tmp_path / "once"), Config().team, base=config.training.base_model).team
    assert team.settings.portfolio, "a trained team decides as it was trained to"
