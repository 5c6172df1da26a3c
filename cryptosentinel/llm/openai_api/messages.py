"""A conversation as the messages of a chat-completions endpoint, and an endpoint's answer as an assistant's text.

The form is that of OpenAI's chat completions (`messages`, `tools`, `tool_calls`, `choices`, `usage`), which Ollama,
vLLM and most commercial endpoints share, each with an accent of its own: arguments as an object instead of JSON in a
string, no type, no id, no arguments at all where there are none, thoughts in fields of three names or in the text.
These accents are a server's and are read as what they mean. What the model said is untrusted: nothing of it is
repaired, and whatever is wrong with a call is left to `tool_calls.parse` to find.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cryptosentinel.llm.endpoint.answer import Answer, CallForm, Dialect, Garbled, count_of, parse_body, sendable_call
from cryptosentinel.protocol.tool_calls import (
    MAX_ANSWER_CHARS,
    render_call,
    render_tool_calls,
)

_THOUGHT = re.compile(r"\A\s*<think>.*?(?:</think>\s*|\Z)", re.DOTALL)
_FENCE = re.compile(r"\A\s*```(?:json)?\s*(.*?)\s*```\s*\Z", re.DOTALL)
_THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")  # DeepSeek and vLLM, OpenRouter and Ollama, others
_CUT_OFF = ("length", "max_tokens", "MAX_TOKENS")


def to_messages(
    turns: Sequence[dict[str, str]], kept: Sequence[Mapping[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """The turns of `ChatFormat.messages` as messages.

    A turn of the assistant that is a call, and is followed by a tool's answer, becomes `tool_calls`, and the answer a
    message of `tool` with the call's id. Whatever else the assistant said stays its content (a malformed call too:
    endpoints refuse one in `tool_calls`), and a tool's answer to it becomes the user's. `kept` is by turn what an
    endpoint wants back with it: `call`, fields of the call, and `message`, fields of the message.
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
        made = sendable_call(turn["content"]) if turn["role"] == "assistant" and followed else None
        if made is None:
            messages.append({"role": turn["role"], "content": turn["content"]})
            continue
        call_id = f"call{number:05d}"  # Mistral takes ids of exactly nine letters and digits, the others any
        own = kept[number] if kept else {}
        function = {"name": made[0], "arguments": json.dumps(made[1])}
        call = {"id": call_id, "type": "function", "function": function, **own.get("call", {})}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call], **own.get("message", {})})
    return messages


def read_answer(body: bytes, *, as_json: bool = False) -> Answer:
    """Read the body of a chat completion.

    The first call in `tool_calls` becomes text by `render_tool_calls`; the content beside it, which endpoints use for
    remarks, is left out unless it holds a call of its own. Without `tool_calls` the content is the text, or else the
    refusal; with `as_json` a content that is a JSON object with name and arguments is a call. Thoughts are left out.

    Raises:
        Garbled: it is not JSON, has no message, or is an error that was sent as a success.
    """
    document = parse_body(body)
    if not isinstance(document, dict):
        raise Garbled("JSON that is no object")
    choices = document.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        error = document.get("error")
        error = error.get("message") if isinstance(error, dict) else error
        raise Garbled(f"an error: {error}" if isinstance(error, str) else "JSON without a choice's message")
    spoken = _spoken(message)
    thoughts = any(isinstance(message.get(name), str) and message[name].strip() for name in _THOUGHT_FIELDS)
    without = _THOUGHT.sub("", spoken, count=1)
    thoughts, spoken = thoughts or without != spoken, without
    calls = message.get("tool_calls")
    made = calls if isinstance(calls, list) else []
    text = render_tool_calls([_plain(made[0])] if made else calls)
    form: CallForm = "tool_calls" if text else "tag" if "<tool_call>" in spoken else "none"
    if not text or "<tool_call>" in spoken:
        text = f"{spoken}\n{text}" if text else spoken
    if form == "none" and as_json and (call := _json_call(spoken)) is not None:
        form, text = "json", call
    finish = choice.get("finish_reason")
    counts = _counts(document.get("usage"))
    return Answer(
        text=text[: MAX_ANSWER_CHARS + 1],
        finished=finish not in _CUT_OFF,
        thought=thoughts or counts.get("reasoning", 0) > 0,
        dialect=Dialect(
            form=form,
            arguments=_kind_of_arguments(made),
            calls=len(made),
            finish=finish if isinstance(finish, str) else "",
            identified=bool(made and isinstance(made[0], dict) and made[0].get("id")),
        ),
        kept=_kept(message, made),
        **counts,
    )


def call_schema(tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The JSON schema of one call of any of the tools."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "enum": [tool["function"]["name"]]},
                "arguments": {key: value for key, value in tool["function"]["parameters"].items() if key != "$defs"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    definitions: dict[str, Any] = {}
    for tool in tools:
        definitions |= tool["function"]["parameters"].get("$defs", {})
    schema = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return schema | ({"$defs": definitions} if definitions else {})


def _spoken(message: Mapping[str, Any]) -> str:
    """The text of a message, which some write in parts."""
    content, refusal = message.get("content"), message.get("refusal")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        content = "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else refusal if isinstance(refusal, str) else ""


def _plain(call: Any) -> Any:
    """A call without its server's accent: as OpenAI would write what it means."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        return call
    arguments = function.get("arguments", "")
    if isinstance(arguments, dict):
        arguments = json.dumps(arguments)
    elif arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        arguments = "{}"
    return {"type": "function", "function": {"name": function.get("name"), "arguments": arguments}}


def _json_call(text: str) -> str | None:
    """The call that a JSON object in a text is; None where it is none."""
    fenced = _FENCE.match(text)
    try:
        value = json.loads(fenced.group(1) if fenced else text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments")
    return render_call(value["name"], arguments) if isinstance(arguments, dict) else None


def _kind_of_arguments(made: Sequence[Any]) -> str:
    function = made[0].get("function") if made and isinstance(made[0], dict) else None
    return type(function.get("arguments")).__name__ if isinstance(function, dict) else ""


def _kept(message: Mapping[str, Any], made: Sequence[Any]) -> dict[str, Any]:
    """What must come back with this turn: the signature of Google's thoughts, and OpenRouter's details of them."""
    kept: dict[str, Any] = {}
    extra = made[0].get("extra_content") if made and isinstance(made[0], dict) else None
    if isinstance(extra, dict):
        kept["call"] = {"extra_content": extra}
    details = message.get("reasoning_details")
    if isinstance(details, list) and details:
        kept["message"] = {"reasoning_details": details}
    return kept


def _counts(usage: Any) -> dict[str, Any]:
    """The tokens that an endpoint counted, as fields of an answer."""
    usage = usage if isinstance(usage, dict) else {}
    read, sampled = count_of(usage.get("prompt_tokens")), count_of(usage.get("completion_tokens"))
    of_prompt, of_answer = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    cached = count_of(of_prompt.get("cached_tokens")) if isinstance(of_prompt, dict) else None
    reasoning = count_of(of_answer.get("reasoning_tokens")) if isinstance(of_answer, dict) else None
    total = count_of(usage.get("total_tokens"))
    if read is not None and sampled is not None and reasoning and total == read + sampled + reasoning:
        sampled += reasoning  # Google and xAI count thoughts beside the answer; both are paid for
    return {
        "prompt": read,
        "cached": min(cached or 0, read or 0),
        "sampled": sampled,
        "reasoning": min(reasoning or 0, sampled or 0),
    }
