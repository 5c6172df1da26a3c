"""The look-ahead proof: nothing the team sees, says or sends at the close of bar t depends on what came to be known
after it.

Two markets that agree in all that was known at t and differ in everything else are shown to the same team. What it
reads (token by token), what each tool answers, what is decided and ordered must be equal to the byte. The roles and
tools come from the registry, so a new one is proven with the others. Planted peeks show that the proof can fail.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cryptosentinel.agents.registry import ROLES
from cryptosentinel.agents.role import Role, Tool
from cryptosentinel.conversation.masking import Mask
from cryptosentinel.episode import EpisodeResult, play
from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.protocol.tool_calls import NoArguments
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import expert_policies
from cryptosentinel.team import TeamDecision
from cryptosentinel.tools.context import ToolContext
from simulator.backtest.run import BacktestRun, Window
from simulator.data.catalog import Catalog
from simulator.exchange.exchange_records import AccountView
from simulator.market.market import Market
from simulator.market.series import DataSeries
from simulator.market.timeframes import BAR_COLUMNS, parse_time
from tests.lookahead_scenes import market_behind, other_future
from tests.markets import without_places
from tests.standard_limits import guard_limits
from tests.team_scenes import account_in, codec, context_at, half_taught_policies, make_team, synthetic

ROOT = Path(__file__).parents[2]
# Early bars, where the tools lack history, and late ones.
BARS = (3, 61, 150, 200, 317)


def surrounded(market: Market, seed: int = 0) -> Market:
    """The market with series beside its bars."""
    rng = np.random.default_rng(seed)
    closed = market.open_time + market.interval
    series = {
        name: DataSeries(closed[::7] + 60_000, {"value": np.abs(rng.normal(5.0, 1.0, len(closed[::7])))})
        for name in ("onchain/AAA", "sentiment/mood", "basis/AAA", "open_interest/BBB")
    }
    return replace(market, series=series)


def contexts(market: Market, bar: int) -> list[ToolContext]:
    """Every question that may be asked at `bar`, with and without masks, of an account that holds something."""
    account = account_in(market, bar, {market.symbols[0]: 0.6, market.symbols[-1]: -0.4})
    asked: dict[str, Any] = {"account": account, "horizon_bars": 18, "share": 0.5}
    return [
        context_at(market, bar, **asked, mask=Mask(market.symbols, masked), symbol=symbol, side=side, exposure=exposure)
        for symbol in market.symbols
        for masked in (True, False)
        for side, exposure in (("long", 0.5), ("short", 1.0), ("flat", 0.0))
    ]


def seen_at(market: Market, bar: int, roles: Iterable[Role]) -> dict[str, list[str]]:
    """What each brief and each tool of `roles` says at `bar`, to every question."""
    asked = contexts(market, bar)
    seen: dict[str, list[str]] = {}
    for role in roles:
        seen[f"{role.key}.brief"] = [role.brief(context) for context in asked]
        for tool in role.tools:
            if tool.run is not None:
                seen[f"{role.key}.{tool.name}"] = [json.dumps(tool.run(context, tool.arguments())) for context in asked]
    return seen


def prove_tools(market: Market, bars: Sequence[int], roles: Iterable[Role], seed: int = 0) -> None:
    """Raise `AssertionError` where a brief or a tool of `roles` tells something of the future."""
    roles = list(roles)
    for bar in bars:
        before, after = seen_at(market, bar, roles), seen_at(other_future(market, bar, seed), bar, roles)
        for name in before:
            same = before[name] == after[name]  # apart, since pytest would take minutes to lay long texts side by side
            assert same, f"{name} tells at bar {bar} what was not known then"


def decide_at(market: Market, bar: int, account: AccountView, seed: int, **team_settings: Any) -> TeamDecision:
    team = make_team(horizon_bars=18, **team_settings)
    task = team.decide(market.view(bar), account, market.symbols, Guard(guard_limits()), seed, share=1.0)
    return run_all([task], ScriptedEngine(codec(), half_taught_policies()))[0]


def play_through(market: Market, window: Window, seed: int) -> EpisodeResult:
    team = make_team(horizon_bars=18)
    task = play(team, BacktestRun(market, window), guard_limits(), seed)
    return run_all([task], ScriptedEngine(codec(), expert_policies()))[0]


@pytest.fixture(scope="module")
def recorded() -> Market:
    """Two recorded coins in 4h bars with their funding and headlines, over 2023's first quarter."""
    base = Path(os.environ.get("CRYPTOSENTINEL_SHARED", ROOT.parent / "shared")) / "market-data"
    if not base.is_dir():
        pytest.skip(f"no recorded market data at {base} (set CRYPTOSENTINEL_SHARED to the folder that holds it)")
    return Catalog(base / "binance").load(
        ("BTCUSDT", "ETHUSDT"),
        "1h",
        start=parse_time("2023-01-01"),
        end=parse_time("2023-03-01"),
        resample="4h",
        funding_dir=base / "funding" / "binance-usdm",
        news_path=base / "news" / "cryptotrade-2023.parquet",
    )


# The perturbation itself


def test_the_other_future_differs_in_everything_after_t_and_in_nothing_before() -> None:
    market, bar = surrounded(synthetic()), 200
    other, now = other_future(market, bar, 0), market.view(bar).now
    for name in BAR_COLUMNS:
        mine, its = getattr(market, name), getattr(other, name)
        assert mine[: bar + 1].tobytes() == its[: bar + 1].tobytes()
        assert not (mine[bar + 1 :] == its[bar + 1 :]).any()
    for symbol in market.symbols:
        pairs = list(zip(market.funding[symbol], other.funding[symbol], strict=True))
        assert all(a == b for a, b in pairs if a.time <= now)
        assert all(a.rate != b.rate for a, b in pairs if a.time > now) and pairs[-1][0].time > now
    assert [item for item in other.news if item.known_at <= now] == [i for i in market.news if i.known_at <= now]
    assert any(item.time <= now < item.known_at for item in other.news)
    for name, mine_too in market.series.items():
        differs = mine_too.columns["value"] != other.series[name].columns["value"]
        assert (differs == (mine_too.known_at > now)).all() and differs.any()


# Tools and briefs


@pytest.mark.parametrize("seed", [0, 1])
def test_no_tool_and_no_brief_of_any_role_looks_ahead(seed: int) -> None:
    market = synthetic(seed=3 + seed)
    absent = ([50, 149, 150, 199, 316], 0)
    prove_tools(without_places(market, absent) if seed else surrounded(market), BARS, ROLES.values(), seed)


def test_nor_on_recorded_data(recorded: Market) -> None:
    assert recorded.news and all(recorded.funding[symbol] for symbol in recorded.symbols)
    prove_tools(recorded, (100, 200, 300), ROLES.values())


def test_every_role_has_something_to_prove() -> None:
    """The proof calls tools that compute; a registry without any would make it empty."""
    proven = seen_at(surrounded(synthetic()), 200, ROLES.values())
    assert {role.key for role in ROLES.values()} == {name.split(".")[0] for name in proven}
    # Each tool and brief does look at the market: at another bar it says something else.
    elsewhere = seen_at(surrounded(synthetic()), 260, ROLES.values())
    same = {name for name in proven if proven[name] == elsewhere[name]}
    assert not {name for name in same if not name.endswith(".brief")}


def ahead(context: ToolContext) -> tuple[Market, int]:
    """The market behind a view, and the first bar that is not known yet."""
    return market_behind(context.view), context.view.index + 1


PEEKS: dict[str, Callable[[Market, int, ToolContext], Any]] = {
    "close": lambda market, row, _: float(market.close[row, 0]),
    "high": lambda market, row, _: float(np.nanmax(market.high[row:])),
    "open": lambda market, row, _: float(market.open[row:, 0].mean()),
    "volume": lambda market, row, _: float(np.nan_to_num(market.volume[:, 0]).sum()),
    "spread": lambda market, row, _: float(np.nan_to_num(market.half_spread[-1, -1])),
    "presence": lambda market, row, _: int(market.present.sum()),
    "funding": lambda market, row, context: [event.rate for event in market.funding[context.symbol]],
    "news by event time": lambda market, row, context: [i.text for i in market.news if i.time <= context.view.now],
    "truth": lambda market, row, _: market.truth is not None,
}


@pytest.mark.parametrize("name", PEEKS)
def test_a_tool_or_a_brief_that_peeks_is_caught(name: str) -> None:
    def hint(context: ToolContext, _: object = None) -> dict[str, Any]:
        return {"hint": PEEKS[name](*ahead(context), context)}

    tool = Tool("get_hint", "A planted look past the clock.", NoArguments, hint)
    for key, role in ROLES.items():
        with pytest.raises(AssertionError, match=f"{key}.get_hint tells"):
            prove_tools(synthetic(), (200,), [replace(role, tools=(*role.tools, tool))])
        with pytest.raises(AssertionError, match=f"{key}.brief tells"):
            prove_tools(synthetic(), (200,), [replace(role, brief=lambda context: f"soon {hint(context)}")])


# Decisions and orders


@settings(max_examples=20, deadline=None)
@given(
    bar=st.integers(130, 318),
    seed=st.integers(0, 2**32),
    masked=st.booleans(),
    schemas=st.booleans(),
    held=st.sampled_from([-0.5, 0.0, 0.5]),
)
def test_decisions_orders_and_every_token_are_equal(
    bar: int, seed: int, masked: bool, schemas: bool, held: float
) -> None:
    market = synthetic()
    other = other_future(market, bar, seed % 1000)
    decisions = []
    for one in (market, other):
        account = account_in(one, bar, {"AAAUSDT": held, "BBBUSDT": -held} if held else {})
        decisions.append(decide_at(one, bar, account, seed, mask_symbols=masked, schemas_in_prompt=schemas))
    # Dataclasses compare by value: token ids, masks and log-probs of every conversation, rulings, clamps, orders.
    assert decisions[0] == decisions[1]
    assert repr(decisions[0]) == repr(decisions[1])


def test_decisions_on_recorded_data_are_equal(recorded: Market) -> None:
    for bar in (150, 250, 340):
        other = other_future(recorded, bar, bar)
        first, second = (
            decide_at(one, bar, account_in(one, bar, {"BTCUSDT": 0.5}), 7, mask_symbols=False)
            for one in (recorded, other)
        )
        assert repr(first) == repr(second)


@pytest.mark.parametrize("bar", [200, 212])
def test_a_backtest_is_the_same_up_to_the_clock_and_another_after_it(bar: int) -> None:
    market, window = synthetic(coins=2), Window(180, 240, 4)
    first, second = play_through(market, window, 5), play_through(other_future(market, bar, 9), window, 5)
    until = [[repr(d) for at, d in episode.decisions if at <= bar] for episode in (first, second)]
    assert until[0] == until[1] and len(until[0]) == 2 * (1 + (bar - 180) // 4)
    row = bar - window.start + 1
    assert first.result.equity[:row].tobytes() == second.result.equity[:row].tobytes()
    assert first.result.exposure[:row].tobytes() == second.result.exposure[:row].tobytes()
    fills = [[fill for fill in episode.result.fills if fill.bar <= bar] for episode in (first, second)]
    assert fills[0] == fills[1] and fills[0]
    # The perturbation matters: what follows is not the same.
    after = [[repr(d) for at, d in episode.decisions if at > bar] for episode in (first, second)]
    assert after[0] != after[1]
