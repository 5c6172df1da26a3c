"""The engine for endpoints of the OpenAI kind, against a local server."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import CancelledError
from typing import Any

import pytest

from cryptosentinel.agents.registry import MANAGER
from cryptosentinel.llm.engine import StreamingEngine
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.protocol.tool_calls import MAX_ANSWER_CHARS, MalformedCall, parse, render_call
from cryptosentinel.scheduler import Throughput, run_all
from cryptosentinel.scripted_team import expert_policies
from cryptosentinel.team import AgentTask, derive_seed
from simulator.errors import UserError
from tests.endpoint_scenes import (
    KEY,
    RISK,
    TOOL,
    VARIABLE,
    Make,
    ask,
    numbered,
    request,
    text_of,
)
from tests.malformed_answers import ACCENTS, MALFORMED_TOOL_CALLS
from tests.mock_endpoint import MODEL, Answering, Reply, call, chat, refusal, reply, serve
from tests.team_scenes import codec, decide


@pytest.mark.parametrize("seed", [1, 2])
def test_a_team_behind_http_decides_as_the_team_in_this_process(make: Make, seed: int) -> None:
    with serve() as endpoint:
        engine = make(endpoint)
        engine.check()
        there = decide(engine, seed=seed, symbols=("AAAUSDT",), bar=100 + 40 * seed)
    here = decide(ScriptedEngine(codec(), expert_policies()), seed=seed, symbols=("AAAUSDT",), bar=100 + 40 * seed)
    assert [one.ids for one in there.transcripts] == [one.ids for one in here.transcripts]
    assert (there.orders, there.events) == (here.orders, here.events) and there.manager.valid
    assert all(one.answer is not None for one in there.transcripts) and len(there.transcripts) >= 2
    assert {logp for one in there.transcripts for logp in one.logps} == {0.0}


def test_what_is_sent(make: Make) -> None:
    with serve(lambda body: RISK) as endpoint:
        engine = make(endpoint)
        assert isinstance(engine, StreamingEngine)
        ask(engine, request(seed=2**62 + 5, temperature=0.25, max_tokens=77))
        ask(engine, request(tools=False))
        first, second = endpoint.chats
    assert first.body == {
        "model": MODEL,
        "messages": [{"role": "system", "content": "You are a test."}, {"role": "user", "content": "Begin."}],
        "temperature": 0.25,
        "max_tokens": 77,
        "seed": 6,  # (2**62 + 5) modulo 2**31 - 1
        "tools": [TOOL],
        "parallel_tool_calls": False,
        "tool_choice": "required",
    }
    assert first.headers["Authorization"] == f"Bearer {KEY}"
    assert "tools" not in second.body and "parallel_tool_calls" not in second.body  # endpoints refuse one without other
    assert "tool_choice" not in second.body
    assert engine.policy_version("manager") == f"openai:{MODEL}" and engine.name == "openai_api"


def test_seeds_of_63_bits_stay_distinct_in_31(make: Make) -> None:
    seeds = [derive_seed("test", number) for number in range(200)] + [1 << bit for bit in range(31)]
    assert max(seeds) > 2**62
    with serve(lambda body: RISK) as endpoint:
        make(endpoint).generate([request(seed=seed) for seed in seeds])
        sent = {heard.body["seed"] for heard in endpoint.chats}
    assert len(sent) == len(set(seeds)) and all(0 <= seed < 2**31 for seed in sent)


def test_nothing_else_of_the_environment_is_sent(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("API_KEY", "ADMIN_KEY", "ORG_ID", "PROJECT_ID", "WEBHOOK_SECRET"):
        monkeypatch.setenv(f"OPENAI_{name}", "another-secret")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Other: another-secret\nAuthorization: another-secret")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://another-secret.invalid")
    monkeypatch.setenv("HTTP_PROXY", "http://another-secret.invalid:1")
    with serve(lambda body: RISK) as endpoint:
        for settings, sent in (({}, f"Bearer {KEY}"), ({"key_variable": ""}, None)):
            engine = make(endpoint, **settings)
            engine.check()
            assert text_of(ask(engine)) == render_call("get_risk", {})
            assert endpoint.heard[-1].headers.get("Authorization") == sent
        assert "another-secret" not in repr(endpoint.heard)


def test_the_usage_is_the_endpoint_s(make: Make) -> None:
    usage = {"prompt_tokens": 40, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 32}}
    with serve(numbered([chat({"content": "a"}, usage=usage), chat({"content": "a"})])) as endpoint:
        engine = make(endpoint)
        output, without_usage = engine.generate([request("0"), request("1")])
    assert (output.usage.prompt, output.usage.cached, output.usage.sampled) == (40, 32, 9)
    # Without a count the budget must not think it was for nothing.
    assert (without_usage.usage.prompt, without_usage.usage.sampled) == (len(request("1").ids), 2)
    assert 0.0 < output.usage.seconds < 20.0


@pytest.mark.parametrize(("finish", "finished"), [("stop", True), ("tool_calls", True), ("length", False)])
def test_an_answer_at_its_limit_has_no_end_of_turn(make: Make, finish: str, finished: bool) -> None:
    with serve(lambda body: chat(call("get_risk", '{"a'), finish)) as endpoint:
        answer = ask(make(endpoint))
    assert answer.finished is finished and (answer.ids[-1] == codec().end_of_turn) is finished
    assert len(answer.ids) == len(answer.logps) and answer.failure is None
    assert text_of(answer) == '<tool_call>\n{"name": "get_risk", "arguments": {"a}\n</tool_call>'


def test_malformed_tool_calls_come_out_as_what_they_are(make: Make) -> None:
    """The corpus of malformed calls, over the wire and through the codec; accents of servers are read otherwise."""
    meant = [next((code for one, code in ACCENTS if one == calls), code) for calls, code in MALFORMED_TOOL_CALLS]
    assert sum(code != was for code, (_, was) in zip(meant, MALFORMED_TOOL_CALLS, strict=True)) == len(ACCENTS)
    answers = [chat({"content": None, "tool_calls": calls}) for calls, _ in MALFORMED_TOOL_CALLS]
    with serve(numbered(answers)) as endpoint:
        completions = make(endpoint).generate([request(str(number)) for number in range(len(answers))])
    for completion, code, (calls, _) in zip(completions, meant, MALFORMED_TOOL_CALLS, strict=True):
        found = parse(text_of(completion), MANAGER.argument_types())
        said = found.code if isinstance(found, MalformedCall) else None
        assert (said, completion.failure) == (code, None), str(calls)[:200]
        assert completion.finished and len(completion.ids) < 5 * MAX_ANSWER_CHARS


def everywhere(status: int) -> Answering:
    """An endpoint that shows in all it says what it was sent, as debugging proxies do."""

    def answer(body: dict[str, Any]) -> Reply:
        echo = f"You sent Authorization: Bearer {KEY}"
        wide = "".join(chr(ord(sign) + 0xFEE0) for sign in KEY)  # full width, which becomes plain when cleaned
        message = f"{wide} {'x' * 125} {echo} {echo}"  # the end of what is shown falls into a key
        document: dict[str, Any] = {"error": {"message": message}, "headers": echo}
        if status == 200 and body.get("seed"):
            document |= {"choices": [{"message": call("get_risk", {"reason": echo}, content=echo)}]}
        return reply(document, status, headers={"X-Echo": echo, "Location": f"http://{KEY}.invalid"})

    return answer


@pytest.mark.parametrize("status", [200, 302, 400, 401, 402, 404, 429, 500])
def test_the_key_is_nowhere_to_be_read(make: Make, status: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("httpcore2").setLevel(logging.INFO)  # it writes an endpoint's own headers into its debug log
    shown: list[str] = []
    with serve(everywhere(status)) as endpoint:
        endpoint.models = reply({"data": [{"id": KEY}]}) if status != 401 else refusal(401, KEY)
        engine = make(endpoint, retries=1)
        for seed in (0, 1):
            try:
                completion = ask(engine, request(seed=seed))
                shown += [repr(completion), text_of(completion), str(completion.failure)]
            except UserError as error:
                shown.append(repr(error))
        try:
            engine.check()
        except UserError as error:
            shown.append(str(error))
        assert endpoint.heard[0].headers["Authorization"].endswith(KEY)
    shown += [repr(engine), str(engine), caplog.text]
    assert len(caplog.records) > 0
    for text in shown:
        assert KEY[:12] not in text and KEY[-12:] not in text
    assert any("[key]" in text for text in shown)


def test_a_word_that_is_no_secret_stays_in_answers(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "none")
    with serve(lambda body: chat({"content": "none of it"})) as endpoint:
        assert text_of(ask(make(endpoint))) == "none of it"


def talk(text: str, turns: int, done: list[str]) -> AgentTask[str]:
    for _ in range(turns):
        [answer] = yield [request(text)]
        assert answer.failure is None
    done.append(text)
    return text


def test_a_slow_answer_does_not_hold_the_others(make: Make) -> None:
    slow = Reply(RISK.body, delay=1.0)
    done: list[str] = []
    with serve(numbered([slow, RISK, RISK])) as endpoint:
        busy = Throughput()
        tasks = [talk("0", 1, done), talk("1", 12, done), talk("2", 12, done)]
        assert run_all(tasks, make(endpoint), throughput=busy) == ["0", "1", "2"]
    assert done[-1] == "0" and busy.requests == 25


class Crowd:
    """Counts the requests that are under way at a time."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._lock = threading.Lock()

    def answer(self, body: dict[str, Any]) -> Reply:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.1)
        with self._lock:
            self.now -= 1
        return RISK


@pytest.mark.parametrize("concurrency", [1, 3])
def test_no_more_requests_at_a_time_than_allowed(make: Make, concurrency: int) -> None:
    """And those that wait for their turn do not time out."""
    crowd = Crowd()
    with serve(crowd.answer) as endpoint:
        engine = make(endpoint, concurrency=concurrency, timeout=0.7, retries=0)
        answers = engine.generate([request(str(number)) for number in range(9 * concurrency)])
    assert crowd.most == concurrency and [answer.failure for answer in answers] == [None] * len(answers)


def test_what_is_under_way_can_be_given_up(make: Make) -> None:
    with serve(lambda body: Reply(RISK.body, delay=30.0)) as endpoint:
        engine = make(endpoint, concurrency=1)
        futures = [engine.submit(request(str(number))) for number in range(3)]
        while not endpoint.chats:
            time.sleep(0.01)
        assert futures[2].cancel()
        engine.close()
        for future in futures:
            with pytest.raises(CancelledError):
                future.result(5)
        assert len(endpoint.chats) == 1
