"""Base models by name, and those that lie in a folder of models and in the folders of runs."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from backend.models.manifest import TeamManifest
from backend.policies.adapters import hub_name
from cryptosentinel.llm.architecture import describe_architecture, positions_of, tied_names, vocabulary_of
from cryptosentinel.llm.model_files import (
    CONFIG,
    WeightFiles,
    check_folder,
    read_config,
    read_tokenizer,
    weight_files,
)
from cryptosentinel.llm.nano import check_vocabulary
from cryptosentinel.llm.templates import chat_format
from simulator.errors import UserError
from simulator.folders import check_links

MODELS = Path("models")  # where pulled models lie
START = "adapters/start"  # what a run began with
_UNFINISHED = ".tmp"  # what an interrupt may leave
_HUB_NAME = re.compile(r"[A-Za-z0-9](?:[\w.-]*\w)?/[A-Za-z0-9](?:[\w.-]*\w)?", re.ASCII)


@dataclass(frozen=True)
class BaseInfo:
    """A base model by its folder. `size` in bytes on disk; what could not be read is None, and `problem` says why."""

    name: str
    folder: Path
    architecture: str | None = None
    parameters: int | None = None
    vocabulary: int | None = None
    context: int | None = None
    size: int = 0
    problem: str = ""


def is_hub_name(name: str) -> bool:
    """Whether `name` reads like a model on the hub: owner/model."""
    return _HUB_NAME.fullmatch(name) is not None and "--" not in name and ".." not in name


def hub_folder(name: str, models: Path = MODELS) -> Path:
    """Where a model of the hub lies once it is pulled: `Qwen/Qwen3-0.6B` in `models/Qwen--Qwen3-0.6B`."""
    return models / name.replace("/", "--")


def resolve_base(name: str, models: Path = MODELS) -> Path:
    """The folder of a base model that is given as a folder or by its name on the hub.

    Raises `UserError` where there is none; for a name of the hub it says how to get it.
    """
    folder = Path(name)
    if is_hub_name(name) and not folder.is_dir():
        pulled = hub_folder(name, models)
        if not pulled.is_dir():
            raise UserError(
                f"there is no model folder {name} and {models} holds no model of that name: if it is one of the model "
                f"hub, pull it with `cryptosentinel models pull {name}`"
            )
        folder = pulled
    check_folder(folder)
    return folder


def base_of_team(folder: Path, manifest: TeamManifest, named: str = "") -> Path:
    """The folder of a team's base model: in its own folder, or else the one that the user `named` or
    has pulled by that name. The team that a run began with lies in the run's folder, and so may its base.

    Raises `UserError` for a base that is in none of these places.
    """
    top = folder
    if Path(os.path.abspath(folder)).parts[-2:] == Path(START).parts:
        top = folder / ".." / ".."
    own = folder / manifest.base
    try:
        lies_inside = own.resolve().is_relative_to(top.resolve()) and not Path(manifest.base).is_absolute()
    except (OSError, ValueError, RuntimeError):
        lies_inside = False
    if lies_inside:
        check_folder(own)
        check_links(own, top)
        return own
    if named:
        return resolve_base(named)
    pulled = MODELS / Path(manifest.base).name
    if Path(manifest.base).name and "\0" not in manifest.base and pulled.is_dir():
        return pulled
    raise UserError(
        f"the team in {folder} answers with the base model {manifest.base}, which does not lie in its folder: a team's "
        f"folder may not say where else to read. Put the base, or a link to it, at {pulled}, or name it yourself with "
        "--set training.base_model=FOLDER"
    )


def list_bases(models: Path, runs: Path) -> list[BaseInfo]:
    """The base models in `models`, and those that runs made in their own folders."""
    return [describe_base(folder) for folder in (*_folders(models), *_made_in(runs))]


def describe_base(folder: Path) -> BaseInfo:
    """What a folder says of its model, as far as it can be read; no weight is."""
    name = hub_name(folder.name) if hub_name(folder.name) != folder.name else str(folder)
    facts: dict[str, Any] = {"name": name, "folder": folder, "size": size_on_disk(folder)}
    try:
        check_folder(folder)
        config = read_config(folder)
        facts |= {
            "architecture": describe_architecture(config),
            "vocabulary": vocabulary_of(config),
            "context": positions_of(config),
        }
        weights = weight_files(folder)
        facts["parameters"] = parameters_of(config, weights)
        tokenizer = read_tokenizer(folder)
        check_vocabulary(config, tokenizer, folder)
        chat_format(tokenizer, folder)
    except UserError as error:
        facts["problem"] = str(error)
    return BaseInfo(**facts)


def parameters_of(config: PreTrainedConfig, weights: WeightFiles) -> int:
    """Parameters, where what is another weight, as an output layer may be the embedding, counts once."""
    double = (weights.shapes[name] for name in tied_names(config) if name in weights.shapes)
    return weights.parameters - sum(math.prod(shape) for shape in double)


def size_on_disk(folder: Path) -> int:
    """Bytes of all files below a folder; 0 where it cannot be read."""
    try:
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    except OSError:
        return 0


def step_of(kept: Path) -> int | None:
    """The step that a folder of weights was kept at, by its name `step-N`."""
    number = kept.name.removeprefix("step-")
    return int(number) if kept.name != number and number.isdecimal() else None


def _folders(parent: Path) -> Iterator[Path]:
    """The folders in `parent` by name; hidden ones, such as unfinished downloads, are left out."""
    try:
        paths = sorted(parent.iterdir()) if parent.is_dir() else []
    except OSError as error:
        raise UserError(f"{parent} cannot be read ({error.strerror}): give this user permission to read it") from error
    yield from (
        path for path in paths if path.is_dir() and not path.name.startswith(".") and path.suffix != _UNFINISHED
    )


def _made_in(runs: Path) -> Iterator[Path]:
    for run in _folders(runs):
        yield from (folder for folder in _folders(run) if (folder / CONFIG).is_file())
