"""Rollouts that repeat the beginning of another one: what they repeat is not learnt from again, and the rest is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from backend.training.curriculum.queries import QueryPool
from backend.training.recorder import rollout_parts
from backend.training.rollout.collect import Rollout, RolloutSettings, collect
from backend.training.rollout.resampling import answer_again
from cryptosentinel.agents.registry import STANDARD
from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.engine import Completion, Request
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.resampling import AnsweredRequests
from cryptosentinel.scripted_team import novice_policies
from cryptosentinel.team import Team
from simulator.exchange.costs import Costs
from tests.small_world import HORIZON, TRAIN, small_market
from tests.standard_limits import guard_limits
from tests.team_scenes import standard_team

K, FURTHER = 4, 3
SETTINGS = RolloutSettings(K, 4, HORIZON, Costs(), 1.0, guard_limits(), 1.0, True)
QUERIES = QueryPool(small_market(), *TRAIN, HORIZON).draw(1, 0, 40, easy=False)
Groups = list[list[Rollout]]


class Counting(ScriptedEngine):
    """Counts the tokens that it gives."""

    tokens = 0

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        completions = super().generate(requests)
        self.tokens += sum(len(one.ids) for one in completions)
        return completions


def rolled(roles: tuple[str, ...] = STANDARD, seed: int = 1) -> tuple[Groups, Groups, int]:
    """Rollouts of each query, those that answer a question again, and the tokens that were sampled for the latter."""
    engine = Counting(make_byte_codec(), novice_policies())
    team = Team(make_byte_codec(), engine.policy_version, standard_team(horizon_bars=HORIZON))
    notes: list[list[list[AnsweredRequests]]] = []
    groups = collect(team, engine, QUERIES, SETTINGS, seed, notes=notes)
    engine.tokens = 0
    return groups, answer_again(team, engine, groups, notes, roles, FURTHER, SETTINGS, seed), engine.tokens


@pytest.fixture(scope="module")
def both() -> tuple[Groups, Groups, int]:
    return rolled()


def test_only_what_was_sampled_anew_is_learnt_from(both: tuple[Groups, Groups, int]) -> None:
    groups, further, sampled = both
    learnt = sum(int(one.mask.sum()) for row in further for each in row for one in (each.main, *each.subs))
    assert learnt == sampled > 0
    for group, row in zip(groups, further, strict=True):
        for one in row:
            assert one.resampled_from is not None
            origin = group[one.resampled_from]
            subs = slice(1, 1 + one.repeated)
            assert one.decision.transcripts[subs] == origin.decision.transcripts[subs]
            whole = np.flatnonzero(one.decision.manager.mask)
            repeated = whole[: len(whole) - int(one.main.mask.sum())]
            assert len(repeated) > 0, "nobody asked"
            assert not one.main.mask[repeated].any() and not one.main.sampled_logps[repeated].any()
            assert one.main.mask[whole[len(repeated) :]].all()
            last = int(repeated[-1]) + 1
            assert one.main.ids[:last].tolist() == origin.main.ids[:last].tolist()
            asked, answered = origin.subs[one.repeated], one.subs[0]
            assert (answered.role, answered.ordinal, answered.rollout) == (asked.role, asked.ordinal, one.number)
            assert len(one.subs) == len(one.sub_transcripts) == len(one.decision.transcripts) - 1 - one.repeated
            assert rollout_parts(one, 0.0)["resampled_from"] == one.resampled_from
        assert "resampled_from" not in rollout_parts(group[0], 0.0)


def test_there_are_as_many_as_were_asked_for_and_all_answer_one_question(
    both: tuple[Groups, Groups, int],
) -> None:
    groups, further, _ = both
    for group, row in zip(groups, further, strict=True):
        assert len(row) == (FURTHER if any(one.subs for one in group) else 0)
        assert [one.number for one in row] == list(range(K, K + len(row)))
        assert len({(one.resampled_from, one.repeated, one.subs[0].role) for one in row}) <= 1
        assert len({one.seed for one in [*group, *row]}) == len(group) + len(row)
    assert len({row[0].subs[0].role for row in further if row}) == 3, "one of the roles was never drawn"
    assert {one.repeated for row in further for one in row} > {0, 1}


def test_a_seed_repeats_it_and_another_does_not() -> None:
    def said(made: tuple[Groups, Groups, int]) -> list[tuple[int, ...]]:
        return [tuple(one.main.ids.tolist()) for row in made[1] for one in row]

    assert said(rolled()) == said(rolled())
    assert said(rolled()) != said(rolled(seed=2))


def test_only_the_named_roles_answer_again() -> None:
    groups, further, _ = rolled(("trader",))
    assert {row[0].subs[0].role for row in further if row} == {"trader"}
    asked = [any(call.role == "trader" for one in group for call in one.subs) for group in groups]
    assert [bool(row) for row in further] == asked and not all(asked)
