"""A pass over the tree of what conversations have in common is the pass over each of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from backend.policies import prefix_tree as module
from backend.policies.logprobs import token_logps
from backend.policies.prefix_tree import prefix_tree
from backend.policies.role_policies import PolicyMode, RolePolicies
from backend.training.algorithm.trajectory import Trajectory
from backend.training.learning.batches import TrainingRow, micro_batches

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
    policies = RolePolicies(tiny, ["manager"], mode)
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policies.trainable("manager"):
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=rng))
    return policies


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
