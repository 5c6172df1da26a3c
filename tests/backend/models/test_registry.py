"""Models by name, what lies in folders of models and of runs, and the checks.

What is right passes, and each fault is found by the check that is there for it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
)

from backend.builders.teams import load_team
from backend.models.checks import Findings, check_base
from backend.models.export import export_team
from backend.models.manifest import TeamManifest, read_manifest, sample_team, write_manifest
from backend.models.registry import describe_base, hub_folder, is_hub_name, list_bases, resolve_base
from backend.policies.adapters import VERSION, WEIGHTS, hub_name, load_versions, save_versions
from backend.policies.build import role_policies
from backend.policies.role_policies import RolePolicies
from backend.training.start import begin
from cryptosentinel.agents.registry import roles_of
from cryptosentinel.llm.nano import load_model
from simulator.errors import UserError
from tests.small_world import disturb, small_config, small_market


@pytest.fixture
def models(nano: Path, tmp_path: Path) -> Path:
    """A folder with a model by its own name and a pulled one."""
    for name in ("mine", "Qwen--Qwen3-tiny"):
        shutil.copytree(nano, tmp_path / "models" / name)
    return tmp_path / "models"


@pytest.fixture
def run(nano: Path, tmp_path: Path) -> Path:
    """A finished run that kept two steps, the latter of which is its team."""
    folder = tmp_path / "runs" / "train-1"
    shutil.copytree(nano, folder / "nano")
    first, _ = role_policies(folder / "nano", small_config().training)
    save_versions(first, folder / "adapters" / "step-000000", "train-1", 0)
    save_versions(disturb(first), folder / "adapters" / "step-000003", "train-1", 3)
    write_manifest(folder, TeamManifest.of(small_config(), base="nano", adapters="adapters/step-000003"))
    return folder


# -- names ---------------------------------------------------------------------------------------------------------


def test_a_base_is_found_by_folder_and_by_its_name_on_the_hub(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(models.parent)
    assert resolve_base("models/mine") == Path("models/mine")
    assert resolve_base(str(models / "mine"), Path("elsewhere")) == models / "mine"
    assert resolve_base("Qwen/Qwen3-tiny") == Path("models/Qwen--Qwen3-tiny")
    assert resolve_base("Qwen/Qwen3-tiny", models) == models / "Qwen--Qwen3-tiny"
    config = small_config(base_model="Qwen/Qwen3-tiny")
    base = begin(config, small_market(), models.parent / "run", lambda what, done, total: None)
    assert base == Path("models/Qwen--Qwen3-tiny")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Qwen/Qwen3-0.6B", "pull it with `cryptosentinel models pull Qwen/Qwen3-0.6B`"),
        ("nowhere", "there is no model folder nowhere"),
        ("a/b/c", "there is no model folder a/b/c"),
        ("../nowhere", "there is no model folder ../nowhere"),
        ("empty", "holds no config.json"),
        ("loop", "there is no model folder loop"),
    ],
)
def test_a_base_that_is_not_there_is_told(
    models: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.chdir(models.parent)
    Path("empty").mkdir()
    Path("loop").symlink_to("loop")
    with pytest.raises(UserError, match=message):
        resolve_base(name)


WORDS = st.from_regex(r"[A-Za-z0-9](?:[A-Za-z0-9._]|-(?=[A-Za-z0-9])){0,12}[A-Za-z0-9]", fullmatch=True)


@given(owner=WORDS, model=WORDS)
def test_a_folder_s_name_tells_the_name_on_the_hub(owner: str, model: str) -> None:
    name = f"{owner}/{model}"
    if is_hub_name(name):
        folder = hub_folder(name, Path("models"))
        assert folder.parent == Path("models") and hub_name(folder.name) == name
    else:
        assert ".." in name


@pytest.mark.parametrize(
    "name", ["", "a", "/a", "a/", "a/b/c", "../a", "a/..", "a--b/c", "a/b c", "a/b\n", "-a/b", "é/b"]
)
def test_what_is_no_name_on_the_hub(name: str) -> None:
    assert not is_hub_name(name)


# -- lists ---------------------------------------------------------------------------------------------------------


def test_bases_are_listed_with_what_they_are(models: Path, run: Path) -> None:
    (models / "notes.txt").write_text("no model")
    (models / ".Qwen--more.partial").mkdir()
    (models / "broken").mkdir()
    (models / "loop").symlink_to("loop")
    (models / "mine" / "again").symlink_to(models)
    found = {one.name: one for one in list_bases(models, run.parent)}
    assert set(found) == {str(models / "mine"), "Qwen/Qwen3-tiny", str(models / "broken"), str(run / "nano")}
    one, model = found["Qwen/Qwen3-tiny"], load_model(models / "mine")[0]
    assert (one.architecture, one.problem) == ("Qwen3, 2 x 64", "")
    assert one.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (one.vocabulary, one.context) == (model.config.vocab_size, model.config.max_position_embeddings)
    assert one.size == sum(path.stat().st_size for path in (models / "Qwen--Qwen3-tiny").iterdir())
    assert "config.json" in found[str(models / "broken")].problem
    assert list_bases(models / "none", run / "none") == []


def test_a_second_output_layer_that_is_the_embedding_is_counted_once(models: Path) -> None:
    before = describe_base(models / "mine").parameters
    path = models / "mine" / "model.safetensors"
    weights = load_file(path)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, path, metadata={"format": "pt"})
    assert describe_base(models / "mine").parameters == before
    assert not check_base(models / "mine").wrong


# -- checks --------------------------------------------------------------------------------------------------------


def wrong(findings: Findings) -> dict[str, str]:
    return {one.what: one.detail for one in findings.entries if one.state == "wrong"}


def test_a_good_base_passes_every_check(nano: Path) -> None:
    findings = check_base(nano)
    assert wrong(findings) == {}
    assert [one.what for one in findings.entries] == [
        "folder", "config", "tokenizer", "chat format", "room", "weights", "engines", "adapters",
    ]  # fmt: skip
    assert findings.fingerprint == RolePolicies(nano, ["manager"]).base_fingerprint


def poison(name: str, value: float) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        weights[name].view(-1)[-1] = value
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return change


def edit(name: str, **changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_text(json.dumps({**json.loads((folder / name).read_text()), **changes}))

    return change


def replaced(name: str, old: str, new: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text((folder / name).read_text().replace(old, new))


def untied(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"] + 1.0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


NORM = "model.norm.weight"
FAULTS: dict[str, tuple[Callable[[Path], object], set[str], str]] = {
    "nan": (poison(NORM, float("nan")), {"weights"}, f"{NORM} .* not finite"),
    "infinite": (poison(NORM, float("-inf")), {"weights"}, "not finite"),
    "two output layers": (untied, {"weights"}, "tie_word_embeddings to false"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), {"tokenizer"}, "holds no tokenizer.json"),
    "config is not JSON": (lambda f: (f / "config.json").write_text("{"), {"config"}, "is no"),
    "other shapes": (edit("config.json", intermediate_size=999), {"weights"}, "not those of its config.json"),
    "cut short": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-5]),
        {"weights"},
        "cut short",
    ),
    "only a pickle": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        {"weights"},
        "pytorch_model.bin, which may hold code",
    ),
    "a special token is unknown": (
        replaced("tokenizer.json", "<|im_start|>", "<|begin|>"),
        {"chat format"},
        "splits <.im_start.>",
    ),
    "a short context": (edit("config.json", max_position_embeddings=96), {"room"}, "context of 96 .* longer context"),
    "another template": (
        lambda f: (f / "chat_template.jinja").write_text("{{ messages[0].content }}"),
        {"chat format"},
        "cannot write",
    ),
}


@pytest.mark.parametrize("what", FAULTS)
def test_each_fault_is_found_by_its_check(nano: Path, tmp_path: Path, what: str) -> None:
    spoil, checks, message = FAULTS[what]
    shutil.copytree(nano, tmp_path / "base")
    spoil(tmp_path / "base")
    findings = check_base(tmp_path / "base")
    found = wrong(findings)
    assert set(found) == checks
    assert any(re.search(message, told) for told in found.values()), found
    assert findings.wrong == len(checks)


def test_what_may_hold_code_is_named(nano: Path, tmp_path: Path) -> None:
    shutil.copytree(nano, tmp_path / "base")
    (tmp_path / "base" / "old.pt").write_bytes(b"\x80\x04.")
    findings = check_base(tmp_path / "base")
    assert not findings.wrong
    assert [one.detail for one in findings.entries if one.what == "formats"] == ["old.pt may hold code and is not read"]


def test_an_adapter_of_another_base_is_refused(run: Path) -> None:
    load_team(str(run), small_config().team)
    poison(NORM, 3.0)(run / "nano")
    with pytest.raises(UserError, match="another base"):
        load_team(str(run), small_config().team)


def of_version(name: str) -> Callable[[Path], Path]:
    return lambda run: run / "adapters" / "step-000003" / "trader" / name


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


RUN_FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "an adapter cut short": (lambda run: halve(of_version(WEIGHTS)(run)), "cut short or changed"),
    "a record that is none": (lambda run: of_version(VERSION)(run).write_text("[]"), "not a JSON object"),
    "a role is missing": (lambda run: shutil.rmtree(of_version(".")(run)), "no adapter folder"),
    "no base": (lambda run: shutil.rmtree(run / "nano"), "no model folder"),
    "a manifest that is none": (lambda run: (run / "team.json").write_text("{"), "team.json cannot be used"),
    "a base without tokenizer": (lambda run: (run / "nano" / "tokenizer.json").unlink(), "holds no tokenizer.json"),
}


@pytest.mark.parametrize("what", RUN_FAULTS)
def test_each_fault_of_a_run_is_refused(run: Path, what: str) -> None:
    spoil, words = RUN_FAULTS[what]
    spoil(run)
    with pytest.raises(UserError, match=words):
        load_team(str(run), small_config().team)


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert set(wrong(check_base(tmp_path / "nothing"))) == {"folder"}
    (tmp_path / "loop").symlink_to("loop")
    assert "no model folder" in wrong(check_base(tmp_path / "loop"))["folder"]


NANO = sample_team() / "nano"
PROMPT = torch.tensor([[1272, 65, 300, 12, 44, 901, 7, 1273]])


@pytest.fixture(scope="module")
def policies() -> RolePolicies:
    """The shipped team as this program has it."""
    manifest = read_manifest(sample_team())
    weights = manifest.weights()
    assert weights is not None
    made, _ = role_policies(NANO, manifest.training, roles=roles_of(manifest.team.roles))
    load_versions(made, sample_team() / weights)
    return made


def logits(model: torch.nn.Module) -> torch.Tensor:
    """What a model says of the prompt."""
    with torch.no_grad():
        said: torch.Tensor = model.eval()(PROMPT).logits
    return said


def expected(policies: RolePolicies, role: str) -> torch.Tensor:
    """What the role's merged weights say of the prompt."""
    model = AutoModelForCausalLM.from_pretrained(NANO, dtype="float32")
    model.load_state_dict(policies.merged_state(role))
    return logits(model)


def test_peft_loads_each_role_and_answers_as_the_team(policies: RolePolicies, tmp_path: Path) -> None:
    written = list(export_team(Path("sample"), tmp_path, "peft"))
    assert [one.role for one in written] == list(policies.roles)
    for one in written:
        base = AutoModelForCausalLM.from_pretrained(NANO, dtype="float32")
        plain = logits(base)
        loaded = logits(PeftModel.from_pretrained(base, str(one.path)))
        assert torch.allclose(loaded, expected(policies, one.role), atol=1e-4)
        assert not torch.allclose(loaded, plain, atol=1e-2), "the adapter changes nothing"


def test_a_merged_model_is_a_folder_that_transformers_loads(policies: RolePolicies, tmp_path: Path) -> None:
    for one in export_team(Path("sample"), tmp_path, "merged"):
        loaded = AutoModelForCausalLM.from_pretrained(one.path)
        assert loaded.dtype == torch.float32 and torch.allclose(logits(loaded), expected(policies, one.role), atol=1e-5)
        text = "<tool_call>\n{}\n</tool_call><|im_end|>"
        assert AutoTokenizer.from_pretrained(one.path)(text) == AutoTokenizer.from_pretrained(NANO)(text)


@contextmanager
def unprivileged() -> Iterator[None]:
    """As a user whom permissions bind."""
    user = os.getuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_folders_without_permission_are_told(nano: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    shutil.copytree(nano, closed / "base")
    closed.chmod(0)
    try:
        with unprivileged():
            assert "permission" in wrong(check_base(closed / "base"))["folder"]
            with pytest.raises(UserError, match="permission"):
                list_bases(closed, tmp_path / "none")
    finally:
        closed.chmod(0o700)
