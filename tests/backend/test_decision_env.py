"""The team's decision as an environment: its rewards are the trainer's, whoever plays a seat and through which door."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

import cryptosentinel as cs
from backend.config.load import load_config
from backend.decision_env import SPLITS
from backend.training.algorithm.rewards import main_reward
from backend.training.rollout.collect import scored
from cryptosentinel.guard.guard import Guard
from cryptosentinel.protocol.tool_calls import read_call
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import expert_policies

CONFIG = load_config("demo", ["market.bars=1500", "market.coins=2", "training.scenario_paths=8", "team.retries=1"])
POLICIES = expert_policies(CONFIG.team.roles)
ROLES = ("manager", *CONFIG.team.roles)


@pytest.fixture(scope="module")
def world() -> cs.DecisionEnv:
    return cs.DecisionEnv(CONFIG)


def own_form(messages: Any) -> list[dict[str, str]]:
    """The messages as the scripted team reads them."""
    turns = []
    for message in messages:
        content = message["content"]
        for call in message.get("tool_calls") or ():
            body = {"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])}
            content = f"<tool_call>\n{json.dumps(body)}\n</tool_call>"
        turns.append({"role": message["role"], "content": content})
    return turns


def rules(turn: cs.DecisionTurn) -> str:
    """What the scripted team would answer."""
    return POLICIES[turn.seat](own_form(turn.messages), 0)


def call_of(text: str) -> tuple[str, Any]:
    read = read_call(text)
    assert isinstance(read, tuple)
    return read


def played(env: cs.DecisionEnv, seed: int, form: str) -> cs.DecisionTurn:
    turn = env.reset(seed)
    while not turn.done:
        name, arguments = call_of(rules(turn))
        tool_calls = [{"type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}]
        forms: dict[str, str | dict[str, Any]] = {
            "text": rules(turn),
            "call": {"name": name, "arguments": arguments},
            "message": {"tool_calls": tool_calls},
        }
        turn = env.step(forms[form])
    return turn


def native(world: cs.DecisionEnv, seed: int) -> tuple[float, float]:
    """The reward and the net return of the scripted team, as the trainer has them."""
    env = world.another()
    env.reset(seed)
    assert env._episode is not None
    query, inner, guard = env._episode.query, env._world, Guard(env._world.settings.limits)
    task = inner.loaded.team.decide(query.view(), query.account(), query.symbols, guard, 1)
    [decision] = run_all([task], inner.loaded.engine)
    rollout = scored(inner.settings.scorer(query), 0, 1, decision, guard, inner.settings)
    return main_reward(rollout.main.valid, rollout.main.format_score, rollout.outcome.score), rollout.outcome.net_return


@pytest.mark.parametrize("form", ["text", "call", "message"])
@pytest.mark.parametrize("seats", [("manager",), ("trader", "risk_analyst"), ROLES], ids=len)
def test_rewards_are_the_trainers_whoever_plays(world: cs.DecisionEnv, seats: tuple[str, ...], form: str) -> None:
    env = cs.DecisionEnv.__new__(cs.DecisionEnv)
    vars(env).update({**vars(world), "seats": frozenset(seats), "_episode": None})
    traded = 0
    for seed in range(12):
        end = played(env, seed, form)
        assert (end.reward, end.parts["net_return"]) == native(world, seed)
        assert set(end.rewards) == {one["role"] for one in end.parts["conversations"]} and end.parts["questions"] > 0
        traded += end.parts["orders"] > 0
    assert traded > 2


def test_trl_gets_the_same_rewards(world: cs.DecisionEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cs.TrlDecisionEnv, "world", world)
    env = cs.TrlDecisionEnv()
    for seed in range(12):
        turn, text = world.another().reset(seed), env.reset(seed=seed, other="column")
        assert all(str(message["content"]) in text for message in turn.messages)
        other = world.another()
        turn = other.reset(seed)
        while not turn.done:
            name, arguments = call_of(rules(turn))
            if not hasattr(env, name):  # what TRL is not shown
                name, arguments = "submit_decision", {"positions": []}
            said = getattr(env, name)(**arguments)
            turn = other.step({"name": name, "arguments": arguments})
            assert said == ("the decision is made" if turn.done else turn.messages[-1]["content"])
        assert env.get_reward() == turn.reward
        assert env.submit_decision([]) == "the decision is made"
    env.reset(seed=1)
    assert env.get_reward() == 0.0, "nothing was decided"


def test_sessions_side_by_side_and_again_are_the_same(world: cs.DecisionEnv) -> None:
    alone = [played(world.another(), seed, "text") for seed in range(6)]
    sessions = [world.another() for _ in range(6)]
    turns = [env.reset(seed) for seed, env in enumerate(sessions)]
    while any(not turn.done for turn in turns):
        turns = [turn if turn.done else env.step(rules(turn)) for env, turn in zip(sessions, turns, strict=True)]
    assert turns == alone


def test_no_seed_of_one_part_reaches_another(world: cs.DecisionEnv) -> None:
    seen = {}
    for part in SPLITS:
        env = cs.DecisionEnv(CONFIG, split=part)
        bars = set()
        for seed in range(150):
            [query] = env._world.pool.draw(seed, seed, 1, easy=False)
            bars.add(query.bar)
        seen[part] = bars
    horizon = CONFIG.team.horizon_bars
    assert max(seen["train"]) + horizon <= min(seen["validation"])
    assert max(seen["validation"]) + horizon <= min(seen["held_out"])


def test_turns_are_in_the_form_of_chat_completions(world: cs.DecisionEnv) -> None:
    turn = world.another().reset(2)
    assert [message["role"] for message in turn.messages] == ["system", "user"] and turn.seat == "manager"
    assert {tool["type"] for tool in turn.tools} == {"function"}
    assert {"consult_trader", "submit_decision"} <= {tool["function"]["name"] for tool in turn.tools}
    turn = (env := world.another()).reset(2)
    turn = env.step({"name": "consult_market_analyst", "arguments": {"symbol": "C1"}})
    asked, told = turn.messages[-2:]
    assert asked["tool_calls"][0]["id"] == told["tool_call_id"] and told["role"] == "tool"
    assert set(json.loads(told["content"])) >= {"up", "flat", "down"}
    json.dumps([turn.messages, turn.tools])


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("I think it will rise", "no_call"),
        ("<tool_call>\n{oops}\n</tool_call>", "bad_json"),
        ({"name": "launch", "arguments": {}}, "unknown_tool"),
        ({"name": "consult_trader", "arguments": {"symbol": "C1"}}, "bad_arguments"),
        ({"name": "consult_market_analyst", "arguments": {"symbol": "BTC"}}, "unknown_symbol"),
        ({"content": None, "tool_calls": [{"function": {"name": 3}}]}, "bad_shape"),
        ({"content": ""}, "no_call"),
    ],
)
def test_a_models_mistake_is_an_observation_and_then_ends_it(world: cs.DecisionEnv, answer: Any, code: str) -> None:
    env = world.another()
    env.reset(4)
    turn = env.step(answer)
    assert json.loads(turn.messages[-1]["content"])["error"] == code and not turn.done
    turn = env.step(answer)
    assert turn.done and turn.reward == 0.0 and turn.parts["conversations"][0]["failure"] == code


@pytest.mark.parametrize("answer", [None, 3, {}, {"name": "x"}, ["a"], {"arguments": {}}])
def test_a_callers_mistake_is_an_error(world: cs.DecisionEnv, answer: Any) -> None:
    env = world.another()
    with pytest.raises(cs.UserError, match="call reset"):
        env.step("x")
    env.reset(4)
    with pytest.raises(cs.UserError, match="is not an answer"):
        env.step(answer)
    end = played(env, 4, "text")
    assert end.done and env.reset(4).reward is None
    played(env, 4, "text")
    with pytest.raises(cs.UserError, match="the decision is made: call reset"):
        env.step("x")


def test_what_there_is_not_is_refused() -> None:
    with pytest.raises(cs.UserError, match=r"no seat 'tradr'.*trader"):
        cs.DecisionEnv(CONFIG, seats=("tradr",))
    with pytest.raises(cs.UserError, match="no split 'test': choose of train, validation, held_out"):
        cs.DecisionEnv(CONFIG, split="test")  # type: ignore[arg-type]  # as a user would


def test_it_needs_no_torch() -> None:
    code = "import sys, cryptosentinel as cs; cs.DecisionEnv; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
