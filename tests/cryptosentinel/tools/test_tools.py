"""The tools' numbers against answers worked out apart, and what they say where there is little or nothing to say."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cryptosentinel.agents import manager
from cryptosentinel.agents.registry import ROLES
from cryptosentinel.conversation.masking import Mask
from cryptosentinel.protocol.tool_calls import NoArguments
from cryptosentinel.tools import execution, portfolio
from cryptosentinel.tools import market as trends
from cryptosentinel.tools.context import MISSING, percentile_of
from cryptosentinel.tools.market import BarsOf, IndicatorsOf
from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.orders import Order
from simulator.exchange.rules import MarginTier, SymbolRules
from simulator.exchange.venue import Venue
from simulator.market.drift_filter import drift_belief, pooled_drift_belief
from simulator.market.events import FundingEvent, NewsItem
from simulator.market.market import Market
from simulator.market.series import DataSeries
from simulator.market.timeframes import BAR_COLUMNS, parse_time
from tests.markets import HOUR, bars_of
from tests.team_scenes import COINS, account_in, context_at, synthetic

NONE = NoArguments()


def market_of(close: Any, **more: Any) -> Market:
    """Bars with these closes (T, S), each opened at the close before, without wicks."""
    return bars_of(close, COINS, **({"volume": 10.0, "half_spread": 0.0005} | more))


def walk(bars: int = 400, coins: int = 2, seed: int = 0, step: float = 0.01) -> Any:
    return 100.0 * np.exp(np.cumsum(np.random.default_rng(seed).normal(0.0, step, (bars, coins)), axis=0))


def said(value: Any) -> str:
    """As JSON, which knows no NaN."""
    return json.dumps(value, allow_nan=False)


@given(
    seed=st.integers(0, 2**32 - 1), bars=st.integers(1, 130), absent=st.sampled_from([0.0, 0.3, 0.95]),
    side=st.sampled_from(["long", "short", "flat"]), exposure=st.sampled_from([0.0, 0.5, 10.0]),
    held=st.sampled_from([-2.0, 0.0, 1.0]), equity=st.sampled_from([10_000.0, 1e-9, 0.0, -5.0]),
)  # fmt: skip
@settings(max_examples=120, deadline=None)
def test_every_tool_answers_in_json_whatever_there_is(
    seed: int, bars: int, absent: float, side: str, exposure: float, held: float, equity: float
) -> None:
    rng = np.random.default_rng(seed)
    market = market_of(walk(bars, 2, seed, float(rng.choice([0.0, 0.01, 0.5]))))
    gone = rng.random(market.close.shape) < absent
    arrays: dict[str, Any] = {name: np.where(gone, np.nan, getattr(market, name)) for name in BAR_COLUMNS}
    arrays["volume"] = np.where(rng.random(gone.shape) < 0.3, arrays["volume"] * 0.0, arrays["volume"])
    market = replace(market, **arrays)
    marks = {symbol: market.view(bars - 1).last_close(symbol) for symbol in market.symbols}
    holding = {symbol: held if marks[symbol] > 0.0 else 0.0 for symbol in market.symbols}
    context = context_at(market, side=side, exposure=exposure)
    state = replace(
        context.account, equity=equity, exposure=holding, mark=marks, liquidated=equity <= 0.0,
        positions={s: held * 100.0 / marks[s] if holding[s] else 0.0 for s in market.symbols},
        entry_price={s: marks[s] if holding[s] else None for s in market.symbols},
    )  # fmt: skip
    context = replace(context, account=state, pooled_trend=bool(seed % 2))
    for role in ROLES.values():
        for tool in role.tools:
            if tool.run is not None:
                assert said(tool.run(context, tool.arguments()))


def test_without_data_it_is_not_available() -> None:
    context = context_at(market_of(walk(8)))
    table: tuple[tuple[Any, Any, str], ...] = (
        (trends.indicator_values, IndicatorsOf(), "indicators"), (trends.volatility_summary, NONE, "volatility"),
        (trends.recent_bars, BarsOf(timeframe="15m"), "bars"), (trends.funding_history, NONE, "funding"),
        (trends.series, NONE, "series"),
        (portfolio.loss_quantiles, portfolio.WhatIf(), "var"),
    )  # fmt: skip
    for tool, arguments, key in table:
        assert tool(context, arguments)[key] == MISSING


@given(seed=st.integers(0, 2**32 - 1), slope=st.sampled_from([-0.02, 0.0, 0.02]))
def test_a_trend_and_its_mirror_image_give_mirrored_results(seed: int, slope: float) -> None:
    close = walk(200, 1, seed) * np.exp(slope * np.arange(200))[:, None]
    output, mirrored = (trends.trend(context_at(market_of(one)), NONE) for one in (close, 1.0 / close))
    swapped = {"up": "down", "down": "up"}
    assert mirrored["trend"] == " ".join(swapped.get(word, word) for word in output["trend"].split())
    assert mirrored["drift"] == -output["drift"]
    assert ("up" in output["trend"]) == (output["drift"] >= 0.15) or abs(output["drift"]) in (0.1, 0.2)  # it is rounded
    if slope:
        assert output["trend"].endswith("up" if slope > 0 else "down")


@given(seed=st.integers(0, 2**32 - 1), coin=st.sampled_from(["AAAUSDT", "BBBUSDT", "CCCUSDT"]))
def test_a_pooled_trend_reads_the_other_coins_too(seed: int, coin: str) -> None:
    close = walk(200, 3, seed)
    context = context_at(market_of(close), symbol=coin, pooled_trend=True)
    drift = pooled_drift_belief(np.diff(np.log(close), axis=0), ("AAAUSDT", "BBBUSDT", "CCCUSDT").index(coin))
    assert trends.trend(context, NONE)["drift"] == round(drift, 1)
    alone, unpooled = market_of(close[:, :1]), replace(context, pooled_trend=False)
    assert trends.trend(context_at(alone, pooled_trend=True), NONE) == trends.trend(context_at(alone), NONE)
    assert trends.trend(unpooled, NONE)["drift"] == round(
        drift_belief(np.diff(np.log(context.view.bars(coin, 200).close))), 1
    )


def test_bars_are_rescaled_and_coarser_ones_are_complete() -> None:
    close = walk(50, 1)
    context = context_at(market_of(close))
    output = trends.recent_bars(context, BarsOf(count=3))
    scale = 100.0 / close[-1, 0]
    assert [row[3] for row in output["ohlc"]] == pytest.approx((close[-3:, 0] * scale).tolist(), abs=0.01)
    assert output["ohlc"][-1][3] == 100.0 and output["age_h"] == 0.0 and output["volume"] == [1.0, 1.0, 1.0]
    coarse = trends.recent_bars(context, BarsOf(timeframe="4h", count=2))
    # 50 hours hold twelve whole bars of four hours; the last of them ended two hours ago.
    assert coarse["age_h"] == 2.0 and coarse["ohlc"][-1][3] == 100.0
    assert coarse["ohlc"][-1][0] == pytest.approx(100.0 * close[43, 0] / close[47, 0], abs=0.01)


def test_bars_longer_than_a_day_tell_of_weeks_and_of_no_day() -> None:
    """The last bar's move was called that of the last day, and two weeks' volatility that of a day."""
    close = walk(200, 2, step=0.05)
    context = context_at(market_of(close, timeframe="1w", start=parse_time("2020-01-06")))
    other = trends.other_coins(context, NONE)["others"][context.mask.alias("BBBUSDT")]
    assert "day" not in other and other["week"] == pytest.approx(100.0 * (close[-1, 1] / close[-2, 1] - 1.0), abs=0.06)
    assert "week" in portfolio.account(context, NONE)
    volatility = trends.volatility_summary(context, NONE)
    assert volatility["day"] == MISSING and isinstance(volatility["week"], float)
    assert ", week " in manager.brief(context) and ", day " not in manager.brief(context)


@given(beta=st.floats(-3.0, 3.0).filter(lambda value: abs(value) > 0.1), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_beta_is_the_slope(beta: float, seed: int) -> None:
    other = np.random.default_rng(seed).normal(0.0, 0.01, 200)
    close = 100.0 * np.exp(np.cumsum(np.column_stack([beta * other, other]), axis=0))
    output = trends.other_coins(context_at(market_of(close)), NONE)
    assert output["others"]["C2"]["beta"] == pytest.approx(beta, abs=0.006)
    assert output["others"]["C2"]["correlation"] == math.copysign(1.0, beta)


def test_funding_carry_series_and_spread_by_hand() -> None:
    funding = {"AAAUSDT": tuple(FundingEvent(8 * HOUR * k, 0.0001 * k) for k in range(1, 11))}
    series = {
        "onchain/AAA": DataSeries(np.array([HOUR, 20 * HOUR, 500 * HOUR]), {"users": np.array([1.0, 3.0, 9.0])}),
        "onchain/BBB": DataSeries(np.array([HOUR]), {"users": np.array([7.0])}),
        "sentiment/mood": DataSeries(np.array([HOUR]), {"value": np.array([5.0])}),
    }
    market = market_of(np.full((84, 2), 100.0), funding=funding, series=series)
    context = context_at(market)
    output = trends.funding_history(context, NONE)
    assert output == {
        "funding_bps": 10.0, "age_h": 4.0, "percentile": 95, "long_carry_bps": pytest.approx(-6.0 * 6 / 8, abs=0.01),
        "basis": MISSING, "open_interest": MISSING,
    }  # fmt: skip
    mood = {"value": 5.0, "percentile": 50, "age_h": 83.0}
    assert trends.series(context, NONE) == {
        "onchain users": {"of_median": 1.5, "percentile": 75, "age_h": 64.0},
        "mood value": mood,
    }
    shown = context_at(market, mask=Mask(market.symbols, False))
    assert trends.series(shown, NONE)["onchain users"] == {"value": 3.0, "percentile": 75, "age_h": 64.0}
    assert trends.spread(context, NONE) == {"spread_bps": 10.0, "usual_bps": 10.0}


def test_news_are_searched_as_they_are_shown() -> None:
    told = (
        (1, "AAAUSDT", "AAA rallies"), (2, None, "Market falls"), (3, "BBBUSDT", "BBB rallies"),
        (4, None, "Elon Musk Sam Altman crash"),
    )  # fmt: skip
    news = tuple(NewsItem(hour * HOUR, hour * HOUR, symbol, text) for hour, symbol, text in told)
    context = context_at(market_of(walk(10), news=news))
    assert trends.search_news(context, trends.Search()) == {
        "found": 3,
        "searched": 3,
        "news": [
            {"age_h": 9.0, "tone": 1, "text": "C1 rallies"},
            {"age_h": 8.0, "tone": -1, "text": "Market falls"},
            {"age_h": 6.0, "tone": -1, "text": "withheld"},
        ],
    }
    assert [row["text"] for row in trends.news(context, NONE)["news"]][-1] == "withheld"
    for words, found in (("aaa", 0), ("C1 RALLIES", 1), ("withheld", 0)):  # the name is masked
        assert trends.search_news(context, trends.Search(words=words))["found"] == found


def test_levels_and_names_of_series_do_not_say_which_coin_it_is() -> None:
    known = np.arange(1, 11) * HOUR
    held = 1e11 + 1e9 * np.arange(10.0)
    series = {
        "onchain/BTC": DataSeries(known, {"BTC_held": held, "none": np.zeros(10)}),
        "open_interest/BTC": DataSeries(known, {"value": held}),
        "sentiment/Bitcoin_talk": DataSeries(known, {"value": np.full(10, 3.0)}),
    }
    market = replace(market_of(walk(10), series=series), symbols=("BTCUSDT", "ETHUSDT"))
    said_masked = [said(tool(context_at(market), NONE)) for tool in (trends.series, trends.funding_history)]
    assert not any(word in text for text in said_masked for word in ("BTC", "Bitcoin", "e+", "0000"))
    assert '"onchain C1 held": {"of_median": 1.043' in said_masked[0] and '"C1 talk value"' in said_masked[0]
    assert '"onchain none": {"of_median": "not available"' in said_masked[0]
    assert '"open_interest": {"of_median": 1.043' in said_masked[1]


def test_loss_quantiles_of_one_coin_are_those_of_its_moves() -> None:
    close = walk(300, 1, seed=4)
    context = context_at(market_of(close), side="short", exposure=2.0, share=0.5, horizon_bars=1)
    output = portfolio.loss_quantiles(context, portfolio.WhatIf())
    losses = np.sort(np.diff(close[-241:, 0]) / close[-241:-1, 0])  # a short of one loses what the coin gains
    assert output["exposure"] == -2.0 and output["share_of_risk"] == 1.0
    assert output["var"] == pytest.approx(100.0 * losses[227], abs=0.01)
    assert output["shortfall"] == pytest.approx(100.0 * losses[227:].mean(), abs=0.01)
    other = portfolio.loss_quantiles(context, portfolio.WhatIf(exposure=-4.0))
    assert other["var"] == pytest.approx(2.0 * output["var"], abs=0.02)


@given(exposure=st.sampled_from([-4.0, -2.0, 1.5, 3.0, 4.5]), rate=st.sampled_from([0.005, 0.02, 0.1]))
@settings(max_examples=15, deadline=None)
def test_the_exchange_liquidates_at_the_distance_that_the_tool_gives(exposure: float, rate: float) -> None:
    rules = {"AAAUSDT": SymbolRules(tiers=(MarginTier(0.0, rate, 50.0),))}
    context = context_at(
        market_of(np.full((200, 1), 100.0)), side="long" if exposure > 0 else "short", exposure=abs(exposure)
    )
    context = replace(context, account=replace(context.account, rules=rules))
    distance = portfolio.what_if(context, portfolio.WhatIf())["liquidation_distance"]
    assert execution.margin(context, NONE)["liquidation_distance"] == distance
    for move, ended in ((distance - 0.02, False), (distance + 0.02, True)):
        after = 100.0 * (1.0 - math.copysign(move / 100.0, exposure))
        market = replace(market_of([[100.0], [100.0], [after]]), half_spread=np.zeros((3, 1)))
        exchange = Exchange(market, 0, 10_000.0, Costs(taker_fee=0.0), 10.0, venue=Venue(rules))
        exchange.submit(Order("AAAUSDT", exposure * 100.0))
        exchange.step(2)
        assert exchange.account().liquidated is ended


def test_more_slices_cost_less_and_risk_more() -> None:
    context = context_at(market_of(walk(200)), side="long", exposure=1.0)
    output = execution.compare_orders(context, NONE)
    costs, risks = ([output[f"slices_{n}"][key] for n in (1, 2, 3)] for key in ("cost_bps", "risk_bps"))
    assert costs[0] > costs[1] > costs[2] > 5.0 and risks[0] == 0.0 < risks[1] < risks[2]
    assert output["change"] == 1.0 and output["of_a_bar"] == pytest.approx(10_000 / (10 * 100), rel=0.5)


def test_the_account_tool_agrees_with_the_exchange() -> None:
    market = synthetic()
    state = account_in(market, 200, {"AAAUSDT": 0.5, "BBBUSDT": -0.25})
    context = replace(context_at(market, 200), account=state, share=0.5)
    output = portfolio.account(context, NONE)
    assert output["held"]["C1"]["exposure"] == pytest.approx(state.exposure["AAAUSDT"] / 0.5, abs=1e-3)
    assert output["gross"] == pytest.approx(sum(map(abs, state.exposure.values())) / 0.5, abs=2e-3)
    assert output["net"] == pytest.approx(sum(state.exposure.values()) / 0.5, abs=2e-3)
    gone = replace(context, account=replace(state, liquidated=True))
    assert portfolio.account(gone, NONE) == {"account": "liquidated"}


def test_the_limits_tool_gives_the_limits_and_the_room_they_leave() -> None:
    context = context_at(market_of(walk(50)), exposures={"AAAUSDT": 0.5, "BBBUSDT": -0.25}, share=0.5)
    given_limits = {
        "max_exposure": 0.6, "max_gross_exposure": 1.0, "max_drawdown": 0.5, "max_orders": 6.0, "price_band": math.inf
    }  # fmt: skip
    output = portfolio.limits(replace(context, limits=given_limits), NONE)
    # One unit of exposure: what is held, the guard's limits and the room below them are fractions of the same money.
    assert output["unit"] == "exposures are fractions of the decision's equity, which is 0.5 of the account's"
    assert output["limits"] == {
        "max_exposure": 1.2, "max_gross_exposure": 2.0, "max_drawdown_percent": 50.0, "max_orders": 6.0
    }  # fmt: skip
    assert output["left"] == {"exposure": {"C1": 1.2, "C2": 1.0}, "gross": 0.5, "drawdown_percent": 50.0}
    assert output["limits"]["max_gross_exposure"] - output["gross"] == output["left"]["gross"]
    assert portfolio.limits(context, NONE)["left"] == {"exposure": "any"}
    whole = portfolio.limits(replace(context, share=1.0, limits=given_limits), NONE)
    assert whole["unit"] == "exposures are fractions of the decision's equity"
    assert whole["limits"]["max_exposure"] == 0.6 and whole["left"]["gross"] == 0.25


@given(values=st.lists(st.floats(-5.0, 5.0), min_size=1, max_size=30), value=st.floats(-6.0, 6.0))
def test_percentiles_are_shares(values: list[float], value: float) -> None:
    found = percentile_of(value, np.array(values))
    assert 0 <= found <= 100
    assert percentile_of(-value, -np.array(values)) == pytest.approx(100 - found, abs=1)
