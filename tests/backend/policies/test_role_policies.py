"""Role policies: right log-probs, apart from each other, merged without a trace, and only loaded where they belong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from backend.policies.logprobs import token_logps
from backend.policies.role_policies import PolicyMode, RolePolicies
from backend.policies.tensor_files import write_tensors
from backend.training.algorithm.trajectory import Trajectory, pad_trajectories
from simulator.errors import UserError
from tests.standard_settings import lora_settings

Make = Callable[..., Trajectory]
ROLES = ("manager", "trader")
MODES: tuple[PolicyMode, ...] = ("lora", "full")


def tokens(make: Make) -> tuple[Tensor, Tensor]:
    """ids and mask (3, T) of trajectories of different lengths."""
    batch = pad_trajectories([make(1), make(2, prompt=2, answer=2), make(3, prompt=9)])
    return batch.ids, batch.mask


def disturb(policies: RolePolicies, role: str, seed: int = 0) -> None:
    """As after some training: every parameter of the role moved."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policies.trainable(role):
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=rng))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logps_are_those_of_each_unpadded_row(tiny: Qwen3ForCausalLM, make: Make, temperature: float) -> None:
    ids, mask = tokens(make)
    logps, entropy = token_logps(tiny, ids, mask, temperature)
    assert logps.shape == entropy.shape == ids.shape
    assert (logps[~mask] == 0.0).all() and (entropy[~mask] == 0.0).all()
    for row in range(len(ids)):
        for t in mask[row].nonzero().flatten().tolist():
            logits = tiny(ids[row : row + 1, :t]).logits[0, -1] / temperature  # the prefix alone, nothing after it
            distribution = torch.distributions.Categorical(logits=logits)
            assert logps[row, t].item() == pytest.approx(distribution.log_prob(ids[row, t]).item(), abs=1e-5)
            assert entropy[row, t].item() == pytest.approx(distribution.entropy().item(), abs=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_roles_start_as_the_base_and_move_apart(tiny: Qwen3ForCausalLM, make: Make, mode: PolicyMode) -> None:
    ids, mask = tokens(make)
    policies = RolePolicies(tiny, ROLES, mode)
    base = token_logps(tiny, ids, mask)[0]
    before = policies.logps("manager", ids, mask)[0].detach()
    torch.testing.assert_close(before, base)
    disturb(policies, "trader")
    trader = policies.logps("trader", ids, mask)[0].detach()
    assert (trader - base).abs().max() > 0.01
    torch.testing.assert_close(policies.reference_logps("trader", ids, mask), base)
    assert torch.equal(policies.logps("trader", ids, mask)[0], trader), "the reference pass leaves no trace"
    assert torch.equal(policies.logps("manager", ids, mask)[0], before)


@pytest.mark.parametrize("mode", MODES)
def test_a_gradient_reaches_one_role_only(tiny: Qwen3ForCausalLM, make: Make, mode: PolicyMode) -> None:
    policies = RolePolicies(tiny, ROLES, mode)
    for role in ROLES:
        disturb(policies, role)
    policies.reference_logps("trader", *tokens(make))
    policies.logps("trader", *tokens(make))[0].sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in policies.trainable("trader"))
    assert all(parameter.grad is None for parameter in policies.trainable("manager"))
    assert not {id(p) for p in policies.trainable("trader")} & {id(p) for p in policies.trainable("manager")}
    assert all(parameter.grad is None for parameter in tiny.parameters()), "the caller's model is a copy's source"


@pytest.mark.parametrize("mode", MODES)
def test_merging_gives_the_adapted_model_and_leaves_base_and_adapter(
    tiny: Qwen3ForCausalLM, make: Make, mode: PolicyMode
) -> None:
    ids, mask = tokens(make)
    policies = RolePolicies(tiny, ROLES, mode)
    disturb(policies, "trader")
    adapted = policies.logps("trader", ids, mask)[0].detach()
    base, version = policies.reference_logps("trader", ids, mask), policies.version("trader")
    merged = policies.merged_state("trader")
    assert merged.keys() == tiny.state_dict().keys()
    assert all(tensor.dtype == torch.float32 for tensor in merged.values())
    engine = Qwen3ForCausalLM(tiny.config)
    engine.load_state_dict(merged)
    torch.testing.assert_close(token_logps(engine, ids, mask)[0], adapted, atol=1e-5, rtol=0.0)
    for tensor in merged.values():
        tensor.zero_()
    assert torch.equal(policies.logps("trader", ids, mask)[0], adapted)
    assert torch.equal(policies.reference_logps("trader", ids, mask), base)
    assert policies.version("trader") == version


def test_a_process_with_one_role_starts_from_the_same_adapter(tiny: Qwen3ForCausalLM) -> None:
    torch.manual_seed(123)
    alone = RolePolicies(tiny, ["trader"], seed=5)
    after = torch.rand(1)
    torch.manual_seed(123)
    assert torch.equal(after, torch.rand(1)), "the caller's random numbers are left alone"
    assert alone.version("trader") == RolePolicies(tiny, ROLES, seed=5).version("trader")
    assert alone.version("trader") != RolePolicies(tiny, ROLES, seed=6).version("trader")


def test_checkpoints_of_another_model_are_refused_and_change_nothing(tiny: Qwen3ForCausalLM, tmp_path: Path) -> None:
    RolePolicies(tiny, ROLES).save(tmp_path)
    with torch.no_grad():
        tiny.model.norm.weight += 1.0
    for policies, what in (
        (RolePolicies(tiny, ROLES), "its base"),
        (RolePolicies(tiny, ROLES, lora=lora_settings(lora_rank=4)), "its lora"),
        (RolePolicies(tiny, ROLES, "full"), "its mode"),
    ):
        before = policies.version("manager")
        with pytest.raises(UserError, match=f"manager.safetensors is a checkpoint of another model: {what}"):
            policies.load(tmp_path)
        assert policies.version("manager") == before


def test_missing_foreign_and_damaged_files_are_told_apart(tiny: Qwen3ForCausalLM, tmp_path: Path) -> None:
    policies = RolePolicies(tiny, ["trader"])
    with pytest.raises(UserError, match="does not exist"):
        policies.load(tmp_path)
    path = tmp_path / "trader.safetensors"
    policies.save(tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match="damaged"):
        policies.load(tmp_path)
    write_tensors(path, {"x": torch.zeros(1)}, {"kind": "trainer"})
    with pytest.raises(UserError, match="another model"):
        policies.load(tmp_path)


def test_a_state_of_other_shapes_is_refused(tiny: Qwen3ForCausalLM) -> None:
    policies = RolePolicies(tiny, ROLES)
    state = policies.role_state("trader")
    with pytest.raises(ValueError, match="do not fit"):
        policies.load_role_state("trader", dict(list(state.items())[1:]))


def test_roles_must_be_distinct(tiny: Qwen3ForCausalLM) -> None:
    for roles in ([], ["trader", "trader"]):
        with pytest.raises(ValueError, match="distinct"):
            RolePolicies(tiny, roles)
