"""The optimizers that a role may be trained with, and their states as tensors and plain numbers for a checkpoint.

adamw      AdamW (arXiv 1711.05101): two moments a parameter, its decay apart from the gradient
adafactor  Adafactor (arXiv 1804.04235) as transformers has it, with the rate that is given and no momentum: a row
           and a column of second moments a matrix instead of the whole, which is next to nothing for a whole model
sgd        stochastic gradient descent with a momentum of 0.9; its decay is added to the gradient. Rates that suit
           AdamW, whose steps do not shrink with the gradient, are far too small for it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.optimization import Adafactor

OptimizerName = Literal["adamw", "adafactor", "sgd"]
MOMENTUM = 0.9


def make_optimizer(
    parameters: Sequence[nn.Parameter], name: OptimizerName, lr: float, betas: tuple[float, float], weight_decay: float
) -> torch.optim.Optimizer:
    """An optimizer over `parameters` in their order; `betas` are AdamW's."""
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, betas=betas, weight_decay=weight_decay, fused=True)
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM, weight_decay=weight_decay)
    return Adafactor(
        parameters, lr=lr, weight_decay=weight_decay, scale_parameter=False, relative_step=False, warmup_init=False
    )


def optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, float]]:
    """What the optimizer remembers, by `{parameter}.{name}`: tensors, and numbers that are none."""
    entries = {
        f"{index}.{name}": value
        for index, entry in optimizer.state_dict()["state"].items()
        for name, value in entry.items()
    }
    tensors = {key: value for key, value in entries.items() if isinstance(value, Tensor)}
    return tensors, {key: value for key, value in entries.items() if key not in tensors}


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[nn.Parameter],
    tensors: Mapping[str, Tensor],
    numbers: Mapping[str, float],
) -> None:
    """Make the optimizer go on from `optimizer_state`. Raises ValueError, and changes nothing, where that belongs to
    other parameters."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in [*tensors.items(), *numbers.items()]:
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    if state and state.keys() != set(range(len(parameters))):
        raise ValueError(f"it is of {len(state)} parameters, not of {len(parameters)}")
    for number, entry in state.items():
        shape = parameters[number].shape
        # Of the shape of the parameter, its rows or its columns; a count of steps has none.
        allowed = (torch.Size(), shape, shape[:-1], shape[:-2] + shape[-1:])
        odd = [name for name, value in entry.items() if isinstance(value, Tensor) and value.shape not in allowed]
        if odd:
            raise ValueError(f"{odd[0]} of parameter {number} is {tuple(entry[odd[0]].shape)}, it {tuple(shape)}")
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
