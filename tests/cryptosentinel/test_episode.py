"""A backtest by the team: when it decides, on what share, and that nothing but its orders moves the equity."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cryptosentinel.episode import EpisodeResult, ThinkingTime, play
from cryptosentinel.guard.limits import GuardLimits
from cryptosentinel.llm.chat_format import ChatMessages
from cryptosentinel.llm.engine import Completion, Engine, Usage
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import expert_policies
from simulator.backtest.run import BacktestRun, Window
from simulator.market.market import Market
from tests.standard_limits import guard_limits
from tests.team_scenes import codec, half_taught_policies, hold, make_team, submit, synthetic

WINDOW = Window(180, 240, 6)


def run(
    engine: Engine,
    *,
    market: Market | None = None,
    window: Window = WINDOW,
    seed: int = 4,
    portfolio: bool = False,
    limits: GuardLimits | None = None,
) -> EpisodeResult:
    game = BacktestRun(market or synthetic(), window)
    task = play(make_team(portfolio=portfolio), game, limits or guard_limits(), seed)
    return run_all([task], engine)[0]


def always(text: str) -> ScriptedEngine:
    """A manager that says the same at every bar, of whichever coin it is asked about."""

    def manager(messages: ChatMessages, seed: int) -> str:
        alias = messages[1]["content"].splitlines()[1].split(":")[0]
        return text.replace("C1", alias) if "C2" not in text else text

    return ScriptedEngine(codec(), {"manager": manager})


@pytest.mark.parametrize("portfolio", [False, True])
def test_the_equity_is_what_the_orders_alone_produce(portfolio: bool) -> None:
    wide = guard_limits(max_gross_exposure=9.0)  # so that nothing is held back and sent between the decisions
    episode = run(ScriptedEngine(codec(), half_taught_policies()), portfolio=portfolio, limits=wide)
    assert not any(decision.later for _, decision in episode.decisions)
    again = BacktestRun(synthetic(), WINDOW)
    while not again.done:
        again.apply([order for bar, d in episode.decisions if bar == again.index for order in d.orders])
    mine, its = episode.result, again.result()
    assert mine.equity.tobytes() == its.equity.tobytes() and mine.exposure.tobytes() == its.exposure.tobytes()
    assert mine.fills == its.fills and mine.fills and mine.metrics == its.metrics


def test_decisions_are_recorded_at_their_bars_one_a_coin() -> None:
    episode = run(ScriptedEngine(codec(), expert_policies()))
    bars = list(range(180, 240, 6))
    assert [bar for bar, _ in episode.decisions] == [bar for bar in bars for _ in range(3)]
    for number, (_, decision) in enumerate(episode.decisions):
        # The brief of each decision names the one coin that it is about, which is the first whichever it is.
        brief = codec().decode(decision.manager.ids)
        assert "\nC1: held" in brief and brief.count(": held ") == 1
        assert {order.symbol for order in decision.orders} <= {synthetic().symbols[number % 3]}
    whole = run(always(submit()), portfolio=True)
    assert [bar for bar, _ in whole.decisions] == bars
    assert codec().decode(whole.decisions[0][1].manager.ids).count(": held ") == 3


def test_each_coin_has_an_equal_share_of_the_account() -> None:
    wide = guard_limits(max_exposure=9.0, max_gross_exposure=9.0)
    window = Window(180, 181)
    alone = run(always(submit(hold("C1", "short", 0.6))), window=window, limits=wide)
    np.testing.assert_allclose(alone.result.exposure[-1], -0.2, rtol=0.05)
    positions = [hold(f"C{number}", "short", 0.3) for number in (1, 2, 3)]
    together = run(always(submit(*positions)), portfolio=True, window=window, limits=wide)
    np.testing.assert_allclose(together.result.exposure[-1], -0.3, rtol=0.05)


def test_the_team_reads_what_it_holds_as_a_part_of_its_share() -> None:
    episode = run(always(submit(hold("C1", "long", 0.9))), window=Window(180, 186, 3))
    [second] = [decision for bar, decision in episode.decisions if bar == 183][:1]
    assert "C1: held 0.9," in codec().decode(second.manager.ids)


def test_the_guard_sees_all_coins_of_a_bar_together() -> None:
    limits = guard_limits(max_exposure=0.2, max_gross_exposure=0.5)
    episode = run(always(submit(hold("C1", "long", 1.0))), window=Window(180, 181), limits=limits)
    assert [[clamp.rule for clamp in decision.clamps] for _, decision in episode.decisions] == [
        ["max_exposure"], ["max_exposure"], ["max_gross_exposure"],
    ]  # fmt: skip
    np.testing.assert_allclose(episode.result.exposure[-1], [0.2, 0.2, 0.1], rtol=0.05)


def with_bars(market: Market, column: int, rows: slice, factor: float) -> Market:
    """`market` with the prices of a coin multiplied from some bar on; NaN takes the bars away."""
    arrays: dict[str, Any] = {}
    for name in ("open", "high", "low", "close", "volume", "half_spread"):
        arrays[name] = getattr(market, name).copy()
        if np.isnan(factor) or name in ("open", "high", "low", "close"):
            arrays[name][rows, column] *= factor
    return replace(market, **arrays)


def test_nothing_is_decided_after_a_liquidation_and_all_is_recorded() -> None:
    crash = with_bars(synthetic(coins=1), 0, slice(200, None), 8.0)  # a short position is lost many times over
    game = BacktestRun(crash, WINDOW)
    done: list[int] = []
    task = play(make_team(), game, guard_limits(), 4, on_decision=done.append)
    [episode] = run_all([task], always(submit(hold("C1", "short", 1.0))))
    assert episode.liquidated_at == 204, "the first decision after bar 200"
    assert [bar for bar, _ in episode.decisions] == [180, 186, 192, 198]
    assert len(episode.result.equity) == 61 and (episode.result.equity[20:] == episode.result.equity[-1]).all()
    assert [fill.reason for fill in episode.result.fills][-1] == "liquidation" and done[-1] == 60


def test_a_liquidation_after_the_last_decision_is_known_too() -> None:
    crash = with_bars(synthetic(coins=1), 0, slice(238, None), 8.0)
    episode = run(always(submit(hold("C1", "short", 1.0))), market=crash)
    assert episode.liquidated_at == 240 and len(episode.decisions) == 10
    assert run(always(submit())).liquidated_at is None


@pytest.mark.parametrize("portfolio", [False, True])
def test_a_coin_without_bars_is_left_alone(portfolio: bool) -> None:
    market = with_bars(synthetic(), 1, slice(None), np.nan)
    game = BacktestRun(market, WINDOW)
    task = play(make_team(portfolio=portfolio), game, guard_limits(), 4)
    positions = [hold(f"C{number}", "long", 0.3) for number in (1, 2, 3)]
    text = submit(*positions) if portfolio else submit(hold("C1", "long", 0.3))
    [episode] = run_all([task], always(text))
    assert {fill.symbol for fill in episode.result.fills} == {"AAAUSDT", "CCCUSDT"}
    assert len(episode.decisions) == (10 if portfolio else 30) and not any(d.events for _, d in episode.decisions)
    output = codec().decode(episode.decisions[0 if portfolio else 1][1].manager.ids)
    assert f"held {'0.00' if portfolio else '0.0'}, day not available, volatility not available" in output


class Slow(ScriptedEngine):
    """The scripted team, of which every answer says that it took four minutes."""

    def generate(self, requests: Any) -> list[Completion]:
        usage = Usage(seconds=240.0)
        return [replace(answer, usage=usage) for answer in super().generate(requests)]


def test_the_time_to_think_delays_the_orders() -> None:
    """The decisions on the coins follow one another; each says how late its orders were."""

    def played(thinking_time: ThinkingTime) -> EpisodeResult:
        game = BacktestRun(synthetic(), WINDOW)
        task = play(make_team(), game, guard_limits(), 4, thinking_time=thinking_time)
        return run_all([task], Slow(codec(), half_taught_policies()))[0]

    free, measured = played(0.0), played("measured")
    assert {decision.thinking_ms for _, decision in free.decisions} == {0}
    at_bar: dict[int, int] = {}
    for bar, decision in measured.decisions:
        at_bar[bar] = at_bar.get(bar, 0) + round(1000 * decision.usage.seconds)
        assert decision.thinking_ms == at_bar[bar] > 0
    pairs = list(zip(free.result.fills, measured.result.fills, strict=False))[:2]
    assert [(late.bar, late.quantity) for _, late in pairs] == [(fill.bar, fill.quantity) for fill, _ in pairs]
    worse = [(late.price - fill.price) * fill.quantity for fill, late in pairs]
    assert min(worse) >= 0.0 < max(worse)  # a bar may open at its extreme
    assert played("measured").result.fills == measured.result.fills  # the same seconds, the same run
    assert {decision.thinking_ms for _, decision in played(90.0).decisions} <= {90_000 * n for n in range(1, 9)}
