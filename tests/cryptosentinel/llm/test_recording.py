"""Recording what engines answer, and playing it back."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from cryptosentinel.conversation.budget import Price
from cryptosentinel.episode import EpisodeResult, play
from cryptosentinel.llm.chat_codec import ChatCodec, make_byte_codec
from cryptosentinel.llm.endpoint.engine import EndpointEngine
from cryptosentinel.llm.engine import Completion, Engine, Request, Sampling, StreamingEngine, failed_completion
from cryptosentinel.llm.recording import Replay, StreamingRecorder
from cryptosentinel.llm.templates import described_format
from cryptosentinel.scheduler import run_all
from cryptosentinel.team import Team
from scripts.template_table import tokenizer_for
from simulator.backtest.run import BacktestRun, Window
from simulator.errors import RunFailed, UserError
from tests.cryptosentinel.llm.templates.test_codec import PLAIN
from tests.mock_endpoint import MODEL, scripted, serve
from tests.recording_scenes import (
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
    return record_three(tmp_path / "recorded.jsonl")


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
        folder = Path(temporary, "tape.jsonl")
        engine = StreamingOracle() if streams else Oracle()
        with recording(engine, folder) as recorder:
            assert isinstance(recorder, StreamingEngine) == streams and recorder.name == "oracle"
            heard = [one for batch in batches(requests, sizes) for one in recorder.generate(batch)]
        assert same(heard, Oracle().generate(requests))
        distinct = {(one.role, one.ids, one.sampling, one.seed * bool(one.sampling.temperature)) for one in requests}
        assert len(engine.asked) == len(distinct)
        replay = Replay(folder)
        played = [one for batch in batches(requests, others) for one in replay.generate(batch)]
        assert same(played, heard)
        assert [replay.policy_version(role) for role in ROLES] == ["manager-v1", "trader-v1"]
        assert replay.settings == SETTINGS and replay.roles == ROLES


@settings(max_examples=40, deadline=None)
@given(
    requests=st.lists(REQUESTS, min_size=1, max_size=12),
    sizes=SIZES,
    stops=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 9_000)), max_size=4),
    streams=st.booleans(),
)
def test_an_interrupted_recording_goes_on_where_it_stopped(
    requests: list[Request], sizes: list[int], stops: list[tuple[int, int]], streams: bool
) -> None:
    """Nothing that is stored whole is asked again, wherever a kill has cut the file."""
    with TemporaryDirectory() as temporary:
        path = Path(temporary, "tape.jsonl")
        stored, torn = 0, False
        for stop, lost in [*stops, (-1, 0)]:
            engine = StreamingOracle() if streams else Oracle()
            engine.stops_at = stop
            with recording(engine, path) as recorder:
                assert len(recorder.notes) == torn
                try:
                    heard = [one for batch in batches(requests, sizes) for one in recorder.generate(batch)]
                except RunFailed:
                    assert stop >= 0
            data = path.read_bytes()
            answered = data.count(b"\n") - 1 - stored
            assert answered <= len(engine.asked) == len({*engine.asked}) and data.endswith(b"\n")
            assert answered == len(engine.asked) or stop >= 0
            if stop >= 0:
                path.write_bytes(data := data[: max(len(data) - lost, 0)])
                stored, torn = max(data.count(b"\n") - 1, 0), bool(data) and not data.endswith(b"\n")
                if b"\n" in data:
                    assert len(Replay(path).notes) == torn and path.read_bytes() == data  # it changes nothing
        assert same(heard, Oracle().generate(requests)) and same(Replay(path).generate(requests), heard)


def test_a_failure_is_not_recorded(tmp_path: Path) -> None:
    for engine in (Oracle(), StreamingOracle()):
        folder = tmp_path / f"{type(engine).__name__}.jsonl"
        engine.fails = {7}
        with recording(engine, folder) as recorder:
            good, bad = recorder.generate([request(0), request(1, seed=7)])
            assert bad == failed_completion("out of order") and bad.usage.prompt == 3 and good.failure is None
            engine.fails = set()
            assert recorder.generate([request(1, seed=7)])[0].failure is None  # asked again
        assert len(engine.asked) == 3 and folder.read_bytes().count(b"\n") == 3


def test_of_equal_requests_under_way_the_first_answer_counts_for_all(tmp_path: Path) -> None:
    """An endpoint answers the same request differently each time; a recording has one answer."""
    engine = StreamingOracle()
    engine.held = []
    with recording(engine, tmp_path / "c.jsonl") as recorder:
        assert isinstance(recorder, StreamingRecorder)
        futures = [recorder.submit(request()) for _ in range(3)]
        assert futures[2].cancel() and engine.held[2][1].cancelled()
        engine.held[1][1].set_result(Completion((7,), (0.0,), True))
        engine.held[0][1].set_result(Completion((8,), (0.0,), True))
        assert [future.result(1).ids for future in futures[:2]] == [(7,), (7,)]
        assert recorder.submit(request()).result(1).ids == (7,) and len(engine.held) == 3
    assert Replay(tmp_path / "c.jsonl").generate([request()])[0].ids == (7,)


def test_an_engine_that_fails_altogether_fails_all_waiting_requests(tmp_path: Path) -> None:
    engine = StreamingOracle()
    engine.held, engine.stops_at = [], 0
    with recording(engine, tmp_path / "c.jsonl") as recorder:
        assert isinstance(recorder, StreamingRecorder)
        futures = [recorder.submit(request()), recorder.submit(request()), recorder.submit(request(1))]
        for place, future in enumerate(futures[:2]):
            engine.answer(*engine.held[place])
            with pytest.raises(RunFailed, match="the engine has stopped"):
                future.result(1)
        assert engine.held[2][1].cancel()
        with pytest.raises(CancelledError):
            futures[2].result(1)
        engine.held, engine.stops_at = None, -1
        assert recorder.submit(request()).result(1).failure is None  # the next try is free to succeed


def test_many_threads_write_whole_lines(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:

        class Pooled(Oracle):
            def submit(self, request: Request) -> Future[Completion]:
                return pool.submit(Oracle().say, request)

            def cancel_pending(self) -> None:
                raise AssertionError("nothing asks for this here")

        wanted = [request(number % 150, seed=number % 2) for number in range(600)]
        with recording(Pooled(), tmp_path / "c.jsonl") as recorder:
            heard = recorder.generate(wanted)
    assert same(heard, Oracle().generate(wanted)) and same(Replay(tmp_path / "c.jsonl").generate(wanted), heard)


def test_a_policy_may_not_change_while_it_is_recorded(tmp_path: Path) -> None:
    for engine in (Oracle(), StreamingOracle()):
        with recording(engine, tmp_path / f"{type(engine).__name__}.jsonl") as recorder:
            recorder.generate([request()])
            engine.versions["manager"] = "manager-v2"
            with pytest.raises(RunFailed, match="the policy of manager changed"):
                recorder.generate([request()])


@pytest.mark.parametrize(
    "asked",
    [
        request(0, seed=11),
        request(0, seed=10, temperature=0.5),
        request(0, seed=10, max_tokens=7, constrained=True),
        request(0, seed=10, thinking_tokens=64),
        request(9, seed=10),
        request(9, temperature=0.0),
        request(0, role="trader", seed=10),
    ],
)
def test_a_call_that_was_not_recorded_is_named(recorded: Path, asked: Request) -> None:
    replay = Replay(recorded)
    replay.generate([request(1, seed=11), request(2, seed=12)])
    number = 3 if asked.role == "manager" else 1
    words = rf"no answer to call {number} of {asked.role} \(seed {asked.seed}, prompt ….*\): use the data"
    with pytest.raises(UserError, match=words):
        replay.generate([asked])


def episode(engine: Engine) -> EpisodeResult:
    team = Team(codec(), engine.policy_version, standard_team(retries=1))
    game = BacktestRun(synthetic(coins=2), Window(150, 190, 4))
    return run_all([play(team, game, guard_limits(), 3, price=Price(1.0, 0.1, 5.0))], engine)[0]


def facts(result: EpisodeResult) -> tuple[object, ...]:
    usages = [one.usage for _, decision in result.decisions for one in decision.transcripts]
    return (result.result.to_dict(), result.decisions, usages, result.liquidated_at, result.ledger)


def test_a_paid_run_is_repeated_without_the_endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "sk-test-0123456789abcdef"
    monkeypatch.setenv("TEST_ENDPOINT_KEY", key)
    with serve(scripted(half_taught_policies())) as endpoint:
        results = []
        for _ in range(2):
            engine = EndpointEngine(codec(), endpoint.url, MODEL, key_variable="TEST_ENDPOINT_KEY")
            with recording(engine, tmp_path / "c.jsonl", roles=half_taught_policies()) as recorder:
                assert isinstance(recorder, StreamingEngine)
                recorded = episode(recorder)
                results.append(facts(recorded))
            engine.close()
            paid = len(endpoint.chats)
            assert paid > 50
        assert paid == len(endpoint.chats)
    assert facts(episode(Replay(tmp_path / "c.jsonl"))) == results[0] == results[1] and len(recorded.decisions) == 20
    assert recorded.ledger.run.seconds > 0 and recorded.ledger.run.money > 0
    assert key.encode() not in (tmp_path / "c.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"settings": SETTINGS | {"horizon_bars": 6}}, "another settings"),
        ({"roles": ("manager",)}, "another versions"),
        ({"codec": make_byte_codec(empty_think=True)}, "another codec"),
        ({"tokenizer": True}, "another tokenizer"),
        ({"version": "v2"}, "another versions"),
        ({"name": "another"}, "another engine"),
    ],
)
def test_a_recording_continues_with_the_same_team_only(
    tmp_path: Path, changes: dict[str, Any], words: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    path = record_three(tmp_path / "c.jsonl")
    before = path.read_bytes()
    engine = Oracle()
    engine.name = changes.pop("name", engine.name)
    engine.versions["manager"] = changes.pop("version", engine.versions["manager"])
    if changes.pop("tokenizer", False):
        changes = {"codec": ChatCodec(tokenizer)}
    with pytest.raises(UserError, match=f"{words}: give a new file"):
        start(engine, path, **changes)
    assert path.read_bytes() == before
    start(Oracle(), path).close()  # nothing holds it


def test_a_recording_brings_its_tokenizer(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    spoken, path = ChatCodec(tokenizer, empty_think=True), tmp_path / "c.jsonl"
    for _ in range(2):  # the second time it continues
        with recording(Oracle(), path, codec=spoken) as recorder:
            recorder.generate([request()])
    read = Replay(path).codec
    assert read.start("You are.", "1.25 <|im_end|> ü") == spoken.start("You are.", "1.25 <|im_end|> ü")
    assert read.empty_think and (read.vocab_size, read.special_ids) == (spoken.vocab_size, spoken.special_ids)
    header, *calls = path.read_text().splitlines(keepends=True)
    for damage in ("{", "", 5):
        path.write_text("".join([json.dumps(json.loads(header) | {"tokenizer": damage}) + "\n", *calls]))
        with pytest.raises(UserError, match="line 1: its tokenizer cannot be used"):
            Replay(path)


def test_a_recording_brings_its_template(tmp_path: Path) -> None:
    spoken, _ = described_format(tokenizer_for(PLAIN), Path())
    with recording(Oracle(), tmp_path / "c.jsonl", codec=spoken) as recorder:
        recorder.generate([request()])
    again = Replay(tmp_path / "c.jsonl").codec
    assert again.start("You are.", "1.25 ü") == spoken.start("You are.", "1.25 ü") and again.ends == spoken.ends


def test_one_recorder_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    with recording(Oracle(), path) as recorder:
        recorder.generate([request()])
        with pytest.raises(UserError, match="it is being written by another program"):
            start(Oracle(), path)
        assert len(Replay(path).generate([request()])) == 1  # a replay disturbs nobody
        recorder.generate([request(1)])
    start(Oracle(), path).close()
    recorder.close()


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The disk is full: no file grows beyond `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("more", [0, 1, 50])
@pytest.mark.parametrize("streams", [False, True])
def test_a_full_disk_costs_nothing_that_was_stored(tmp_path: Path, more: int, streams: bool) -> None:
    path = tmp_path / "c.jsonl"
    engine = StreamingOracle() if streams else Oracle()
    with recording(engine, path) as recorder:
        heard = recorder.generate([request(0)])
        before = path.read_bytes()
        with files_of_at_most(len(before) + more), pytest.raises(RunFailed, match=r"free some space and run again"):
            recorder.generate([request(1)])
        assert Replay(path).generate([request(0)]) == heard
        heard += recorder.generate([request(1)])  # there is room again
    assert same(Replay(path).generate([request(0), request(1)]), heard)


def test_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "elsewhere.jsonl")
    os.mkfifo(tmp_path / "pipe.jsonl")
    for name, words in (
        ("file", r"ends in \.jsonl"),
        ("file/c.jsonl", "cannot use this file"),
        ("folder.jsonl", "cannot use this file"),
        ("link.jsonl", "cannot use this file"),
        ("pipe.jsonl", "cannot be read"),
    ):
        with pytest.raises(UserError, match=words):
            start(Oracle(), tmp_path / name)
    assert not (tmp_path / "elsewhere.jsonl").exists()
    with files_of_at_most(20), pytest.raises(UserError, match="cannot be written"):
        start(Oracle(), tmp_path / "full.jsonl")
    start(Oracle(), tmp_path / "full.jsonl").close()  # what was left there is no obstacle


OTHERS = ["my notes\n", "my notes", "{\n", "[]\n", *(f'{{"format": "cryptosentinel recording {n}"}}\n' for n in (1, 2))]


@pytest.mark.parametrize("first", OTHERS)
def test_another_file_is_not_a_recording(tmp_path: Path, first: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(first)
    for attempt in (Replay, lambda path: start(Oracle(), path)):
        with pytest.raises(UserError, match=r"line 1 is not a recording's .*: give a new file"):
            attempt(path)
    assert path.read_text() == first
    with pytest.raises(UserError, match=r"nowhere\.jsonl cannot be read"):
        Replay(tmp_path / "nowhere.jsonl")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(UserError, match="no recording in"):
        Replay(tmp_path / "empty.jsonl")


DAMAGED: list[dict[str, Any] | str] = [
    {"ids": None}, {"ids": [1.0]}, {"ids": [True], "logps": [0.0]}, {"ids": [-1], "logps": [0.0]}, {"thought": 1.5},
    {"ids": [1], "logps": []}, {"logps": ["0"]}, {"finished": 1}, {"usage": None}, {"usage": {"promt": 1}},
    {"usage": {"prompt": "1"}}, "", "{", "[]", "null", "[" * 5000, '{"role": "manager"}',
]  # fmt: skip
ANOTHER: list[dict[str, Any]] = [{"ids": [5], "logps": [0.0]}, {"finished": 0}, {"usage": {"seconds": 77.5}}]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        *((change, r"recorded\.jsonl, line 3 is not a recording's") for change in DAMAGED),
        ({"ids": [codec().vocab_size], "logps": [0.0]}, "ids that its tokenizer does not know"),
        *(([change], r"line 5 .*its call is there before with another answer") for change in ANOTHER),
    ],
)
def test_a_damaged_line_is_named(recorded: Path, change: Any, words: str) -> None:
    lines = recorded.read_text().splitlines()
    call = json.loads(lines[2])
    if isinstance(change, list):  # a second answer to a call
        other = call | change[0] | ({"finished": not call["finished"]} if "finished" in change[0] else {})
        lines.append(json.dumps(other))
    else:
        lines[2] = change if isinstance(change, str) else json.dumps(call | change)
    recorded.write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=words) as caught:
        Replay(recorded)
    assert len(str(caught.value)) < 500 + len(str(recorded))
    if "tokenizer" not in words:
        with pytest.raises(UserError, match=words):
            start(Oracle(), recorded)
    recorded.write_text(
        "\n".join([lines[0], lines[1], lines[3], lines[3]]) + "\n"
    )  # as said; twice the same is harmless
    with recording(engine := Oracle(), recorded) as recorder:
        recorder.generate([request(number, seed=10 + number) for number in range(3)])
    assert len(engine.asked) == 1
