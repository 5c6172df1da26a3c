"""A conversation as the messages of a chat-completions endpoint, and an endpoint's answer as an assistant's text.

The form is that of OpenAI's chat completions (`messages`, `tools`, `tool_calls`, `choices`, `usage`), which Ollama,
vLLM and most commercial endpoints share. What an endpoint returns is untrusted: nothing of it is repaired, and whatever
is wrong with a call is left to `tool_calls.parse` to find.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cryptosentinel.protocol.tool_calls import MAX_ANSWER_CHARS, MalformedCall, read_call, render_tool_calls

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what OpenAI accepts as a function's name; others accept no less
_MAX_DEPTH = 40  # of an answer's JSON; a sound one has nine levels
_BRACKETS = re.compile(r"[][{}]")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)  # of JSON, the last one perhaps not closed


class Garbled(Exception):
    """What came is no chat completion. The message says how, and may quote it: clean it before it is shown."""


@dataclass(frozen=True)
class Answer:
    """What an endpoint said. `text` is at most one character longer than a role may say, which is enough to refuse it
    as too long. `finished` is False where the endpoint stopped at the limit of tokens. `prompt`, `cached` and `sampled`
    count the endpoint's tokens, `prompt` and `sampled` being None where it does not tell."""

    text: str
    finished: bool
    prompt: int | None
    cached: int
    sampled: int | None


def to_messages(turns: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
    """The turns of `ChatFormat.messages` as messages.

    A turn of the assistant that is a call, and is followed by a tool's answer, becomes `tool_calls`, and the answer a
    message of `tool` with the call's id. Whatever else the assistant said stays its content (a malformed call too:
    endpoints refuse one in `tool_calls`), and a tool's answer to it becomes the user's.
    """
    messages: list[dict[str, Any]] = []
    call_id: str | None = None
    for number, turn in enumerate(turns):
        if turn["role"] == "tool":
            message = {"role": "user", "content": turn["content"]}
            if call_id is not None:
                message = {"role": "tool", "tool_call_id": call_id, "content": turn["content"]}
            messages.append(message)
            call_id = None
            continue
        followed = number + 1 < len(turns) and turns[number + 1]["role"] == "tool"
        function = _function(turn["content"]) if turn["role"] == "assistant" and followed else None
        if function is None:
            messages.append({"role": turn["role"], "content": turn["content"]})
            continue
        call_id = f"call{number:05d}"  # Mistral takes ids of exactly nine letters and digits, the others any
        call = {"id": call_id, "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    return messages


def read_answer(body: bytes) -> Answer:
    """Read the body of a chat completion.

    Calls in `tool_calls` become text by `render_tool_calls`; the content beside them, which endpoints use for remarks,
    is left out unless it holds a call of its own. Without `tool_calls` the content is the text, or else the refusal.

    Raises:
        Garbled: it is not JSON, has no message, or is an error that was sent as a success.
    """
    document = _read(body)
    if not isinstance(document, dict):
        raise Garbled("JSON that is no object")
    choices = document.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        error = document.get("error")
        error = error.get("message") if isinstance(error, dict) else error
        raise Garbled(f"an error: {error}" if isinstance(error, str) else "JSON without a choice's message")
    content, refusal = message.get("content"), message.get("refusal")
    spoken = content if isinstance(content, str) else refusal if isinstance(refusal, str) else ""
    text = render_tool_calls(message.get("tool_calls"))
    if not text or "<tool_call>" in spoken:
        text = f"{spoken}\n{text}" if text else spoken
    usage = document.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    prompt = _count(usage.get("prompt_tokens"))
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    return Answer(
        text=text[: MAX_ANSWER_CHARS + 1],
        finished=choice.get("finish_reason") != "length",
        prompt=prompt,
        cached=min(cached or 0, prompt or 0),
        sampled=_count(usage.get("completion_tokens")),
    )


def model_names(body: bytes) -> list[str] | None:
    """The models that the body of an endpoint's list names; None where it is no such list."""
    try:
        document = _read(body)
    except Garbled:
        return None
    entries = document.get("data") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        return None
    names = [entry.get("id") for entry in entries if isinstance(entry, dict)]
    return [name for name in names if isinstance(name, str)]


def _function(text: str) -> dict[str, str] | None:
    """The call that `text` is, as endpoints take one back; None where it is none that they would."""
    said = read_call(text)
    if isinstance(said, MalformedCall):
        return None
    name, arguments = said
    if _NAME.fullmatch(name) is None or not isinstance(arguments, dict):
        return None
    try:
        return {"name": name, "arguments": json.dumps(arguments, allow_nan=False)}
    except ValueError:  # 1e999 is read as an infinity, which JSON cannot say
        return None


def _read(body: bytes) -> Any:
    text = body.decode("utf-8", "replace")
    depth = 0
    for bracket in _BRACKETS.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > _MAX_DEPTH:  # before Python's own limit, which depends on how deep the caller stands
            raise Garbled("JSON nested too deep")
    try:
        return json.loads(text)
    except ValueError:
        page = text[:200].lstrip().lower().startswith(("<!doctype", "<html"))
        raise Garbled("a web page" if page else "no JSON") from None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None
