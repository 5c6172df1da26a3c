"""What an endpoint said, as every engine before one reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cryptosentinel.llm.engine import Usage
from cryptosentinel.protocol.tool_calls import MalformedCall, read_call

# How a call came: as the API's own calls, as JSON or a tag in the text, or not at all.
CallForm = Literal["tool_calls", "json", "tag", "none"]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what OpenAI accepts as a function's name; others accept no less
_MAX_DEPTH = 40  # of an answer's JSON; a sound one has nine levels
_BRACKETS = re.compile(r"[][{}]")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)  # of JSON, the last one perhaps not closed


class Garbled(Exception):
    """What came is no answer. The message says how, and may quote it: clean it before it is shown."""


@dataclass(frozen=True)
class Dialect:
    """How an answer was written.

    Attributes:
        form: how the call came.
        arguments: what its arguments were, such as `str` or `dict`; "" without a call.
        calls: how many calls there were; the first counts.
        finish: the reason that the endpoint gave for its end.
        identified: whether the call had an id.
    """

    form: CallForm = "none"
    arguments: str = ""
    calls: int = 0
    finish: str = ""
    identified: bool = False


@dataclass(frozen=True)
class Answer:
    """What an endpoint said.

    Attributes:
        text: the assistant's turn, at most one character longer than a role may say, which is enough to refuse it.
        finished: False where the endpoint stopped at the limit of tokens.
        prompt: tokens that it read, as it counts them; None where it does not tell.
        cached: those of them that it had in its cache.
        written: those of them that it wrote into its cache, where that has a price of its own.
        sampled: tokens that it sampled, thoughts among them; None where it does not tell.
        reasoning: those of them that were thoughts; 0 where it does not tell.
        thought: whether it thought before it answered.
        dialect: how the answer was written.
        kept: what must be sent back with this turn, in the API's own form, such as a thought's signature.
    """

    text: str
    finished: bool
    prompt: int | None = None
    cached: int = 0
    sampled: int | None = None
    reasoning: int = 0
    written: int = 0
    thought: bool = field(default=False, compare=False)
    dialect: Dialect = field(default=Dialect(), compare=False)
    kept: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def usage(self, prompt: int, sampled: int) -> Usage:
        """What it took; `prompt` and `sampled` stand in where the endpoint does not count."""
        return Usage(
            prompt=prompt if self.prompt is None else self.prompt,
            cached=self.cached,
            sampled=sampled if self.sampled is None else self.sampled,
            reasoning=self.reasoning,
            written=self.written,
        )


def sendable_call(text: str) -> tuple[str, dict[str, Any]] | None:
    """The name and the arguments of the call that `text` is, if an endpoint would take it back; None otherwise."""
    said = read_call(text)
    if isinstance(said, MalformedCall):
        return None
    name, arguments = said
    if _NAME.fullmatch(name) is None or not isinstance(arguments, dict):
        return None
    try:
        json.dumps(arguments, allow_nan=False)
    except ValueError:  # 1e999 is read as an infinity, which JSON cannot say
        return None
    return name, arguments


def parse_body(body: bytes) -> Any:
    """The JSON of a body. Raises `Garbled` for anything else."""
    text = body.decode("utf-8", "replace")
    depth = 0
    for bracket in _BRACKETS.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > _MAX_DEPTH:  # before Python's own limit, which depends on how deep the caller stands
            raise Garbled("JSON nested too deep")
    try:
        return json.loads(text)
    except ValueError:
        start = text[:200].lstrip().lower()
        if start.startswith(("<!doctype", "<html")):
            raise Garbled("a web page") from None
        if start.startswith(("data:", "event:", ":")):
            raise Garbled("a stream, which was not asked for") from None
        raise Garbled("no JSON") from None


def count_of(value: object) -> int | None:
    """A number of tokens; None where `value` is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def model_names(body: bytes) -> list[str] | None:
    """The models that the body of an endpoint's list names; None where it is no such list."""
    try:
        document = parse_body(body)
    except Garbled:
        return None
    entries = document.get("data") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        return None
    names = [entry.get("id") for entry in entries if isinstance(entry, dict)]
    return [name for name in names if isinstance(name, str)]
