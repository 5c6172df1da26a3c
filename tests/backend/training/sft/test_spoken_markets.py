"""What a warm start speaks about: on recorded bars also what only later parts have, and made of nothing of theirs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from backend.training.sft.spoken_markets import spoken_markets
from cryptosentinel.conversation.masking import Mask
from cryptosentinel.protocol.tool_calls import NoArguments
from cryptosentinel.tools.context import ToolContext
from cryptosentinel.tools.market import funding, news
from simulator.market.market import Market
from tests.team_scenes import account_in, synthetic

BARS = range(40, 320, 3)


def recorded() -> Market:
    """Bars of which nothing hidden is known, with headlines and funding in the last third only."""
    whole = synthetic()
    late = int(whole.open_time[210])
    return replace(
        whole,
        truth=None,
        news=tuple(item for item in whole.news if item.known_at >= late),
        funding={name: tuple(e for e in events if e.time >= late) for name, events in whole.funding.items()},
    )


def told(market: Market) -> list[dict[str, Any]]:
    """What the two tools say about every coin at some bars."""
    mask = Mask(market.symbols, True)
    said = []
    for bar in BARS:
        view, account = market.view(bar), account_in(synthetic(), bar)
        for name in market.symbols:
            context = ToolContext(view, account, mask, market.symbols, 12, 1.0, name)
            said.append(news(context, NoArguments()) | funding(context, NoArguments()))
    return said


def test_a_generated_market_is_spoken_about_as_it_is() -> None:
    assert spoken_markets(synthetic(), 1) == [synthetic()]


def test_recorded_bars_are_also_spoken_about_with_everything_and_with_nothing() -> None:
    itself, full, bare = spoken_markets(recorded(), 1)
    assert itself == recorded()
    for one in (full, bare):
        assert np.array_equal(one.close, itself.close, equal_nan=True) and one.symbols == itself.symbols
    assert all(one == {"tone": "not available", "funding": "not available"} for one in told(bare))
    said = told(full)
    assert np.mean([one["tone"] != "not available" for one in said]) > 0.95
    assert {one["tone"] for one in said} >= {"mixed", "good", "bad"}
    assert all("funding_bps" in one for one in said)
    assert {one["funding"] for one in said} == {"longs pay", "shorts pay", "balanced"}
    shown = [item["text"] for one in said for item in one.get("news", [])]
    assert len(set(shown)) > 100 and 0.0 < np.mean([text == "withheld" for text in shown]) < 0.3


def test_nothing_of_the_recorded_headlines_is_in_the_made_ones_and_a_seed_repeats_them() -> None:
    _, full, _ = spoken_markets(recorded(), 1)
    assert not {item.text.lower() for item in full.news} & {item.text.lower() for item in recorded().news}
    assert spoken_markets(recorded(), 1)[1].news == full.news != spoken_markets(recorded(), 2)[1].news
