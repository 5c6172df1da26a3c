"""The record of one conversation: every token, which of them the model sampled, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cryptosentinel.llm.engine import Completion
from cryptosentinel.llm.tokens import ChatCodec
from cryptosentinel.untrusted import render_result


@dataclass(frozen=True)
class Transcript:
    """One finished conversation of one role.

    `ids`, `mask`, `logps` have equal length; `mask` is True where the model sampled the token and `logps` is 0
    elsewhere. `ordinal` counts the calls of this role within the decision. `brief` is what the caller asked with. A
    conversation that is not `valid` has a `reason` and no `answer`.
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

    @property
    def valid(self) -> bool:
        return self.answer is not None


class Conversation:
    """A conversation under way; `finish` makes the `Transcript`."""

    def __init__(
        self,
        codec: ChatCodec,
        role: str,
        ordinal: int,
        version: str,
        system: str,
        user: str,
        tools: list[dict[str, Any]] | None,
    ) -> None:
        self._codec = codec
        self.role = role
        self.ordinal = ordinal
        self._version = version
        self.ids: list[int] = codec.start(system, user, tools=tools)
        self._mask = [False] * len(self.ids)
        self._logps = [0.0] * len(self.ids)
        self._cut_off = False
        self.retries = 0

    def add_completion(self, completion: Completion) -> str:
        """Append what the model sampled; returns it as text without the end-of-turn token."""
        self.ids += completion.ids
        self._mask += [True] * len(completion.ids)
        self._logps += completion.logps
        self._cut_off = not completion.finished
        spoken = completion.ids[:-1] if completion.finished else completion.ids
        return self._codec.decode(list(spoken))

    def add_tool_response(self, result: Mapping[str, Any], retry: bool = False) -> None:
        """Append a tool's result, or with `retry` what was wrong with the turn. It is data, cleaned here, where no tool
        and no colleague's answer can get by: see `untrusted.render_result`."""
        self.retries += retry
        appended = self._codec.continue_after(not self._cut_off, render_result(result))
        self.ids += appended
        self._mask += [False] * len(appended)
        self._logps += [0.0] * len(appended)

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
        )
