"""What an endpoint refuses, learned from its refusals: each parameter is refused once in a session.

Providers take different parameters, and so do models of one provider. No list says which. A refused request costs
nothing and names the parameter; it is sent again without it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LIMITS = ("max_tokens", "max_completion_tokens")  # names of the limit of an answer's tokens
_LEAST_ROOM = 16
_NO_TOOLS = (
    r"not support (?:\w+ ){0,2}(?:tools?\b|tool[ _]|function)|tool use|tools param|enable-auto-tool-choice"
    r"|\btools\b['\"`]?\W{0,3}(?:is |are )?(?:not supported|unsupported|not permitted|unknown)"
    r"|(?:unsupported|unknown|unrecognized|unexpected)[^.]{0,40}\btools\b"
)
_CONTEXT = re.compile(r"(?:maximum context length|context length|context window|max_model_len|n_ctx)\D{0,40}?(\d{3,8})")
_ASKED = re.compile(r"(?:(\d{2,8})(?: tokens?)? (?:in the messages|input tokens|prompt tokens|in the prompt)"
                    r"|prompt (?:contains|has)\D{0,20}(\d{2,8})|n_prompt_tokens\W+(\d{2,8}))")  # fmt: skip
# Without these the request means nearly the same: how a refusal names each, and what is lost.
_DISPENSABLE = {
    "parallel_tool_calls": (r"parallel_tool_calls", "it may make several calls at once, of which the first counts"),
    "seed": (r"(?<![\w-])seed\b", "the same request may be answered differently"),
    "temperature": (r"(?<![\w-])temperature\b", "it samples at a temperature of its own"),
    "tool_choice": (r"tool[_ ]choice|forced? tool|forces tool", "its model may answer in prose"),
    "tools": (_NO_TOOLS, "the prompt describes them, and the call is read from the text"),
}


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


def is_final(status: int, body: bytes) -> bool:
    """Whether a server error is a refusal, which another attempt would only repeat: llama.cpp's server answers 500 to
    tools that it was not started for."""
    return status in (500, 501) and re.search(_NO_TOOLS, body[:4096].decode("utf-8", "replace").lower()) is not None


@dataclass
class Adaptation:
    """What one endpoint takes: `limit_name`, its name for the limit of an answer; `cap`, the largest limit (0: not
    known); `refused` parameters; `notes` on what was adapted. Parameters in `chosen` are the user's and stay."""

    chosen: frozenset[str] = frozenset()
    limit_name: str = LIMITS[0]
    cap: int = 0
    refused: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Keep a sentence for the user, once."""
        if text not in self.notes:
            self.notes.append(text)

    def learn(self, refusal: Refusal, sent: Mapping[str, Any]) -> bool:
        """Whether the request that was `sent` makes sense once more, adapted to the refusal. Each change is of
        something that was sent and will not be sent again, so their number is bounded."""
        if refusal.status not in (400, 404, 405, 415, 422, 500, 501):
            return False
        text, asked = refusal.text.lower(), int(sent[self.limit_name])
        if "context" in text:
            return False
        if self.limit_name == LIMITS[0] and LIMITS[1] in text:
            self.limit_name = LIMITS[1]
            self.note(f"its name for the limit of an answer is {LIMITS[1]}")
            return True
        if any(name in text for name in LIMITS) or "output tokens" in text:
            said = [int(one) for one in re.findall(r"(?<![\w.-])\d{2,7}(?![\w-])", text)]
            largest = max((one for one in said if one < asked), default=0)
            if largest >= _LEAST_ROOM:
                self.cap = largest - ("exclusive" in text)
                self.note(f"it gives at most {self.cap:,} tokens in an answer")
                return True
        for name, (pattern, lost) in _DISPENSABLE.items():
            named = refusal.param.partition(".")[0].partition("[")[0]
            about = named == name if named in _DISPENSABLE else re.search(pattern, text) is not None
            if about and name in sent and name not in self.chosen:
                self.refused.add(name)
                self.note(f"it takes no {name}: {lost}")
                return True
        return False

    def room_left(self, refusal: Refusal, sent: Mapping[str, Any]) -> int | None:
        """How many tokens the answer may have where the refusal says that prompt and answer are too long together;
        None where it says something else, 0 where nothing is left."""
        context, asked = _CONTEXT.search(refusal.text.lower()), _ASKED.search(refusal.text.lower())
        if context is None or asked is None or refusal.status not in (400, 413, 422):
            return None
        room = int(context.group(1)) - int(next(one for one in asked.groups() if one)) - 1
        return room if _LEAST_ROOM <= room < sent[self.limit_name] else 0
