"""A team's models for other programs: what they load answers as the team does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from backend.models.export import export_team
from backend.models.manifest import read_manifest, sample_team
from backend.policies.adapters import load_versions
from backend.policies.build import role_policies
from backend.policies.role_policies import RolePolicies
from cryptosentinel.agents.registry import roles_of

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
