"""What the worst text costs: answers that a model should not give, and headlines of a hundred thousand characters.

Both are bounded by construction (a longest answer, a longest shown text), so their time has a bound too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from benchmarks.pace import within
from benchmarks.run import Result
from cryptosentinel.agents.registry import MANAGER
from cryptosentinel.conversation.masking import Mask
from cryptosentinel.protocol.tool_calls import parse
from tests.attacks import PAYLOADS
from tests.malformed_answers import MALFORMED

ROUNDS = 5
TOOLS = MANAGER.argument_types()
PARSE_LIMIT_MS, MASK_LIMIT_MS = 5.0, 20.0


def run() -> list[Result]:
    """The rows `team.untrusted.answer` and `team.untrusted.text`, each against its limit."""
    texts = [text for text in PAYLOADS.values() if len(text) > 100_000]
    mask = Mask(("AAAUSDT", "BBBUSDT"), True)
    return [
        within("team.untrusted.answer", _slowest([text for text, _ in MALFORMED], _parsed), "ms", PARSE_LIMIT_MS),
        within("team.untrusted.text", _slowest(texts, mask.text), "ms", MASK_LIMIT_MS),
    ]


def _parsed(text: str) -> object:
    return parse(text, TOOLS)


def _slowest(texts: list[str], read: Callable[[str], object]) -> float:
    """Milliseconds of the text that takes longest, the median of several rounds."""
    return max(statistics.median(_milliseconds(read, text) for _ in range(ROUNDS)) for text in texts)


def _milliseconds(read: Callable[[str], object], text: str) -> float:
    began = time.perf_counter()
    read(text)
    return 1e3 * (time.perf_counter() - began)
