"""A linear layer with a LoRA adapter as one operation, in the place of peft's.

Peft adds W x and (alpha / r) B A x by operations of their own, each of which reads and writes all activations, and so
does the pass back. Here both products go into one sum, and the scale onto B, which is small. The numbers are the same
but for the rounding of float32.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from peft.tuners.lora import Linear
from torch import Tensor, nn
from torch.nn import functional


class _Product(torch.autograd.Function):
    """y = W x + b + B A x; of W and b, which are frozen, it has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor) -> Tensor:
        """`x` (N, in), `weight` (out, in), `bias` (out,), `down` A (r, in), `up` B (out, r); y is (N, out)."""
        inner = functional.linear(x, down)
        ctx.save_for_backward(x, weight, down, up, inner)
        return _plus_product(functional.linear(x, weight, bias), inner, up.t())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        x, weight, down, up, inner = ctx.saved_tensors
        grad: Tensor = grads[0]
        of_inner = grad @ up
        of_x = _plus_product(grad @ weight, of_inner, down) if ctx.needs_input_grad[0] else None
        return of_x, None, None, of_inner.t() @ x, grad.t() @ inner


def _plus_product(into: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """`into` plus left @ right, in place; not `addmm_`, which torch's counter of operations leaves out."""
    return torch.addmm(into, left, right, out=into)


class FusedLinear(Linear):
    """Peft's layer, which computes the plain case in one operation: one active adapter, not merged, and everything in
    one type of number. Any other case is peft's own."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """As peft's."""
        adapter = None if args or kwargs else self._plain(x)
        if adapter is None:
            return super().forward(x, *args, **kwargs)
        base = cast(nn.Linear, self.base_layer)
        down, up = self.lora_A[adapter].weight, self.scaling[adapter] * self.lora_B[adapter].weight
        rows = x.reshape(-1, x.shape[-1])
        return cast(Tensor, _Product.apply(rows, base.weight, base.bias, down, up)).view(*x.shape[:-1], -1)

    def _plain(self, x: Tensor) -> str | None:
        """The active adapter of the plain case, None in any other."""
        if self.disable_adapters or self.merged or len(self.active_adapters) != 1:
            return None
        [adapter] = self.active_adapters
        base = self.base_layer
        if adapter not in self.lora_A or adapter in self.lora_variant or self.lora_bias[adapter]:
            return None
        if type(base) is not nn.Linear or base.weight.requires_grad or torch.is_autocast_enabled(x.device.type):
            return None
        if not isinstance(self.lora_dropout[adapter], nn.Identity):
            return None
        return adapter if x.dtype == base.weight.dtype == self.lora_A[adapter].weight.dtype else None


def fuse(model: nn.Module) -> None:
    """Let every layer of `model` that has adapters be a `FusedLinear`, in place."""
    for module in model.modules():
        if type(module) is Linear:
            module.__class__ = FusedLinear
