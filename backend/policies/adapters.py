"""A role's adapter as an ordinary PEFT folder, which peft, vLLM and this program load, with a record of what it is.

    adapter_config.json          as peft writes it: rank, alpha, targets, name of the base
    adapter_model.safetensors    lora_A (r, in) and lora_B (out, r) of each layer, under peft's names
    version.json                 role, version, fingerprint of the base, SHA-256 of the tensors' file, step, run

Nothing in it depends on the time or on where it lies: equal weights of the same step of the same run, equal bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from backend.policies.role_policies import LoraSettings, RolePolicies, lora_config, version_name
from backend.policies.tensor_files import write_tensors
from cryptosentinel.llm.engine import Engine
from cryptosentinel.llm.local.engine import LocalEngine
from simulator.documents import read_document
from simulator.errors import UserError
from simulator.files import whole_folder

CONFIG, WEIGHTS, VERSION = "adapter_config.json", "adapter_model.safetensors", "version.json"
_MOST_BYTES = 4 * 2**20  # of a file of JSON
_FORMAT = 1  # of version.json
_EXPORT = "export it again from its run"


@dataclass(frozen=True)
class AdapterFile:
    """What an adapter's folder says of it. `base` is the fingerprint of the base's weights, `sha256` that of the
    tensors' file."""

    folder: Path
    role: str
    version: str
    base: str
    base_name: str
    shape: LoraSettings
    sha256: str
    step: int
    run: str

    @property
    def weights(self) -> Path:
        """The tensors' file."""
        return self.folder / WEIGHTS


def export_adapter(
    policies: RolePolicies, role: str, folder: Path, *, base_name: str = "", run: str = "", step: int = 0
) -> AdapterFile:
    """Write the role's adapter to `folder`, whole or not at all; an earlier content is replaced at the end.

    `base_name` is what the adapter calls its base; by default the name of the base's folder, or of the model hub where
    it was pulled from there. Raises `UserError` where roles are whole models, `RunFailed` or `OSError` when
    the disk is full.
    """
    shape = policies.shape
    if shape is None:
        raise UserError(
            f"{role} was trained with training.lora_rank = 0, so it is a whole model and no adapter: train with "
            "'lora' to export adapters"
        )
    name = base_name or hub_name(Path(policies.base_config.name_or_path or "").name)
    with whole_folder(folder) as unfinished:
        write_tensors(unfinished / WEIGHTS, policies.role_state(role), policies.header(role))
        shape = replace(shape, lora_targets=tuple(sorted(shape.lora_targets)))
        sha256 = hashlib.sha256((unfinished / WEIGHTS).read_bytes()).hexdigest()
        version, base = policies.version(role), policies.base_fingerprint
        adapter = AdapterFile(folder, role, version, base, name, shape, sha256, step, run)
        config = lora_config(shape, policies.base_config, name).to_dict()
        # Sets have no order, and what is loaded to answer is not trained further unless the reader says so.
        config |= {"target_modules": list(adapter.shape.lora_targets), "inference_mode": True}
        _write_json(unfinished / CONFIG, config)
        fields = ("role", "version", "base", "base_name", "sha256", "step", "run")
        _write_json(unfinished / VERSION, {"format": _FORMAT, **{one: getattr(adapter, one) for one in fields}})
    return adapter


def read_adapter(folder: Path, base: str | None = None) -> AdapterFile:
    """What lies in `folder`, checked: both JSON files, the checksum, the tensors' names, shapes and values.

    `base`: fingerprint of the base that it should be an adapter of. Raises `UserError` for whatever does not agree.
    """
    try:
        there = folder.is_dir()
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror}): give this user permission to read it") from error
    if not there:
        raise UserError(f"there is no adapter folder {folder}: give one that holds {CONFIG}, {WEIGHTS} and {VERSION}")
    config, record = _read_json(folder / CONFIG), _read_json(folder / VERSION)
    try:
        adapter = AdapterFile(
            folder,
            role=_text(record["role"]),
            version=_text(record["version"]),
            base=_text(record["base"]),
            base_name=_text(record["base_name"]),
            shape=LoraSettings(
                int(config["r"]), int(config["lora_alpha"]), tuple(map(_text, config["target_modules"]))
            ),
            sha256=_text(record["sha256"]),
            step=int(record["step"]),
            run=_text(record["run"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(
            f"{folder} is not an adapter that this program wrote ({error!r} is amiss): {_EXPORT}"
        ) from error
    if record.get("format") != _FORMAT or config.get("peft_type") != "LORA":
        raise UserError(
            f"{folder} holds a {config.get('peft_type')} adapter of format {record.get('format')}; what is read are "
            f"LORA adapters of format {_FORMAT}: {_EXPORT}"
        )
    _check_tensors(adapter, _read_weights(adapter))
    if base is not None and adapter.base != base:
        raise UserError(
            f"the adapter in {folder} was trained on another base, {adapter.base_name or 'without a name'} "
            f"({adapter.base[:12]}), not on the one given ({base[:12]}): give the base that it was trained on"
        )
    return adapter


def save_versions(policies: RolePolicies, folder: Path, run: str, step: int) -> dict[str, tuple[Path, str]]:
    """Keep every role's weights in `folder`; by role the tensors' file and its SHA-256.

    Adapters become PEFT folders `{role}/`; whole models `{role}.safetensors`.
    """
    if policies.mode == "lora":
        kept = (export_adapter(policies, role, folder / role, run=run, step=step) for role in policies.roles)
        return {one.role: (one.weights, one.sha256) for one in kept}
    policies.save(folder)
    files = {role: folder / f"{role}.safetensors" for role in policies.roles}
    return {role: (path, _sha256(path.read_bytes())) for role, path in files.items()}


def load_versions(policies: RolePolicies, folder: Path) -> None:
    """Put the weights that `save_versions` kept in `folder` in place for every role.

    Raises `UserError`, and changes nothing, where one is missing, damaged or of another base.
    """
    if policies.mode == "full":
        policies.load(folder)
        return
    for role in policies.roles:
        adapter = read_adapter(folder / role, policies.base_fingerprint)
        if adapter.role != role:
            raise UserError(f"{folder / role} holds the adapter of {adapter.role}, not of {role}: {_EXPORT}")
    policies.load_files({role: folder / role / WEIGHTS for role in policies.roles})


def hub_name(folder_name: str) -> str:
    """The model hub's name for a folder that was pulled from there (`Qwen--Qwen3-0.6B`); any other name as it is."""
    return folder_name.replace("--", "/", 1)


def _read_weights(adapter: AdapterFile) -> dict[str, Tensor]:
    path = adapter.weights
    if not path.is_file():
        pickled = path.with_suffix(".bin")
        other = f" ({pickled.name} may hold code and is not read)" if pickled.is_file() else ""
        raise UserError(f"{adapter.folder} holds no {WEIGHTS}{other}: {_EXPORT}")
    content = _bytes(path)
    if _sha256(content) != adapter.sha256:
        raise UserError(f"{path} was cut short or changed: its checksum is not that of {VERSION}. Copy it again")
    try:
        return safetensors.torch.load(content)
    except SafetensorError as error:
        raise UserError(f"{path} is damaged ({error}): {_EXPORT}") from error


def _check_tensors(adapter: AdapterFile, tensors: Mapping[str, Tensor]) -> None:
    """Names, shapes and values as the two JSON files say. Raises `UserError`."""
    rank, targets = adapter.shape.lora_rank, set(adapter.shape.lora_targets)
    layers: set[str] = set()
    for name, tensor in tensors.items():
        layer, dot, part = name.removesuffix(".weight").rpartition(".lora_")
        if not dot or part not in ("A", "B"):
            raise UserError(f"{adapter.weights} holds {name}, which is not a part of a LoRA adapter: {_EXPORT}")
        layers.add(layer)
        if tensor.dim() != 2 or tensor.shape[0 if part == "A" else 1] != rank:
            raise UserError(f"{name} in {adapter.weights} is {tuple(tensor.shape)}, not of rank {rank}: {_EXPORT}")
        if not torch.isfinite(tensor).all():
            raise UserError(
                f"{name} in {adapter.weights} holds values that are not finite: its training has diverged; use an "
                "earlier version"
            )
    if {layer.rpartition(".")[2] for layer in layers} != targets or len(tensors) != 2 * len(layers):
        raise UserError(
            f"{adapter.weights} does not hold an A and a B for each of {', '.join(sorted(targets))}: {_EXPORT}"
        )
    if version_name(adapter.role, adapter.base, tensors) != adapter.version:
        raise UserError(
            f"{adapter.folder / VERSION} names version {adapter.version}, but weights and base make another: {_EXPORT}"
        )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(
            f"{path.parent} holds no {path.name}, so it is not an adapter that this program wrote: {_EXPORT}"
        )
    try:
        document = read_document(path, _MOST_BYTES)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): give this user permission to read it") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}): {_EXPORT}") from error
    if not isinstance(document, dict):
        raise UserError(f"{path} is not a JSON object: {_EXPORT}")
    return document


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): give this user permission to read it") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# -- how new weights reach the engine that rolls out: into this process, or as adapters to a vLLM server


@runtime_checkable
class AdapterServer(Protocol):
    """An engine that reads adapters from folders: `VllmEngine`, whose package `openai` a training here does without."""

    def policy_version(self, role: str) -> str:
        """The version that answers for `role`."""
        ...

    def publish(self, role: str, version: str, folder: Path) -> None:
        """From here on, the adapter in `folder` answers for `role`, as `version`."""
        ...


class Publisher(Protocol):
    """Puts the present policies of roles where the engine answers with them."""

    def publish(self, roles: Iterable[str]) -> None:
        """From here on, the engine answers with the present weights of `roles`."""
        ...

    def forget(self) -> None:
        """From here on, what the engine samples does not depend on what it has read before, if it can promise that."""
        ...


class InProcess:
    """Merged weights, handed to the engine in this process. What follows `forget` has the same bits in a run that was
    resumed."""

    def __init__(self, engine: LocalEngine, policies: RolePolicies) -> None:
        self._engine, self._policies = engine, policies

    def publish(self, roles: Iterable[str]) -> None:
        """Merge and hand over."""
        for role in roles:
            self._engine.set_weights(role, self._policies.merged_state(role), self._policies.version(role))

    def forget(self) -> None:
        """Empty the prefix caches."""
        self._engine.forget()


class ToServer:
    """Adapters as PEFT folders below `folder`, which the server reads. Its own cache of prefixes is not emptied, and
    its batches are its own, so that a resumed run may differ in the last bits of its log-probs."""

    def __init__(self, engine: AdapterServer, policies: RolePolicies, folder: Path) -> None:
        self._engine, self._policies, self._folder = engine, policies, folder

    def publish(self, roles: Iterable[str]) -> None:
        """Export and load. A version that is served already stays as it is."""
        for role in roles:
            version = self._policies.version(role)
            if self._engine.policy_version(role) != version:
                adapter = export_adapter(self._policies, role, self._folder / version)
                self._engine.publish(role, adapter.version, adapter.folder)

    def forget(self) -> None:
        """Nothing to do: see above."""


def publisher(engine: Engine, policies: RolePolicies, folder: Path) -> Publisher:
    """The publisher that fits the engine; `folder` is for adapters that a server reads."""
    if isinstance(engine, LocalEngine):
        return InProcess(engine, policies)
    if isinstance(engine, AdapterServer):
        return ToServer(engine, policies, folder)
    raise TypeError(f"the engine '{engine.name}' takes no new weights, so nothing can be trained through it")
