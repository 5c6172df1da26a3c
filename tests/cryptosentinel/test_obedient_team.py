"""A team that obeys an attacker in everything, or babbles: the guard's limits hold and the records are complete."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cryptosentinel.episode import EpisodeResult, play
from cryptosentinel.guard.limits import MOST_ORDERS, GuardLimits
from cryptosentinel.llm.engine import Completion, Engine, Request
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.scheduler import run_all
from simulator.backtest.run import BacktestRun, Window
from simulator.exchange.costs import Costs
from simulator.exchange.orders import Order, OrderRequest
from simulator.market.market import Market
from tests.attacks import MANAGERS, SUB_AGENTS, anything
from tests.malformed_answers import MALFORMED
from tests.standard_limits import guard_limits
from tests.team_scenes import (
    COINS,
    analysis,
    ask,
    codec,
    course_of,
    hold,
    make_team,
    submit,
    synthetic,
    verdict,
)

LIMITS = guard_limits(max_exposure=0.5, max_gross_exposure=0.9, max_drawdown=0.2, daily_loss=0.05)
LENDING = 10.0  # what the exchange would lend: the guard alone holds


class WatchedRun(BacktestRun):
    """A backtest that checks, whenever something is sent, where it leads."""

    def __init__(self, market: Market, window: Window, limits: GuardLimits, costs: Costs | None = None) -> None:
        super().__init__(market, window, costs=costs, max_leverage=LENDING)
        self.limits = limits
        self.sent = 0

    def submit(self, requests: Sequence[OrderRequest], thinking_ms: Sequence[int] = ()) -> None:
        account = self.account()
        orders = [request for request in requests if isinstance(request, Order)]
        self.sent += len(orders)
        assert len(orders) <= MOST_ORDERS * len(self.market.symbols)
        assert all(math.isfinite(order.quantity) for order in orders)
        alone, after = (course_of(self.view(), account, sent) for sent in ([], orders))
        frozen = account.drawdown >= self.limits.max_drawdown
        for moment in after:
            for symbol, held in moment.items():
                before = max(abs(one[symbol]) for one in alone)
                assert abs(held) <= max(0.0 if frozen else self.limits.max_exposure, before) + 1e-9
            gross = max(sum(map(abs, one.values())) for one in alone)
            bound = max(self.limits.max_gross_exposure, gross + sum(map(abs, alone[0].values())))
            assert sum(map(abs, moment.values())) <= bound + 1e-9
        super().submit(requests, thinking_ms)


def attacked(
    engine: Engine,
    window: Window,
    *,
    portfolio: bool = False,
    limits: GuardLimits = LIMITS,
    costs: Costs | None = None,
    seed: int = 1,
) -> tuple[EpisodeResult, WatchedRun]:
    """A whole backtest by `engine`; its records are complete and its account is alive."""
    run = WatchedRun(synthetic(), window, limits, costs)
    episode = run_all([play(make_team(portfolio=portfolio), run, limits, seed)], engine)[0]
    result = episode.result
    assert len(result.equity) == window.stop - window.start + 1
    assert np.isfinite(result.equity).all() and (result.equity > 0).all() and np.isfinite(result.exposure).all()
    assert episode.liquidated_at is None
    assert len(episode.decisions) == window.decisions * (1 if portfolio else len(COINS))
    for _, decision in episode.decisions:
        assert len(decision.orders) <= MOST_ORDERS
        for transcript in decision.transcripts:
            assert (transcript.answer is None) == (transcript.reason is not None)
            assert len(transcript.ids) == len(transcript.mask) == len(transcript.logps)
            unheard = transcript.truncated or str(transcript.reason).startswith("no_answer")
            assert unheard or transcript.ids[-1] == codec().end_of_turn
    # Between decisions only prices move exposures, and these by little in a few bars.
    assert np.abs(result.exposure).sum(axis=1).max() <= limits.max_gross_exposure * 1.3
    return episode, run


# The one manager that asks anybody: to the others it is the same what their sub-agents would say.
ASKING = "all in, after asking"


@pytest.mark.parametrize("portfolio", [False, True])
@pytest.mark.parametrize(
    ("manager", "sub_agents"),
    [*((name, "compliant") for name in MANAGERS), *((ASKING, name) for name in SUB_AGENTS if name != "compliant")],
)
def test_a_team_that_obeys_an_attacker_stays_within_the_limits(manager: str, sub_agents: str, portfolio: bool) -> None:
    engine = ScriptedEngine(codec(), {"manager": MANAGERS[manager], **SUB_AGENTS[sub_agents]})
    _, run = attacked(engine, Window(180, 188, 2), portfolio=portfolio)
    trades = manager.startswith(("all in", "another side")) or (manager == "every coin" and portfolio)
    # Without a valid verdict nothing more may be held than is.
    unheard = manager == ASKING and sub_agents in ("raising", "useless")
    if trades and not unheard:
        assert run.sent > 0  # otherwise nothing was tried
    if manager in ("beyond the range", "beyond all numbers", "two answers", "a control token", "nothing"):
        assert run.sent == 0


def test_without_the_guard_the_same_attack_goes_through() -> None:
    """The limits hold because of the guard: with wide ones the team gets what it wants."""
    engine = ScriptedEngine(codec(), {"manager": MANAGERS["all in"], **SUB_AGENTS["compliant"]})
    wide = guard_limits(max_exposure=10.0, max_gross_exposure=10.0, max_daily_turnover=99.0)
    episode, _ = attacked(engine, Window(180, 184, 2), limits=wide)
    assert np.abs(episode.result.exposure).sum(axis=1).max() > 5.0


def test_an_account_is_burnt_no_further_than_the_limits_of_loss() -> None:
    """A team that turns its whole position at every bar, at ruinous costs."""
    engine = ScriptedEngine(codec(), {"manager": MANAGERS["another side every time"]})
    costs, window = Costs(taker_fee=0.01), Window(180, 240, 1)
    held, _ = attacked(engine, window, limits=replace(LIMITS, max_drawdown=0.1, daily_loss=0.03), costs=costs)
    loose, _ = attacked(engine, window, limits=replace(LIMITS, max_drawdown=1.0, daily_loss=1.0), costs=costs)
    lost, burnt = (1.0 - episode.result.equity.min() / 10_000.0 for episode in (held, loose))
    assert burnt > 0.3 and lost < 0.15
    assert {clamp.rule for _, decision in held.decisions for clamp in decision.clamps} & {"max_drawdown", "daily_loss"}


ALIASES = st.sampled_from(["COIN", "C1", "C2", "C9", "AAAUSDT", "", "c1", "С1", "#1"])
SIZES = st.one_of(st.floats(0, 10), st.sampled_from([10.0, 1e308, -1.0, 5e-324, 10.000001]), st.floats())
POSITIONS = st.fixed_dictionaries(
    {"symbol": ALIASES, "side": st.sampled_from(["long", "short", "flat", "both"]), "exposure": SIZES},
    optional={"stop": SIZES, "target": SIZES, "reason": st.text(max_size=9), "leverage": st.just(100)},
)
WORDS = st.one_of(
    st.sampled_from([text for text, _ in MALFORMED if len(text) <= 2000]), st.text(st.characters(), max_size=20)
)
DECISIONS = st.one_of(
    st.lists(POSITIONS, max_size=3).map(lambda positions: submit(*positions)),
    st.builds(
        lambda side, size: submit(hold("COIN", side, size)), st.sampled_from(["long", "short"]), st.floats(0, 10)
    ),
    st.builds(
        lambda role, side, size: ask(role, "COIN", side=side, exposure=size),
        st.sampled_from(["risk_analyst", "trader"]),
        st.sampled_from(["long", "short"]),
        SIZES,
    ),
    WORDS,
)
VERDICTS = st.one_of(
    st.builds(verdict, st.sampled_from(["approve", "reduce", "veto", "raise"]), SIZES | st.none()), WORDS
)


@settings(max_examples=40, deadline=None)
@given(
    manager=st.lists(DECISIONS, min_size=1, max_size=6),
    risk=st.lists(VERDICTS, min_size=1, max_size=4),
    wait=st.integers(-1, 5),
    slices=st.integers(0, 4),
    portfolio=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_whatever_is_answered_the_limits_hold(
    manager: list[str], risk: list[str], wait: int, slices: int, portfolio: bool, seed: int
) -> None:
    orders = f'<tool_call>{{"name": "submit_orders", "arguments": {{"type": "market", "wait": {wait}, '
    answers = {
        "manager": manager,
        "market_analyst": [analysis()],
        "risk_analyst": risk,
        "trader": [f'{orders}"slices": {slices}}}}}</tool_call>'],
    }
    attacked(ScriptedEngine(codec(), anything(answers)), Window(180, 186, 2), portfolio=portfolio, seed=seed)


class RandomTokens:
    """Says ids by chance, special tokens among them, with or without an end."""

    name = "random"

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return [self._say() for _ in requests]

    def policy_version(self, role: str) -> str:
        return f"{role}-v1"

    def _say(self) -> Completion:
        special = list(codec().special_ids.values())
        words = [codec().encode_data(submit(hold("C1", "long", 10.0))), [int(self._rng.choice(special))]]
        words.append([int(one) for one in self._rng.integers(0, codec().vocab_size, 9)])
        ids = [index for choice in self._rng.integers(0, 3, self._rng.integers(0, 5)) for index in words[choice]]
        finished = bool(self._rng.integers(0, 2))
        ids = [index for index in ids if index != codec().end_of_turn] + [codec().end_of_turn] * finished
        return Completion(tuple(ids), (-1.0,) * len(ids), finished)


@pytest.mark.parametrize("seed", range(8))
def test_a_model_that_says_any_tokens_breaks_nothing(seed: int) -> None:
    attacked(RandomTokens(seed), Window(180, 190, 2))
