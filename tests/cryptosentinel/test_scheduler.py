"""Conversations side by side: batches, order, determinism, errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.engine import Completion, Request, Sampling, Usage, failed_completion
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.scheduler import Throughput, run_all
from cryptosentinel.team import AgentTask, TeamDecision, side_by_side
from tests.standard_limits import guard_limits
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


def talk(number: int, roles: Sequence[str]) -> AgentTask[list[int]]:
    heard = []
    for turn, role in enumerate(roles):
        [completion] = yield [Request(role, (number,), Sampling(), seed=100 * number + turn)]
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
        assert len({request.role for request in batch}) == 1
    assert sum(map(len, engine.batches)) == sum(map(len, tasks))


@given(shape=st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=4), max_batch=st.integers(1, 5))
def test_the_parts_of_a_task_hear_their_own_answers(shape: list[list[int]], max_batch: int) -> None:
    tasks = [side_by_side([talk(number, ["trader"] * turns) for number, turns in enumerate(one)]) for one in shape]
    assert run_all(tasks, Echo(), max_batch=max_batch) == [
        [[100 * number + turn for turn in range(turns)] for number, turns in enumerate(one)] for one in shape
    ]


def test_the_role_for_which_the_most_wait_is_asked() -> None:
    engine = Echo()
    run_all([talk(0, ["trader", "manager"]), talk(1, ["manager"]), talk(2, ["trader"])], engine)
    assert [[(request.role, request.ids[0]) for request in batch] for batch in engine.batches] == [
        [("trader", 0), ("trader", 2)],
        [("manager", 0), ("manager", 1)],
    ]


def decisions(count: int, max_batch: int) -> list[TeamDecision]:
    market, team = synthetic(), make_team()
    view = market.view(200)
    tasks = [
        team.decide(view, hand_made_account(view, {}), market.symbols, Guard(guard_limits()), seed)
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
    def fails() -> AgentTask[list[int]]:
        yield [Request("manager", (1,), Sampling(), 0)]
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


class Server(Echo):
    """Answers each request on a thread of its own; one of a role named `slow` waits until told otherwise."""

    name = "server"

    def __init__(self, *, most: int = 64) -> None:
        super().__init__()
        self.released = threading.Event()
        self.pool = ThreadPoolExecutor(most)
        self.lock = threading.Lock()
        self.now, self.most = 0, 0

    def submit(self, request: Request) -> Future[Completion]:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        return self.pool.submit(self._answer, request)

    def cancel_pending(self) -> None:
        raise AssertionError("nothing asks for this here")

    def _answer(self, request: Request) -> Completion:
        if request.role == "slow" and not self.released.wait(10):
            raise TimeoutError("nobody came this far")
        time.sleep(request.seed % 7 / 2000)
        with self.lock:
            self.now -= 1
        if request.role == "broken":
            return failed_completion("no answer", Usage(1, 0, 0, 0.1))
        return Completion((request.seed,), (0.0,), True, Usage(2, 1, 1, 0.1))


@settings(max_examples=20, deadline=None)
@given(
    tasks=st.lists(st.lists(st.sampled_from(["manager", "trader"]), max_size=5), max_size=8),
    max_batch=st.integers(1, 6),
)
def test_streamed_answers_give_the_same_results_as_batches(tasks: list[list[str]], max_batch: int) -> None:
    talks = [talk(number, roles) for number, roles in enumerate(tasks)]
    server = Server()
    streamed = run_all(talks, server, max_batch=max_batch)
    assert streamed == run_all([talk(number, roles) for number, roles in enumerate(tasks)], Echo())
    assert server.most <= max_batch


def test_a_slow_request_does_not_hold_the_others() -> None:
    server = Server()

    def last(number: int) -> AgentTask[list[int]]:
        heard = yield from talk(number, ["manager"] * 9)
        server.released.set()  # only a conversation that got through beside the slow one opens it
        return heard

    results = run_all([talk(0, ["slow", "manager"]), last(1)], server)
    assert [len(heard) for heard in results] == [2, 9]


def test_a_failed_request_is_an_answer_and_a_dead_engine_an_error() -> None:
    def careful(number: int) -> AgentTask[str | None]:
        [completion] = yield [Request("broken" if number == 1 else "manager", (number,), Sampling(), number)]
        return completion.failure

    throughput = Throughput()
    assert run_all([careful(0), careful(1)], Server(), throughput=throughput) == [None, "no answer"]
    assert throughput.failures == 1 and throughput.requests == 2

    class Dead(Server):
        def _answer(self, request: Request) -> Completion:
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        run_all([talk(0, ["manager"]), talk(1, ["manager"])], Dead())


def test_throughput_counts_what_was_asked_and_how_full_the_batches_were() -> None:
    throughput = Throughput()
    assert throughput.metrics() == {}
    run_all([talk(0, ["manager"]), talk(1, ["manager"] * 3), talk(2, [])], Echo(), throughput=throughput)
    metrics = throughput.metrics()
    assert metrics["requests"] == 4.0 and metrics["batch"] == pytest.approx(4 / 3)
    assert metrics["batch_fill"] == 1.0  # 2 of 2, then 1 of 1 twice
    assert 0.0 <= metrics["outside"] <= 1.0
    run_all([talk(0, ["manager"] * 2)], Server(), throughput=throughput)
    assert throughput.requests == 6 and throughput.usage == Usage(4, 2, 2, 0.2)
    assert throughput.metrics()["prefix_reuse"] == 0.5
    halved = Throughput()
    run_all([talk(number, ["manager"]) for number in range(4)], Echo(), max_batch=1, throughput=halved)
    assert halved.metrics()["batch_fill"] == pytest.approx(4 / (4 + 3 + 2 + 1))
