"""What the tests of training share: a look at the gradients of each optimizer step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook


@pytest.fixture
def gradients() -> Iterator[list[list[Tensor]]]:
    """The gradients that each optimizer step was given, in order."""
    seen: list[list[Tensor]] = []

    def note(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        parameters = optimizer.param_groups[0]["params"]
        seen.append([torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters])

    hook = register_optimizer_step_pre_hook(note)
    yield seen
    hook.remove()
