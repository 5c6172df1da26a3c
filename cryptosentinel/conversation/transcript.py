"""The record of one conversation: every token, which of them the model sampled, and the outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.llm.engine import NOTHING, Completion, Usage
from cryptosentinel.protocol.tool_calls import MalformedCall, ToolCall
from cryptosentinel.protocol.untrusted import render_result

_DROPPED = {"dropped": "an older result, to make room"}


Span = tuple[int, int]  # first token and the one behind the last


@dataclass(frozen=True)
class CalledTurn:
    """A turn of the assistant as it was read when it was said: its call, and how many conversations that opened."""

    call: ToolCall | MalformedCall
    opened: int = 0


@dataclass(frozen=True)
class Transcript:
    """One finished conversation of one role.

    `ids`, `mask`, `logps` have equal length; `mask` is True where the model sampled the token and `logps` is 0
    elsewhere. `forced` are the places of the tokens by which the engine closed a thought.

    `ordinal` counts the calls of this role within the decision, and `policy_version` are the weights that sampled it.
    `brief` is what the caller asked with. A conversation that is not `valid` has a `reason` and no `answer`. `dropped`
    counts the tool results that were taken out to make room; what was sampled before that was sampled from a longer
    conversation, so its `mask` is False. `usage` and `cost` (quote currency) are what its requests took. `tools` are
    the schemas that its system turn lists. `calls` are its turns as they were read, in order. `thoughts` are the words
    of thoughts, one a turn of the assistant ("" for none; nothing where there is no thought at all): untrusted text.
    """

    role: str
    ordinal: int
    ids: tuple[int, ...]
    mask: tuple[bool, ...]
    logps: tuple[float, ...]
    policy_version: str
    brief: dict[str, Any]
    answer: dict[str, Any] | None
    reason: str | None
    truncated: bool
    retries: int = 0  # malformed turns that were given another try
    dropped: int = 0
    usage: Usage = field(default=NOTHING, compare=False)
    cost: float = 0.0
    tools: tuple[Mapping[str, Any], ...] = field(default=(), compare=False, repr=False)
    thoughts: tuple[str, ...] = ()
    calls: tuple[CalledTurn, ...] = field(default=(), compare=False, repr=False)
    forced: tuple[Span, ...] = ()

    @property
    def thoughts_cut(self) -> int:
        """Thoughts that were closed because their budget was spent."""
        return len(self.forced)

    @property
    def valid(self) -> bool:
        return self.answer is not None


class Conversation:
    """A conversation under way; `finish` makes the `Transcript`."""

    def __init__(
        self,
        codec: ChatFormat,
        role: str,
        ordinal: int,
        version: str,
        system: str,
        user: str,
        tools: Sequence[dict[str, Any]],
    ) -> None:
        self._codec = codec
        self.role = role
        self.ordinal = ordinal
        self._version = version
        self._tools = tuple(tools)
        self.ids: list[int] = codec.start(system, user, tools=list(tools) or None)
        self._mask = [False] * len(self.ids)
        self._logps = [0.0] * len(self.ids)
        self._cut_off = False
        self._thoughts: list[str] = []
        self._forced: list[Span] = []
        self._results: list[tuple[int, int, str]] = []  # (start, stop) in `ids`, tool; of results that are whole
        self.retries = 0
        self.dropped = 0
        self.usage = NOTHING
        self.cost = 0.0
        self.calls: list[CalledTurn] = []

    def add_completion(self, completion: Completion, cost: float = 0.0) -> str:
        """Append what the model sampled, at its `cost`; returns its answer as text, without its thought and the
        end-of-turn token. What the engine wrote to close the thought is not marked as sampled."""
        self.usage += completion.usage
        self.cost += cost
        begin = len(self.ids)
        thought = begin + (completion.thought or self._empty_thought(completion.ids))
        self.ids += completion.ids
        self._mask += [True] * len(completion.ids)
        self._logps += completion.logps
        if completion.forced:
            first = thought - completion.forced
            self._mask[first:thought] = [False] * completion.forced
            self._forced.append((first, thought))
        self._thoughts.append(self._codec.thought_text(completion.ids[: thought - begin]))
        self._cut_off = not completion.finished
        spoken = completion.ids[:-1] if completion.finished else completion.ids
        return self._codec.decode(list(spoken[thought - begin :]))

    def _empty_thought(self, ids: Sequence[int]) -> int:
        """How much of an answer closes the thought that its prompt has opened, where its engine knows of none: a
        scripted team's does."""
        thoughts = self._codec.thoughts
        begun = thoughts is not None and thoughts.begun and thoughts.closing in ids
        return ids.index(thoughts.closing) + 1 if begun and thoughts is not None else 0

    def add_tool_response(self, result: Mapping[str, Any], retry: bool = False, *, tool: str = "") -> None:
        """Append the result of the `tool` that was called, or with `retry` what was wrong with the turn. All of them
        are cleaned here as untrusted data, see `untrusted.render_result`."""
        self.retries += retry
        appended = self._codec.continue_after(not self._cut_off, render_result(result), tool)
        start = len(self.ids)
        self.ids += appended
        self._mask += [False] * len(appended)
        self._logps += [0.0] * len(appended)
        if not retry:
            self._results.append((start, len(self.ids), tool))

    def make_room(self, limit: int) -> bool:
        """Take out the oldest tool results, each for a note that says so, until at most `limit` tokens are left;
        whether that was enough. The newest result stays: the next turn answers it."""
        if len(self.ids) <= limit:
            return True
        before = self.dropped
        while len(self.ids) > limit and len(self._results) > 1:
            start, stop, tool = self._results.pop(0)
            note = self._codec.tool_response(render_result(_DROPPED), tool)
            saved = stop - start - len(note)
            if saved > 0:
                self.ids[start:stop] = note
                self._results = [(first - saved, last - saved, name) for first, last, name in self._results]
                self.dropped += 1
        if self.dropped > before:
            # The tokens so far were sampled from a longer context, so their log-probs are not those of the rest.
            self._mask = [False] * len(self.ids)
            self._logps = [0.0] * len(self.ids)
            self._forced = []
        return len(self.ids) <= limit

    def finish(self, brief: dict[str, Any], answer: dict[str, Any] | None, reason: str | None) -> Transcript:
        return Transcript(
            role=self.role,
            ordinal=self.ordinal,
            ids=tuple(self.ids),
            mask=tuple(self._mask),
            logps=tuple(self._logps),
            policy_version=self._version,
            brief=brief,
            answer=answer,
            reason=reason,
            truncated=self._cut_off,
            retries=self.retries,
            dropped=self.dropped,
            usage=self.usage,
            cost=self.cost,
            tools=self._tools,
            thoughts=tuple(self._thoughts) if any(self._thoughts) else (),
            calls=tuple(self.calls),
            forced=tuple(self._forced),
        )
