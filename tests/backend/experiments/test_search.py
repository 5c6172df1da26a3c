from pathlib import Path

import numpy as np
import pytest

from backend.builders.strategies import named_strategy
from backend.experiments.search import Proposals, SearchRequest, parts_of, ranges_of, search_parameters
from backend.store.store import Store
from simulator.backtest.run import Window
from simulator.data.archive import write_market
from simulator.errors import DataError, UserError
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate

pytest.importorskip("optuna", reason="the package optuna is absent: `python scripts/install.py search`")
SHORT = {"fast": (2.0, 9.0), "slow": (10.0, 40.0)}  # so that 900 bars hold the start-up length of all sets


@pytest.fixture
def bars(tmp_path: Path) -> Path:
    write_market(generate(SyntheticConfig(bars=900, seed=4, symbols=("AAAUSDT",))), tmp_path / "bars")
    return tmp_path / "bars"


def test_a_search_counts_every_set_and_looks_at_the_last_part_once(bars: Path, tmp_path: Path) -> None:
    request = SearchRequest(
        strategy="ema_cross", trials=30, data=bars, start="2000-01-01", decide_every=1, ranges=SHORT
    )
    result = search_parameters(request, tmp_path / "store")
    assert len({one.name for one in result.tried}) == 30 == result.trials
    sharpes = [one.sharpe for one in result.tried]
    assert sharpes == sorted(sharpes, reverse=True) and result.looks == 1
    assert 0.0 <= result.overfitting.probability <= 1.0 and 0.0 <= result.deflated <= 1.0
    # What was chosen is a strategy that a backtest takes by this very name.
    assert vars(named_strategy(result.chosen.name).make())["fast"] == result.chosen.parameters["fast"]
    with Store.open(tmp_path / "store") as store:
        trials = store.trials()
        assert len(trials) == 31 and len({one.digest for one in trials}) == 30  # the chosen set in both parts
        searched = [one for one in trials if not one.name.startswith("final/")]
        [final] = [one for one in trials if one.name.startswith("final/")]
        assert final.start == searched[0].stop  # the last part begins where the search ended
        assert store.evaluations(result.run)[0].result["tried"][0]["name"] == result.chosen.name
    again = search_parameters(request, tmp_path / "store")
    assert again.trials == 30 and again.looks == 2  # the same sets are no new trials, a second look is a look


def test_a_search_with_the_same_seed_tries_the_same_sets(bars: Path, tmp_path: Path) -> None:
    def tried(seed: int, workers: int) -> list[tuple[str, float]]:
        request = SearchRequest(
            strategy="buy_the_dip", trials=12, data=bars, start="2000-01-01", workers=workers, seed=seed,
            ranges={"lookback": (5.0, 50.0), "dip": (0.01, 0.2)},
        )  # fmt: skip
        return [(one.name, one.sharpe) for one in search_parameters(request, tmp_path / "store").tried]

    assert tried(1, 1) == tried(1, 2) != tried(2, 1)


def test_more_sets_are_tried_where_the_scores_are_high() -> None:
    """After ten random sets, a known peak draws the others."""
    strategy, near = named_strategy("buy_the_dip"), list[bool]()
    proposals = Proposals(strategy, {"dip": (0.01, 0.2)}, seed=3)
    for fresh in proposals.rounds(64):
        for number, one in fresh.items():
            dip = vars(one.make())["dip"]
            near.append(abs(dip - 0.05) < 0.02)
            proposals.score(number, one, -abs(dip - 0.05))
    assert np.mean(near[32:]) > 2 * np.mean(near[:8]) and np.mean(near[32:]) > 0.5


def test_sets_are_different_valid_and_spread_over_their_ranges() -> None:
    strategy = named_strategy("ema_cross")
    proposals = Proposals(strategy, ranges_of(strategy, {"fast": (2.0, 64.0), "slow": (4.0, 256.0)}), seed=1)
    drawn = []
    for fresh in proposals.rounds(100):
        drawn += [one.make() for one in fresh.values()]
        for number, one in fresh.items():
            proposals.score(number, one, 0.0)
    fast, slow = (np.array([vars(one)[key] for one in drawn]) for key in ("fast", "slow"))
    assert (fast < slow).all() and fast.min() >= 2 and slow.max() <= 256
    assert len(set(zip(fast.tolist(), slow.tolist(), strict=True))) == 100
    assert np.log(slow).std() > 0.5 and np.log(fast).std() > 0.5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ranges": {"fst": (1.0, 2.0)}}, "no argument 'fst'"),
        ({"ranges": {"fast": (5.0, 2.0)}}, "the lower"),
        ({"ranges": {"fast": (50.0, 60.0), "slow": (5.0, 6.0)}}, "fewer than two sets"),
        ({"strategy": "flat"}, "lists no ranges of its parameters"),
    ],
)
def test_what_cannot_be_searched_is_refused(bars: Path, tmp_path: Path, options: dict[str, object], said: str) -> None:
    given = {"strategy": "ema_cross", "trials": 5, "data": bars, "start": "2000-01-01", **options}
    with pytest.raises(UserError, match=said):
        search_parameters(SearchRequest(**given), tmp_path / "store")  # type: ignore[arg-type]  # of a test's table


def test_the_parts_of_a_window_share_no_decision() -> None:
    searched, final = parts_of(Window(130, 1_000, 6), 0.3)
    assert (searched.start, searched.stop, final.stop) == (130, final.start, 1_000)
    assert (searched.stop - searched.start) % 6 == 0
    with pytest.raises(DataError, match="it takes 64"):
        parts_of(Window(130, 200, 1), 0.3)


def test_a_search_begins_where_the_strategy_may_decide(tmp_path: Path) -> None:
    """At the longest start-up length of the ranges, and not where a team's tools have enough."""
    write_market(generate(SyntheticConfig(bars=400, seed=2, symbols=("AAAUSDT",))), tmp_path / "bars")
    request = SearchRequest(
        strategy="sma_cross", data=tmp_path / "bars", trials=2, start="2020-01-01", decide_every=1,
        ranges={"fast": (2, 5), "slow": (10, 30)},
    )  # fmt: skip
    search_parameters(request, tmp_path / "store")
    with Store.open(tmp_path / "store") as store:
        market = generate(SyntheticConfig(bars=400, seed=2, symbols=("AAAUSDT",)))
        begun = min(one.start for one in store.trials(market.content_hash))
    assert begun == int(market.open_time[30]) + market.interval
