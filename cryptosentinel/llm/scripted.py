"""An engine without a model: each role answers by a rule. It also is the teacher whose transcripts warm-start nano."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cryptosentinel.llm.chat_format import ChatFormat, ChatMessages
from cryptosentinel.llm.engine import Completion, Request

ScriptedPolicy = Callable[[ChatMessages, int], str]  # from messages and a seed to the answer


class ScriptedEngine:
    """Answers each request with what the role's policy says: a pure function from messages and seed to the answer.

    Messages are those of `ChatFormat.messages`. Log-probs are 0: the answer was certain. Sampling settings do not
    apply; an answer longer than `max_tokens` is a whole answer nonetheless.
    """

    name = "scripted"

    def __init__(self, codec: ChatFormat, policies: Mapping[str, ScriptedPolicy]) -> None:
        self._codec = codec
        self._policies = dict(policies)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Continue every request, answers in the order of the requests. Raises `KeyError` for an unknown role."""
        return [self._answer(request) for request in requests]

    def policy_version(self, role: str) -> str:
        """Always "scripted": rules do not change while they run."""
        return "scripted"

    def _answer(self, request: Request) -> Completion:
        messages = self._codec.messages(request.ids)
        ids = self._codec.encode_assistant(self._policies[request.role](messages, request.seed))
        return Completion(ids=tuple(ids), logps=(0.0,) * len(ids), finished=True)
