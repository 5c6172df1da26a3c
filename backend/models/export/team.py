"""Write each role of a team for another program: its adapter, its whole model, a GGUF file, or that with a Modelfile.

| form | what comes out, for each role |
| --- | --- |
| peft | `ROLE/`, a folder that `peft.PeftModel.from_pretrained` and vLLM load beside the base |
| merged | `ROLE/`, the whole model in float32 with its tokenizer, as transformers and vLLM read it |
| gguf | `ROLE.gguf`, the same for llama.cpp |
| ollama | `ROLE.gguf` and `ROLE.Modelfile`, for `ollama create NAME -f ROLE.Modelfile` |
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from backend.models.export.gguf_file import refuse_gguf, write_gguf
from backend.models.export.modelfile import modelfile
from backend.models.manifest import TeamManifest, read_manifest, team_folder
from backend.models.registry import base_of_team, step_of
from backend.policies.adapters import export_adapter, load_versions
from backend.policies.build import role_policies
from backend.policies.role_policies import RolePolicies
from cryptosentinel.agents.registry import roles_of
from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.llm.nano import is_nano
from simulator.errors import UserError
from simulator.files import whole_folder, write_whole

Form = Literal["peft", "merged", "gguf", "ollama"]
# What lies beside the weights of a base model and describes how text becomes tokens.
_BESIDE = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


@dataclass(frozen=True)
class Exported:
    """What was written of a role: the version of its weights and the file or folder."""

    role: str
    version: str
    path: Path


def export_team(folder: Path, to: Path, form: Form, base: str = "") -> Iterator[Exported]:
    """Write every role of the team in `folder` to the folder `to`, one after the other, in one of the forms above.

    `base` is the user's name of a base model that does not lie in the team's folder. Raises `UserError` for a team that
    has nothing to write in this form, and for a base that a GGUF file cannot hold.
    """
    team = team_folder(folder)
    manifest = read_manifest(team)
    weights = manifest.weights()
    if weights is None:
        raise UserError(f"the team of {folder} is its base itself, so there is no adapter to export: use the base")
    base_folder = base_of_team(team, manifest, base)
    if form in ("gguf", "ollama"):
        refuse_gguf(base_folder)
    policies, codec = role_policies(base_folder, manifest.training, roles=roles_of(manifest.team.roles))
    load_versions(policies, team / weights)
    for role in policies.roles:
        if form == "peft":
            adapter = export_adapter(
                policies, role, to / role, run=team.resolve().name, step=step_of(Path(weights)) or 0
            )
            yield Exported(role, adapter.version, adapter.folder)
        elif form == "merged":
            write_merged(policies, role, base_folder, to / role)
            yield Exported(role, policies.version(role), to / role)
        else:
            file = to / f"{role}.gguf"
            _write_gguf(policies, role, base_folder, file)
            yield Exported(role, policies.version(role), file)
            if form == "ollama":
                text = modelfile(file.name, codec, _settings_of(manifest, codec, base_folder))
                write_whole(to / f"{role}.Modelfile", text)
                yield Exported(role, policies.version(role), to / f"{role}.Modelfile")


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


def _write_gguf(policies: RolePolicies, role: str, base: Path, file: Path) -> None:
    """By way of a merged folder, which is removed: one role's model is in memory at a time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".merged-") as place:
        merged = Path(place) / role
        write_merged(policies, role, base, merged)
        write_gguf(merged, file, f"CryptoSentinel {role} {policies.version(role)}")


def _settings_of(manifest: TeamManifest, codec: ChatFormat, base: Path) -> dict[str, float | int | bool]:
    """What a Modelfile says beside the template: the temperature that the team was trained at, the room of its
    conversations, and whether its prompts list the tools."""
    shape = json.loads((base / "config.json").read_text(encoding="utf-8"))
    full = manifest.team.prompts == "full" or (manifest.team.prompts == "auto" and not is_nano(base))
    return {
        "temperature": manifest.model.temperature,
        "num_ctx": min(int(shape.get("max_position_embeddings", 4096)), 32_768),
        "lists_tools": full,
    }
