"""Engines before a local endpoint, and short ways to ask them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cryptosentinel.llm.endpoint.engine import EndpointEngine
from cryptosentinel.llm.engine import Completion, Request, Sampling
from tests.mock_endpoint import Answering, Reply, call, chat
from tests.team_scenes import codec

KEY = "sk-test-0123456789abcdef"
VARIABLE = "TEST_ENDPOINT_KEY"
PAGE = Reply(b"<!DOCTYPE html><html>gateway</html>", headers={"Content-Type": "text/html"})
RISK = chat(call("get_risk", {}), "tool_calls")
TOOL = {"type": "function", "function": {"name": "get_risk", "description": "", "parameters": {"type": "object"}}}
SECONDS = 0.4  # of a timeout
Make = Callable[..., EndpointEngine]


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
