"""What an endpoint refuses, learned from its refusals, so that each property is refused once in a session.

Providers take different parameters, and models of one provider too: some take no temperature, some call the limit of an
answer otherwise, some take no forced call or no tools at all. None says so beforehand. A refused request costs nothing,
names the parameter, and is sent again without it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# How an answer is made a call, the surest first: the model is forced to call a tool, may call one, answers in JSON of a
# schema, or reads in its prompt how a call is written. What an endpoint refuses gives way to the next.
Structured = Literal["tool_choice", "tools", "json_schema", "text"]
STRUCTURED_LEVELS: tuple[Structured, ...] = ("tool_choice", "tools", "json_schema", "text")
LIMITS = ("max_tokens", "max_completion_tokens")
_NEWER, _OLDER = LIMITS[1], LIMITS[0]

_LEAST_ROOM = 16
# Without these the request means nearly the same, and what is lost is said.
_DISPENSABLE = {
    "parallel_tool_calls": "it may make several calls at once, of which the first counts",
    "cache_control": "nothing of a prompt is kept for the next",
    "seed": "the same request may be answered otherwise",
    "temperature": "it samples at a temperature of its own",
}
_NO_TOOLS = re.compile(
    r"not support (?:\w+ ){0,2}(?:tools?\b|tool[ _]|function)|tool use|tools param|enable-auto-tool-choice"
    r"|\btools\b['\"`]?\W{0,3}(?:is |are )?(?:not supported|unsupported|not permitted|unknown)"
    r"|(?:unsupported|unknown|unrecognized|unexpected)[^.]{0,40}\btools\b"
)
_FORCED = re.compile(r"tool_choice|tool choice|forced? tool|forces tool")
_NO_SCHEMA = re.compile(r"response_format|json_schema|structured output|output format")
_UNKNOWN = re.compile(r"unsupported|unrecogni[sz]ed|unknown|unexpected|not supported|not permitted|extra")
_TOO_MUCH = re.compile(r"too large|too many|at most|must be less|less than or equal|exceed|maximum|supported range|>")
_CONTEXT = re.compile(r"(?:maximum context length|context length|context window|max_model_len|n_ctx)\D{0,40}?(\d{3,8})")
_ASKED = re.compile(r"(?:(\d{2,8})(?: tokens?)? (?:in the messages|input tokens|prompt tokens|in the prompt)"
                    r"|prompt (?:contains|has)\D{0,20}(\d{2,8})|n_prompt_tokens\W+(\d{2,8}))")  # fmt: skip


@dataclass(eq=False)
class Refusal(Exception):
    """An endpoint's answer that is an error: `text` is all it says, `param` the parameter that it names, `code` its
    code, `location` where a redirect leads."""

    status: int
    text: str
    reason: str
    param: str = ""
    code: str = ""
    location: str = ""

    def names(self, parameter: str) -> bool:
        """Whether it is about this parameter."""
        if self.param:
            return self.param.partition(".")[0].partition("[")[0] == parameter
        return re.search(rf"(?<![\w-]){re.escape(parameter)}\b", self.text) is not None


def is_final(status: int, body: bytes) -> bool:
    """Whether a server error is a refusal, which another attempt would only repeat: llama.cpp's server answers 500 to
    tools that it was not started for."""
    return status in (500, 501) and _NO_TOOLS.search(body[:4096].decode("utf-8", "replace").lower()) is not None


class UserSettingRefused(Exception):
    """A parameter that the user asked for by a setting is refused: it is not left out without a word."""

    def __init__(self, parameter: str) -> None:
        super().__init__(parameter)
        self.parameter = parameter


@dataclass
class Adaptation:
    """What one endpoint takes.

    Attributes:
        chosen: parameters that the user set; a refusal of one of them ends the run.
        limit_name: what the limit of an answer's tokens is called.
        structured: how an answer is made a call.
        cap: the largest limit of an answer's tokens that it takes; 0 where none is known.
        refused: parameters that it does not take.
        notes: what was adapted, a sentence each, in the order in which it was found.
    """

    limit_name: str = _OLDER
    structured: Structured = STRUCTURED_LEVELS[0]
    chosen: frozenset[str] = frozenset()
    cap: int = 0
    refused: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    _renamed: bool = False

    def taken(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of `body` that the endpoint takes."""
        return {name: value for name, value in body.items() if name not in self.refused}

    def learn(self, refusal: Refusal, sent: Mapping[str, Any]) -> bool:
        """Whether the request that was `sent` makes sense once more, adapted to what the refusal says.

        Each change is of something that was sent and will not be sent again, so there are only so many of them.
        Raises `UserSettingRefused`.
        """
        if not 400 <= refusal.status < 600 or refusal.status in (401, 402, 403, 408, 409, 413, 429, 502, 503, 504):
            return False
        if refusal.status in (404, 500, 501):  # "no endpoint supports tool use", "tools param requires --jinja flag"
            return self._not_forced(refusal, sent) or self._fewer_tools(refusal.text.lower(), sent)
        if (
            self._smaller_limit(refusal, sent)
            or self._other_name(refusal, sent)
            or self._not_forced(refusal, sent)
            or self._without(refusal, sent)
        ):
            return True
        chosen = next((name for name in sorted(self.chosen) if name in sent and refusal.names(name)), None)
        if chosen is not None:
            raise UserSettingRefused(chosen)
        return self._less_structured(refusal, sent)

    def room_left(self, refusal: Refusal, sent: Mapping[str, Any]) -> int | None:
        """How many tokens the answer may have where the refusal says that prompt and answer are too long together;
        None where it says something else, 0 where nothing is left."""
        text = refusal.text.lower()
        context = _CONTEXT.search(text)
        if context is None or refusal.status not in (400, 413, 422) or not any(name in sent for name in LIMITS):
            return None
        asked = _ASKED.search(text)
        if asked is None:
            return None
        room = int(context.group(1)) - int(next(one for one in asked.groups() if one)) - 1
        return room if _LEAST_ROOM <= room < next(sent[name] for name in LIMITS if name in sent) else 0

    def note(self, text: str) -> None:
        """Keep a sentence for the user, once."""
        if text not in self.notes:
            self.notes.append(text)

    def _smaller_limit(self, refusal: Refusal, sent: Mapping[str, Any]) -> bool:
        """The limit was larger than the model takes, and the refusal names the largest."""
        name = next((one for one in LIMITS if one in sent), None)
        text = refusal.text.lower()
        if name is None or _TOO_MUCH.search(text) is None or "context" in text:
            return False
        if not any(refusal.names(one) for one in LIMITS) and "output tokens" not in text:
            return False
        asked = int(sent[name])
        exclusive = re.search(r"(\d+) ?\(exclusive\)", text)
        said = [int(one) for one in re.findall(r"(?<![\w.-])\d{2,7}(?![\w-])", text)]
        smaller = [int(exclusive.group(1)) - 1] if exclusive else [one for one in said if one < asked]
        if not smaller or max(smaller) < _LEAST_ROOM or max(smaller) >= asked:
            return False
        self.cap = max(smaller)
        self.note(f"it gives at most {self.cap:,} tokens in an answer")
        return True

    def _other_name(self, refusal: Refusal, sent: Mapping[str, Any]) -> bool:
        """The limit of an answer is called otherwise."""
        if _OLDER in sent and re.search(rf"\b{_NEWER}\b", refusal.text):
            self.limit_name, self._renamed = _NEWER, True
        elif _NEWER in sent and not self._renamed and refusal.names(_NEWER) and _UNKNOWN.search(refusal.text.lower()):
            self.limit_name, self._renamed = _OLDER, True
        else:
            return False
        self.note(f"it calls the limit of an answer {self.limit_name}")
        return True

    def _without(self, refusal: Refusal, sent: Mapping[str, Any]) -> bool:
        """A parameter can be left out."""
        name = next((one for one in _DISPENSABLE if one in sent and refusal.names(one)), None)
        if name is None:
            return False
        self.refused.add(name)
        self.note(f"it takes no {name}: {_DISPENSABLE[name]}")
        return True

    def _less_structured(self, refusal: Refusal, sent: Mapping[str, Any]) -> bool:
        text = refusal.text.lower()
        if "response_format" in sent and _NO_SCHEMA.search(text):
            self._lower("text", "it takes no JSON schema: the prompt says how a call is written")
            return True
        return self._fewer_tools(text, sent)

    def _not_forced(self, refusal: Refusal, sent: Mapping[str, Any]) -> bool:
        """Its model can call tools, but not be told to."""
        if "tool_choice" not in sent or self.structured != "tool_choice":
            return False
        said = refusal.names("tool_choice") or (not refusal.param and _FORCED.search(refusal.text.lower()))
        if not said:
            return False
        self._lower("tools", "it cannot be told to call a tool: its model may answer in prose")
        return True

    def _fewer_tools(self, text: str, sent: Mapping[str, Any]) -> bool:
        if "tools" not in sent or _NO_TOOLS.search(text) is None:
            return False
        self._lower("json_schema", "it takes no tools: the prompt describes them, and a JSON schema is asked for")
        return True

    def _lower(self, level: Structured, note: str) -> None:
        if STRUCTURED_LEVELS.index(level) > STRUCTURED_LEVELS.index(self.structured):
            self.structured = level
            self.note(note)
