"""A conversation as the messages of a chat-completions endpoint, and an endpoint's answer as an assistant's text.

The form is OpenAI's (`messages`, `tools`, `tool_calls`, `choices`, `usage`). Servers deviate: arguments as an object,
no type, no id, thoughts in fields of three names or in the text, the call left in the text. These are read as what they
mean. What the model said is untrusted: nothing of it is repaired, `tool_calls.parse` judges it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cryptosentinel.llm.engine import Usage
from cryptosentinel.protocol.syntaxes import QWEN_XML, Said, typed_arguments
from cryptosentinel.protocol.tool_calls import (
    MAX_ANSWER_CHARS,
    MAX_DEPTH,
    MalformedCall,
    read_call,
    render_call,
    render_tool_calls,
    strict_json,
)
from simulator.documents import parse_json

Tools = Sequence[Mapping[str, Any]]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what OpenAI accepts as a function's name; others accept no less
_THOUGHT = re.compile(
    r"\A\s*<think>.*?(?:</think>\s*|\Z)"
    r"|\A(?!\s*[{`])(?:(?!<tool_call>|</think>).)*</think>\s*",  # opened in the prompt, by the model's template
    re.DOTALL,
)
_FENCE = re.compile(r"\A\s*```(?:json)?\s*(.*?)\s*```\s*\Z", re.DOTALL)
_THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")  # DeepSeek and vLLM, OpenRouter and Ollama, others
_CUT_OFF = ("length", "max_tokens", "MAX_TOKENS")
_NO_ANSWER = "(no answer)"  # vLLM and others refuse a message of the assistant without content
# Words with which templates of older models open a turn: text from outside gets a space inside them.
_TURN_WORDS = re.compile(r"\b(?:USER|ASSISTANT|HUMAN|SYSTEM):|### ?(?:Instruction|Response|Input):", re.IGNORECASE)
_TEXT_CALLS = (
    "Answer with exactly one function call and nothing else, in this form:\n"
    '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)


class Garbled(Exception):
    """The response is not an answer. The message says why, and may quote it: clean it before it is shown."""


@dataclass(frozen=True)
class Answer:
    """An endpoint's answer.

    Attributes:
        text: the assistant's turn, at most one character longer than a role may say, which is enough to refuse it.
        finished: False where the endpoint stopped at the limit of tokens.
        prompt, sampled: tokens read and sampled, as the endpoint counts them; None where it does not.
        cached: tokens of the prompt that were in its cache. reasoning: sampled tokens that were thoughts.
        thought: whether the model thought before it answered.
        form: where the call was: in the API's field, in the text, or nowhere.
        calls: number of calls in the API's field; the first counts.
        finish: the endpoint's reason for the end.
        kept: what must be sent back with this turn, such as a thought's signature.
    """

    text: str
    finished: bool
    prompt: int | None = None
    cached: int = 0
    sampled: int | None = None
    reasoning: int = 0
    thought: bool = field(default=False, compare=False)
    form: Literal["tool_calls", "text", "none"] = field(default="none", compare=False)
    calls: int = field(default=0, compare=False)
    finish: str = field(default="", compare=False)
    kept: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def only_thought(self) -> bool:
        """Whether the model thought and ended without an answer."""
        return self.thought and self.finished and not self.text.strip()

    def usage(self, prompt: int, sampled: int) -> Usage:
        """The tokens used; `prompt` and `sampled` stand in where the endpoint does not count."""
        return Usage(
            prompt=prompt if self.prompt is None else self.prompt,
            cached=self.cached,
            sampled=sampled if self.sampled is None else self.sampled,
            reasoning=self.reasoning,
        )


def to_messages(
    turns: Sequence[Mapping[str, str]], kept: Sequence[Mapping[str, Any]] = (), *, as_text: bool = False
) -> list[dict[str, Any]]:
    """The turns of `ChatFormat.messages` as messages.

    A turn of the assistant that is a call, and is followed by a tool's answer, becomes `tool_calls`, and the answer a
    message of `tool` with the call's id. Whatever else the assistant said stays its content (a malformed call too:
    endpoints refuse one in `tool_calls`), and a tool's answer to it becomes the user's. `kept` is by turn what an
    endpoint needs back with it: fields of the `call`, and of the `message`. With `as_text`, for an endpoint without
    tools, all of it is content.
    """
    messages: list[dict[str, Any]] = []
    call_id: str | None = None
    for number, turn in enumerate(turns):
        role, content = turn["role"], turn["content"]
        if role in ("tool", "user"):
            content = _TURN_WORDS.sub(lambda found: f"{found[0][0]} {found[0][1:]}", content)
        if role == "tool" and call_id is not None:
            messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
            call_id = None
            continue
        if role == "tool":
            role, content = "user", f"<tool_response>\n{content}\n</tool_response>" if as_text else content
        followed = number + 1 < len(turns) and turns[number + 1]["role"] == "tool"
        made = _sendable_call(content) if role == "assistant" and followed and not as_text else None
        if made is None:
            empty = role == "assistant" and not content.strip()
            messages.append({"role": role, "content": _NO_ANSWER if empty else content})
            continue
        call_id = f"call{number:05d}"  # Mistral takes ids of exactly nine letters and digits, the others any
        own = kept[number] if kept else {}
        function = {"name": made[0], "arguments": json.dumps(made[1])}
        call = {"id": call_id, "type": "function", "function": function, **own.get("call", {})}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call], **own.get("message", {})})
    return messages


def described(tools: Tools) -> str:
    """What a prompt says of the tools where the API takes none: their schemas, and how to write a call."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return f"# Functions\n\n{listed}\n\n{_TEXT_CALLS}"


def read_answer(body: bytes, tools: Tools = ()) -> Answer:
    """Read the body of a chat completion.

    The first call in `tool_calls` becomes text by `render_tool_calls`; the content beside it, which endpoints use for
    remarks, is left out unless it holds a call of its own. Without `tool_calls` the content is the text, or else the
    refusal; a content that is one call as JSON or in Qwen3-Coder's tags is that call. Thoughts are left out.

    Raises:
        Garbled: it is not JSON, has no message, or is an error that was sent as a success.
    """
    document = parse_body(body)
    choices = document.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        error = document.get("error")
        error = error.get("message") if isinstance(error, dict) else error
        raise Garbled(f"an error: {error}" if isinstance(error, str) else "JSON without a choice's message")
    content = _content(message)
    spoken = _THOUGHT.sub("", content, count=1)
    thought = spoken != content or any(
        isinstance(message.get(name), str) and message[name].strip() for name in _THOUGHT_FIELDS
    )
    calls = message.get("tool_calls")
    made = calls if isinstance(calls, list) else []
    text = render_tool_calls([_plain(made[0])] if made else calls)
    form: Literal["tool_calls", "text", "none"] = "tool_calls" if text else "none"
    if not text or "<tool_call>" in spoken:
        text = f"{spoken}\n{text}" if text else spoken
    if form == "none" and (call := _call_in_text(spoken, tools)) is not None:
        form, text = "text", call
    finish = choice.get("finish_reason")
    counts = _counts(document.get("usage"), bool(content.strip() or made or thought))
    return Answer(
        text=text[: MAX_ANSWER_CHARS + 1],
        finished=finish not in _CUT_OFF,
        thought=thought or counts["reasoning"] > 0,
        form=form,
        calls=len(made),
        finish=finish if isinstance(finish, str) else "",
        kept=_kept(message, made),
        **counts,
    )


def parse_body(body: bytes) -> dict[str, Any]:
    """The JSON object in a body. Raises `Garbled` for anything else."""
    text = body.decode("utf-8", "replace")
    try:
        value = parse_json(text, nan=True)
    except ValueError as error:
        start = text[:200].lstrip().lower()
        if "nested" in str(error):
            raise Garbled("JSON nested too deep") from None
        if start.startswith(("<!doctype", "<html")):
            raise Garbled("a web page") from None
        if start.startswith(("data:", "event:", ":")):
            raise Garbled("a stream, which was not asked for") from None
        raise Garbled("not JSON") from None
    if not isinstance(value, dict):
        raise Garbled("JSON that is not an object")
    return value


def model_names(body: bytes) -> list[str] | None:
    """The models that an endpoint's list contains; None where it is not such a list."""
    try:
        entries = parse_body(body).get("data")
    except Garbled:
        return None
    if not isinstance(entries, list):
        return None
    names = [entry.get("id") for entry in entries if isinstance(entry, dict)]
    return [name for name in names if isinstance(name, str)]


def _sendable_call(text: str) -> tuple[str, dict[str, Any]] | None:
    """The name and the arguments of the call that `text` is, if an endpoint would take it back; None otherwise."""
    said = read_call(text)
    if isinstance(said, MalformedCall):
        return None
    name, arguments = said
    if _NAME.fullmatch(name) is None or not isinstance(arguments, dict):
        return None
    try:
        json.dumps(arguments, allow_nan=False)
    except ValueError:  # 1e999 is read as an infinity, which JSON does not have
        return None
    return name, arguments


def _content(message: Mapping[str, Any]) -> str:
    """The text of a message, which some write in parts."""
    content, refusal = message.get("content"), message.get("refusal")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        content = "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else refusal if isinstance(refusal, str) else ""


def _plain(call: Any) -> Any:
    """A call without its server's deviations: as OpenAI would write it."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        return call
    arguments = function.get("arguments", "")
    if isinstance(arguments, dict):
        arguments = json.dumps(arguments)
    elif arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        arguments = "{}"
    return {"type": "function", "function": {"name": function.get("name"), "arguments": arguments}}


def _call_in_text(text: str, tools: Tools) -> str | None:
    """The one call that a text is and nothing else: tagged, as JSON, or in Qwen3-Coder's tags; None for other text."""
    if len(text) > MAX_ANSWER_CHARS:
        return None
    if not isinstance(read_call(text), MalformedCall):
        return text
    fenced = _FENCE.match(text)
    value = strict_json(fenced.group(1) if fenced else text, MAX_DEPTH + 1)
    if isinstance(value, dict) and set(value) in ({"name", "arguments"}, {"name", "parameters"}):
        arguments = value.get("arguments", value.get("parameters"))
        if isinstance(value["name"], str) and isinstance(arguments, dict):
            return render_call(value["name"], arguments)
    said = QWEN_XML.read(text)
    if not isinstance(said, Said) or said.before.strip() or not isinstance(said.arguments, dict):
        return None
    schema: Mapping[str, Any] = next(
        (one["function"]["parameters"] for one in tools if one["function"]["name"] == said.name), {}
    )
    return render_call(said.name, typed_arguments(said.arguments, schema))


def _kept(message: Mapping[str, Any], made: Sequence[Any]) -> dict[str, Any]:
    """What must come back with this turn: the signature of Google's thoughts, and OpenRouter's details of them."""
    extra = made[0].get("extra_content") if made and isinstance(made[0], dict) else None
    details = message.get("reasoning_details")
    kept = {"call": {"extra_content": extra}} if isinstance(extra, dict) else {}
    return kept | ({"message": {"reasoning_details": details}} if isinstance(details, list) and details else {})


def _counts(usage: Any, answered: bool) -> dict[str, Any]:
    """The tokens that an endpoint counted, as fields of an answer. A count of zeros beside an answer is not one."""
    usage = usage if isinstance(usage, dict) else {}
    read, sampled = _count_of(usage.get("prompt_tokens")), _count_of(usage.get("completion_tokens"))
    read, sampled = read or None, None if answered and not sampled else sampled
    of_prompt, of_answer = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    cached = _count_of(of_prompt.get("cached_tokens")) if isinstance(of_prompt, dict) else None
    reasoning = _count_of(of_answer.get("reasoning_tokens")) if isinstance(of_answer, dict) else None
    total = _count_of(usage.get("total_tokens"))
    if read is not None and sampled is not None and reasoning and total == read + sampled + reasoning:
        sampled += reasoning  # Google and xAI count thoughts beside the answer; both are paid for
    return {
        "prompt": read,
        "cached": min(cached or 0, read or 0),
        "sampled": sampled,
        "reasoning": min(reasoning or 0, sampled or 0),
    }


def _count_of(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None
