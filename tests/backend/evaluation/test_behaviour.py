"""Losses that are stated, what execution cost and who is asked: known answers, and the figures of a real backtest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from backend.decisions.backtest_document import BacktestDocument
from backend.decisions.document import StoredDecision
from backend.decisions.recording import episode_decisions
from backend.evaluation.behaviour import JudgedLoss as Loss
from backend.evaluation.behaviour import LossCoverage, judged_losses, loss_coverage, shortfall_of
from backend.evaluation.reliability import FEWEST
from backend.reporting.behaviour import behaviour_section
from backend.reporting.blocks import Missing, Picture, Table
from backend.reporting.run_summary import summarise
from backend.store.store import Store
from cryptosentinel.agents.risk_analyst import ROLE
from tests.stored_runs import add_backtest_run, codec, episode, small_market

HOUR = 3_600_000


def losses(count: int, seed: int, factor: float = 1.0) -> list[Loss]:
    """Losses of positions of known volatility; what is stated is the true 95 % quantile times `factor`."""
    rng = np.random.default_rng(seed)
    volatility = rng.uniform(0.01, 0.10, count)
    came = volatility * rng.standard_normal(count)
    stated = factor * 1.6448536 * volatility
    return [Loss(number * HOUR, "A", float(stated[number]), float(came[number]), 1) for number in range(count)]


def coverage_of(judged: list[Loss]) -> LossCoverage:
    coverage = loss_coverage(judged, HOUR)
    assert coverage is not None
    return coverage


def decisions() -> list[StoredDecision]:
    return episode_decisions("run", "scripted", codec(), episode())


def document() -> BacktestDocument:
    return BacktestDocument.model_validate(episode().result.to_dict())


def test_who_states_the_true_quantile_is_passed_once_in_twenty_times_and_who_is_too_bold_more_often() -> None:
    honest, bold = coverage_of(losses(3_000, 1)), coverage_of(losses(3_000, 1, factor=0.5))
    assert honest.passed.low <= 0.05 <= honest.passed.high and honest.skill.low > 0.1
    assert bold.passed.low > 0.1 and bold.skill.value < honest.skill.value


def test_who_always_states_the_quantile_of_the_sample_has_no_skill() -> None:
    judged = losses(500, 2)
    quantile = float(np.quantile([loss.came for loss in judged], 0.95, method="inverted_cdf"))
    assert coverage_of([replace(loss, stated=quantile) for loss in judged]).skill.value == pytest.approx(0.0, abs=1e-12)


def test_too_few_say_nothing() -> None:
    assert loss_coverage(losses(FEWEST - 1, 1), HOUR) is None


def test_verdicts_of_a_team_are_judged_over_the_horizon_of_their_question() -> None:
    market = small_market()
    judged = judged_losses(decisions(), market, 5)
    assert judged and {loss.bars for loss in judged} == {18}
    close = {int(time) + market.interval: bar for bar, time in enumerate(market.open_time)}
    sides: dict[tuple[int, str], set[float]] = {}
    for decision in decisions():
        for conversation in decision.document.conversations:
            if conversation.role == ROLE.key and conversation.answer is not None:
                sign = 1.0 if conversation.asked["side"] == "short" else -1.0
                sides.setdefault((decision.time, str(conversation.asked["symbol"])), set()).add(sign)
    for loss in judged:
        prices = market.close[:, market.column(loss.symbol)]
        move = prices[close[loss.time] + loss.bars] / prices[close[loss.time]] - 1.0
        assert any(loss.came == pytest.approx(sign * move) for sign in sides[loss.time, loss.symbol])


def test_the_shortfall_is_what_the_fills_lost_against_the_close_at_the_decision() -> None:
    market, result, stored = small_market(), document(), decisions()
    shortfall = shortfall_of(stored, result, market)
    assert shortfall is not None
    lost = value = 0.0
    count = 0
    times = sorted(decision.time for decision in stored)
    for fill in result.fills:
        if fill.reason != "order":
            continue
        filled = result.times[fill.bar - result.start]
        decided = max(
            time
            for time in times
            if time < filled
            and any(
                order.symbol == fill.symbol
                for decision in stored
                if decision.time == time
                for order in decision.document.orders
            )
        )
        bar = result.times.index(decided) + result.start
        arrival = float(market.close[bar, market.column(fill.symbol)])
        lost += fill.quantity * (fill.price - arrival) + fill.fee
        value += abs(fill.quantity) * arrival
        count += 1
    assert shortfall.fills == count and shortfall.traded == pytest.approx(value)
    assert shortfall.total.value == pytest.approx(1e4 * lost / value)
    assert shortfall.total.value == pytest.approx(shortfall.spread + shortfall.fees + shortfall.timing)
    assert shortfall.spread > 0.0 and shortfall.fees > 0.0, "this market has costs"
    assert shortfall.total.low <= shortfall.total.value <= shortfall.total.high


def test_a_venue_that_ends_a_trade_is_no_order_of_the_team() -> None:
    result = document()
    forced = result.model_copy(update={"fills": tuple(replace(fill, reason="liquidation") for fill in result.fills)})
    assert shortfall_of(decisions(), forced, small_market()) is None


def test_the_section_has_a_plot_and_tables_or_says_why_not() -> None:
    with Store.open("mem://") as store:
        add_backtest_run(store, "b")
        summary = summarise(store, "b")
    [window] = summary.windows()
    picture, *tables = behaviour_section(window, summary.run, summary.settings, small_market()).blocks
    assert isinstance(picture, Picture) and all(isinstance(table, Table) for table in tables)
    fit, stated, execution, calls = (table for table in tables if isinstance(table, Table))
    for table in (fit, stated, execution, calls):
        assert [row.label for row in table.rows] == ["Scripted team"]
    assert fit.rows[0].values["forecasts"] >= FEWEST and stated.rows[0].values["verdicts"] >= FEWEST
    few = {name: stored[:2] for name, stored in window.decisions.items()}
    blocks = behaviour_section(replace(window, decisions=few), summary.run, summary.settings, small_market()).blocks
    reasons = [block.reason for block in blocks if isinstance(block, Missing)]
    assert len(reasons) == 2 and all("say anything" in reason for reason in reasons)
    [nothing] = behaviour_section(replace(window, decisions={}), summary.run, summary.settings, small_market()).blocks
    assert isinstance(nothing, Missing)
