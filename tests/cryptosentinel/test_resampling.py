"""A decision is made again by what it was answered, and from a question on it is sampled anew."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from backend.training.curriculum.queries import QueryPool
from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.engine import Completion, Request
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.resampling import AnsweredRequests, before_call, noted, repeated, sampled_tokens, was_sampled
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import novice_policies
from cryptosentinel.team import AgentTask, Team, TeamDecision
from tests.small_world import HORIZON, TRAIN, small_market
from tests.standard_limits import guard_limits
from tests.team_scenes import standard_team

SEEDS = range(30)
ENGINE = ScriptedEngine(make_byte_codec(), novice_policies())
TEAM = Team(make_byte_codec(), ENGINE.policy_version, standard_team(horizon_bars=HORIZON))


def decision(seed: int) -> AgentTask[TeamDecision]:
    """A decision of a team that answers at random, on one and the same state."""
    [query] = QueryPool(small_market(), *TRAIN, HORIZON).draw(3, 0, 1, easy=False)
    return TEAM.decide(query.view(), query.account(), query.symbols, Guard(guard_limits()), seed)


def made(seed: int) -> tuple[TeamDecision, list[AnsweredRequests]]:
    notes: list[AnsweredRequests] = []
    [result] = run_all([noted(decision(seed), notes)], ENGINE)
    return result, notes


class Silent:
    """An engine that must not be asked."""

    name = "silent"

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        raise AssertionError("it was asked")

    def policy_version(self, role: str) -> str:
        return ENGINE.policy_version(role)


def test_notes_change_nothing_and_all_of_them_make_the_decision_again() -> None:
    for seed in SEEDS:
        result, notes = made(seed)
        assert run_all([decision(seed)], ENGINE) == [result]
        assert run_all([repeated(decision(seed + 1), notes)], Silent()) == [result]


def test_what_comes_before_a_call_is_repeated_and_the_rest_follows_the_new_seed() -> None:
    changed = calls = 0
    for seed in SEEDS:
        result, notes = made(seed)
        for call in result.transcripts[1:]:
            calls += 1
            past, anew = before_call(notes, seed, call.role, call.ordinal), list[AnsweredRequests]()
            [again] = run_all([noted(repeated(decision(seed + 1000), past), anew)], ENGINE)
            position = result.transcripts.index(call)
            assert again.transcripts[1:position] == result.transcripts[1:position], "what came before is another"
            answered = again.transcripts[position]
            read = answered.mask.index(True)
            assert (answered.role, answered.ordinal) == (call.role, call.ordinal)
            assert answered.ids[:read] == call.ids[:read], "it was another question"
            sampled = [was_sampled(anew, seed + 1000, one.role, one.ordinal) for one in again.transcripts[1:]]
            assert sampled == [place >= position - 1 for place in range(len(sampled))]
            old, new = ({one.seed for each in of for one in each.requests} for of in (notes, anew))
            assert not old & new, "something was drawn as before"
            manager = sum(again.manager.mask)
            before = sum(len(one.completions[0].ids) for one in past if one.requests[0].role == "manager")
            assert sampled_tokens(anew, "manager") == manager - before
            changed += answered.answer != call.answer
    assert calls > 10 and changed > 0


def test_a_call_that_there_was_not_is_said() -> None:
    _, notes = made(1)
    with pytest.raises(ValueError, match="no call 9 of trader"):
        before_call(notes, 1, "trader", 9)
