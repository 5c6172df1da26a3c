"""Recording what engines answer, and playing it back."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cryptosentinel.conversation.budget import Budget, Price
from cryptosentinel.episode import EpisodeResult, play
from cryptosentinel.llm.cassette.engine import Cassette, StreamingRecorder
from cryptosentinel.llm.cassette.files import CALLS, HEADER, LOCK
from cryptosentinel.llm.engine import Completion, Engine, Request, Sampling, StreamingEngine, Usage, failed_completion
from cryptosentinel.llm.openai_api.engine import OpenAIEngine
from cryptosentinel.llm.scripted import ScriptedEngine, ScriptedPolicy
from cryptosentinel.scheduler import run_all
from cryptosentinel.team import Team
from simulator.backtest.run import BacktestRun, Window
from simulator.errors import RunFailed, UserError
from tests.cassette_scenes import (
    ROLES,
    SETTINGS,
    Oracle,
    StreamingOracle,
    record_three,
    recording,
    request,
    same,
    start,
)
from tests.mock_endpoint import MODEL, scripted, serve
from tests.standard_limits import guard_limits
from tests.team_scenes import codec, half_taught_policies, standard_team, synthetic

REQUESTS = st.builds(
    Request,
    role=st.sampled_from(ROLES),
    ids=st.lists(st.integers(0, 262), max_size=3).map(tuple),
    sampling=st.builds(
        Sampling, temperature=st.sampled_from([0.0, 0.7, 1.0]), max_tokens=st.sampled_from([8, 96]),
        constrained=st.booleans(),
    ),
    seed=st.sampled_from([0, 1, 2**63 - 1]),
)  # fmt: skip


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return record_three(tmp_path / "recorded")


def batches(requests: Sequence[Request], sizes: Sequence[int]) -> Iterator[Sequence[Request]]:
    """The requests cut into batches of some sizes, taken in turn."""
    begin = turn = 0
    while begin < len(requests):
        yield requests[begin : begin + sizes[turn % len(sizes)]]
        begin += sizes[turn % len(sizes)]
        turn += 1


SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(requests=st.lists(REQUESTS, max_size=20), sizes=SIZES, others=SIZES, streams=st.booleans())
def test_what_is_played_is_what_was_recorded(
    requests: list[Request], sizes: list[int], others: list[int], streams: bool
) -> None:
    """For engines of both kinds, whatever stood together in a batch then and now."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary, "cassette")
        engine = StreamingOracle() if streams else Oracle()
        with recording(engine, folder) as recorder:
            heard = [one for batch in batches(requests, sizes) for one in recorder.generate(batch)]
        assert same(heard, Oracle().generate(requests))
        distinct = {(one.role, one.ids, one.sampling, one.seed * bool(one.sampling.temperature)) for one in requests}
        assert len(engine.asked) == len(distinct)
        cassette = Cassette(folder)
        played = [one for batch in batches(requests, others) for one in cassette.generate(batch)]
        assert same(played, heard)
        assert [cassette.policy_version(role) for role in ROLES] == ["manager-v1", "trader-v1"]
        assert cassette.settings == SETTINGS and cassette.roles == ROLES


@settings(max_examples=40, deadline=None)
@given(
    requests=st.lists(REQUESTS, min_size=1, max_size=12),
    sizes=SIZES,
    stops=st.lists(st.integers(0, 12), max_size=3),
    torn=st.integers(0, 400),
    streams=st.booleans(),
)
def test_an_interrupted_recording_goes_on_where_it_stopped(
    requests: list[Request], sizes: list[int], stops: list[int], torn: int, streams: bool
) -> None:
    """Nothing that was stored is asked again, whatever is at the end of the file."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary, "cassette")
        stored = 0
        for stop in [*stops, None]:
            engine = StreamingOracle() if streams else Oracle()
            engine.stops_at = -1 if stop is None else stop
            path = folder / CALLS
            with recording(engine, folder) as recorder:
                try:
                    heard = [one for batch in batches(requests, sizes) for one in recorder.generate(batch)]
                except RunFailed:
                    assert stop is not None
            lines = path.read_bytes().count(b"\n")
            answered = min(len(engine.asked), lines - stored)
            assert lines == stored + answered and len({*engine.asked}) == len(engine.asked)
            if not streams or stop is None:
                assert lines - stored <= len(engine.asked)
            stored = lines
            if stop is not None:  # a kill while the next line was written
                with path.open("ab") as file:
                    file.write((b'{"role": "manager", "prompt": "' + b"x" * 500)[:torn])
        assert same(heard, Oracle().generate(requests)) and same(Cassette(folder).generate(requests), heard)
        assert path.read_bytes().endswith(b"\n")  # nothing torn is left


def test_no_kill_while_writing_costs_more_than_that_call(tmp_path: Path) -> None:
    """The file is cut everywhere."""
    with recording(Oracle(), tmp_path / "whole") as recorder:
        heard = recorder.generate([request(number) for number in range(3)])
    data = (tmp_path / "whole" / CALLS).read_bytes()
    folder = tmp_path / "cut"
    recording_once = start(Oracle(), folder)
    recording_once.close()
    ends = [place for place, byte in enumerate(data) if byte == ord("\n")]
    for length in sorted({*range(0, len(data) + 1, 3), *ends, *(end + 1 for end in ends)}):
        (folder / CALLS).write_bytes(data[:length])
        whole = data[:length].count(b"\n")
        cassette = Cassette(folder)  # reads what is whole, and changes nothing
        assert (folder / CALLS).stat().st_size == length
        assert same(cassette.generate([request(number) for number in range(whole)]), heard[:whole])
        if length % 7 == 0 or length > len(data) - 5:
            engine = Oracle()
            with recording(engine, folder) as recorder:
                assert same(recorder.generate([request(number) for number in range(3)]), heard)
            assert len(engine.asked) == 3 - whole and (folder / CALLS).read_bytes() == data


def test_a_seed_decides_nothing_at_temperature_0(tmp_path: Path) -> None:
    engine = Oracle()
    with recording(engine, tmp_path / "c") as recorder:
        cold = recorder.generate([request(seed=1, temperature=0.0), request(seed=2, temperature=0.0)])
        warm = recorder.generate([request(seed=1), request(seed=2)])
    assert same(cold[:1], cold[1:]) and not same(warm[:1], warm[1:]) and len(engine.asked) == 3
    assert same(Cassette(tmp_path / "c").generate([request(seed=99, temperature=0.0)]), cold[:1])


def test_a_failure_is_not_recorded(tmp_path: Path) -> None:
    for engine in (Oracle(), StreamingOracle()):
        folder = tmp_path / type(engine).__name__
        engine.fails = {7}
        with recording(engine, folder) as recorder:
            good, bad = recorder.generate([request(0), request(1, seed=7)])
            assert bad == failed_completion("out of order") and bad.usage.prompt == 3 and good.failure is None
            engine.fails = set()
            assert recorder.generate([request(1, seed=7)])[0].failure is None  # asked again
        assert len(engine.asked) == 3 and (folder / CALLS).read_bytes().count(b"\n") == 2


def test_only_what_streams_streams(tmp_path: Path) -> None:
    with recording(Oracle(), tmp_path / "a") as batch, recording(StreamingOracle(), tmp_path / "b") as streaming:
        assert not isinstance(batch, StreamingEngine) and batch.name == "oracle"
        assert isinstance(streaming, StreamingRecorder) and isinstance(streaming, StreamingEngine)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_equal_requests_under_way_are_asked_once(data: st.DataObject) -> None:
    """Answers come in any order, and some that wait give up."""
    with TemporaryDirectory() as temporary:
        engine = StreamingOracle()
        engine.held = []
        numbers = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=10))
        with recording(engine, Path(temporary, "c")) as recorder:
            assert isinstance(recorder, StreamingRecorder)
            futures = [recorder.submit(request(number)) for number in numbers]
            assert len({*map(id, futures)}) == len(futures)  # the scheduler tells them apart
            assert len(engine.held) == len(set(numbers))
            given_up = data.draw(st.sets(st.sampled_from(range(len(futures)))))
            for place in given_up:
                assert futures[place].cancel()
            for held, future in data.draw(st.permutations(engine.held)):
                engine.answer(held, future)
            wanted = {number for place, number in enumerate(numbers) if place not in given_up}
            assert len(engine.asked) == len(wanted)  # what nobody waits for is not asked
            for place, (number, future) in enumerate(zip(numbers, futures, strict=True)):
                if place in given_up:
                    assert future.cancelled()
                else:
                    assert same([future.result(1)], Oracle().generate([request(number)]))
            engine.held = None
            assert recorder.submit(request(numbers[0])).result(1).failure is None
        assert Path(temporary, "c", CALLS).read_bytes().count(b"\n") == len(wanted | {numbers[0]})


def test_an_engine_that_fails_altogether_fails_all_waiting_requests(tmp_path: Path) -> None:
    engine = StreamingOracle()
    engine.held, engine.stops_at = [], 0
    with recording(engine, tmp_path / "c") as recorder:
        assert isinstance(recorder, StreamingRecorder)
        futures = [recorder.submit(request()), recorder.submit(request()), recorder.submit(request(1))]
        engine.answer(*engine.held[0])
        for future in futures[:2]:
            with pytest.raises(RunFailed, match="the engine has stopped"):
                future.result(1)
        assert engine.held[1][1].cancel()
        with pytest.raises(CancelledError):
            futures[2].result(1)
        engine.held, engine.stops_at = None, -1
        assert recorder.submit(request()).result(1).failure is None  # the next try is free to succeed


def test_an_engine_that_takes_nothing_leaves_nothing_behind(tmp_path: Path) -> None:
    class Closed(StreamingOracle):
        def submit(self, request: Request) -> Future[Completion]:
            if not self.asked:
                self.asked.append(request)
                raise RunFailed("closed")
            return super().submit(request)

    with recording(Closed(), tmp_path / "c") as recorder:
        with pytest.raises(RunFailed, match="closed"):
            recorder.generate([request()])
        assert recorder.generate([request()])[0].failure is None


def test_many_threads_write_whole_lines(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:

        class Pooled(Oracle):
            def submit(self, request: Request) -> Future[Completion]:
                return pool.submit(Oracle().say, request)

            def cancel_pending(self) -> None:
                raise AssertionError("nothing asks for this here")

        wanted = [request(number % 150, seed=number % 2) for number in range(600)]
        with recording(Pooled(), tmp_path / "c") as recorder:
            heard = recorder.generate(wanted)
    assert same(heard, Oracle().generate(wanted)) and same(Cassette(tmp_path / "c").generate(wanted), heard)


def test_a_policy_may_not_change_while_it_is_recorded(tmp_path: Path) -> None:
    for engine in (Oracle(), StreamingOracle()):
        with recording(engine, tmp_path / type(engine).__name__) as recorder:
            recorder.generate([request()])
            engine.versions["manager"] = "manager-v2"
            with pytest.raises(RunFailed, match="the policy of manager is manager-v2, and manager-v1 is recorded"):
                recorder.generate([request()])


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (request(0, seed=11), "its prompt was recorded with seed 10 instead of 11"),
        (request(0, seed=10, temperature=0.5), r"recorded with temperature 1\.0 instead of 0\.5: play with the seed"),
        (request(0, seed=10, max_tokens=7, constrained=True), "max_tokens 96 instead of 7, constrained False instead"),
        (request(9, seed=11), "its seed was recorded with another prompt: the market"),
        (request(9, seed=99), "neither its prompt nor its seed was recorded"),
        (request(9, temperature=0.0), "neither its prompt nor its seed was recorded"),
        (request(0, role="trader"), "nothing of this role was recorded"),
    ],
)
def test_a_call_that_was_not_recorded(recorded: Path, asked: Request, words: str) -> None:
    cassette = Cassette(recorded)
    cassette.generate([request(1, seed=11), request(2, seed=12)])
    number = 3 if asked.role == "manager" else 1
    with pytest.raises(UserError, match=f"has no answer to call {number} of {asked.role}: .*{words}"):
        cassette.generate([asked])


def test_a_role_that_was_not_recorded(recorded: Path) -> None:
    with pytest.raises(UserError, match="knows no role 'risk_analyst', only manager, trader"):
        Cassette(recorded).policy_version("risk_analyst")


def test_what_is_stored_can_be_read_by_people(tmp_path: Path) -> None:
    answer = Completion(tuple(codec().encode_assistant("I wait. ü")), (0.0,) * 11, True)

    class Saying(Oracle):
        def say(self, request: Request) -> Completion:
            return answer

    secret = codec().start("You are a test.", "A long prompt with its own words.")
    with recording(Saying(), tmp_path / "c") as recorder:
        recorder.generate([replace(request(), ids=tuple(secret))])
    [line] = (tmp_path / "c" / CALLS).read_text().splitlines()
    assert json.loads(line)["text"] == "I wait. ü" and json.loads(line)["ids"] == list(answer.ids)
    assert len(line) < 600  # a hash stands for the prompt
    assert {path.name for path in (tmp_path / "c").iterdir()} == {HEADER, CALLS, LOCK}


class Counting:
    """Rules as an engine whose answers cost something, each time another number of seconds."""

    name = "counting"

    def __init__(self, policies: dict[str, ScriptedPolicy]) -> None:

        self._inner = ScriptedEngine(codec(), policies)
        self._rng = random.Random(5)

    def policy_version(self, role: str) -> str:
        return f"{role}-counted"

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return [
            replace(one, usage=Usage(len(asked.ids), 3, len(one.ids), self._rng.random()))
            for asked, one in zip(requests, self._inner.generate(requests), strict=True)
        ]


def episode(engine: Engine) -> EpisodeResult:
    team = Team(codec(), engine.policy_version, standard_team(retries=1, memory=2))
    game = BacktestRun(synthetic(coins=2), Window(150, 190, 4))
    return run_all([play(team, game, guard_limits(), 3, budget=Budget(price=Price(1.0, 0.1, 5.0)))], engine)[0]


def facts(result: EpisodeResult) -> tuple[object, ...]:
    usages = [one.usage for _, decision in result.decisions for one in decision.transcripts]
    return (result.result.to_dict(), result.decisions, usages, result.liquidated_at, result.ledger)


def wayward_policies() -> dict[str, ScriptedPolicy]:
    """Half taught, and now and then they say nothing of use."""

    def wayward(policy: ScriptedPolicy) -> ScriptedPolicy:
        return lambda messages, seed: "I would rather wait." if seed % 9 == 0 else policy(messages, seed)

    return {role: wayward(policy) for role, policy in half_taught_policies().items()}


def test_a_backtest_is_played_as_it_was_recorded(tmp_path: Path) -> None:
    policies = wayward_policies()
    with recording(Counting(policies), tmp_path / "c", roles=policies) as recorder:
        recorded = episode(recorder)
    cassette = Cassette(tmp_path / "c")
    assert facts(episode(cassette)) == facts(recorded) and len(recorded.decisions) == 20
    assert recorded.ledger.run.seconds > 0 and recorded.ledger.run.money > 0
    assert any(decision.retries or decision.events for _, decision in recorded.decisions)  # not all went well


def test_a_paid_run_is_repeated_without_the_endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "sk-test-0123456789abcdef"
    monkeypatch.setenv("TEST_ENDPOINT_KEY", key)
    with serve(scripted(half_taught_policies())) as endpoint:
        results = []
        for _ in range(2):
            engine = OpenAIEngine(codec(), endpoint.url, MODEL, key_variable="TEST_ENDPOINT_KEY")
            with recording(engine, tmp_path / "c", roles=half_taught_policies()) as recorder:
                assert isinstance(recorder, StreamingEngine)
                results.append(facts(episode(recorder)))
            engine.close()
            paid = len(endpoint.chats)
            assert paid > 50
        assert paid == len(endpoint.chats)
    assert facts(episode(Cassette(tmp_path / "c"))) == results[0] == results[1]
    assert not any(key.encode() in path.read_bytes() for path in (tmp_path / "c").iterdir())
