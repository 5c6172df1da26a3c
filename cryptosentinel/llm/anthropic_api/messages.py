"""A conversation as the messages of Anthropic's API, and its answer as an assistant's text.

The form is that of `POST /v1/messages`: the system prompt beside the messages, content in blocks, calls as `tool_use`
with an object of arguments, their answers as `tool_result` of the user. What comes back is untrusted: nothing of it is
repaired, and whatever is wrong with a call is left to `tool_calls.parse` to find.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cryptosentinel.llm.endpoint.answer import Answer, CallForm, Dialect, Garbled, count_of, parse_body, sendable_call
from cryptosentinel.protocol.tool_calls import MAX_ANSWER_CHARS, render_call

_NOTHING = "(no answer)"  # text may not be empty there
_THOUGHTS = ("thinking", "redacted_thinking")
_CUT_OFF = ("max_tokens", "model_context_window_exceeded")


def to_blocks(
    turns: Sequence[Mapping[str, str]], kept: Sequence[Mapping[str, Any]]
) -> tuple[str, list[dict[str, Any]]]:
    """The system prompt and the messages of the turns of `ChatFormat.messages`.

    A turn of the assistant that is a call, and is followed by a tool's answer, becomes a block `tool_use`, and the
    answer a `tool_result` with the call's id; whatever else was said stays text. `kept` is by turn what came with it:
    `blocks` of thoughts, which are signed and must come back before the call.
    """
    system: list[str] = []
    messages: list[dict[str, Any]] = []
    call_id: str | None = None
    for number, turn in enumerate(turns):
        role, content = turn["role"], turn["content"]
        if role == "system":
            system.append(content)
            continue
        if role == "tool" and call_id is not None:
            block = {"type": "tool_result", "tool_use_id": call_id, "content": content}
            messages.append({"role": "user", "content": [block]})
            call_id = None
            continue
        followed = number + 1 < len(turns) and turns[number + 1]["role"] == "tool"
        made = sendable_call(content) if role == "assistant" and followed else None
        if made is None:
            spoken = {"type": "text", "text": content if content.strip() else _NOTHING}
            messages.append({"role": "assistant" if role == "assistant" else "user", "content": [spoken]})
            continue
        call_id = f"toolu_{number:05d}"
        use = {"type": "tool_use", "id": call_id, "name": made[0], "input": made[1]}
        messages.append({"role": "assistant", "content": [*kept[number].get("blocks", ()), use]})
    return "\n\n".join(system), messages


def to_tool_blocks(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tools in the form of this API."""
    functions = [tool["function"] for tool in tools]
    return [
        {"name": one["name"], "description": one.get("description", ""), "input_schema": one["parameters"]}
        for one in functions
    ]


def read_message(body: bytes) -> Answer:
    """Read the body of a message: its first call, or else its text. Thoughts are left out.

    Raises `Garbled`: it is not JSON, has no content, or is an error that was sent as a success.
    """
    document = parse_body(body)
    if not isinstance(document, dict):
        raise Garbled("JSON that is no object")
    content = document.get("content")
    if not isinstance(content, list):
        error = document.get("error")
        error = error.get("message") if isinstance(error, dict) else error
        raise Garbled(f"an error: {error}" if isinstance(error, str) else "JSON without a message's content")
    blocks = [block for block in content if isinstance(block, dict)]
    thoughts = [block for block in blocks if block.get("type") in _THOUGHTS]
    calls = [block for block in blocks if block.get("type") == "tool_use"]
    parts = [block.get("text") for block in blocks if block.get("type") == "text"]
    text = "".join(part for part in parts if isinstance(part, str))
    form: CallForm = "tag" if "<tool_call>" in text else "none"
    if calls:
        name, arguments = calls[0].get("name"), calls[0].get("input", {})
        form, text = "tool_calls", render_call(name if isinstance(name, str) else "", arguments)
    finish = document.get("stop_reason")
    counts = _counts(document.get("usage"))
    return Answer(
        text=text[: MAX_ANSWER_CHARS + 1],
        finished=finish not in _CUT_OFF,
        thought=bool(thoughts) or counts["reasoning"] > 0,
        dialect=Dialect(
            form=form,
            arguments=type(calls[0].get("input")).__name__ if calls else "",
            calls=len(calls),
            finish=finish if isinstance(finish, str) else "",
            identified=bool(calls and calls[0].get("id")),
        ),
        kept={"blocks": thoughts} if thoughts and calls else {},
        **counts,
    )


def _counts(usage: Any) -> dict[str, Any]:
    """The tokens that were counted, as fields of an answer. The API counts what it read from its cache, what it wrote
    there and the rest of the prompt apart."""
    usage = usage if isinstance(usage, dict) else {}
    fresh, sampled = count_of(usage.get("input_tokens")), count_of(usage.get("output_tokens"))
    cached = count_of(usage.get("cache_read_input_tokens")) or 0
    written = count_of(usage.get("cache_creation_input_tokens")) or 0
    details = usage.get("output_tokens_details")
    reasoning = count_of(details.get("thinking_tokens")) if isinstance(details, dict) else None
    return {
        "prompt": None if fresh is None else fresh + cached + written,
        "cached": 0 if fresh is None else cached,
        "written": 0 if fresh is None else written,
        "sampled": sampled,
        "reasoning": min(reasoning or 0, sampled or 0),
    }
