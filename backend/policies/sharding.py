"""Models whose weights are divided among several processes: FSDP2 (`torch.distributed.fsdp.fully_shard`).

Each process holds a part of every parameter (1 / processes of its rows). The blocks of the model are gathered one after
another where they compute, and given up again. Embedding, output layer and last norm are gathered together. So a
process needs room for its part, for two blocks and for the outer layers, and not for the whole model.

Every process must make the same passes in the same order, because each takes part in the gathering of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from backend.policies.logprobs import token_logps


class ShardGroup(Protocol):
    """The processes among which models are divided, as one of them sees them."""

    @property
    def leads(self) -> bool:
        """Whether this process decides what all of them do."""
        ...

    def together(self, method: str, *arguments: object) -> AbstractContextManager[None]:
        """Let the other processes call `method` of their policies while a block of the process that leads does its own
        part; in the others nothing happens. Tensors among the arguments have no content (device `meta`)."""
        ...


class Scorer(nn.Module):
    """`token_logps` of a model, as a module: so that the outer layers are gathered for the whole of a pass."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor, temperature: float, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
        """As `token_logps`."""
        return token_logps(self.model, ids, mask, temperature, entropy_gradient)


def divide(
    model: PreTrainedModel, whole_parameters: Collection[nn.Parameter], device: torch.device, compute: torch.dtype
) -> Scorer:
    """Divide a model among the processes of the default group, in place, and bring this process's part to `device`.

    `whole_parameters` stay whole, and the caller brings them there. What is trained is kept and summed in float32, and
    gathered in `compute`. Gradients of the processes are summed, not averaged. All must begin with equal weights.
    """
    # Here, because only a divided model needs them and they take half a second.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    trained = any(one.requires_grad for one in model.parameters() if one not in set(whole_parameters))
    # A frozen base has these numbers already. Without this, autocast would keep a copy of all weights for the backward.
    numbers = MixedPrecisionPolicy(cast_forward_inputs=False)
    if trained:
        numbers = MixedPrecisionPolicy(compute, torch.float32, cast_forward_inputs=False)
    scorer = Scorer(model)
    blocks = [one for one in model.modules() if isinstance(one, GradientCheckpointingLayer)]
    for part in (*blocks, scorer):
        fully_shard(
            part, mesh=mesh, reshard_after_forward=True, mp_policy=numbers, ignored_params=set(whole_parameters)
        )
    for module in scorer.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no other
    return scorer


def whole(tensor: Tensor) -> Tensor:
    """A divided tensor in one piece, on the CPU: all processes must ask for it. Any other tensor as it is."""
    gathered: Callable[[], Tensor] | None = getattr(tensor.detach(), "full_tensor", None)
    return tensor if gathered is None else gathered().cpu()


def spread(tensor: Tensor, like: Tensor, group: ShardGroup | None) -> Tensor:
    """A whole tensor divided as `like` is; itself where that is not divided.

    The first process has the content where it leads, and the others give a tensor without any (device `meta`). Where a
    process that does not lead has the content itself, nothing is sent.
    """
    if group is None:
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor):
        return tensor
    sent = group.leads or tensor.is_meta
    content = torch.empty_like(tensor, device=like.device) if tensor.is_meta else tensor.to(like.device)
    return distribute_tensor(content, like.device_mesh, like.placements, src_data_rank=0 if sent else None)


def without_content(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of the same shapes and types that have no content; a number in a tensor of its own keeps it."""
    return {name: torch.empty_like(one, device="meta") if one.dim() else one for name, one in tensors.items()}
