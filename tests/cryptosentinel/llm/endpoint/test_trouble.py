"""Endpoints that fail, refuse, hang or are not there."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from contextlib import closing

import pytest

from cryptosentinel.protocol.tool_calls import render_call
from simulator.errors import RunFailed, UserError
from tests.endpoint_scenes import (
    KEY,
    PAGE,
    RISK,
    SECONDS,
    VARIABLE,
    Make,
    ask,
    numbered,
    request,
    text_of,
)
from tests.mock_endpoint import Reply, chat, refusal, reply, serve


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    ("said", "failure"),
    [
        (refusal(400, "this model does not support tools"), "refused with status 400: this model does not support"),
        (refusal(413, "too long"), "refused with status 413: too long"),
        (reply({"error": "model is loading"}, 409), "refused with status 409: model is loading"),
        (reply({"detail": "no such field"}, 418), "refused with status 418: no such field"),
        (reply({"detail": [{"loc": ["body"], "msg": "bad"}]}, 422), "refused with status 422: .*bad"),
        (refusal(500, "out of memory"), "refused with status 500: out of memory"),
        (refusal(429, "slow down"), "refused with status 429: slow down"),
        (Reply(PAGE.body, 502), "refused with status 502: a web page"),
        (Reply(b"\x00\xff" * 50_000, 500), "refused with status 500: "),
        (PAGE, "not a chat completion but a web page"),
        (Reply(RISK.body, cut=True), "the connection broke off in 3 attempts"),
        (Reply(RISK.body, 200, {"Content-Encoding": "gzip"}), "the connection broke off in 3 attempts"),
    ],
)
def test_a_request_that_fails_for_good_says_why(make: Make, said: Reply, failure: str) -> None:
    with serve(numbered([said, RISK])) as endpoint:
        engine = make(endpoint)
        bad, good = engine.generate([request("0"), request("1")])
        assert bad.failure is not None
    assert re.search(failure, bad.failure), bad.failure
    assert bad.ids == () and bad.logps == () and not bad.finished and bad.usage.seconds > 0
    assert len(bad.failure) < 300 and bad.failure.isprintable()
    assert text_of(good) == render_call("get_risk", {}) and good.failure is None


@pytest.mark.parametrize("said", [Reply(RISK.body, delay=30.0), Reply(RISK.body, drip=0.05)])
@pytest.mark.parametrize("retries", [0, 1])
def test_an_endpoint_that_hangs_is_left_after_the_timeout(make: Make, said: Reply, retries: int) -> None:
    """Also one that sends a byte now and then, which no pause between bytes would find."""
    with serve(lambda body: said) as endpoint:
        engine = make(endpoint, timeout=SECONDS, retries=retries)
        started = time.monotonic()
        answer = ask(engine)
        assert SECONDS * (1 + retries) <= time.monotonic() - started < 25.0  # it would have hung for 30
        assert len(endpoint.chats) == 1 + retries
    attempts = "in 2 attempts" if retries else "in one attempt"
    assert answer.failure == f"timed out: no answer within {SECONDS:g} s {attempts}"


@pytest.mark.parametrize(
    "trouble",
    [refusal(429, "slow"), refusal(500, "oops"), Reply(b"", 503), refusal(408, ""), Reply(RISK.body, cut=True)],
)
def test_passing_trouble_is_waited_out(make: Make, trouble: Reply) -> None:
    with serve(lambda body: RISK, trouble, trouble) as endpoint:
        assert text_of(ask(make(endpoint))) == render_call("get_risk", {})
        assert len(endpoint.chats) == 3


FATAL = [
    (refusal(401, "Incorrect API key"), r"refuses the key \(401: Incorrect API key\): .*TEST_ENDPOINT_KEY"),
    (refusal(403, "not your project"), r"refuses the key \(403: not your project\): .*TEST_ENDPOINT_KEY"),
    (refusal(404, "model not found"), r"does not know the model 'test-model' \(404: model not found\)"),
    (Reply(b"404 page not found", 404), r"does not know the model .* /v1"),
    (refusal(402, "Insufficient Balance"), r"no credit left \(402: Insufficient Balance\)"),
    (refusal(429, "You exceeded your quota", "insufficient_quota"), "no credit left"),
    (Reply(b"", 302, {"Location": "http://elsewhere.invalid/v1"}), r"redirects to http://elsewhere\.invalid/v1"),
    (Reply(b"", 308), "redirects to nowhere"),
]


@pytest.mark.parametrize(("said", "words"), FATAL)
def test_what_no_request_gets_by_ends_the_run(make: Make, said: Reply, words: str) -> None:
    with serve(lambda body: said) as endpoint:
        engine = make(endpoint)
        with pytest.raises(UserError, match=words) as caught:
            engine.submit(request()).result(20)
        assert endpoint.url in str(caught.value) and "\n" not in str(caught.value)
        endpoint.models = Reply(b"404 page not found", 404)  # then the check asks for tokens
        with pytest.raises(UserError, match=words):
            engine.check()


def test_a_redirect_is_not_followed(make: Make) -> None:
    with serve() as other:
        target = {"Location": f"{other.url}/chat/completions"}
        with serve(lambda body: Reply(b"", 307, target)) as endpoint, pytest.raises(UserError, match="redirects to"):
            ask(make(endpoint))
        assert other.heard == []


def test_an_endpoint_that_wants_a_key_says_so(make: Make) -> None:
    words = r"needs a key \(401: no key\): set engine.kind"
    with serve(lambda body: refusal(401, "no key")) as endpoint, pytest.raises(UserError, match=words):
        ask(make(endpoint, key_variable=""))


def test_nobody_there(make: Make) -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    engine = make(url)
    with pytest.raises(UserError, match=f"{url} cannot be reached .*: check the URL"):
        engine.check()
    with pytest.raises(RunFailed, match=f"{url} cannot be reached .*: start the server"):
        engine.generate([request(), request()])
    with closing(socket.socket()) as deaf, contextlib.ExitStack() as crowd:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for _ in range(4):  # more than may wait at its door
            one = crowd.enter_context(closing(socket.socket()))
            one.setblocking(False)
            one.connect_ex(deaf.getsockname())
        engine = make(f"http://127.0.0.1:{deaf.getsockname()[1]}/v1", retries=0, timeout=SECONDS)
        with pytest.raises(UserError, match="cannot be reached"):
            engine.check()
    engine = make("http://no-such-host.invalid/v1", retries=0)
    with pytest.raises(UserError, match=r"no-such-host\.invalid/v1 cannot be reached"):
        engine.check()


@pytest.mark.parametrize(
    ("models", "said", "words"),
    [
        (refusal(401, "bad key"), RISK, "refuses the key"),
        (reply({"data": [{"id": "a"}, {"id": "b"}]}), refusal(404, "no model"), "no model.*it lists a, b"),
        (PAGE, PAGE, "gives no answer: .*a web page; check the URL"),
        (PAGE, refusal(400, "tools?"), "gives no answer: refused with status 400: tools"),
    ],
)
def test_the_check_finds_what_is_wrong(make: Make, models: Reply, said: Reply, words: str) -> None:
    with serve(lambda body: said) as endpoint:
        endpoint.models = models
        with pytest.raises(UserError, match=words):
            make(endpoint).check()


@pytest.mark.parametrize(
    ("models", "asked"),
    [
        (None, 0),
        (refusal(403, "not with this key"), 1),
        (PAGE, 1),
        (Reply(b"{}", cut=True), 1),
        (reply({"data": [{"id": "other"}]}), 1),  # the name may be an alias
        (reply({"data": []}), 1),
    ],
)
def test_the_check_is_cheap_and_needs_no_list(make: Make, models: Reply | None, asked: int) -> None:
    with serve(lambda body: chat({"content": "pong"}, "length")) as endpoint:
        endpoint.models = models or endpoint.models
        make(endpoint).check()
        assert len(endpoint.chats) == asked
        assert all(heard.body["max_tokens"] <= 16 and "tools" not in heard.body for heard in endpoint.chats)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("localhost:11434", "must name scheme and host"),
        ("", "must name scheme and host"),
        ("http://[::1", "must name scheme and host"),
        ("http://localhost:99999/v1", "must name scheme and host"),
        (f"https://me:{KEY}@host/v1", "names a user or a password"),
        (f"https://host/v1?api-key={KEY}", "behind '\\?' or '#'"),
        (f"https://host/v1#{KEY}", "behind '\\?' or '#'"),
    ],
)
def test_urls_that_cannot_be_used(make: Make, url: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        make(url)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "is not set"),
        ("  ", "is not set"),
        ("sk\n-test", "characters that no key"),
        ("sk-tést", "characters that"),
    ],
)
def test_a_key_that_cannot_be_sent(make: Make, monkeypatch: pytest.MonkeyPatch, value: str | None, words: str) -> None:
    monkeypatch.delenv(VARIABLE) if value is None else monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(UserError, match=f"{VARIABLE}.* {words}") as caught:
        make("http://localhost/v1")
    assert not (value or "").strip() or str(value) not in str(caught.value)


def test_a_model_needs_a_name(make: Make) -> None:
    with pytest.raises(UserError, match="has no name"):
        make("http://localhost/v1", model="")
