"""One policy for all roles: the ablation that trains one adapter on everybody's conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from transformers import PreTrainedModel

from backend.policies.hardware import Hardware
from backend.policies.lora import LoraSettings
from backend.policies.role_policies import PolicyMode, RolePolicies
from backend.policies.tensor_files import fingerprint, read_tensors
from simulator.errors import UserError

OWNER = "team"  # whose the one adapter is: its first weights depend on this name, as apart on that of the role


class SinglePolicy(RolePolicies):
    """`RolePolicies` whose roles all have the same parameters: one adapter, or one copy of the model."""

    def __init__(
        self,
        base: Path | PreTrainedModel,
        roles: Sequence[str],
        mode: PolicyMode = "lora",
        lora: LoraSettings | None = None,
        seed: int = 0,
        hardware: Hardware | None = None,
    ) -> None:
        super().__init__(base, [OWNER], mode, lora, seed, hardware)
        self.roles = tuple(roles)
        self._parameters = dict.fromkeys(roles, self._parameters[OWNER])
        self._adapter_shapes = {role: shape for shape in self._adapter_shapes.values() for role in roles}
        self._copies = {role: model for model in self._copies.values() for role in roles}

    def activate(self, role: str) -> PreTrainedModel:
        """The model that answers for every role."""
        return self._copies[role] if self._copies else super().activate(OWNER)

    def load_files(self, files: Mapping[str, Path]) -> None:
        """As `RolePolicies.load_files`. Raises `UserError` also where the files of two roles are not equal."""
        if len({fingerprint(read_tensors(path)[0]) for path in files.values()}) > 1:
            raise UserError(
                f"the files of {', '.join(files)} in {next(iter(files.values())).parent} are of different weights, and "
                "training.experimental.models = 'shared' has one model for all roles: give the files that one run "
                "wrote at one step"
            )
        super().load_files(files)
