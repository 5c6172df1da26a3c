"""Local servers that behave as each provider does: what they refuse, how they write a call, where thoughts stand, what
they count, and what they want back. The same small model sits behind all of them, with answers of realistic length.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests import mock_endpoint
from tests.mock_endpoint import Reply, chat, refusal, reply

Call = tuple[str, dict[str, Any]]

# Tokens that real models took for an answer with four coins; other answers are shorter.
LENGTHS = {"submit_decision": 180, "submit_analysis": 70, "report_price": 24}
PROMPT_TOKENS, CACHED_TOKENS, THOUGHT_TOKENS = 2_000, 1_500, 700


def answer_of(names: list[str], results: int) -> Call:
    """What the model says, from its tools' names and how many results it has seen."""
    if "report_price" in names:
        return "report_price", {"symbol": "BTC", "price": 64250.5}
    if "submit_decision" in names and results == 0:
        return "consult_market_analyst", {"symbol": "C1"}
    if "submit_decision" in names:
        return "submit_decision", {"positions": [{"symbol": "C1", "side": "long", "exposure": 0.4, "reason": "trend"}]}
    if "submit_analysis" in names:
        return "submit_analysis", {"up": 0.6, "flat": 0.2, "down": 0.2, "reason": "trend"}
    raise AssertionError(f"nobody asks for {names}")


@dataclass
class Counter:
    """What a server was asked: answers that it charged for, the tokens that it stated, and refusals."""

    answered: int = 0
    refused: list[str] = field(default_factory=list)
    prompt: int = 0
    cached: int = 0
    sampled: int = 0


Server = Callable[[dict[str, Any]], Reply]


@dataclass
class OpenAIKind:
    """A server of the OpenAI kind. What it does otherwise than others is said by its fields."""

    refuses: Mapping[str, Reply] = field(
        default_factory=dict
    )  # by a field that it does not take; a temperature of 1 it does
    limit: str = "max_tokens"
    thoughts: int = 0
    thought_field: str = ""
    thoughts_in_text: bool = False
    thoughts_apart: bool = False  # counted beside the answer's tokens
    counts: bool = True
    write: Callable[[Call], dict[str, Any]] = lambda call: message_of(call)
    wants: Callable[[dict[str, Any]], str | None] = lambda body: None
    counter: Counter = field(default_factory=Counter)

    def __call__(self, body: dict[str, Any]) -> Reply:
        for name, said in self.refuses.items():
            if name in body and (name, body[name]) != ("temperature", 1):
                self.counter.refused.append(name)
                return said
        missing = self.wants(body)
        if missing is not None:
            self.counter.refused.append("history")
            return refusal(400, missing)
        messages = body["messages"]
        listed = [tool["function"]["name"] for tool in body.get("tools", ())] or _described(messages[0]["content"])
        if not listed:
            return chat({"content": "pong"})
        results = sum(one["role"] == "tool" or "<tool_response>" in (one["content"] or "") for one in messages)
        call = answer_of(listed, results)
        needed = self.thoughts + LENGTHS.get(call[0], 30)
        limit = body.get(self.limit, 10**6)
        whole = needed <= limit
        counter = self.counter
        counter.answered += 1
        counter.prompt += PROMPT_TOKENS
        counter.cached += CACHED_TOKENS
        counter.sampled += min(needed, limit)
        message = self.write(call) if whole else {"content": "", "tool_calls": None}
        if self.thought_field and self.thoughts:
            message[self.thought_field] = "The trend first. " * 9
        if self.thoughts_in_text and self.thoughts:
            message["content"] = f"<think>\nThe trend first.\n</think>\n\n{message.get('content') or ''}"
        usage = None
        if self.counts:
            thought = min(self.thoughts, limit)
            sampled = min(needed, limit) - (thought if self.thoughts_apart else 0)
            usage = {
                "prompt_tokens": PROMPT_TOKENS,
                "completion_tokens": sampled,
                "total_tokens": PROMPT_TOKENS + min(needed, limit),
                "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS},
                "completion_tokens_details": {"reasoning_tokens": thought} if self.thoughts else None,
            }
        finish = "length" if not whole else "tool_calls" if message.get("tool_calls") else "stop"
        return chat(message, finish, usage)


def message_of(call: Call, **more: Any) -> dict[str, Any]:
    """A message with one call, as OpenAI writes it."""
    return mock_endpoint.call(*call, **more)


def _described(system: str) -> list[str]:
    """The tools that a prompt describes."""
    lines = [line for line in system.splitlines() if line.startswith('{"type": "function"')]
    return [json.loads(line)["function"]["name"] for line in lines]


def _openai(name: str, message: str, code: str) -> Reply:
    error = {"message": message, "type": "invalid_request_error", "param": name, "code": code}
    return reply({"error": error}, 400)


def _google_unknown(name: str) -> Reply:
    text = f'Invalid JSON payload received. Unknown name "{name}": Cannot find field.'
    return reply([{"error": {"code": 400, "message": text, "status": "INVALID_ARGUMENT"}}], 400)


def _signed(body: dict[str, Any]) -> str | None:
    calls = [call for message in body["messages"] for call in message.get("tool_calls") or ()]
    signature = {"google": {"thought_signature": "s"}}
    unsigned = [call for call in calls if call.get("extra_content") != signature]
    return "Function call is missing a thought_signature in functionCall parts." if unsigned else None


def _google(call: Call) -> dict[str, Any]:
    message = message_of(call)
    message["tool_calls"][0]["extra_content"] = {"google": {"thought_signature": "s"}}
    return message


def _openrouter(call: Call) -> dict[str, Any]:
    return message_of(call, content="Let me see.", reasoning_details=[{"type": "reasoning.encrypted", "data": "x"}])


def _detailed(body: dict[str, Any]) -> str | None:
    made = [message for message in body["messages"] if message.get("tool_calls")]
    return None if all("reasoning_details" in message for message in made) else "reasoning_details are missing"


def _object_arguments(call: Call) -> dict[str, Any]:
    return {"content": "", "tool_calls": [{"function": {"name": call[0], "arguments": call[1]}}]}


def _several(call: Call) -> dict[str, Any]:
    message = message_of(call, refusal=None, audio=None, function_call=None)
    return message | {"tool_calls": [message["tool_calls"][0], message["tool_calls"][0] | {"id": "call_2"}]}


def _in_text(before: str, behind: str) -> Callable[[Call], dict[str, Any]]:
    return lambda call: {"content": before + json.dumps({"name": call[0], "arguments": call[1]}) + behind}


_AS_JSON, _AS_TAG = _in_text("```json\n", "\n```"), _in_text("<tool_call>\n", "\n</tool_call>")
_NEWER_LIMIT = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
)
_ONE_TEMPERATURE = (
    "Unsupported value: 'temperature' does not support 0.25 with this model. Only the default (1) is supported."
)
_FORCED = "tool_choice: Thinking may not be enabled when tool_choice forces tool use."
_NO_PARSER = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
SERVERS: dict[str, Callable[[], OpenAIKind]] = {
    "openai": OpenAIKind,
    "openai, a model that thinks": lambda: OpenAIKind(
        {
            "max_tokens": _openai("max_tokens", _NEWER_LIMIT, "unsupported_parameter"),
            "temperature": _openai("temperature", _ONE_TEMPERATURE, "unsupported_value"),
        },
        limit="max_completion_tokens",
        thoughts=THOUGHT_TOKENS,
    ),
    "anthropic": lambda: OpenAIKind(write=lambda call: message_of(call, content="I look at the trend.")),
    "anthropic, a model that thinks": lambda: OpenAIKind(
        {
            "tool_choice": reply({"error": {"code": "invalid_request_error", "message": _FORCED}}, 400),
            "temperature": refusal(400, "`temperature` may only be set to 1 when thinking is enabled."),
        },
        thoughts=THOUGHT_TOKENS,
    ),
    "google": lambda: OpenAIKind(
        {name: _google_unknown(name) for name in ("parallel_tool_calls", "seed")},
        thoughts=THOUGHT_TOKENS,
        thoughts_apart=True,
        write=_google,
        wants=_signed,
    ),
    "openrouter": lambda: OpenAIKind(
        {"tool_choice": refusal(404, "No endpoints found that support the provided 'tool_choice' value.")},
        thoughts=THOUGHT_TOKENS,
        thought_field="reasoning",
        write=_openrouter,
        wants=_detailed,
    ),
    "ollama": lambda: OpenAIKind(thoughts=THOUGHT_TOKENS, thought_field="reasoning", write=_object_arguments),
    "ollama, a model without tools": lambda: OpenAIKind(
        {"tools": refusal(400, "registry.ollama.ai/library/gemma:2b does not support tools")}, write=_AS_JSON
    ),
    "vllm": lambda: OpenAIKind(thoughts=THOUGHT_TOKENS, thought_field="reasoning_content", write=_several),
    "vllm without a tool parser": lambda: OpenAIKind(
        {
            "tool_choice": refusal(400, 'tool_choice = "required" is not supported'),
            "tools": refusal(400, _NO_PARSER),
        },
        write=_AS_JSON,
    ),
    "llama.cpp without --jinja": lambda: OpenAIKind(
        {"tools": refusal(500, "tools param requires --jinja flag")},
        thoughts=THOUGHT_TOKENS,
        thoughts_in_text=True,
        counts=False,
        write=_AS_TAG,
    ),
}
# By server, what it refuses, once each; everything else is answered at once.
REFUSALS = {name: list(make().refuses) for name, make in SERVERS.items() if make().refuses}
