"""What all sections of the configuration share."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


def split_names(text: str) -> tuple[str, ...]:
    """The parts of a list with commas: 'A, B' is ('A', 'B')."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _split(value: Any) -> Any:
    """A text with commas and a list as a tuple; anything else is left to the type's check."""
    if isinstance(value, str):
        return split_names(value)
    return tuple(value) if isinstance(value, list) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_split)]

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
PositionShare = Annotated[float, Field(gt=0.0, le=1.0)]

Rate = Annotated[float, Field(gt=0.0, le=0.1)]

RewardWeights = tuple[Fraction, Fraction, Fraction]

LoraRank = Annotated[int, Field(ge=1, le=256)]

_PLUGIN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # module:NAME


def name_or_plugin(what: str, known: Sequence[str]) -> AfterValidator:
    """A check of a text: one of the `known` names, or module:NAME of the user's own."""

    def check(text: str) -> str:
        if text not in known and not _PLUGIN.fullmatch(text):
            raise ValueError(
                f"'{text}' is not a {what}{suggestion(text, known)}; there are {', '.join(known)}, or one of your own "
                "as module:NAME"
            )
        return text

    return AfterValidator(check)


class Section(BaseModel):
    """Base of all sections: frozen, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def suggestion(word: str, known: Sequence[str]) -> str:
    """` (did you mean 'x'?)` for what is close to a known word, else nothing."""
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""
