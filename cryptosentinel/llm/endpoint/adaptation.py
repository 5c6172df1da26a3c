"""What an endpoint refuses, learned from its refusals, so that each parameter is refused once in a session.

Providers take different parameters, and so do models of one provider: some take no temperature, some have another name
for the limit of an answer, some take no forced call or no tools. No list says which. A refused request costs nothing
and names the parameter; it is sent again without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

LIMITS = ("max_tokens", "max_completion_tokens")  # names of the limit of an answer's tokens
_LEAST_ROOM = 16
# Without these the request means nearly the same, and the user reads what is lost.
_DISPENSABLE = {
    "parallel_tool_calls": "it may make several calls at once, of which the first counts",
    "seed": "the same request may be answered differently",
    "temperature": "it samples at a temperature of its own",
    "tool_choice": "its model may answer in prose",
    "tools": "the prompt describes them, and the call is read from the text",
}
_NO_TOOLS = re.compile(
    r"not support (?:\w+ ){0,2}(?:tools?\b|tool[ _]|function)|tool use|tools param|enable-auto-tool-choice"
    r"|\btools\b['\"`]?\W{0,3}(?:is |are )?(?:not supported|unsupported|not permitted|unknown)"
    r"|(?:unsupported|unknown|unrecognized|unexpected)[^.]{0,40}\btools\b"
)
_FORCED = re.compile(r"tool_choice|tool choice|forced? tool|forces tool")
_TOO_MUCH = re.compile(r"too large|too many|at most|must be less|less than or equal|exceed|maximum|supported range|>")
_CONTEXT = re.compile(r"(?:maximum context length|context length|context window|max_model_len|n_ctx)\D{0,40}?(\d{3,8})")
_ASKED = re.compile(r"(?:(\d{2,8})(?: tokens?)? (?:in the messages|input tokens|prompt tokens|in the prompt)"
                    r"|prompt (?:contains|has)\D{0,20}(\d{2,8})|n_prompt_tokens\W+(\d{2,8}))")  # fmt: skip


@dataclass(eq=False)
class Refusal(Exception):
    """An endpoint's answer that is an error: `text` is all of it, `reason` what people read, `param` the parameter that
    it names, `code` its code, `location` the target of a redirect."""

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


class UserSettingRefused(Exception):
    """A parameter that the user set is refused: it is not left out silently."""

    def __init__(self, parameter: str) -> None:
        super().__init__(parameter)
        self.parameter = parameter


def is_final(status: int, body: bytes) -> bool:
    """Whether a server error is a refusal, which another attempt would only repeat: llama.cpp's server answers 500 to
    tools that it was not started for."""
    return status in (500, 501) and _NO_TOOLS.search(body[:4096].decode("utf-8", "replace").lower()) is not None


@dataclass
class Adaptation:
    """What one endpoint takes: `limit_name`, its name for the limit of an answer; `cap`, the largest limit (0: not
    known); `refused` parameters; `notes` on what was adapted. A refusal of a parameter in `chosen` ends the run."""

    limit_name: str = LIMITS[0]
    chosen: frozenset[str] = frozenset()
    cap: int = 0
    refused: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Keep a sentence for the user, once."""
        if text not in self.notes:
            self.notes.append(text)

    def learn(self, refusal: Refusal, sent: Mapping[str, Any]) -> bool:
        """Whether the request that was `sent` makes sense once more, adapted to the refusal.

        Each change is of something that was sent and will not be sent again, so their number is bounded. Raises
        `UserSettingRefused`.
        """
        if refusal.status in (404, 500, 501):  # "no endpoint supports tool use", "tools param requires --jinja flag"
            return self._without(refusal, sent, ("tool_choice", "tools"))
        if refusal.status not in (400, 405, 415, 422):
            return False
        if self._smaller_limit(refusal, sent) or self._other_name(refusal, sent):
            return True
        if self._without(refusal, sent, [name for name in _DISPENSABLE if name != "tools"]):
            return True
        chosen = next((name for name in sorted(self.chosen) if name in sent and refusal.names(name)), None)
        if chosen is not None:
            raise UserSettingRefused(chosen)
        return self._without(refusal, sent, ("tools",))

    def room_left(self, refusal: Refusal, sent: Mapping[str, Any]) -> int | None:
        """How many tokens the answer may have where the refusal says that prompt and answer are too long together;
        None where it says something else, 0 where nothing is left."""
        text = refusal.text.lower()
        context, asked = _CONTEXT.search(text), _ASKED.search(text)
        if context is None or asked is None or refusal.status not in (400, 413, 422):
            return None
        room = int(context.group(1)) - int(next(one for one in asked.groups() if one)) - 1
        return room if _LEAST_ROOM <= room < sent[self.limit_name] else 0

    def _smaller_limit(self, refusal: Refusal, sent: Mapping[str, Any]) -> bool:
        """The limit was larger than the model takes, and the refusal names the largest."""
        text, asked = refusal.text.lower(), int(sent[self.limit_name])
        if _TOO_MUCH.search(text) is None or "context" in text:
            return False
        if not any(refusal.names(one) for one in LIMITS) and "output tokens" not in text:
            return False
        exclusive = re.search(r"(\d+) ?\(exclusive\)", text)
        said = [int(one) for one in re.findall(r"(?<![\w.-])\d{2,7}(?![\w-])", text)]
        largest = int(exclusive.group(1)) - 1 if exclusive else max((one for one in said if one < asked), default=0)
        if not _LEAST_ROOM <= largest < asked:
            return False
        self.cap = largest
        self.note(f"it gives at most {largest:,} tokens in an answer")
        return True

    def _other_name(self, refusal: Refusal, sent: Mapping[str, Any]) -> bool:
        """The limit of an answer has its newer name."""
        older, newer = LIMITS
        if older not in sent or re.search(rf"\b{newer}\b", refusal.text) is None:
            return False
        self.limit_name = newer
        self.note(f"its name for the limit of an answer is {newer}")
        return True

    def _without(self, refusal: Refusal, sent: Mapping[str, Any], names: Iterable[str]) -> bool:
        """One of some parameters can be left out."""
        text = refusal.text.lower()
        for name in names:
            about = refusal.names(name)
            if name == "tool_choice":
                about = about or (not refusal.param and _FORCED.search(text) is not None)
            if name == "tools":
                about = _NO_TOOLS.search(text) is not None
            if about and name in sent:
                self.refused.add(name)
                self.note(f"it takes no {name}: {_DISPENSABLE[name]}")
                return True
        return False
