"""Linear layers as they are trained are peft's and torch's, in value and in every gradient."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, LoraModel, PeftModel, get_peft_model
from peft.tuners.lora import Linear
from torch import Tensor, nn

from backend.policies.linear_layers import AdaptedLinear, BesideAdapter, QuickLinear, quicken
from cryptosentinel.llm.local.matrices import QUICK_FROM


class _Layers(nn.Module):
    """Two layers, the second of which has a bias."""

    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, wide, bias=False)
        self.second = nn.Linear(wide, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


def with_adapters(width: int, wide: int, rank: int, dtype: torch.dtype = torch.float64, **config: Any) -> PeftModel:
    """A frozen model with the adapters `one`, which is active, and `two`; neither is 0."""
    shape = LoraConfig(r=rank, lora_alpha=3 * rank, target_modules=["first", "second"], **config)
    model = get_peft_model(_Layers(width, wide).to(dtype), shape, adapter_name="one")
    assert isinstance(model, PeftModel)
    model.add_adapter("two", shape)
    model.to(dtype)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            nn.init.normal_(parameter)
    return model


def both(model: PeftModel) -> tuple[PeftModel, PeftModel]:
    """The model as it is, and a copy with our layers."""
    quick = copy.deepcopy(model)
    quicken(quick)
    assert sum(type(module) is AdaptedLinear for module in quick.modules()) == 2
    return model, quick


def answer(model: PeftModel, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The output at `x`, and the gradients of x and of all parameters that have one."""
    x = x.clone().requires_grad_()
    out = model(x)
    out.square().sum().backward()
    assert x.grad is not None
    grads = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return out, {"x": x.grad, **grads}


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_value_and_gradients_are_those_of_peft(width: int, wide: int, rank: int, rows: list[int]) -> None:
    torch.manual_seed(width * wide + rank)
    theirs, ours = both(with_adapters(width, wide, rank))
    x = torch.randn(*rows, width, dtype=torch.float64)
    (expected, wanted), (found, had) = answer(theirs, x), answer(ours, x)
    torch.testing.assert_close(found, expected)
    assert found.shape == expected.shape and had.keys() == wanted.keys()
    assert {name.split(".")[-2] for name in had if name != "x"} == {"one"}, "the other adapter and the base have none"
    for name, gradient in wanted.items():
        torch.testing.assert_close(had[name], gradient)


def as_exact(ours: Tensor, theirs: Tensor, right: Tensor) -> None:
    """Of two tensors of float32, ours is about as near to what is right."""
    assert (ours - right).abs().max() <= 2 * (theirs - right).abs().max() + 1e-6 * right.abs().max()


@pytest.mark.parametrize("bias", [False, True])
def test_large_layers_are_as_exact_as_torch_s(bias: bool) -> None:
    """So large that the products are oneDNN's, in float32; what is right is said by float64."""
    torch.manual_seed(3)
    exact = nn.Linear(160, 210, bias=bias, dtype=torch.float64)
    x = torch.randn(4, 90, 160, dtype=torch.float64)
    plain = copy.deepcopy(exact).float()
    quick = copy.deepcopy(plain)
    quicken(quick)
    assert type(quick) is QuickLinear and 4 * 90 * quick.weight.numel() > QUICK_FROM
    outputs_and_gradients = []
    for layer, dtype in ((exact, torch.float64), (plain, torch.float32), (quick, torch.float32)):
        layer_input = x.to(dtype, copy=True).requires_grad_()
        output = layer(layer_input)
        output.square().sum().backward()
        gradients = [layer_input.grad, *(parameter.grad for parameter in layer.parameters())]
        outputs_and_gradients.append([output.detach(), *gradients])
    for right, theirs, ours in zip(*outputs_and_gradients, strict=True):
        assert right is not None and theirs is not None and ours is not None
        as_exact(ours, theirs, right)


def test_large_layers_with_adapters_are_as_exact_as_peft_s() -> None:
    torch.manual_seed(4)
    exact = with_adapters(160, 210, 8)
    theirs, ours = both(copy.deepcopy(exact).float())
    x = torch.randn(300, 160, dtype=torch.float64) / 50.0  # tanh is nowhere flat
    assert x.shape[0] * 160 * 210 > QUICK_FROM
    (right, wanted), (value, plain), (found, had) = answer(exact, x), answer(theirs, x.float()), answer(ours, x.float())
    for name, gradient in wanted.items():
        as_exact(had[name], plain[name], gradient)
    as_exact(found, value, right)


def tuner(model: PeftModel) -> LoraModel:
    """What peft keeps between its wrapper and the model."""
    assert isinstance(model.base_model, LoraModel)
    return model.base_model


CASES: dict[str, Callable[[PeftModel], object]] = {
    "both adapters": lambda model: tuner(model).set_adapter(["one", "two"]),
    "merged": lambda model: model.merge_adapter(),
    "no adapter": lambda model: tuner(model).disable_adapter_layers(),
}


@pytest.mark.parametrize("case", CASES)
def test_any_other_case_is_peft_s_own(case: str) -> None:
    torch.manual_seed(1)
    theirs, ours = both(with_adapters(6, 5, 2))
    x = torch.randn(7, 6, dtype=torch.float64)
    plain = ours(x)
    for model in (theirs, ours):
        CASES[case](model)
    assert torch.equal(ours(x), theirs(x))
    assert case == "merged" or not torch.allclose(ours(x), plain)


def test_numbers_of_two_kinds_are_near_peft_s() -> None:
    """A base in bfloat16 that has adapters in float32: under autocast by one product, else peft's own."""
    theirs, ours = both(with_adapters(6, 5, 2, torch.float32))
    x = torch.randn(7, 6)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(ours(x), theirs(x)), "the base is not"
    for model in (theirs, ours):
        for module in model.modules():
            if isinstance(module, Linear):
                module.base_layer.to(torch.bfloat16)
    short = x.to(torch.bfloat16)
    assert torch.equal(ours(short), theirs(short)), "no autocast"
    with torch.autocast("cpu", torch.bfloat16):
        (found, had), (expected, wanted) = answer(ours, short), answer(theirs, short)
    assert found.dtype == expected.dtype and not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)
    for name, gradient in wanted.items():
        assert had[name].dtype == gradient.dtype
        assert (had[name] - gradient).float().norm() < 0.03 * gradient.float().norm()


def test_the_gradient_beside_the_weights_is_that_of_the_products() -> None:
    rng = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, generator=rng, dtype=torch.float64)
    x, down, up = (draw(*shape).requires_grad_() for shape in ((5, 4), (2, 4), (3, 2)))
    weight = draw(3, 4)
    torch.testing.assert_close(BesideAdapter.apply(x, weight, down, up), x @ weight.t() + x @ down.t() @ up.t())
    assert torch.autograd.gradcheck(lambda x, down, up: BesideAdapter.apply(x, weight, down, up), (x, down, up))


def test_a_small_adapter_is_not_rounded_away() -> None:
    """What an adapter adds after a few steps is far below the half unit of bfloat16 of what it is added to: peft rounds
    the sum of two rounded products, in which it is lost; here the sum is rounded once, and its mean shows."""
    rng = torch.Generator().manual_seed(1)
    x, weight, down, up = (torch.randn(*shape, generator=rng) for shape in ((4096, 64), (256, 64), (4, 64), (256, 4)))
    x, weight, down, up = (one.bfloat16() for one in (x, weight, down, 1e-4 * up))
    change = (x.float() @ down.float().t()) @ up.float().t()
    plain = x @ weight.t()

    def share_of_it(result: Tensor) -> float:
        return float(((result.float() - plain.float()) * change).sum() / change.square().sum())

    assert share_of_it(BesideAdapter.apply(x, weight, down, up)) == pytest.approx(1.0, abs=0.1)
    assert share_of_it(plain + (x @ down.t()) @ up.t()) < 0.3
