"""The scripted team: it always speaks the language, and it knows the trade where there is one to know."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cryptosentinel.agents.manager import ASK_SEVERAL, Decision
from cryptosentinel.agents.registry import ROLES, STANDARD, SUB_AGENTS, team_of
from cryptosentinel.agents.risk_analyst import Verdict
from cryptosentinel.agents.role import Role
from cryptosentinel.conversation.masking import Mask
from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.scripted import ScriptedEngine, ScriptedPolicy
from cryptosentinel.protocol.tool_calls import NoArguments, ToolCall, parse, render_call
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import expert_policies, novice_policies
from cryptosentinel.teachers import PLANS, REDUCED_TO, Teacher, level_of, random_plan, random_verdict
from cryptosentinel.team import TeamDecision
from cryptosentinel.tools import market as market_tools
from simulator.arrays import FloatArray
from simulator.backtest.scenarios import simulate_scenarios
from simulator.exchange.costs import Costs
from simulator.market.market import Market
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from simulator.synthetic.truth import truth_of
from tests.examples import tried
from tests.standard_limits import guard_limits
from tests.team_scenes import codec, context_at, hand_made_account, make_team, synthetic

LOOKS_UP = {"get_trend": market_tools.trend, "get_news": market_tools.news, "get_funding": market_tools.funding}
POLICIES: dict[str, Callable[[tuple[str, ...], bool], dict[str, ScriptedPolicy]]] = {
    "expert": lambda roles, portfolio: expert_policies(roles, portfolio=portfolio),
    "random_all": lambda roles, portfolio: expert_policies(roles, teacher="random_all"),
    "novice": lambda roles, portfolio: novice_policies(roles, portfolio=portfolio),
}
HORIZON = 18

WORDS = st.sampled_from(["strong up", "up", "mixed", "down", "very good", "bad", "none", "not available", "", "wide"])
# Results as tools and sub-agents give them, and what else a tool might say one day.
RESULTS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"trend": WORDS, "drift": st.floats(-1, 1)}),
    st.fixed_dictionaries({"tone": WORDS | st.integers(-6, 6), "news": WORDS | st.lists(st.integers(), max_size=2)}),
    st.fixed_dictionaries({"funding": WORDS | st.sampled_from(["longs pay", "shorts pay"])}),
    st.fixed_dictionaries(
        {"drawdown": st.floats(0, 100)}, optional={"var": st.floats(0, 900) | WORDS, "historical": st.floats(0, 900)}
    ),
    st.fixed_dictionaries({"state": WORDS}),
    st.fixed_dictionaries({"lean": WORDS | st.just("strong down")}),
    st.fixed_dictionaries({"verdict": st.sampled_from(["approve", "reduce", "veto"]), "loss": st.floats(0, 100)}),
    st.just({"error": "no valid answer"}),
    st.just({}),
)
HELD = st.sampled_from(["-1.0", "-0.0", "0.5", "12.3"])
MOVES = st.sampled_from(["not available", "-3.1", "2.0"])


LIMITS_SAID = st.sampled_from(["gross 1, a coin 1", "gross 0.5, a coin 0.2, net 0.3", "a coin 2", "any"])
SIDES = st.sampled_from(["long", "short"])


def question(draw: st.DrawFn, key: str, coin: str) -> dict[str, Any]:
    more = {} if key == "market_analyst" else {"side": draw(SIDES), "exposure": draw(st.floats(0, 2))}
    return {"symbol": coin, **more}


@st.composite
def situations(draw: st.DrawFn, role: Role, portfolio: bool) -> list[dict[str, str]]:
    """A conversation of `role` so far: calls that it could have made, with any results."""
    coins = [f"C{number}" for number in range(1, draw(st.integers(0, 12 if portfolio else 4)) + 1)]
    book = [f"gross 0.00, net 0.00, cash 1.00; at most {draw(LIMITS_SAID)}"] if portfolio else []
    lines = [f"{coin}: held {draw(HELD)}, day {draw(MOVES)}, volatility {draw(MOVES)}" for coin in coins]
    brief = "\n".join(["equity 1.00, drawdown 0", *book, *lines])
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": brief}]
    for _ in range(draw(st.integers(0, 5))):
        tool, coin = draw(st.sampled_from(role.tools)), draw(st.sampled_from([*coins, "C9"]))
        arguments, heard = dict[str, Any](), draw(RESULTS)
        if tool.name in SUB_AGENTS:
            arguments = question(draw, SUB_AGENTS[tool.name].key, coin)
        elif tool.name == ASK_SEVERAL:
            several = draw(st.lists(st.sampled_from([*coins, "C9"]), min_size=1, max_size=6, unique=True))
            key = draw(st.sampled_from([one.key for one in SUB_AGENTS.values()]))
            arguments = {"questions": [{**question(draw, key, one), "ask": key} for one in several]}
            heard = {"answers": [draw(RESULTS) for _ in several]}
        elif tool.name == "what_if_book":
            arguments = {"positions": [{"symbol": coin, "exposure": 0.1}]}
        said = render_call(tool.name, arguments) if draw(st.integers(0, 9)) else "hm"
        messages += [{"role": "assistant", "content": said}, {"role": "tool", "content": json.dumps(heard)}]
    return messages


FUZZED = [*((who, key, False) for who in POLICIES for key in ROLES), *((who, "manager", True) for who in POLICIES)]
FUZZED.remove(("random_all", "manager", True))  # it decides coin by coin


@pytest.mark.parametrize("roles", [STANDARD, ()])
@pytest.mark.parametrize(("who", "key", "portfolio"), FUZZED)
def test_every_answer_is_valid_protocol(who: str, key: str, portfolio: bool, roles: tuple[str, ...]) -> None:
    if key != "manager" and not roles:
        return  # nobody is there
    policy = POLICIES[who](roles, portfolio)[key]
    role = team_of(roles, portfolio)[0] if key == "manager" else ROLES[key]

    @tried(60)
    @given(messages=situations(role, portfolio), seed=st.integers(0, 2**63 - 1))
    def check(messages: list[dict[str, str]], seed: int) -> None:
        said = policy(messages, seed)
        assert isinstance(parse(said, role.argument_types()), ToolCall), said
        assert said == policy(messages, seed)
        if who == "expert":
            assert said == policy(messages, seed + 1)

    check()


@pytest.mark.parametrize("var", [None, 0.0, 5.0, 99.0, 140.0, 1e6])
def test_the_expert_s_loss_is_a_percentage_in_any_storm(var: float | None) -> None:
    messages = [
        {"role": "system", "content": ""},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": render_call("get_risk", {})},
        {"role": "tool", "content": json.dumps({} if var is None else {"var": var, "historical": var})},
    ]
    call = parse(expert_policies()["risk_analyst"](messages, 0), ROLES["risk_analyst"].argument_types())
    assert isinstance(call, ToolCall) and isinstance(call.arguments, Verdict)
    assert call.arguments.verdict == ("veto" if var is None else "reduce" if var > 14 else "approve")


def decisions(
    market: Market, states: list[tuple[int, str]], policies: dict[str, ScriptedPolicy], **settings: Any
) -> list[TeamDecision]:
    team = make_team(horizon_bars=HORIZON, **settings)
    tasks = []
    for bar, symbol in states:
        view = market.view(bar)
        account = hand_made_account(view, {})
        tasks.append(team.decide(view, account, (symbol,), Guard(guard_limits()), seed=bar))
    return run_all(tasks, ScriptedEngine(codec(), policies))


def test_one_coin_at_a_time_the_expert_asks_before_it_acts_and_always_decides() -> None:
    market = synthetic()
    states = [(bar, symbol) for bar in (2, 30, 61, *range(130, 310, 15)) for symbol in market.symbols]
    made = decisions(market, states, expert_policies())
    assert 0.2 * len(states) < sum(bool(decision.orders) for decision in made) < 0.95 * len(states)
    for decision in made:
        assert decision.events == [] and decision.manager.answer is not None
        for position in Decision.model_validate(decision.manager.answer).positions:
            assert [t.role for t in decision.transcripts[1:]] == ["market_analyst", "risk_analyst", "trader"]
            assert f" {'up' if position.side == 'long' else 'down'}, trader: " in position.reason


def earnings(market: Market, states: list[tuple[int, str]], policies: dict[str, ScriptedPolicy]) -> FloatArray:
    """Mean net return of each state's decision over simulated scenarios, (states,)."""
    returns = []
    for (bar, _), decision in zip(states, decisions(market, states, policies), strict=True):
        paths = truth_of(market).scenarios(market, bar, 16, HORIZON, seed=bar)
        account = hand_made_account(market.view(bar), {})
        outcome = simulate_scenarios(paths, account, decision.orders, market.symbols, costs=Costs(), max_leverage=1.0)
        returns.append(float(np.mean(outcome.net_return)))
    return np.array(returns)


@pytest.mark.parametrize("edge", [True, False])
def test_the_expert_beats_the_novice_where_there_is_an_edge_and_only_there(edge: bool) -> None:
    market = generate(SyntheticConfig(bars=2400, seed=11, edge=edge))
    states = [(bar, symbol) for bar in range(130, 2370, 30) for symbol in market.symbols]
    expert, novice = (earnings(market, states, policies()) for policies in (expert_policies, novice_policies))
    difference = expert - novice
    error = difference.std() / np.sqrt(len(difference))
    if edge:
        assert difference.mean() > 4 * error and expert.mean() > 0.0
    else:
        assert abs(difference.mean()) < 4 * error and expert.mean() < 0.0  # costs


def test_a_random_teacher_follows_each_source_and_one_at_a_time() -> None:
    """Where all three say something else, its lean is that of one of them, a third of the time each."""
    market, heeded = synthetic(coins=3), []
    for bar in range(130, 310, 2):
        for symbol in market.symbols:
            context = context_at(market, bar, mask=Mask([symbol], True), symbols=(symbol,), symbol=symbol)
            answers = {name: tool(context, NoArguments()) for name, tool in LOOKS_UP.items()}
            alone = [level_of(answers, weights) for weights in ((1.2, 0, 0), (0, 1.1, 0), (0, 0, 0.9))]
            level = level_of(answers, None)
            assert level in alone and level == level_of(dict(reversed(answers.items())), None)
            if len(set(alone)) == 3:
                heeded.append(alone.index(level))
    assert len(heeded) > 60
    assert min(np.bincount(heeded, minlength=3)) > len(heeded) / 6


def test_a_teacher_that_skips_trades_decides_as_the_expert_and_keeps_a_third_at_random() -> None:
    """What it asks and says does not tell when it acts, or who learns from it would learn that too."""
    market = synthetic()
    states = [(bar, symbol) for bar in range(130, 310, 2) for symbol in market.symbols]
    kept, changed = list[str](), list[str]()
    teachers: list[Teacher] = ["expert", "skip_trades"]
    for whole, hesitant in zip(
        *(decisions(market, states, expert_policies(teacher=one)) for one in teachers),
        strict=True,
    ):
        assert [one.ids for one in whole.transcripts[1:]] == [one.ids for one in hesitant.transcripts[1:]]
        wishes, acts = (Decision.model_validate(one.manager.answer).positions for one in (whole, hesitant))
        for wish, act in zip(wishes, acts, strict=True):
            assert act.reason == wish.reason and act.reason.endswith(("trader: now", "trader: later"))
            (kept if act.side == "keep" else changed).append(act.reason)
            assert act.side == "keep" or act == wish
        assert bool(hesitant.orders) == bool(Decision.model_validate(hesitant.manager.answer).changes)
    assert 0.25 < len(kept) / (len(kept) + len(changed)) < 0.45
    for later in ("now", "later"):
        counts = [sum(reason.endswith(later) for reason in reasons) for reasons in (kept, changed)]
        assert 0.2 < counts[0] / sum(counts) < 0.5, "the lot does not know what Trader said"
    others: list[Teacher] = ["skip_trades", "random_all"]
    for teacher in others:
        with pytest.raises(ValueError, match=f"{teacher} decides coin by coin"):
            expert_policies(portfolio=True, teacher=teacher)


@given(
    st.sampled_from(["high", "low"]),
    st.floats(0.5, 40.0),
    st.sampled_from([0.5, 1.0]),
)
def test_a_random_verdict_states_the_crowding_and_does_not_follow_it(
    crowding: str, var: float, proposed: float
) -> None:
    def caps(shown: dict[str, Any]) -> list[float]:
        answers = [random_verdict(shown, proposed, random.Random(seed)) for seed in range(60)]
        assert all(next(iter(one)) == "rule" and one["rule"] == f"crowding {shown['crowding']}" for one in answers)
        return [Verdict.model_validate(one).cap(proposed) for one in answers]

    assert caps({"var": var, "crowding": crowding}) == caps({"var": 3.0, "crowding": "low"})
    assert set(caps({"var": var, "crowding": crowding})) == {proposed, *(part * proposed for part in REDUCED_TO)}
    assert random_verdict({}, proposed, random.Random(1))["verdict"] == "veto", "nothing is known of the coin"


def test_a_random_plan_states_the_spread_and_does_not_follow_it() -> None:
    wide, normal = (
        [random_plan({"state": word}, random.Random(seed)) for seed in range(60)] for word in ("wide", "normal")
    )
    assert [one.pop("rule") for one in wide] == ["spread wide"] * 60 and normal[0].pop("rule") == "spread normal"
    assert wide == [{key: value for key, value in one.items() if key != "rule"} for one in normal]
    assert all(plan in wide for plan in PLANS)
    assert "rule" not in random_plan({}, random.Random(1)), "the spread is not known"


def test_a_random_teacher_asks_for_full_positions_and_draws_whom_it_asks_in_which_order() -> None:
    market = synthetic()
    states = [(bar, symbol) for bar in range(130, 310, 2) for symbol in market.symbols]
    asked = list[tuple[str, ...]]()
    for made in decisions(market, states, expert_policies(teacher="random_all")):
        of_position = [said for said in made.transcripts[1:] if said.role != "market_analyst"]
        for position in Decision.model_validate(made.manager.answer).changes:
            asked.append(tuple(said.role for said in of_position))
            assert {position.exposure, *(said.brief["exposure"] for said in of_position)} == {1.0}
            plans = [said.answer for said in of_position if said.role == "trader"]
            assert all(one is not None and position.reason.endswith(f", {one['rule']}") for one in plans)
    counts = [asked.count(("risk_analyst", "trader")), asked.count(("trader", "risk_analyst"))]
    assert min(counts) > 20 and 0.5 < counts[0] / counts[1] < 2.0
    for role in ("risk_analyst", "trader"):
        assert 0.03 < np.mean([role not in one for one in asked]) < 0.2
