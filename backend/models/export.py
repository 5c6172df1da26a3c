"""Write each role of a team for another program: its adapter, or its whole model.

| form | what comes out, for each role |
| --- | --- |
| peft | `ROLE/`, a folder that `peft.PeftModel.from_pretrained` and vLLM load beside the base |
| merged | `ROLE/`, the whole model in float32 with its tokenizer, as transformers and vLLM read it |

llama.cpp's `convert_hf_to_gguf.py` makes a GGUF file of a merged folder, which Ollama reads too.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from backend.models.manifest import read_manifest, team_folder
from backend.models.registry import base_of_team, step_of
from backend.policies.adapters import export_adapter, load_versions
from backend.policies.build import role_policies
from backend.policies.role_policies import RolePolicies
from cryptosentinel.agents.registry import roles_of
from simulator.errors import UserError
from simulator.files import whole_folder

Form = Literal["peft", "merged"]
# What lies beside the weights of a base model and describes how text becomes tokens.
_BESIDE = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


@dataclass(frozen=True)
class Exported:
    """What was written of a role: the version of its weights and the folder."""

    role: str
    version: str
    path: Path


def export_team(folder: Path, to: Path, form: Form, base: str = "") -> Iterator[Exported]:
    """Write every role of the team in `folder` to the folder `to`, one after the other, in one of the forms above.

    `base` is the user's name of a base model that does not lie in the team's folder. Raises `UserError` for a team that
    has nothing to write.
    """
    team = team_folder(folder)
    manifest = read_manifest(team)
    weights = manifest.weights()
    if weights is None:
        raise UserError(f"the team of {folder} is its base itself, so there is no adapter to export: use the base")
    base_folder = base_of_team(team, manifest, base)
    policies, _ = role_policies(base_folder, manifest.training, roles=roles_of(manifest.team.roles))
    load_versions(policies, team / weights)
    for role in policies.roles:
        if form == "peft":
            adapter = export_adapter(
                policies, role, to / role, run=team.resolve().name, step=step_of(Path(weights)) or 0
            )
            yield Exported(role, adapter.version, adapter.folder)
        else:
            write_merged(policies, role, base_folder, to / role)
            yield Exported(role, policies.version(role), to / role)


def write_merged(policies: RolePolicies, role: str, base: Path, folder: Path) -> None:
    """The role's whole model in float32 as a model's folder, whole or not at all; an earlier content is replaced."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = AutoConfig.from_pretrained(base, local_files_only=True)
    config.dtype, config.name_or_path = "float32", ""
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(policies.merged_state(role))
    with whole_folder(folder) as unfinished:
        model.save_pretrained(unfinished)
        for name in _BESIDE:
            if (base / name).is_file():
                shutil.copyfile(base / name, unfinished / name)
