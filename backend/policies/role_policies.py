"""The policies of all roles over one base model: a LoRA adapter per role, or a full copy per role.

Roles share no trainable parameter. The base never changes: adapters are merged in fp32 and into a copy only, since a
merge in place, and in a short float type, loses most of a small update.
"""

from __future__ import annotations

import copy
import hashlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from backend.config.training import TrainingConfig
from backend.policies.hardware import Hardware, base_state
from backend.policies.linear_layers import quicken
from backend.policies.logprobs import token_logps
from backend.policies.tensor_files import fingerprint, read_tensors, write_tensors
from cryptosentinel.llm.architecture import beside_blocks, linear_names
from cryptosentinel.llm.nano import load_model
from simulator.errors import UserError

PolicyMode = Literal["lora", "full"]
ALL_LINEAR = ("all-linear",)  # the word of peft


@dataclass(frozen=True)
class LoraSettings:
    """Shape of the adapters: rank, scaling alpha / rank, and which linear layers carry one."""

    lora_rank: int
    lora_alpha: int
    lora_targets: tuple[str, ...]


def adapted_layers(config: PreTrainedConfig) -> tuple[str, ...]:
    """The linear layers of a block that an adapter can be on. Raises `UserError` where there is none."""
    known = linear_names(config)
    if not known:
        raise UserError(
            f"no layer in the blocks of {config.model_type} is one that an adapter can be on: use another model, or "
            "training.lora_rank = 0"
        )
    return known


def on_model(lora: LoraSettings, config: PreTrainedConfig) -> LoraSettings:
    """The shape with the names of this architecture's linear layers where it says all of them. Raises `UserError` for
    a name that no linear layer of its blocks has."""
    known = adapted_layers(config)
    if lora.lora_targets == ALL_LINEAR:
        return replace(lora, lora_targets=known)
    odd = [name for name in lora.lora_targets if name not in known]
    if odd:
        raise UserError(
            f"the adapter's target '{odd[0]}' is not a linear layer of a block of {config.model_type}; there are "
            f"{', '.join(known)}, or {ALL_LINEAR[0]} for all of them"
        )
    return lora


def lora_config(lora: LoraSettings, config: PreTrainedConfig, base_name: str | None = None) -> LoraConfig:
    """The shape of adapters on a model of this configuration, as peft has it; `base_name` is what an exported adapter
    calls its base."""
    return LoraConfig(
        r=lora.lora_rank,
        lora_alpha=lora.lora_alpha,
        target_modules=list(lora.lora_targets),
        exclude_modules=beside_blocks(config),
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
        base_model_name_or_path=base_name,
    )


def adapter_shape(training: TrainingConfig) -> LoraSettings:
    """The shape of the roles' adapters, as the configuration has it."""
    return LoraSettings(training.lora_rank, 2 * training.lora_rank, ALL_LINEAR)


class RolePolicies:
    """The trainable policies of several roles.

    `base` is the folder of a causal language model, or such a model, which is copied, never changed. In `lora`
    mode all roles share one frozen base and embeddings and norms stay frozen; in `full` mode each role trains a copy.
    Before any training every role answers exactly as the base does.
    """

    def __init__(
        self,
        base: Path | PreTrainedModel,
        roles: Sequence[str],
        mode: PolicyMode = "lora",
        lora: LoraSettings | None = None,
        seed: int = 0,
        hardware: Hardware | None = None,
    ) -> None:
        if not roles or len(set(roles)) != len(roles):
            raise ValueError(f"roles must be distinct, and at least one: {list(roles)}")
        self.roles = tuple(roles)
        self.mode: PolicyMode = mode
        self.hardware = hardware or Hardware()
        # A frozen base is read in its own numbers where no others are wanted of it.
        dtype = None if mode == "lora" and self.hardware.precision == "bfloat16" else torch.float32
        model = load_model(base, dtype)[0] if isinstance(base, Path) else copy.deepcopy(base)
        model.requires_grad_(False).eval()
        # The shape of all adapters; None where roles are whole models.
        self.shape = on_model(lora or adapter_shape(TrainingConfig()), model.config) if mode == "lora" else None
        # Of the weights as they were read: a base in other numbers is the same base, and takes the same adapters.
        self.base_fingerprint = fingerprint(model.state_dict(), as_float32=True)
        self._base = model
        self._peft: PeftModel | None = None
        self._anchors: dict[str, dict[str, Tensor]] = {}  # by role, where the reference is not the base
        self._copies: dict[str, PreTrainedModel] = {}
        if self.shape is None:
            self._copies = {role: copy.deepcopy(model).float().requires_grad_(True) for role in roles}
            for trained in self._copies.values():
                self.hardware.carry(trained)
            self.hardware.place(model)
        else:
            # In this order the adapters begin alike on all hardware: drawn in float32, on the CPU.
            self.hardware.pack(model)
            self._peft = _with_adapters(model, roles, lora_config(self.shape, model.config), seed)
            self.hardware.place(model)
        for trained in self._copies.values() if self._copies else [model]:
            quicken(trained)
            self.hardware.prepare(trained)
        self._parameters = {role: self._named_parameters(role) for role in roles}

    @property
    def base_config(self) -> PreTrainedConfig:
        """The architecture of the base model."""
        return self._base.config

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self._base.device

    def trainable(self, role: str) -> list[nn.Parameter]:
        """The parameters that this role alone owns, always in the same order."""
        return list(self._parameters[role].values())

    def activate(self, role: str) -> PreTrainedModel:
        """Make `role` the one that answers, and return the model that answers for it."""
        if self._peft is None:
            return self._copies[role]
        self._peft.set_adapter(role)
        return self._base

    def logps(
        self, role: str, ids: Tensor, mask: Tensor, temperature: float = 1.0, entropy_gradient: bool = False
    ) -> tuple[Tensor, Tensor]:
        """`token_logps` under the role's policy: log-probs and entropies, (B, T) each."""
        with self.hardware.computing():
            return token_logps(self.activate(role), ids, mask, temperature, entropy_gradient, self.hardware.compiled)

    def anchor(self) -> None:
        """From here on, the reference of every role is its policy as it is now, no longer the base."""
        self._anchors = {role: self.role_state(role) for role in self.roles}

    def reference_logps(self, role: str, ids: Tensor, mask: Tensor, temperature: float = 1.0) -> Tensor:
        """Log-probs (B, T) without gradient under the role's reference: the base (adapters off), or its `anchor`.

        An anchor's parameters stand in for the role's while it answers, so no pass that is yet to be differentiated
        may be open.
        """
        with torch.no_grad(), self.hardware.computing():
            if role in self._anchors:
                with self._anchored(role) as model:
                    return self._values(model, ids, mask, temperature)
            if self._peft is None:
                return self._values(self._base, ids, mask, temperature)
            with self._peft.disable_adapter():
                return self._values(self._base, ids, mask, temperature)

    def merged_state(self, role: str) -> dict[str, Tensor]:
        """The role's whole model for a decode engine: fp32 copies under the base's own parameter names.

        W + (alpha / r) B A is computed in fp32; neither base nor adapter changes.
        """
        with torch.no_grad():
            shape = self.shape
            if shape is None:
                state = base_state(self._copies[role])
                return {name: tensor.to(torch.float32, copy=True) for name, tensor in state.items()}
            scaling = shape.lora_alpha / shape.lora_rank
            merged = {
                name.replace(".base_layer.", "."): tensor.to(torch.float32, copy=True)
                for name, tensor in base_state(self._base).items()
                if ".lora_" not in name
            }
            own = self._parameters[role]
            for part in own:
                if part.endswith(".lora_A.weight"):
                    layer = part.removesuffix(".lora_A.weight")
                    up, down = own[f"{layer}.lora_B.weight"].float(), own[part].float()
                    name = layer.removeprefix("base_model.model.")
                    change = scaling * (up @ down)
                    transposed = isinstance(self._base.get_submodule(f"{name}.base_layer"), Conv1D)
                    base = merged[f"{name}.weight"]
                    base += (change.t() if transposed else change).to(base.device)
            return merged

    def role_state(self, role: str) -> dict[str, Tensor]:
        """A copy of the role's own parameters (an adapter under peft's names, or a whole model): for a rollback."""
        return {name: parameter.detach().clone() for name, parameter in self._parameters[role].items()}

    def load_role_state(self, role: str, state: Mapping[str, Tensor]) -> None:
        """Copy parameters from `role_state` back in place; optimizers keep pointing at them. Raises ValueError."""
        own = self._parameters[role]
        wanted, given = _shapes(own), _shapes(state)
        if wanted != given:
            odd = sorted(name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name))
            raise ValueError(f"the parameters of {role} do not fit: {odd[0]} and {len(odd) - 1} others differ")
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(state[name])

    def version(self, role: str) -> str:
        """Name of the role's present weights, made of their content: equal weights on an equal base, equal name."""
        return version_name(role, self.base_fingerprint, self._parameters[role])

    def save(self, folder: Path) -> None:
        """Write `{role}.safetensors` for each role."""
        for role in self.roles:
            write_tensors(folder / f"{role}.safetensors", self.role_state(role), self.header(role))

    def load(self, folder: Path) -> None:
        """Read every role back from `save`. Raises as `load_files` does."""
        self.load_files({role: folder / f"{role}.safetensors" for role in self.roles})

    def load_files(self, files: Mapping[str, Path]) -> None:
        """Read each role from its file. Raises UserError, and changes nothing, when one is not of that role's policy.

        What must agree: the base model (by the hash of its weights), the mode, the shape of the adapters, the role.
        """
        states = {}
        for role, path in files.items():
            states[role], header = read_tensors(path)
            for key, mine in self.header(role).items():
                if header.get(key) != mine:
                    raise UserError(
                        f"{path} is a checkpoint of another model: its {key} is {header.get(key)}, here it is {mine}. "
                        "Give the checkpoint made from this base model with these settings, or train from the start"
                    )
            if _shapes(states[role]) != _shapes(self._parameters[role]):
                raise UserError(f"{path} does not hold this model's parameters: use another checkpoint")
        for role, state in states.items():
            self.load_role_state(role, state)

    def header(self, role: str) -> dict[str, Any]:
        """What a file of the role's parameters says that it is: role, mode, shape of the adapter, hash of the base."""
        shape = self.shape
        lora = None
        if shape is not None:  # under the names that files have had from the beginning
            lora = {"r": shape.lora_rank, "alpha": shape.lora_alpha, "targets": list(shape.lora_targets)}
        return {"kind": "policy", "role": role, "mode": self.mode, "lora": lora, "base": self.base_fingerprint}

    def _values(self, model: PreTrainedModel, ids: Tensor, mask: Tensor, temperature: float) -> Tensor:
        return token_logps(model, ids, mask, temperature, compiled=self.hardware.compiled)[0]

    @contextmanager
    def _anchored(self, role: str) -> Iterator[PreTrainedModel]:
        """The model that answers for `role`, with the parameters of its anchor for the time of a block."""
        own = self.role_state(role)
        self._put(role, self._anchors[role])
        try:
            yield self.activate(role)
        finally:
            self._put(role, own)

    def _put(self, role: str, held: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self._parameters[role].items():
                parameter.copy_(held[name])

    def _named_parameters(self, role: str) -> dict[str, nn.Parameter]:
        if self._peft is None:
            return dict(self._copies[role].named_parameters())
        tail = f".{role}.weight"
        return {
            name.removesuffix(tail) + ".weight": parameter
            for name, parameter in self._peft.named_parameters()
            if name.endswith(tail) and ".lora_" in name
        }


def version_name(role: str, base: str, parameters: Mapping[str, Tensor]) -> str:
    """The name of a role's weights: the role, and a hash of the base's fingerprint and of the role's own parameters."""
    content = base + fingerprint(parameters)
    return f"{role}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def _with_adapters(model: PreTrainedModel, roles: Sequence[str], config: LoraConfig, seed: int) -> PeftModel:
    """Put one adapter per role into `model`; the caller's random state is left alone.

    A role's first weights depend on `seed` and its name only, so a process that trains one role starts from the same.
    """
    wrapped: PeftModel | None = None
    with torch.random.fork_rng(devices=[]), _numbers_hidden(model):
        for role in roles:
            torch.manual_seed(zlib.crc32(f"{seed} {role}".encode()))
            if wrapped is None:
                wrapped = get_peft_model(model, config, adapter_name=role)
            else:
                wrapped.add_adapter(role, config)
    if not isinstance(wrapped, PeftModel):
        raise TypeError(f"peft returned a {type(wrapped).__name__}, not a PeftModel")
    return wrapped


@contextmanager
def _numbers_hidden(model: PreTrainedModel) -> Iterator[None]:
    """Let every weight of 16 bits be one of float32, which takes no memory, for the time of a block: peft draws an
    adapter in the numbers of the layer that it is on, and adapters are float32."""
    held = {one: one.data for one in model.parameters() if one.dtype in (torch.bfloat16, torch.float16)}
    for one, data in held.items():
        one.data = torch.zeros((), device=data.device).expand(data.shape)
    try:
        yield
    finally:
        for one, data in held.items():
            one.data = data


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}
