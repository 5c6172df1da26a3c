"""What a session recorded becomes the data of the next training: the same bars, and the states in which it decided."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backend.builders.market import load_market, split
from backend.paper.journal import bar_from_json, entries_of, history_from_json
from backend.paper.sessions import run_paper
from backend.paper.training_data import file_names, train_request_of
from backend.runs.requests import PaperRequest, TrainRequest
from backend.runs.train import ThisProcess, train_team
from backend.store.store import Store
from backend.training.checkpoints import TrainingState
from backend.training.curriculum.queries import gross_limit, pools_of
from backend.training.curriculum.recorded_states import read_states
from simulator.errors import DataError, Interrupted, UserError
from simulator.live.broker import session_market

ROOT = Path(__file__).resolve().parents[3]
SESSION, HORIZON = "paper-week", 6
SHORT = (f"team.horizon_bars={HORIZON}",)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Path]]:
    """A finished session of ten days."""
    folder = tmp_path_factory.mktemp("session")
    with Store.open("mem://") as store:
        request = PaperRequest(
            session=SESSION, data=ROOT / "data" / "synthetic", timeframe="4h", start="2021-06-10", end="2021-06-18",
            decide_every=1, overrides=("paper.history_bars=150", "costs.taker_fee=0.0007"),
        )  # fmt: skip
        assert run_paper(request, store, folder).why == "finished"
        yield store, folder


def test_queries_are_the_states_of_the_session(recorded: tuple[Store, Path]) -> None:
    store, folder = recorded
    made = train_request_of(SESSION, TrainRequest(overrides=SHORT), store, folder)
    config = made.settings()
    market = load_market(config.market, config.costs)
    entries = entries_of(store, SESSION)
    history = history_from_json(entries[0].document["history"])
    seen = session_market(history, [bar_from_json(one.document["bar"]) for one in entries if one.kind == "bar"])
    assert np.array_equal(market.open_time, seen.open_time) and np.array_equal(market.close, seen.close, equal_nan=True)
    assert np.array_equal(market.half_spread, seen.half_spread, equal_nan=True) and market.funding == seen.funding
    assert made.origin["data_hash"] == market.content_hash and market.content_hash[:12] in config.market.data
    assert config.costs.taker_fee == 0.0007, "costs are those of the session"
    accounts = {one.document["bar_index"]: one.document["account"] for one in entries if one.kind == "bar"}
    decided = {one.document["bar"] for one in entries if one.kind == "decision"}
    parts = split(market, config.market, HORIZON)
    assert parts.validation[0] > parts.train[1] > len(history), "the shares are of the session, not of its history"
    pools = pools_of(config.training, market, (parts.train, parts.validation), HORIZON, gross_limit(config))
    moved = 0
    for pool, (start, stop) in zip(pools, (parts.train, parts.validation), strict=True):
        for query in pool.draw(1, 0, 40, easy=False):
            assert query.bar in decided and start <= query.bar < stop
            account = accounts.get(query.bar)
            if account is None:
                assert query.exposure == 0.0, "before its first bar a session holds nothing"
                continue
            worth = account["positions"][query.symbol] * market.close[query.bar, market.column(query.symbol)]
            assert math.isclose(query.exposure, worth / account["equity"], abs_tol=1e-3)
            moved += query.exposure not in (0.0, 0.5, -0.5, 1.0, -1.0)
    assert moved, "nothing was held but what is drawn without a session"


def test_a_portfolio_starts_from_all_that_was_held(recorded: tuple[Store, Path]) -> None:
    store, folder = recorded
    request = TrainRequest(overrides=(*SHORT, "team.portfolio=true"))
    config = train_request_of(SESSION, request, store, folder).settings()
    market = load_market(config.market, config.costs)
    held = read_states(Path(config.training.states)).bars_in(market)
    [pool] = pools_of(config.training, market, [(0, len(market))], HORIZON, gross_limit(config))
    for query in pool.draw(3, 0, 10, easy=False):
        assert query.exposures() == held[query.bar]


def test_the_run_says_where_its_data_came_from(recorded: tuple[Store, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    store, folder = recorded

    class Stopped(ThisProcess):
        def train(self, *_: Any) -> TrainingState:
            raise KeyboardInterrupt

    made = train_request_of(SESSION, TrainRequest(overrides=SHORT), store, folder)
    for request in (made, None):
        with pytest.raises(Interrupted):
            begun = next((one.run for one in store.runs() if one.kind == "train"), "")
            train_team(request or TrainRequest(resume=begun), store, folder, process=Stopped())
    [run] = [one for one in store.runs() if one.kind == "train"]
    assert run.config["origin"]["session"] == SESSION, "also after a resume"
    assert run.data_hash == run.config["origin"]["data_hash"]


def test_refusals(recorded: tuple[Store, Path]) -> None:
    store, folder = recorded
    with pytest.raises(UserError, match=r"no session 'paper-wek' \(did you mean 'paper-week'\?\)"):
        train_request_of("paper-wek", TrainRequest(), store, folder)
    with pytest.raises(UserError, match="brings its own data, and --symbols"):
        train_request_of(SESSION, TrainRequest(symbols=("AAAUSDT",)), store, folder)
    with pytest.raises(UserError, match=r"\d\d decisions, of which \d+ are for training.*shorter team.horizon_bars"):
        train_request_of(SESSION, TrainRequest(overrides=("team.horizon_bars=24",)), store, folder)
    record = store.run(SESSION)
    store.add_run(replace(record, run="paper-running", status="running", finished_at=None))
    with pytest.raises(UserError, match=r"still runs.*paper stop paper-running"):
        train_request_of("paper-running", TrainRequest(), store, folder)
    store.finish_run("paper-running", "interrupted")


def test_states_of_other_bars_are_refused(recorded: tuple[Store, Path], tmp_path: Path) -> None:
    store, folder = recorded
    config = train_request_of(SESSION, TrainRequest(overrides=SHORT), store, folder).settings()
    market = load_market(config.market, config.costs)
    states = read_states(Path(config.training.states))
    with pytest.raises(DataError, match="of other bars"):
        states.bars_in(replace(market, close=market.close * 1.5, high=market.high * 2.0))
    with pytest.raises(DataError, match="of no bar and symbol"):
        replace(states, held={1: {}}).bars_in(market)
    broken = tmp_path / "states.json"
    broken.write_text('{"session": "x", "data_hash": "y", "states": [[1, {"A": 1e999}]]}')
    with pytest.raises(DataError, match="not recorded states"):
        read_states(broken)
    with pytest.raises(DataError, match="no such file"):
        read_states(tmp_path / "none.json")


def test_names_of_live_symbols_become_names_of_files() -> None:
    assert file_names(("BTC/USDT:USDT", "ETH/USDT:USDT")) == {"BTC/USDT:USDT": "BTCUSDT", "ETH/USDT:USDT": "ETHUSDT"}
    assert list(file_names(("BTC/USDT", "BTC/USDT:USDT")).values()) == ["BTC-USDT", "BTC-USDT-USDT"]
