"""Role policies: right log-probs, apart from each other, merged without a trace, and only loaded where they belong."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen3ForCausalLM

from backend.policies import tensor_files
from backend.policies.adapters import (
    CONFIG,
    VERSION,
    WEIGHTS,
    export_adapter,
    load_versions,
    read_adapter,
    save_versions,
)
from backend.policies.logprobs import token_logps
from backend.policies.role_policies import LoraSettings, PolicyMode, RolePolicies
from backend.policies.tensor_files import fingerprint, read_tensors, write_tensors
from backend.training.algorithm.trajectory import Trajectory, pad_trajectories
from simulator.errors import UserError
from tests.small_world import disturb, tree
from tests.standard_settings import lora_settings

Make = Callable[..., Trajectory]
ROLES = ("manager", "trader")
MODES: tuple[PolicyMode, ...] = ("lora", "full")


def tokens(make: Make) -> tuple[Tensor, Tensor]:
    """ids and mask (3, T) of trajectories of different lengths."""
    batch = pad_trajectories([make(1), make(2, prompt=2, answer=2), make(3, prompt=9)])
    return batch.ids, batch.mask


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
    disturb(policies, "trader", size=0.1)
    trader = policies.logps("trader", ids, mask)[0].detach()
    assert (trader - base).abs().max() > 0.01
    torch.testing.assert_close(policies.reference_logps("trader", ids, mask), base)
    assert torch.equal(policies.logps("trader", ids, mask)[0], trader), "the reference pass leaves no trace"
    assert torch.equal(policies.logps("manager", ids, mask)[0], before)


@pytest.mark.parametrize("mode", MODES)
def test_a_gradient_reaches_one_role_only(tiny: Qwen3ForCausalLM, make: Make, mode: PolicyMode) -> None:
    policies = RolePolicies(tiny, ROLES, mode)
    disturb(policies, size=0.1)
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
    disturb(policies, "trader", size=0.1)
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


LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.fixture
def policies(tiny: Qwen3ForCausalLM) -> RolePolicies:
    return disturb(RolePolicies(tiny, ROLES, lora=lora_settings(lora_rank=4, lora_alpha=8)), size=0.1)


@given(rank=st.integers(1, 6), alpha=st.integers(1, 32), targets=st.sets(st.sampled_from(LINEARS), min_size=1))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_what_is_read_is_what_was_written(
    tiny: Qwen3ForCausalLM, tmp_path: Path, rank: int, alpha: int, targets: set[str]
) -> None:
    shape = LoraSettings(rank, alpha, tuple(sorted(targets)))
    policies = RolePolicies(tiny, ROLES, lora=shape)
    disturb(policies, "manager", size=0.1, seed=rank)
    written = export_adapter(policies, "manager", tmp_path / "one", base_name="org/model", run="train-1", step=7)
    found = read_adapter(tmp_path / "one", policies.base_fingerprint)
    assert found == written
    assert (found.role, found.version, found.shape) == ("manager", policies.version("manager"), shape)
    assert (found.base_name, found.run, found.step) == ("org/model", "train-1", 7)
    before = tree(tmp_path / "one")
    export_adapter(policies, "manager", tmp_path / "one", base_name="org/model", run="train-1", step=7)
    assert tree(tmp_path / "one") == before
    assert [path.name for path in tmp_path.iterdir()] == ["one"], "nothing unfinished is left"


def test_whole_models_are_kept_as_files_and_are_no_adapters(tiny: Qwen3ForCausalLM, tmp_path: Path) -> None:
    whole, fresh = (RolePolicies(tiny, ROLES, "full") for _ in range(2))
    disturb(whole, "trader", size=0.1)
    with pytest.raises(UserError, match=r"trader was trained with .* no adapter"):
        export_adapter(whole, "trader", tmp_path / "trader")
    assert not list(tmp_path.iterdir())
    kept = save_versions(whole, tmp_path, "run", 3)
    assert {path.name for path, _ in kept.values()} == {"manager.safetensors", "trader.safetensors"}
    load_versions(fresh, tmp_path)
    assert fresh.version("trader") == whole.version("trader")


def rewrite(name: str, **changes: object) -> Callable[[Path], None]:
    """Change fields of a JSON file; None removes the field."""

    def change(folder: Path) -> None:
        document = {**json.loads((folder / name).read_text()), **changes}
        (folder / name).write_text(json.dumps({key: value for key, value in document.items() if value is not None}))

    return change


def retensored(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    """Change the tensors, with a checksum that fits them."""

    def damage(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS)
        rewrite(VERSION, sha256=hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest())(folder)

    return damage


def first(tensors: dict[str, torch.Tensor]) -> str:
    return min(tensors)


def cut(folder: Path) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:-20])


def flip(folder: Path) -> None:
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (folder / WEIGHTS).write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut short": (cut, "cut short or changed"),
    "one bit": (flip, "cut short or changed"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), f"holds no {WEIGHTS}"),
    "a pickle instead": (
        lambda folder: (folder / WEIGHTS).rename(folder / "adapter_model.bin"),
        "adapter_model.bin may hold code and is not read",
    ),
    "no config": (lambda folder: (folder / CONFIG).unlink(), f"holds no {CONFIG}"),
    "no record": (lambda folder: (folder / VERSION).unlink(), f"holds no {VERSION}"),
    "config is no JSON": (lambda folder: (folder / CONFIG).write_text("{"), f"{CONFIG} is no"),
    "record lacks the role": (rewrite(VERSION, role=None), "'role'"),
    "record's role is a number": (rewrite(VERSION, role=3), "not an adapter that this program wrote"),
    "of a later format": (rewrite(VERSION, format=2), "of format 2"),
    "not LoRA": (rewrite(CONFIG, peft_type="IA3"), "holds a IA3 adapter"),
    "another rank": (rewrite(CONFIG, r=5), "not of rank 5"),
    "other targets": (rewrite(CONFIG, target_modules=["q_proj"]), "an A and a B for each of q_proj"),
    "another version": (rewrite(VERSION, version="manager-0123456789ab"), "names version manager-0123456789ab"),
    "another role": (rewrite(VERSION, role="trader"), "weights and base make another"),
    "not finite": (retensored(lambda t: t[first(t)].fill_(float("nan"))), "not finite"),
    "half a layer": (retensored(lambda t: t.pop(first(t))), "an A and a B for each"),
    "a foreign tensor": (retensored(lambda t: t.update(x=torch.zeros(2))), "holds x, which is no"),
    "weights changed with their checksum": (retensored(lambda t: t[first(t)].add_(1.0)), "make another"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_adapter_is_refused_and_says_why(policies: RolePolicies, tmp_path: Path, what: str) -> None:
    damage, message = DAMAGE[what]
    folder = tmp_path / "manager"
    export_adapter(policies, "manager", folder)
    read_adapter(folder, policies.base_fingerprint)
    damage(folder)
    with pytest.raises(UserError, match=message) as refused:
        read_adapter(folder, policies.base_fingerprint)
    assert str(folder) in str(refused.value)
    versions = [policies.version(role) for role in ROLES]
    with pytest.raises(UserError):
        load_versions(policies, tmp_path)
    assert [policies.version(role) for role in ROLES] == versions, "nothing was changed"


def test_the_adapter_of_one_role_is_not_taken_for_another(policies: RolePolicies, tmp_path: Path) -> None:
    save_versions(policies, tmp_path, "run", 0)
    export_adapter(policies, "manager", tmp_path / "trader")
    with pytest.raises(UserError, match="holds the adapter of manager, not of trader"):
        load_versions(policies, tmp_path)


def test_a_missing_folder_and_one_without_permission_are_told(policies: RolePolicies, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no adapter folder"):
        read_adapter(tmp_path / "manager")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(UserError, match="there is no adapter folder"):
        read_adapter(tmp_path / "loop")
    export_adapter(policies, "manager", tmp_path / "manager")
    (tmp_path / "manager").chmod(0)
    if os.geteuid() == 0:  # root may read everything
        os.seteuid(65534)
    try:
        with pytest.raises(UserError, match="give this user permission"):
            read_adapter(tmp_path / "manager")
    finally:
        os.seteuid(os.getuid())
        (tmp_path / "manager").chmod(0o700)


TENSORS = {"a": torch.arange(6.0).reshape(2, 3).T, "b": torch.tensor(2.5, dtype=torch.bfloat16), "c": torch.ones(0)}


def test_tensors_and_header_come_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "x.safetensors"
    write_tensors(path, TENSORS, {"steps": 3, "names": ["a"]})
    tensors, header = read_tensors(path)
    assert header == {"steps": 3, "names": ["a"]}
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert fingerprint(tensors) == fingerprint(TENSORS), "a transposed tensor has the content of its copy"


def test_a_write_that_fails_leaves_the_former_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, TENSORS, {"steps": 1})

    def full_disk(tensors: dict[str, torch.Tensor], target: Path, metadata: dict[str, str]) -> None:
        Path(target).write_bytes(b"half a fi")
        raise OSError("no space left on device")

    monkeypatch.setattr(tensor_files, "save_file", full_disk)
    with pytest.raises(OSError, match="no space"):
        write_tensors(path, TENSORS, {"steps": 2})
    assert read_tensors(path)[1] == {"steps": 1}


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(1)}, path)
    with pytest.raises(UserError, match="not written by this program"):
        read_tensors(path)


def test_the_fingerprint_sees_names_dtypes_shapes_and_bytes() -> None:
    one = {"a": torch.zeros(4)}
    others = [
        {"b": torch.zeros(4)},
        {"a": torch.zeros(2, 2)},
        {"a": torch.zeros(4, dtype=torch.int32)},
        {"a": -one["a"]},
    ]
    assert len({fingerprint(tensors) for tensors in [one, *others]}) == 5
    assert fingerprint({"a": one["a"], "b": one["a"]}) == fingerprint({"b": one["a"], "a": one["a"]})
