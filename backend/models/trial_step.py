"""One training step of a base model, with random rows: whether it can be trained at all."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from backend.policies.adapters import load_versions, save_versions
from backend.policies.hardware import Hardware, Precision, machine_memory
from backend.policies.lora import ALL_LINEAR, LoraSettings
from backend.policies.role_policies import RolePolicies
from backend.policies.temporary import temporary_folder
from cryptosentinel.llm.architecture import vocabulary_of
from simulator.errors import UserError

ROLE = "manager"
ROWS, TOKENS = 2, 12
_SHAPE = LoraSettings(lora_rank=2, lora_alpha=4, lora_targets=ALL_LINEAR)
_SLACK = 1.3  # of the weights: activations of a few tokens, and what is read beside them


def precision_that_fits(parameters: int) -> Precision | None:
    """The numbers in which a base of so many parameters fits into this machine's memory; None where none does."""
    free = machine_memory()
    sizes: dict[Precision, int] = {"float32": 4, "bfloat16": 2}  # bytes a parameter
    return next((name for name, size in sizes.items() if _SLACK * size * parameters <= free), None)


def trial_step(base: Path, precision: Precision = "float32") -> str:
    """Train an adapter on random rows for one step, with gradient checkpointing, save it and load it; what was done, in
    words. Raises `UserError`, with the reason, where that does not work."""
    try:
        return _step(RolePolicies(base, [ROLE], "lora", _SHAPE, hardware=Hardware("cpu", precision, True)))
    except UserError:
        raise
    except Exception as error:
        reason = (" ".join(str(error).split()) or "no message")[:200]
        raise UserError(
            f"the model in {base} cannot be trained: its first step ends in {type(error).__name__}: {reason}. Use "
            "another model"
        ) from error


def _step(policies: RolePolicies) -> str:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary_of(policies.base_config), (ROWS, TOKENS), generator=generator)
    mask = torch.arange(TOKENS).expand(ROWS, -1) >= TOKENS // 2
    own = policies.trainable(ROLE)
    with torch.no_grad():
        for parameter in own:  # at B = 0 no gradient reaches A
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=generator))
    before = policies.version(ROLE)
    optimizer = torch.optim.AdamW(own, lr=1e-3)
    logps, _ = policies.logps(ROLE, ids, mask)
    (-logps.sum()).backward()
    idle = sum(parameter.grad is None for parameter in own)
    if idle:
        raise UserError(f"no gradient reaches {idle} of its {len(own)} adapter weights, so it cannot be trained")
    optimizer.step()
    after, moved = policies.version(ROLE), policies.logps(ROLE, ids, mask)[0].detach()
    if after == before or not torch.isfinite(moved).all():
        raise UserError("its first step leaves the adapter as it was, or its answers not finite: use another model")
    folder = temporary_folder("trial")
    save_versions(policies, folder, "trial", 1)
    with torch.no_grad():
        for parameter in own:
            parameter.zero_()
    load_versions(policies, folder)
    shutil.rmtree(folder)
    if policies.version(ROLE) != after or not torch.equal(policies.logps(ROLE, ids, mask)[0].detach(), moved):
        raise UserError("an adapter that is saved and loaded answers otherwise than before: use another model")
    return f"one step with random rows: {len(own) // 2} layers adapted, saved and loaded"
