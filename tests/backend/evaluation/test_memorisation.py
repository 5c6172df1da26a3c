"""What is said of a team with and without masks, and of a window that its model may have read about."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.builders.loaded_team import scripted_team
from backend.builders.strategies import named_strategy
from backend.config.load import load_config
from backend.evaluation.memorisation import headlines_note, masking_note, wilson_interval
from backend.runs.backtest import with_unmasked
from simulator.backtest.run import Window, run_backtest
from simulator.errors import UserError
from simulator.market.events import NewsItem
from simulator.strategies import Hold
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate

DAY = 86_400_000
MARKET = generate(SyntheticConfig(bars=200, seed=1, symbols=("AAAUSDT",)))
HELD = run_backtest(MARKET, Hold(), Window(20, 190))


@given(seed=st.integers(0, 2**31 - 1), edge=st.sampled_from([0.0, 0.02, -0.02]), noise=st.sampled_from([1e-4, 1e-3]))
@settings(max_examples=40, deadline=None)
def test_an_edge_from_names_is_told_and_noise_is_not(seed: int, edge: float, noise: float) -> None:
    rng = np.random.default_rng(seed)
    bars = len(HELD.equity)
    other = replace(HELD, equity=HELD.equity + HELD.equity[0] * edge * np.arange(bars) / 10)
    note = masking_note("team", HELD, other, seed)
    total = 100.0 * (HELD.equity[-1] / HELD.equity[0] - 1.0)
    assert note.startswith(f"team made {total:+.2f} % with masks and ")
    assert ("may be memory" in note, "costs it something" in note) == (edge > 0.0, edge < 0.0)
    shaken = replace(HELD, equity=HELD.equity * np.exp(np.r_[0.0, rng.normal(0.0, noise, bars - 2), 0.0]))
    assert "shows no effect" in masking_note("team", HELD, shaken, seed)


def test_a_window_of_one_bar_has_no_interval() -> None:
    short = replace(HELD, equity=HELD.equity[:2])
    assert "too short for an interval" in masking_note("team", short, short, 0)


def test_the_note_on_headlines_says_the_counts_and_what_gets_through() -> None:
    last = int(MARKET.open_time[-1]) + MARKET.interval
    texts = ["Elon Musk sells again after the report", "Traders buy as demand grows", "Buterin Hoskinson Lubin"]
    news = tuple(NewsItem(last - 9, last - 9 + number, None, text) for number, text in enumerate(texts))
    named = replace(MARKET, news=news)
    masked = headlines_note("team", named, last - DAY, last)
    assert masked is not None and "masked, 2 of 3, and 1 withheld" in masked
    # Wilson's interval for 8 of 160 headlines; by names, which cluster in headlines, it would be narrower than it is.
    assert "of 160 others that were read by hand, 8 showed" in masked and "(5.0 %, 95 % interval 2.6 to 9.6)" in masked
    assert headlines_note("team", MARKET, 0, last) is None, "the headlines of a synthetic market name nothing"


@given(trials=st.integers(1, 2000), share=st.floats(0.0, 1.0))
def test_the_interval_of_a_share_holds_it_and_lies_in_0_to_1(trials: int, share: float) -> None:
    successes = round(share * trials)
    low, high = wilson_interval(successes, trials)
    assert -1e-9 <= low <= successes / trials + 1e-9 and successes / trials - 1e-9 <= high <= 1.0 + 1e-9
    # Both ends are as far from the share as z of their own standard errors.
    for end in (low, high):
        assert (end - successes / trials) ** 2 == pytest.approx(1.959964**2 * end * (1 - end) / trials, abs=1e-9)


def test_only_masked_teams_have_a_twin() -> None:
    config = load_config("demo")
    team, strategy = scripted_team(config.team), named_strategy("hold")
    names = [one.name for one in with_unmasked([strategy, team])]
    assert names == ["hold", "scripted", "scripted, unmasked"]
    twin = team.unmasked()
    assert not twin.team.settings.mask_symbols and team.team.settings.mask_symbols
    for none in ([strategy], [twin]):
        with pytest.raises(UserError, match="no masked team"):
            with_unmasked(none)
