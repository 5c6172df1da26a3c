"""What each part of a history has is what the team's tools find there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from backend.builders.market import Split, part_notes
from cryptosentinel.conversation.masking import Mask
from cryptosentinel.protocol.tool_calls import NoArguments
from cryptosentinel.tools.context import ToolContext
from cryptosentinel.tools.market import funding, news
from tests.team_scenes import account_in, synthetic

PARTS = Split((0, 120), (130, 200), (210, 320))


def test_the_shares_are_those_of_the_tools_answers() -> None:
    whole = synthetic()
    late = int(whole.open_time[100])
    symbol = whole.symbols[0]
    market = replace(
        whole,
        news=tuple(item for item in whole.news if item.known_at >= late),
        funding={symbol: tuple(event for event in whole.funding[symbol] if event.time >= late)},
        truth=None,
    )
    notes = part_notes(market, PARTS)
    for note, (start, stop) in zip(notes, (PARTS.train, PARTS.validation, PARTS.held_out), strict=True):
        told: dict[str, list[bool]] = {"headlines": [], "funding": []}
        for bar in range(start, stop):
            view, account = market.view(bar), account_in(whole, max(bar, 1))
            for name in market.symbols:
                mask = Mask(market.symbols, True)
                context = ToolContext(view, account, mask, market.symbols, 12, 1.0, name)
                told["headlines"].append(news(context, NoArguments())["tone"] != "not available")
                told["funding"].append(funding(context, NoArguments())["funding"] != "not available")
        assert f"bars on 100%, headlines on {np.mean(told['headlines']):.0%}" in note
        assert f"funding on {np.mean(told['funding']):.0%} of its {stop - start} bars" in note
    assert "headlines on 0%" not in notes[1] and notes[0].startswith("The training part, 2")


def test_a_source_that_the_training_part_lacks_is_named_with_who_learns_without_it() -> None:
    whole = replace(synthetic(), truth=None)
    late = int(whole.open_time[PARTS.train[1] + 5])
    later = tuple(item for item in whole.news if item.known_at >= late)
    assert len(part_notes(whole, PARTS)) == 3
    *_, note = part_notes(replace(whole, news=later), PARTS)
    assert note.startswith("The training part has no headlines: MarketAnalyst learns from prices, funding alone there.")
    *_, note = part_notes(replace(whole, news=(), funding={}), PARTS)
    assert note.startswith("The training part has no headlines and no funding: MarketAnalyst learns from prices alone")
    assert "its forecast's score and its share of the outcome" in note
