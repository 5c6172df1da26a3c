"""From a base model's folder and the settings to the policies of the roles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from backend.config.training import TrainingConfig
from backend.policies.adapters import load_versions
from backend.policies.hardware import Hardware
from backend.policies.role_policies import RolePolicies, adapter_shape
from cryptosentinel.agents.registry import ROLES
from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.llm.model_files import read_tokenizer
from cryptosentinel.llm.templates import chat_format
from simulator.errors import UserError


def role_policies(
    base: Path,
    training: TrainingConfig,
    *,
    think: bool = False,
    roles: Sequence[str] = tuple(ROLES),
    hardware: Hardware | None = None,
    start: Path | None = None,
) -> tuple[RolePolicies, ChatFormat]:
    """Base model and tokenizer in `base`, with an untrained adapter (or a copy) for each of `roles`. With
    `start` they begin with the weights in that folder, and the KL is to these.

    `think` is that of `chat_format`. Who trains them gives the `hardware` that the configuration
    asks for (`hardware_of`); who only lets them answer has them in float32, on a GPU where there is one. Raises
    `UserError` for a base that cannot be used, and a role that is not known.
    """
    stranger = next((role for role in roles if role not in ROLES), None)
    if stranger is not None:
        raise UserError(f"no role '{stranger}'; there are {', '.join(ROLES)}, or add one with plugins.roles")
    held = hardware or Hardware("cuda" if torch.cuda.is_available() else "cpu")
    policies = RolePolicies(base, list(roles), training.weights, adapter_shape(training), training.seed, held)
    if start is not None:
        try:
            load_versions(policies, start)
        except UserError as error:
            raise UserError(f"training.start_from = {training.start_from} cannot be continued from: {error}") from error
        if training.kl > 0.0:
            policies.anchor()
    return policies, chat_format(read_tokenizer(base), base, think=think)
