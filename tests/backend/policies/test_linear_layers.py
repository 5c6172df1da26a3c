"""Linear layers as they are trained are peft's and torch's, in value and in every gradient."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peft import LoraConfig, LoraModel, PeftModel, get_peft_model
from peft.tuners.lora import Linear
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from backend.policies import prefix_tree as module
from backend.policies.linear_layers import AdaptedLinear, BesideAdapter, QuickLinear, quicken
from backend.policies.logprobs import _OfTargets, token_logps
from backend.policies.prefix_tree import prefix_tree
from backend.policies.role_policies import PolicyMode, RolePolicies
from backend.training.algorithm.trajectory import Trajectory
from backend.training.learning.batches import TrainingRow, micro_batches
from cryptosentinel.llm.local.matrices import QUICK_FROM
from tests.small_world import disturb


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
        for layer in model.modules():
            if isinstance(layer, Linear):
                layer.base_layer.to(torch.bfloat16)
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


def plainly(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Both as they are defined."""
    log_probs = torch.log_softmax(logits, -1)
    return log_probs.gather(-1, targets[:, None]), -(log_probs.exp() * log_probs).sum(-1, keepdim=True)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 9), st.sampled_from([0.1, 1.0, 30.0]), st.integers(0, 10_000))
def test_values_and_gradients_are_those_of_the_definition(rows: int, words: int, scale: float, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, words, generator=rng, dtype=torch.float64)
    targets = torch.randint(0, words, (rows,), generator=rng)
    weights = torch.randn(2, rows, 1, generator=rng, dtype=torch.float64)
    for entropy_gradient in (False, True):
        found, expected = logits.clone().requires_grad_(), logits.clone().requires_grad_()
        ours, theirs = _OfTargets.apply(found, targets, entropy_gradient), plainly(expected, targets)
        torch.testing.assert_close(ours, theirs)
        assert ours[1].requires_grad == entropy_gradient
        (ours[0] * weights[0] + ours[1] * weights[1]).sum().backward()
        entropies = theirs[1] if entropy_gradient else theirs[1].detach()
        (theirs[0] * weights[0] + entropies * weights[1]).sum().backward()
        torch.testing.assert_close(found.grad, expected.grad)


def test_a_word_that_cannot_be_said_adds_nothing() -> None:
    """Its logit is minus infinity, or so low that its probability is 0 in float32."""
    logits = torch.tensor([[0.0, float("-inf"), 1.0, -1e4]], requires_grad=True)
    logps, entropy = _OfTargets.apply(logits, torch.tensor([2]), True)
    short = logits.detach()[:, [0, 2]].requires_grad_()
    wanted_logps, wanted_entropy = plainly(short, torch.tensor([1]))
    torch.testing.assert_close(logps, wanted_logps)
    torch.testing.assert_close(entropy, wanted_entropy)
    (logps + entropy).sum().backward()
    (wanted_logps + wanted_entropy).sum().backward()
    assert logits.grad is not None and short.grad is not None
    assert torch.equal(logits.grad[0, [1, 3]], torch.zeros(2))
    torch.testing.assert_close(logits.grad[:, [0, 2]], short.grad)


def test_large_logits_overflow_nothing() -> None:
    logits = torch.full((1, 3), 3e38)
    logps, entropy = _OfTargets.apply(logits, torch.tensor([1]), False)
    assert logps.item() == pytest.approx(-1.0986123) and entropy.item() == pytest.approx(1.0986123)


Make = Callable[..., Trajectory]
CPU = torch.device("cpu")


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """ids and mask (B, T): groups of conversations that grow from common beginnings, some equal, some of nothing but a
    prompt, with several turns, padded on the right with what may be anything."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows: list[tuple[list[int], list[bool]]] = []
    system = rng.integers(0, 40, rng.integers(1, 8)).tolist()
    for _ in range(draw(st.integers(1, 3))):
        brief = system[: rng.integers(1, len(system) + 1)] + rng.integers(0, 40, rng.integers(0, 8)).tolist()
        group: list[tuple[list[int], list[bool]]] = [(brief, [False] * len(brief))]
        for _ in range(draw(st.integers(1, 5))):
            ids, mask = group[rng.integers(len(group))]
            cut = int(rng.integers(len(brief), len(ids) + 1))  # goes its own way from here, maybe not at all
            said, told = int(rng.integers(0, 6)), int(rng.integers(0, 4))
            more = rng.integers(0, 4, said + told).tolist()
            group.append((ids[:cut] + more, mask[:cut] + [True] * said + [False] * told))
        rows += group[1:]
    length = max(2, max(len(ids) for ids, _ in rows) + draw(st.integers(0, 2)))
    padded, sampled = rng.integers(0, 40, (len(rows), length)), np.zeros((len(rows), length), np.bool_)
    for row, (tokens, learnt) in enumerate(rows):
        padded[row, : len(tokens)], sampled[row, : len(tokens)] = tokens, learnt
    sampled[0, 1] = True  # at least one token is sampled
    return torch.from_numpy(padded), torch.from_numpy(sampled)


def policies_of(tiny: Qwen3ForCausalLM, mode: PolicyMode) -> RolePolicies:
    return disturb(RolePolicies(tiny, ["manager"], mode), size=0.05, seed=1)


def passed(
    monkeypatch: pytest.MonkeyPatch, worthwhile: float, policies: RolePolicies, ids: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Log-probs, entropies and the gradients of a sum in which each of them has another weight."""
    monkeypatch.setattr(module, "WORTHWHILE", worthwhile)
    logps, entropy = policies.logps("manager", ids, mask, 0.7, True)
    weight = torch.randn(2, *ids.shape, generator=torch.Generator().manual_seed(2))
    gradients = torch.autograd.grad((weight[0] * logps + weight[1] * entropy).sum(), policies.trainable("manager"))
    return logps.detach(), entropy.detach(), list(gradients)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("mode", ["lora", "full"])
def test_values_and_gradients_are_those_of_the_plain_pass(
    tiny: Qwen3ForCausalLM, monkeypatch: pytest.MonkeyPatch, mode: PolicyMode, checkpointing: bool
) -> None:
    policies = policies_of(tiny, mode)
    if checkpointing:  # the blocks are computed again in the backward pass, outside of the forward pass's settings
        model = policies.activate("manager")
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()

    @settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
    @given(batches())
    def law(batch: tuple[Tensor, Tensor]) -> None:
        plain, shared = (passed(monkeypatch, share, policies, *batch) for share in (0.0, np.inf))
        for want, got in zip((*plain[:2], *plain[2]), (*shared[:2], *shared[2]), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5 * max(1.0, want.abs().max().item()))

    law()


@settings(max_examples=200, deadline=None)
@given(batches())
def test_the_tree_has_one_node_for_each_distinct_beginning(batch: tuple[Tensor, Tensor]) -> None:
    ids, mask = (one.numpy() for one in batch)
    lengths = np.where(mask.any(1), mask.shape[1] - 1 - np.argmax(mask[:, ::-1], 1), 0)
    tree = prefix_tree(ids, lengths, CPU)
    seen = {
        (row, position): tuple(ids[row, : position + 1].tolist())
        for row, length in enumerate(lengths)
        for position in range(length)
    }
    beginnings: dict[int, tuple[int, ...]] = {}
    for (row, position), beginning in seen.items():
        assert beginnings.setdefault(int(tree.nodes[row, position]), beginning) == beginning
    assert len(set(beginnings.values())) == len(beginnings) == len(tree.ids)
    assert sorted(beginnings) == list(range(len(tree.ids)))
    for node, beginning in beginnings.items():
        assert tree.ids[node] == beginning[-1]
        assert tree.positions[node] == len(beginning) - 1
    asked = torch.cat([block.queries.flatten() for block in tree.blocks])
    assert asked[tree.places].tolist() == list(range(len(tree.ids)))
    assert len(asked) < 2 * len(tree.ids), "padding at most doubles the queries"


def test_only_what_saves_enough_is_shared(tiny: Qwen3ForCausalLM) -> None:
    passes: list[int] = []
    tiny.model.layers[0].register_forward_pre_hook(lambda module, given: passes.append(given[0].shape[:-1].numel()))
    ids = torch.randint(0, 40, (4, 21), generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(ids.shape, dtype=torch.bool)
    mask[:, 15:] = True
    token_logps(tiny, ids, mask)
    ids[:, :11] = ids[:1, :11]
    token_logps(tiny, ids, mask)
    assert passes == [4 * 20, 11 + 4 * 9], "all tokens but the last of each; then the common ones once"


def test_a_model_with_windows_makes_the_plain_pass(tiny: Qwen3ForCausalLM) -> None:
    """`attend` has no window."""
    shape = tiny.config.to_dict() | {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
    model = Qwen3ForCausalLM(Qwen3Config(**{**shape, "layer_types": None})).eval()
    assert model.model.has_sliding_layers
    ids = torch.randint(0, 40, (1, 21), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(21) > 15
    alone, many = (token_logps(model, ids.repeat(rows, 1), mask.repeat(rows, 1))[0] for rows in (1, 4))
    torch.testing.assert_close(many, alone.expand(4, -1), rtol=0.0, atol=1e-6)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.integers(0, 2**32 - 1), st.integers(1, 200))
def test_micro_batches_keep_to_their_budget_and_groups_together(make: Make, seed: int, budget: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [
        TrainingRow(make(i, prompt=int(rng.integers(2, 30)), query=f"q{rng.integers(3)}"), 1.0, 1.0)
        for i in rng.permutation(9)
    ]
    found = list(micro_batches(rows, budget))
    assert sorted(id(row) for part in found for row in part) == sorted(id(row) for row in rows)
    for part in found:
        assert len(part) == 1 or len(part) * max(row.length for row in part) <= budget
    queries = [row.trajectory.query for part in found for row in part]
    assert sum(a != b for a, b in pairwise(queries)) == len(set(queries)) - 1
