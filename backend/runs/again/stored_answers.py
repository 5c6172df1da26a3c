"""An engine that answers as a stored backtest did, so that its team comes to the same account again without a model.

Each request of a decision has a seed of its own, which follows from the run's seed, the bar, the role and the turn. So
a stored answer is found by the seed of its request, whatever engine gave it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from backend.decisions.document import ConversationDocument, Message, StoredDecision
from cryptosentinel.agents.registry import role_title
from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.llm.engine import Completion, Engine, Request, Usage, failed_completion
from cryptosentinel.protocol.tool_calls import split_thought
from cryptosentinel.team import derive_seed
from simulator.errors import UserError

_MOST_TURNS = 64  # of a conversation, and conversations of a role in a decision
_FAILED = "engine_failed: "  # how a conversation's problem begins whose request failed


@dataclass(frozen=True)
class StoredTurn:
    """A turn of a stored conversation: what the model had read, and what it said, None where its request failed with
    `problem`. `seconds` is how long one waited for the decision, on its first turn; 0 elsewhere."""

    before: tuple[Message, ...]
    said: str | None
    problem: str
    finished: bool
    seconds: float


Replacement = Callable[[str | None], str | None]  # from a role's stored turn to what it says instead, None: as it is


@dataclass
class StoredAnswers:
    """Answers with the stored turns, by the seeds of their requests.

    The requests of the decision that is replayed have the seeds `edited`. Of these a role in `replaced` may say
    something else; whoever is shown what it was not shown then is asked anew, which is `live`. Any other request that
    the run did not make raises `UserError`. `asked` counts what `live` was asked.
    """

    codec: ChatFormat
    live: Engine
    turns: Mapping[int, StoredTurn]
    edited: Collection[int]
    replaced: Mapping[str, Replacement] = field(default_factory=dict)
    name: str = "stored answers"
    asked: int = 0

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answers in the order of the requests. Raises `UserError`, and what the live engine raises."""
        return [self._answer(request) for request in requests]

    def policy_version(self, role: str) -> str:
        """That of the live engine."""
        return self.live.policy_version(role)

    def _answer(self, request: Request) -> Completion:
        turn = self.turns.get(request.seed)
        if request.seed not in self.edited:
            if turn is None:
                raise UserError(
                    f"on the way to the decision {role_title(request.role)} is asked something that it was not asked "
                    "in the run: the data, the settings or the program have changed since"
                )
            return self._completion(turn)
        stored = turn if turn is not None and self._has_read(request, turn) else None
        change = self.replaced.get(request.role)
        text = None if change is None else change(None if stored is None else stored.said)
        if text is not None:
            return self._said(text)
        if stored is not None:
            return self._completion(stored)
        self.asked += 1
        return self.live.generate([request])[0]

    def _has_read(self, request: Request, turn: StoredTurn) -> bool:
        """Whether the model is shown what it was shown then, its thoughts aside."""
        shown = [(one["role"], split_thought(one["content"])[1] if one["role"] == "assistant" else one["content"])
                 for one in self.codec.messages(request.ids)]  # fmt: skip
        return shown == [(one.role, one.content) for one in turn.before]

    def _completion(self, turn: StoredTurn) -> Completion:
        usage = Usage(seconds=turn.seconds)
        if turn.said is None:
            return failed_completion(turn.problem, usage)
        said = self._said(turn.said)
        ids = said.ids if turn.finished else said.ids[:-1]
        return Completion(ids, said.logps[: len(ids)], turn.finished, usage)

    def _said(self, text: str) -> Completion:
        ids = tuple(self.codec.encode_assistant(text))
        return Completion(ids, (0.0,) * len(ids), True)


def stored_turns(decision: StoredDecision, seed: int, seconds: float) -> dict[int, StoredTurn]:
    """The turns of a decision whose sampling began with `seed`, by the seeds of their requests. `seconds` is how long
    one waited for it."""
    turns: dict[int, StoredTurn] = {}
    for conversation in decision.document.conversations:
        number = 0
        for place, message in enumerate(conversation.messages):
            if message.role == "assistant":
                last = place == len(conversation.messages) - 1
                turn = StoredTurn(
                    conversation.messages[:place], message.content, "", not (last and conversation.truncated), 0.0
                )
                turns[_seed(seed, conversation, number)] = turn
                number += 1
        if (conversation.problem or "").startswith(_FAILED):
            reason = str(conversation.problem).removeprefix(_FAILED)
            turns[_seed(seed, conversation, number)] = StoredTurn(conversation.messages, None, reason, False, 0.0)
    for first in list(turns)[:1]:
        turns[first] = replace(turns[first], seconds=seconds)
    return turns


def seeds_of(seed: int, roles: Collection[str]) -> frozenset[int]:
    """The seeds of all requests that a decision of these roles can make, whose sampling begins with `seed`."""
    numbers = range(_MOST_TURNS)
    return frozenset(
        derive_seed(seed, role, ordinal, turn) for role in roles for ordinal in numbers for turn in numbers
    )


def _seed(seed: int, conversation: ConversationDocument, turn: int) -> int:
    return derive_seed(seed, conversation.role, conversation.ordinal, turn)
