"""What all sections of the configuration share."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from cryptosentinel.team_settings import split_value

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
PositionShare = Annotated[float, Field(gt=0.0, le=1.0)]
Shares = Annotated[tuple[PositionShare, PositionShare], BeforeValidator(split_value)]

Rate = Annotated[float, Field(gt=0.0, le=0.1)]

RewardWeights = tuple[Fraction, Fraction, Fraction]

LoraRank = Annotated[int, Field(ge=0, le=256)]

_PLUGIN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # module:NAME


def name_or_plugin(what: str, known: Sequence[str]) -> AfterValidator:
    """A check of a text: one of the `known` names, or module:NAME of the user's own."""

    def check(text: str) -> str:
        if text not in known and not _PLUGIN.fullmatch(text):
            raise ValueError(
                f"'{text}' is not a known {what}{suggestion(text, known)}; there are {', '.join(known)}, or your "
                "own as module:NAME"
            )
        return text

    return AfterValidator(check)


def suggestion(word: str, known: Sequence[str]) -> str:
    """` (did you mean 'x'?)` for what is close to a known word, else nothing."""
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""
