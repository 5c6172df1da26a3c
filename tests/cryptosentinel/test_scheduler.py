"""Conversations side by side: batches, order, determinism, errors."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cryptosentinel.guard import Guard, GuardLimits
from cryptosentinel.llm.engine import Completion, Request, Sampling
from cryptosentinel.llm.scripted_engine import ScriptedEngine
from cryptosentinel.scheduler import run_all
from cryptosentinel.team import Talk, TeamDecision
from tests.team_scenes import codec, half_taught_policies, hand_made_account, make_team, synthetic


class Echo:
    """Answers a request with its own seed, and keeps the batches."""

    name = "echo"

    def __init__(self) -> None:
        self.batches: list[list[Request]] = []

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        self.batches.append(list(requests))
        return [Completion((request.seed,), (0.0,), True) for request in requests]

    def policy_version(self, role: str) -> str:
        return "1"


def talk(number: int, roles: Sequence[str]) -> Talk[list[int]]:
    heard = []
    for turn, role in enumerate(roles):
        completion = yield Request(role, (number,), Sampling(), seed=100 * number + turn)
        heard.append(completion.ids[0])
    return heard


@given(
    tasks=st.lists(st.lists(st.sampled_from(["manager", "trader", "risk_analyst"]), max_size=5), max_size=8),
    max_batch=st.integers(1, 10),
)
def test_every_task_hears_its_own_answers_and_results_come_in_order(tasks: list[list[str]], max_batch: int) -> None:
    engine = Echo()
    finished: list[int] = []
    results = run_all(
        [talk(number, roles) for number, roles in enumerate(tasks)],
        engine,
        max_batch=max_batch,
        on_finished=finished.append,
    )
    assert results == [[100 * number + turn for turn in range(len(roles))] for number, roles in enumerate(tasks)]
    assert finished == list(range(1, len(tasks) + 1))
    for batch in engine.batches:
        assert 1 <= len(batch) <= max_batch
        assert [request.role for request in batch] == sorted(request.role for request in batch)
    assert sum(map(len, engine.batches)) == sum(map(len, tasks))


def test_all_that_waits_goes_out_together_grouped_by_role() -> None:
    engine = Echo()
    run_all([talk(0, ["trader", "manager"]), talk(1, ["manager"]), talk(2, ["trader"])], engine)
    assert [[(request.role, request.ids[0]) for request in batch] for batch in engine.batches] == [
        [("manager", 1), ("trader", 0), ("trader", 2)],
        [("manager", 0)],
    ]


def test_no_tasks_need_no_engine() -> None:
    engine = Echo()
    assert run_all([], engine) == [] and engine.batches == []
    assert run_all([talk(0, [])], engine) == [[]] and engine.batches == []


def decisions(count: int, max_batch: int) -> list[TeamDecision]:
    market, team = synthetic(), make_team()
    view = market.view(200)
    tasks = [
        team.decide(view, hand_made_account(view, {}), market.symbols, Guard(GuardLimits()), seed)
        for seed in range(count)
    ]
    return run_all(tasks, ScriptedEngine(codec(), half_taught_policies()), max_batch=max_batch)


@settings(max_examples=5, deadline=None)
@given(max_batch=st.integers(1, 20))
def test_decisions_do_not_depend_on_their_company(max_batch: int) -> None:
    together = decisions(6, max_batch)
    assert together == decisions(6, 512) and together[:3] == decisions(3, max_batch)
    assert len({repr(decision.manager) for decision in together}) > 1


def test_an_error_in_a_task_is_not_hidden() -> None:
    def fails() -> Talk[list[int]]:
        yield Request("manager", (1,), Sampling(), 0)
        raise ZeroDivisionError("in a task")

    with pytest.raises(ZeroDivisionError, match="in a task"):
        run_all([talk(0, ["manager"] * 3), fails()], Echo())


def test_an_engine_s_error_and_a_missing_answer_are_not_hidden() -> None:
    class Broken(Echo):
        def generate(self, requests: Sequence[Request]) -> list[Completion]:
            if not self.batches:
                return super().generate(requests)[:-1]
            raise OSError("gone")

    engine = Broken()
    with pytest.raises(ValueError, match="shorter"):
        run_all([talk(0, ["manager"]), talk(1, ["manager"])], engine)
    with pytest.raises(OSError, match="gone"):
        run_all([talk(0, ["manager"])], engine)
