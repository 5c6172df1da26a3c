"""Linear layers as they are trained: each one product, by the kernel that is quickest.

A layer with a LoRA adapter is peft's, which adds W x and (alpha / r) B A x by operations of their own; each of them
reads and writes all activations, and so does the pass back. In float32 the adapter is added to the weights, of which
there are far fewer than activations, as it is where the engine samples; the numbers are the same but for rounding. In
bfloat16 that would round small adapters away, and so does peft, which adds two rounded products: a change below half a
unit of W x is lost. There the adapter stands beside the weights, and the sum is rounded once.

A layer without an adapter is torch's, with products by `cryptosentinel/llm/local/matrices.py`.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from peft.tuners.lora import Linear
from torch import Tensor, nn

from cryptosentinel.llm.local.matrices import product

_EXACT = (torch.float32, torch.float64)


class _WithAdapter(torch.autograd.Function):
    """y = (W + B A) x + b; of W and b, which are frozen, it has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor) -> Tensor:
        """`x` (N, in), `weight` (out, in), `bias` (out,), `down` A (r, in), `up` B (out, r); y is (N, out)."""
        ctx.save_for_backward(x, weight, down, up)
        return product(x, torch.addmm(weight, up, down), bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        x, weight, down, up = ctx.saved_tensors
        grad: Tensor = grads[0]
        inner, of_inner = product(x, down), product(grad, up.t())  # (N, r)
        # Added again and not kept: the sum is as large as the weights, and costs r / N of the product.
        of_x = product(grad, torch.addmm(weight, up, down).t()) if ctx.needs_input_grad[0] else None
        # The narrow matrix first: its transpose is the cheaper one to make.
        return of_x, None, None, product(of_inner.t(), x.t()), product(inner.t(), grad.t()).t()


class BesideAdapter(torch.autograd.Function):
    """y = W x + B A x in the numbers of x, shorter than the adapter's; W has no gradient. B stands beside W and A x
    below x, so that the sum is rounded once and costs no pass over the activations."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, down: Tensor, up: Tensor) -> Tensor:
        """x (N, in), weight W (out, in), down A (r, in), up B (out, r)."""
        inner = x @ down.t()  # (N, r)
        ctx.save_for_backward(x, inner, weight, down, up)
        return torch.cat((x, inner), 1) @ torch.cat((weight, up), 1).t()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        x, inner, weight, down, up = ctx.saved_tensors
        grad: Tensor = grads[0]
        of_x, of_inner = (grad @ torch.cat((weight, up), 1)).split((weight.shape[1], up.shape[1]), 1)
        return of_x + of_inner @ down, None, of_inner.t() @ x, grad.t() @ inner


class _Plain(torch.autograd.Function):
    """y = W x + b."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`x` (N, in), `weight` (out, in), `bias` (out,); y is (N, out)."""
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad: Tensor = grads[0]
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            product(grad, weight.t()) if of_x else None,
            product(x.t(), grad.t()).t() if of_weight else None,
            grad.sum(0) if of_bias else None,
        )


class AdaptedLinear(Linear):
    """Peft's layer, which computes the plain case in one operation: one active adapter, not merged, and everything in
    float32 or float64, or all but the adapter in bfloat16 under autocast. Any other case is peft's own."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """As peft's."""
        adapter = None if args or kwargs else self._adapter_of(x)
        if adapter is None:
            return super().forward(x, *args, **kwargs)
        base = cast(nn.Linear, self.base_layer)
        down, up = self.lora_A[adapter].weight, self.scaling[adapter] * self.lora_B[adapter].weight
        rows = x.reshape(-1, x.shape[-1])
        if x.dtype == torch.bfloat16:
            result = cast(Tensor, BesideAdapter.apply(rows, base.weight, down.to(x.dtype), up.to(x.dtype)))
            result = result if base.bias is None else result + base.bias
        else:
            result = cast(Tensor, _WithAdapter.apply(rows, base.weight, base.bias, down, up))
        return result.view(*x.shape[:-1], -1)

    def _adapter_of(self, x: Tensor) -> str | None:
        """The active adapter of the plain case, None in any other."""
        if self.disable_adapters or self.merged or len(self.active_adapters) != 1:
            return None
        [adapter] = self.active_adapters
        base = self.base_layer
        if adapter not in self.lora_A or adapter in self.lora_variant or self.lora_bias[adapter]:
            return None
        if type(base) not in (nn.Linear, QuickLinear) or base.weight.requires_grad:
            return None
        if not isinstance(self.lora_dropout[adapter], nn.Identity):
            return None
        weight, down = cast(nn.Linear, base).weight, cast(nn.Linear, self.lora_A[adapter]).weight
        return adapter if _exact(x, weight, down) or _short(x, weight) else None


class QuickLinear(nn.Linear):
    """Torch's layer; on a CPU in float32 its products are `product`'s."""

    def forward(self, input: Tensor) -> Tensor:
        """As torch's."""
        if input.device.type != "cpu" or not _exact(input, self.weight):
            return super().forward(input)
        rows = input.reshape(-1, input.shape[-1])
        return cast(Tensor, _Plain.apply(rows, self.weight, self.bias)).view(*input.shape[:-1], -1)


def _exact(x: Tensor, *weights: Tensor) -> bool:
    """Whether all are of one type of numbers, which rounds as little as float32, and products stay in it."""
    alike = all(one.dtype == x.dtype for one in weights)
    return alike and x.dtype in _EXACT and not torch.is_autocast_enabled(x.device.type)


def _short(x: Tensor, weight: Tensor) -> bool:
    """Whether products are in bfloat16, and the layer's input and weights are so already."""
    return x.dtype == weight.dtype == torch.bfloat16 and torch.is_autocast_enabled(x.device.type)


def quicken(model: nn.Module) -> None:
    """Let every linear layer of `model`, with adapters and without, be one of these, in place."""
    for module in model.modules():
        if type(module) is Linear:
            module.__class__ = AdaptedLinear
        elif type(module) is nn.Linear:
            module.__class__ = QuickLinear
