"""The ledger of trials: nothing resets it, and it tells ways of trading apart."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.builders.loaded_team import scripted_team
from backend.builders.strategies import named_strategy
from backend.config.load import load_config
from backend.config.schema import Config
from backend.evaluation.trials import count_trials, digest_of_trial, record_trial
from backend.store.maintenance import backup_store
from backend.store.records import RunRecord, TrialRecord
from backend.store.store import Store
from tests.small_world import small_market

CONFIG = Config()
MARKET = small_market()


def record(store: Store, run: str, strategy: str = "ema_cross", start: int = 120, stop: int = 200) -> int:
    store.add_run(RunRecord(run, "backtest", 1, MARKET.content_hash, 1, {}, "finished"))
    found = record_trial(store, run, named_strategy(strategy), CONFIG, MARKET, start, stop, every=6, seed=1)
    return found.trials


def test_each_way_of_trading_counts_once_and_a_deleted_run_still_counts(store: Store) -> None:
    assert [record(store, "one"), record(store, "two"), record(store, "three", "sma_cross")] == [1, 1, 2]
    assert record(store, "elsewhere", "rsi_reversion", 200, 260) == 1
    for run in ("one", "two", "three"):
        store.delete_run(run)
    assert record(store, "four", "rsi_reversion", 150, 160) == 3  # an overlap is a look
    trials = store.trials(MARKET.content_hash)
    assert count_trials(trials, MARKET.content_hash, trials[0].start, trials[0].stop).looks == 4
    assert store.trials("other data") == []


def test_two_parts_of_a_run_are_two_rows(store: Store) -> None:
    store.add_run(RunRecord("one", "evaluate", 1, MARKET.content_hash, 1, {}, "finished"))
    for part in ("held_out", "no_edge"):
        team = scripted_team(CONFIG.team)
        record_trial(store, "one", team, CONFIG, MARKET, 120, 200, every=6, seed=1, of=part)
    assert [trial.name for trial in store.trials()] == ["held_out/scripted", "no_edge/scripted"]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20), st.sampled_from("abc")), max_size=12))
def test_the_count_never_falls(rows: list[tuple[int, int, str]]) -> None:
    trials = [
        TrialRecord(f"r{number}", "team", "data", start, start + length, digest, number)
        for number, (start, length, digest) in enumerate(rows)
    ]
    counts = [count_trials(trials[:end], "data", 10, 30).trials for end in range(len(trials) + 1)]
    assert counts == sorted(counts)


def test_what_changes_the_trading_is_another_trial() -> None:
    team = scripted_team(CONFIG.team)
    plain = digest_of_trial(team, CONFIG, 6, 1)
    assert plain == digest_of_trial(scripted_team(CONFIG.team), load_config(CONFIG, ["evaluation.windows=7"]), 6, 1)
    dearer = load_config(CONFIG, ["costs.taker_fee=0.002"])
    asked = load_config(CONFIG, ["team.horizon_bars=12"])
    others = [
        digest_of_trial(team, CONFIG, 6, 2),
        digest_of_trial(team, CONFIG, 12, 1),
        digest_of_trial(team, dearer, 6, 1),
        digest_of_trial(scripted_team(asked.team), asked, 6, 1),
        digest_of_trial(replace(team, name="x"), CONFIG, 6, 1),
    ]
    assert len({plain, *others}) == 6
    strategy = named_strategy("ema_cross")
    assert digest_of_trial(strategy, CONFIG, 6, 1) == digest_of_trial(strategy, CONFIG, 6, 2)  # it draws nothing


def test_an_edited_strategy_is_another_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "ledger_strategy.py"
    text = "class Mine:\n    name = 'mine'\n    def decide(self, view, account):\n        return []\n"
    file.write_text(text)
    mine = named_strategy("ledger_strategy:Mine")
    before = digest_of_trial(mine, CONFIG, 6, 1)
    file.write_text(text + "# 2\n")
    assert digest_of_trial(mine, CONFIG, 6, 1) != before


def test_the_ledger_goes_with_a_copy(tmp_path: Path) -> None:
    with Store.open(tmp_path / "first") as store:
        record(store, "one")
        store.delete_run("one")
        backup_store(store, tmp_path / "copy")
    with Store.open(tmp_path / "copy") as copy:
        assert [one.run for one in copy.trials()] == ["one"]
