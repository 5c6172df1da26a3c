"""An engine of one's own: anything that continues a conversation. Here a rule, where a library or a service would be.

    cryptosentinel backtest --team model -s engine.kind=own_engine:engine

An engine gets conversations as token ids and gives ids back. The codec that it is made with turns them into messages
and its text into ids.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import cryptosentinel as cs

ANSWERS: dict[str, dict[str, Any]] = {
    "manager": {
        "name": "submit_decision",
        "arguments": {"positions": [{"symbol": "C1", "reason": "always", "side": "long", "exposure": 0.5}]},
    },
}


class AlwaysLong:
    """Holds half of the money in the coin that is asked about, and asks nobody."""

    name = "always_long"

    def __init__(self, codec: cs.ChatFormat) -> None:
        self._codec = codec

    def policy_version(self, role: str) -> str:
        """What is recorded as the model's version."""
        return "1"

    def generate(self, requests: Sequence[cs.Request]) -> list[cs.Completion]:
        """Continue every request; the answers come in the order of the requests."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: cs.Request) -> cs.Completion:
        question = self._codec.messages(request.ids)[-1]["content"]
        answer = ANSWERS[request.role]
        coin = next(word.strip(":,") for word in question.split() if word.startswith("C") and word[1:2].isdigit())
        answer["arguments"]["positions"][0]["symbol"] = coin
        ids = tuple(self._codec.encode_assistant(f"<tool_call>\n{json.dumps(answer)}\n</tool_call>"))
        return cs.Completion(ids=ids, logps=(0.0,) * len(ids), finished=True)


def engine(settings: Any, codec: cs.ChatFormat) -> AlwaysLong:
    """The engine, from the settings of [engine] and the codec of its conversations."""
    return AlwaysLong(codec)
