"""Exported adapters: what peft loads answers as our merged weights do, equal weights give equal bytes, and whatever was
damaged, changed or is of another base is refused by name."""

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
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import Qwen3ForCausalLM

from backend.policies.adapters import (
    CONFIG,
    VERSION,
    WEIGHTS,
    AdapterFile,
    export_adapter,
    hub_name,
    load_versions,
    read_adapter,
    save_versions,
)
from backend.policies.role_policies import LoraSettings, RolePolicies
from simulator.errors import UserError
from tests.small_world import tree
from tests.standard_settings import lora_settings

ROLES = ("manager", "trader")
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def disturb(policies: RolePolicies, role: str, seed: int = 0) -> None:
    """As after some training: every parameter of the role moved."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policies.trainable(role):
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=rng))


@pytest.fixture
def policies(tiny: Qwen3ForCausalLM) -> RolePolicies:
    made = RolePolicies(tiny, ROLES, lora=lora_settings(lora_rank=4, lora_alpha=8))
    for seed, role in enumerate(ROLES):
        disturb(made, role, seed)
    return made


@pytest.mark.parametrize("targets", [LINEARS, ("q_proj", "v_proj")])
def test_peft_answers_with_the_export_as_we_do_with_merged_weights(
    tiny: Qwen3ForCausalLM, tmp_path: Path, targets: tuple[str, ...]
) -> None:
    policies = RolePolicies(tiny, ROLES, lora=lora_settings(lora_rank=4, lora_alpha=12, lora_targets=targets))
    disturb(policies, "trader")
    export_adapter(policies, "trader", tmp_path / "trader")
    ids = torch.arange(12).view(2, 6)
    with torch.no_grad():
        untouched = tiny(ids).logits
        merged = Qwen3ForCausalLM(tiny.config).eval()
        merged.load_state_dict(policies.merged_state("trader"))
        ours = merged(ids).logits
        theirs = PeftModel.from_pretrained(tiny, str(tmp_path / "trader")).eval()(input_ids=ids).logits
    torch.testing.assert_close(theirs, ours, atol=2e-5, rtol=1e-5)
    assert (theirs - untouched).abs().max() > 0.05, "an adapter that moves nothing would show nothing"


@given(
    rank=st.integers(1, 6),
    alpha=st.integers(1, 32),
    targets=st.sets(st.sampled_from(LINEARS), min_size=1),
)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_what_is_read_is_what_was_written(
    tiny: Qwen3ForCausalLM, tmp_path: Path, rank: int, alpha: int, targets: set[str]
) -> None:
    shape = LoraSettings(rank, alpha, tuple(sorted(targets)))
    policies = RolePolicies(tiny, ROLES, lora=shape)
    disturb(policies, "manager", rank)
    written = export_adapter(policies, "manager", tmp_path / "one", base_name="org/model", run="train-1", step=7)
    found = read_adapter(tmp_path / "one", policies.base_fingerprint)
    assert found == written
    assert (found.role, found.version, found.shape) == ("manager", policies.version("manager"), shape)
    assert (found.base_name, found.run, found.step) == ("org/model", "train-1", 7)
    before = tree(tmp_path / "one")
    export_adapter(policies, "manager", tmp_path / "one", base_name="org/model", run="train-1", step=7)
    assert tree(tmp_path / "one") == before
    assert [path.name for path in tmp_path.iterdir()] == ["one"], "nothing unfinished is left"


def test_the_config_is_what_loaders_of_adapters_read(policies: RolePolicies, tmp_path: Path) -> None:
    export_adapter(policies, "trader", tmp_path / "trader", base_name="Qwen/Qwen3-0.6B")
    config = json.loads((tmp_path / "trader" / CONFIG).read_text())
    assert config["peft_type"] == "LORA" and config["task_type"] == "CAUSAL_LM" and config["inference_mode"] is True
    assert (config["r"], config["lora_alpha"], config["bias"]) == (4, 8, "none")
    assert config["base_model_name_or_path"] == "Qwen/Qwen3-0.6B"
    assert config["target_modules"] == sorted(LINEARS)
    for name, tensor in load_file(tmp_path / "trader" / WEIGHTS).items():
        assert name.startswith("base_model.model.model.layers.") and tensor.dtype == torch.float32


def test_a_version_kept_is_put_back_in_place(tiny: Qwen3ForCausalLM, policies: RolePolicies, tmp_path: Path) -> None:
    kept = save_versions(policies, tmp_path / "kept", "run", 3)
    assert {role: path.parent.name for role, (path, _) in kept.items()} == {role: role for role in ROLES}
    save_versions(policies, tmp_path / "there" / "below", "run", 3)
    assert tree(tmp_path / "kept") == tree(tmp_path / "there" / "below"), "equal weights, equal bytes"
    fresh = RolePolicies(tiny, ROLES, lora=lora_settings(lora_rank=4, lora_alpha=8))
    load_versions(fresh, tmp_path / "kept")
    assert [fresh.version(role) for role in ROLES] == [policies.version(role) for role in ROLES]


def test_whole_models_are_kept_as_files_and_are_no_adapters(tiny: Qwen3ForCausalLM, tmp_path: Path) -> None:
    whole, fresh = (RolePolicies(tiny, ROLES, "full") for _ in range(2))
    disturb(whole, "trader")
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
    "config is not JSON": (lambda folder: (folder / CONFIG).write_text("{"), f"{CONFIG} is not JSON"),
    "config is a list": (lambda folder: (folder / CONFIG).write_text("[]"), f"{CONFIG} is not a JSON object"),
    "record is not text": (lambda folder: (folder / VERSION).write_bytes(b"\xff\xfe"), f"{VERSION} is not JSON"),
    "record lacks the role": (rewrite(VERSION, role=None), "'role'"),
    "record's role is a number": (rewrite(VERSION, role=3), "no adapter that this program wrote"),
    "of a later format": (rewrite(VERSION, format=2), "of format 2"),
    "not LoRA": (rewrite(CONFIG, peft_type="IA3"), "holds a IA3 adapter"),
    "another rank": (rewrite(CONFIG, r=5), "not of rank 5"),
    "other targets": (rewrite(CONFIG, target_modules=["q_proj"]), "an A and a B for each of q_proj"),
    "another version": (rewrite(VERSION, version="manager-0123456789ab"), "names version manager-0123456789ab"),
    "another role": (rewrite(VERSION, role="trader"), "weights and base make another"),
    "not finite": (retensored(lambda t: t[first(t)].fill_(float("nan"))), "not finite"),
    "half a layer": (retensored(lambda t: t.pop(first(t))), "an A and a B for each"),
    "a foreign tensor": (retensored(lambda t: t.update(x=torch.zeros(2))), "holds x, which is not a part"),
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


def test_an_adapter_of_another_base_is_refused_with_both_named(
    tiny: Qwen3ForCausalLM, policies: RolePolicies, tmp_path: Path
) -> None:
    save_versions(policies, tmp_path, "run", 0)
    with torch.no_grad():
        tiny.model.norm.weight += 1.0
    other = RolePolicies(tiny, ROLES, lora=lora_settings(lora_rank=4, lora_alpha=8))
    with pytest.raises(UserError, match="another base") as refused:
        load_versions(other, tmp_path)
    assert policies.base_fingerprint[:12] in str(refused.value) and other.base_fingerprint[:12] in str(refused.value)


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


def test_an_export_that_fails_leaves_the_former_one(
    policies: RolePolicies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before: AdapterFile = export_adapter(policies, "manager", tmp_path / "manager")
    disturb(policies, "manager", 5)

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("backend.policies.adapters._write_json", full)
        with pytest.raises(OSError, match="No space"):
            export_adapter(policies, "manager", tmp_path / "manager")
    assert read_adapter(tmp_path / "manager") == before
    assert export_adapter(policies, "manager", tmp_path / "manager").version != before.version


@pytest.mark.parametrize(
    ("folder", "name"), [("Qwen--Qwen3-0.6B", "Qwen/Qwen3-0.6B"), ("nano", "nano"), ("", ""), ("a--b--c", "a/b--c")]
)
def test_a_pulled_folder_is_called_as_on_the_hub(folder: str, name: str) -> None:
    assert hub_name(folder) == name
