"""The tone of a headline by the words in it: crude, but code, and the same for everybody who asks."""

from __future__ import annotations

import re

_POSITIVE = re.compile(
    r"\b(?:rall\w*|surg\w*|soar\w*|jump\w*|gain\w*|bull\w*|inflow\w*|adopt\w*|adds|beats?|clears|custody|partner\w*|"
    r"approv\w*|upgrade\w*|strong\w*|grow\w*|rises?|rising|buy\w*|accumulat\w*|demand|optimis\w*|success\w*|boost\w*|"
    r"support\w*|launch\w*)\b",
    re.IGNORECASE,
)
_NEGATIVE = re.compile(
    r"\b(?:crash\w*|plung\w*|drop\w*|fall\w*|fell|bear\w*|hack\w*|exploit\w*|outflow\w*|lawsuit|bans?|banned|sell\w*|weak\w*|"
    r"fear\w*|liquidat\w*|fraud\w*|delay\w*|declin\w*|slump\w*|loss\w*|probe\w*|warn\w*|outage\w*|reject\w*|halt\w*|"
    r"closes|sue[sd]?)\b",
    re.IGNORECASE,
)


def tone(text: str) -> int:
    """+1, 0 or -1 by which kind of word a headline has more of."""
    balance = len(_POSITIVE.findall(text)) - len(_NEGATIVE.findall(text))
    return (balance > 0) - (balance < 0)
