"""What the settings of LoRA adapters (arXiv 2106.09685) may name."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from backend.sections import Names

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")  # of a Qwen3 block


def _known(targets: tuple[str, ...]) -> tuple[str, ...]:
    odd = [name for name in targets if name not in LINEARS]
    if odd:
        raise ValueError(f"'{odd[0]}' is no linear layer of a Qwen3 block; there are {', '.join(LINEARS)}")
    if len(set(targets)) != len(targets):
        raise ValueError(f"{', '.join(targets)} names a layer twice")
    return targets


Targets = Annotated[Names, Field(min_length=1), AfterValidator(_known)]
Rank = Annotated[int, Field(ge=1, le=256)]
Alpha = Annotated[int, Field(ge=0, le=4096)]
