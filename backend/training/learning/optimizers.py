"""The optimizers that a role may be trained with, and their states as tensors and plain numbers for a checkpoint.

adamw      AdamW (arXiv 1711.05101): two moments a parameter
adafactor  Adafactor (arXiv 1804.04235) as transformers has it, with the rate that is given and no momentum: a row
           and a column of second moments a matrix instead of the whole, which is next to nothing for a whole model
adamw8bit  AdamW whose moments are eight-bit numbers with a scale for each 256 of them (arXiv 2110.02861), by
           bitsandbytes on a GPU; parameters of fewer than 4,096 numbers keep whole moments
sgd        stochastic gradient descent with a momentum of 0.9. Rates that suit AdamW, whose steps do not shrink with
           the gradient, are far too small for it

None of them decays weights: an adapter begins at 0 and is small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.optimization import Adafactor

OptimizerName = Literal["adamw", "adamw8bit", "adafactor", "sgd"]
MOMENTUM = 0.9
BETAS = (0.9, 0.95)  # AdamW's decay rates of the two moments


class RoleOptimizer:
    """The optimizer of one role's parameters."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        name: OptimizerName,
        lr: float,
    ) -> None:
        self._parameters = parameters
        self._optimizer = make_optimizer(parameters, name, lr)

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
        """As `optimizer_state`."""
        return optimizer_state(self._optimizer)

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, float]) -> None:
        """Continue from `state`. Raises as `restore_optimizer`."""
        restore_optimizer(self._optimizer, self._parameters, tensors, numbers)


def make_optimizer(parameters: Sequence[nn.Parameter], name: OptimizerName, lr: float) -> torch.optim.Optimizer:
    """An optimizer over `parameters` in their order."""
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, betas=BETAS, weight_decay=0.0, fused=True)
    if name == "adamw8bit":
        from bitsandbytes.optim import AdamW8bit

        made: torch.optim.Optimizer = AdamW8bit(parameters, lr=lr, betas=BETAS, weight_decay=0.0)
        return made
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM)
    return Adafactor(parameters, lr=lr, scale_parameter=False, relative_step=False, warmup_init=False)


def optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, float]]:
    """What the optimizer remembers, by `{parameter}.{name}`: tensors, and numbers that are none."""
    entries: dict[str, Any] = {}
    for index, entry in optimizer.state_dict()["state"].items():
        for name, value in entry.items():
            inner = value if isinstance(value, Mapping) else None  # as bitsandbytes has what is quantised
            parts = {f"{name}.{key}": one for key, one in inner.items()} if inner is not None else {name: value}
            entries |= {f"{index}.{key}": one for key, one in parts.items()}
    tensors = {key: value for key, value in entries.items() if isinstance(value, Tensor)}
    return tensors, {key: value for key, value in entries.items() if key not in tensors}


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[nn.Parameter],
    tensors: Mapping[str, Tensor],
    numbers: Mapping[str, float],
) -> None:
    """Make the optimizer continue from `optimizer_state`.

    Raises ValueError, and changes nothing, where the state belongs to other parameters.
    """
    state: dict[int, dict[str, Any]] = {}
    for key, value in [*tensors.items(), *numbers.items()]:
        index, *outer, name = key.split(".")
        entry = state.setdefault(int(index), {})
        for part in outer:
            entry = entry.setdefault(part, {})
        entry[name] = value
    if state and state.keys() != set(range(len(parameters))):
        raise ValueError(f"it is of {len(state)} parameters, not of {len(parameters)}")
    for number, entry in state.items():
        shape = parameters[number].shape
        # Of the shape of the parameter, its rows or its columns; a count of steps has none.
        allowed = (torch.Size(), shape, shape[:-1], shape[:-2] + shape[-1:])
        odd = [
            (name, value.shape)
            for name, value in entry.items()
            if isinstance(value, Tensor) and value.shape not in allowed
        ]
        for quantised in (value for value in entry.values() if isinstance(value, Mapping)):
            # Scales and tables beside the moments have shapes of their own.
            odd += [(name, quantised[name].shape) for name in ("state1", "state2") if quantised[name].shape != shape]
        if odd:
            name, other = odd[0]
            raise ValueError(f"{name} of parameter {number} is {tuple(other)}, it {tuple(shape)}")
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
