"""Local servers that behave as each provider does: what they refuse, how they write a call, where thoughts stand, what
they count, and what they want back. The same small model sits behind all of them, with answers of realistic length.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.mock_endpoint import Reply, refusal, reply

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

    refuses: Mapping[str, Callable[[dict[str, Any]], Reply | None]] = field(default_factory=dict)
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
        for name, refuse in self.refuses.items():
            said = refuse(body)
            if said is not None:
                self.counter.refused.append(name)
                return said
        missing = self.wants(body)
        if missing is not None:
            self.counter.refused.append("history")
            return refusal(400, missing)
        messages = body["messages"]
        listed = [tool["function"]["name"] for tool in body.get("tools", ())] or _described(messages[0]["content"])
        if not listed:
            return reply(_chat({"content": "pong"}, "stop", None))
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
        return reply(_chat(message, finish, usage))


def message_of(call: Call, **more: Any) -> dict[str, Any]:
    """A message with one call, as OpenAI writes it."""
    function = {"name": call[0], "arguments": json.dumps(call[1])}
    return {"content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": function}], **more}


def _chat(message: dict[str, Any], finish: str, usage: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    document = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return document if usage is None else document | {"usage": usage}


def _described(system: str) -> list[str]:
    """The tools that a prompt describes."""
    lines = [line for line in system.splitlines() if line.startswith('{"type": "function"')]
    return [json.loads(line)["function"]["name"] for line in lines]


def _openai_error(name: str, message: str, code: str = "unsupported_parameter") -> Reply:
    error = {"message": message, "type": "invalid_request_error", "param": name, "code": code}
    return reply({"error": error}, 400)


def _no_temperature(body: dict[str, Any]) -> Reply | None:
    if body.get("temperature", 1.0) == 1.0:
        return None
    text = "Unsupported value: 'temperature' does not support 0.25 with this model. Only the default (1) is supported."
    return _openai_error("temperature", text, "unsupported_value")


def _newer_limit(body: dict[str, Any]) -> Reply | None:
    if "max_tokens" not in body:
        return None
    text = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    return _openai_error("max_tokens", text)


def _google_unknown(name: str) -> Callable[[dict[str, Any]], Reply | None]:
    def refuse(body: dict[str, Any]) -> Reply | None:
        text = f'Invalid JSON payload received. Unknown name "{name}": Cannot find field.'
        error = {"code": 400, "message": text, "status": "INVALID_ARGUMENT"}
        return reply([{"error": error}], 400) if name in body else None

    return refuse


def _signed(body: dict[str, Any]) -> str | None:
    calls = [call for message in body["messages"] for call in message.get("tool_calls") or ()]
    signature = {"google": {"thought_signature": "s"}}
    unsigned = [call for call in calls if call.get("extra_content") != signature]
    return "Function call is missing a thought_signature in functionCall parts." if unsigned else None


def _google(call: Call) -> dict[str, Any]:
    message = message_of(call)
    message["tool_calls"][0]["extra_content"] = {"google": {"thought_signature": "s"}}
    return message


def _no_forced_call(body: dict[str, Any]) -> Reply | None:
    text = "No endpoints found that support the provided 'tool_choice' value."
    return reply({"error": {"message": text, "code": 404}}, 404) if "tool_choice" in body else None


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


def _no_tools(status: int, text: str) -> Callable[[dict[str, Any]], Reply | None]:
    return lambda body: refusal(status, text) if "tools" in body else None


def _no_forced_thoughts(body: dict[str, Any]) -> Reply | None:
    if "tool_choice" not in body:
        return None
    text = "tool_choice: Thinking may not be enabled when tool_choice forces tool use."
    return reply({"error": {"code": "invalid_request_error", "message": text, "type": "invalid_request_error"}}, 400)


def _temperature_of_thoughts(body: dict[str, Any]) -> Reply | None:
    text = "`temperature` may only be set to 1 when thinking is enabled."
    return None if body.get("temperature", 1) == 1 else refusal(400, text)


def _as_json(call: Call) -> dict[str, Any]:
    return {"content": f"```json\n{json.dumps({'name': call[0], 'arguments': call[1]})}\n```"}


def _as_tag(call: Call) -> dict[str, Any]:
    return {"content": f"<tool_call>\n{json.dumps({'name': call[0], 'arguments': call[1]})}\n</tool_call>"}


SERVERS: dict[str, Callable[[], OpenAIKind]] = {
    "openai": OpenAIKind,
    "openai, a model that thinks": lambda: OpenAIKind(
        {"max_tokens": _newer_limit, "temperature": _no_temperature},
        limit="max_completion_tokens",
        thoughts=THOUGHT_TOKENS,
    ),
    "anthropic": lambda: OpenAIKind(write=lambda call: message_of(call, content="I look at the trend.")),
    "anthropic, a model that thinks": lambda: OpenAIKind(
        {"tool_choice": _no_forced_thoughts, "temperature": _temperature_of_thoughts}, thoughts=THOUGHT_TOKENS
    ),
    "google": lambda: OpenAIKind(
        {"parallel_tool_calls": _google_unknown("parallel_tool_calls"), "seed": _google_unknown("seed")},
        thoughts=THOUGHT_TOKENS,
        thoughts_apart=True,
        write=_google,
        wants=_signed,
    ),
    "openrouter": lambda: OpenAIKind(
        {"tool_choice": _no_forced_call},
        thoughts=THOUGHT_TOKENS,
        thought_field="reasoning",
        write=_openrouter,
        wants=_detailed,
    ),
    "ollama": lambda: OpenAIKind(thoughts=THOUGHT_TOKENS, thought_field="reasoning", write=_object_arguments),
    "ollama, a model without tools": lambda: OpenAIKind(
        {"tools": _no_tools(400, "registry.ollama.ai/library/gemma:2b does not support tools")}, write=_as_json
    ),
    "vllm": lambda: OpenAIKind(thoughts=THOUGHT_TOKENS, thought_field="reasoning_content", write=_several),
    "vllm without a tool parser": lambda: OpenAIKind(
        {
            "tool_choice": lambda body: (
                refusal(400, 'tool_choice = "required" is not supported') if "tool_choice" in body else None
            ),
            "tools": _no_tools(
                400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
            ),
        },
        write=_as_json,
    ),
    "llama.cpp without --jinja": lambda: OpenAIKind(
        {"tools": _no_tools(500, "tools param requires --jinja flag")},
        thoughts=THOUGHT_TOKENS,
        thoughts_in_text=True,
        counts=False,
        write=_as_tag,
    ),
}
# By server, what it refuses and how often; everything else is answered at once.
REFUSALS: dict[str, list[str]] = {
    "openai, a model that thinks": ["max_tokens", "temperature"],
    "anthropic, a model that thinks": ["tool_choice", "temperature"],
    "google": ["parallel_tool_calls", "seed"],
    "openrouter": ["tool_choice"],
    "ollama, a model without tools": ["tools"],
    "vllm without a tool parser": ["tool_choice", "tools"],
    "llama.cpp without --jinja": ["tools"],
}
