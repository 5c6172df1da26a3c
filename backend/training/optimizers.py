"""AdamW (arXiv 1711.05101) over some parameters, and its state as tensors and plain numbers for a checkpoint.

`adamw8bit` keeps its two moments as eight-bit numbers with a scale for each 256 of them (arXiv 2110.02861), by
bitsandbytes on a GPU; parameters of fewer than 4,096 numbers keep whole moments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

OptimizerName = Literal["adamw", "adamw8bit"]
BETAS = (0.9, 0.95)  # decay rates of the two moments


class AdamW:
    """The optimizer of `parameters` in their order. Adapters begin at 0 and are small, so by itself nothing decays."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], lr: float, name: OptimizerName = "adamw", weight_decay: float = 0.0
    ) -> None:
        self._parameters = parameters
        self._optimizer: torch.optim.Optimizer
        if name == "adamw8bit":
            from bitsandbytes.optim import AdamW8bit

            self._optimizer = AdamW8bit(parameters, lr=lr, betas=BETAS, weight_decay=weight_decay)
        else:
            self._optimizer = torch.optim.AdamW(parameters, lr=lr, betas=BETAS, weight_decay=weight_decay, fused=True)

    def clip(self, most: float) -> float:
        """Scale the gradient to this norm where it is longer; its norm before."""
        return float(torch.nn.utils.clip_grad_norm_(self._parameters, most))

    def step(self, lr: float) -> None:
        """One step along the gradient."""
        for param_group in self._optimizer.param_groups:
            param_group["lr"] = lr
        self._optimizer.step()

    def zero_grad(self) -> None:
        """Forget the gradient."""
        self._optimizer.zero_grad()

    def state(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        """What the optimizer remembers, by `{parameter}.{name}`: tensors, and plain numbers."""
        entries: dict[str, Any] = {}
        for index, entry in self._optimizer.state_dict()["state"].items():
            for name, value in entry.items():
                # As bitsandbytes has what is quantised.
                parts = {f"{name}.{key}": one for key, one in value.items()} if isinstance(value, Mapping) else None
                entries |= {f"{index}.{key}": one for key, one in (parts or {name: value}).items()}
        tensors = {key: value for key, value in entries.items() if isinstance(value, Tensor)}
        return tensors, {key: value for key, value in entries.items() if key not in tensors}

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, float]) -> None:
        """Continue from `state`. Raises ValueError, and changes nothing, where that belongs to other parameters."""
        state: dict[int, dict[str, Any]] = {}
        for key, value in [*tensors.items(), *numbers.items()]:
            index, *outer, name = key.split(".")
            entry = state.setdefault(int(index), {})
            for part in outer:
                entry = entry.setdefault(part, {})
            entry[name] = value
        if state and state.keys() != set(range(len(self._parameters))):
            raise ValueError(f"it is of {len(state)} parameters, not of {len(self._parameters)}")
        for number, entry in state.items():
            shape = self._parameters[number].shape
            # A count of steps has no shape; scales and tables beside quantised moments have shapes of their own.
            moments = {name: value for name, value in entry.items() if isinstance(value, Tensor) and value.dim()}
            for quantised in (value for value in entry.values() if isinstance(value, Mapping)):
                moments |= {name: quantised[name] for name in ("state1", "state2")}
            for name, value in moments.items():
                if value.shape != shape:
                    raise ValueError(f"{name} of parameter {number} is {tuple(value.shape)}, it {tuple(shape)}")
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state, "param_groups": groups})
