"""Engines before a local endpoint, and short ways to ask them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cryptosentinel.llm.endpoint.engine import EndpointEngine
from cryptosentinel.llm.engine import Completion, Request, Sampling
from tests.mock_endpoint import MODEL, Answering, Endpoint, Reply, call, chat
from tests.team_scenes import codec

KEY = "sk-test-0123456789abcdef"
VARIABLE = "TEST_ENDPOINT_KEY"
PAGE = Reply(b"<!DOCTYPE html><html>gateway</html>", headers={"Content-Type": "text/html"})
RISK = chat(call("get_risk", {}), "tool_calls")
TOOL = {"type": "function", "function": {"name": "get_risk", "description": "", "parameters": {"type": "object"}}}
SECONDS = 0.4  # of a timeout
Make = Callable[..., EndpointEngine]


@contextmanager
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes engines that are closed in the end, with a key in the environment. The SDK's pauses are short."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setenv(VARIABLE, KEY)
    made: list[EndpointEngine] = []

    def build(endpoint: Endpoint | str, **settings: Any) -> EndpointEngine:
        url = endpoint if isinstance(endpoint, str) else endpoint.url
        usual: dict[str, Any] = {"model": MODEL, "key_variable": VARIABLE, "timeout": 20.0, "retries": 2}
        made.append(EndpointEngine(codec(), url, **(usual | settings)))
        return made[-1]

    yield build
    for engine in made:
        engine.close()


def request(text: str = "Begin.", seed: int = 1, tools: bool = True, **sampling: Any) -> Request:
    ids = codec().start("You are a test.", text)
    return Request("manager", tuple(ids), Sampling(**sampling), seed, (TOOL,) if tools else ())


def ask(engine: EndpointEngine, *requests: Request) -> Completion:
    """The answer to the last of some requests, all sent together."""
    return engine.generate(requests or [request()])[-1]


def text_of(completion: Completion) -> str:
    return codec().decode_answer(completion.ids)


def numbered(answers: list[Reply]) -> Answering:
    """Answers a conversation with the reply whose number its user says."""
    return lambda body: answers[int(body["messages"][1]["content"])]
