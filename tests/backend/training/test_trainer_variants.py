"""The trainer with the variants turned on: they reach the formulas and repeat from the seed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from backend.store.store import Store
from tests.small_world import SmallTraining, open_trainer, small_config

VARIANTS: dict[str, dict[str, Any]] = {
    "DAPO with its clip": {"recipe": "dapo", "clip_high": 0.28, "scale_rewards": False},
    "CISPO": {"recipe": "cispo", "clip_low": 1.0, "clip_high": 4.0},
    "Dr. GRPO with Shapley values": {"recipe": "dr_grpo", "credit": "shapley", "kl": 0.1, "entropy": 0.01},
    "GSPO with counterfactuals and copies": {
        "recipe": "gspo", "credit": "counterfactual", "alignment": "duplicate_drop", "invalid_penalty": 0.1,
    },
    "GRPO for each role": {"recipe": "grpo", "kl": 0.1},
    "the ratio as printed": {"recipe": "mgrpo_trajectory", "kl": 0.1},
}  # fmt: skip


def in_stage_2(nano: Path, folder: Path, store: Store, **training: Any) -> SmallTraining:
    trainer = open_trainer(small_config(**training), nano, folder, store, stage=2)
    trainer.publish()
    return trainer


@pytest.mark.parametrize(
    "name", [name if name.startswith("D") else pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS]
)
def test_a_step_with_variants_learns_and_repeats(name: str, nano: Path, tmp_path: Path, store: Store) -> None:
    options = {"validation_every": 100, "queries_per_step": 4, **VARIANTS[name]}
    metrics = in_stage_2(nano, tmp_path / "a", store, **options).step()
    assert all(math.isfinite(value) for value in metrics.values())
    assert sum(metrics.get(f"{role}/updates", 0.0) for role in ("manager", "market_analyst")) > 0
    with Store.open("mem://") as other:
        assert in_stage_2(nano, tmp_path / "b", other, **options).step() == metrics
    roles = ["market_analyst", "risk_analyst", "trader"]
    told = {role: metrics[f"{role}/credit/replayed"] for role in roles if f"{role}/credit/replayed" in metrics}
    assert set(told.values()) == ({0.0, 1.0} if "credit" in VARIANTS[name] else set())


def test_only_roles_that_are_not_frozen_may_move(nano: Path, tmp_path: Path, store: Store) -> None:
    options: dict[str, Any] = {"validation_every": 100, "queries_per_step": 4, "warmup_steps": 0}
    trainer = in_stage_2(nano, tmp_path, store, freeze=["market_analyst", "trader"], **options)
    before = {role: trainer.policies.version(role) for role in trainer.policies.roles}
    for _ in range(2):
        metrics = trainer.step()
        assert {"manager/reward/mean", "market_analyst/reward/mean"} <= metrics.keys(), "the others are paid too"
    moved = {role for role, version in before.items() if trainer.policies.version(role) != version}
    # RiskAnalyst is asked too seldom here to have something to learn in every run.
    assert "manager" in moved and moved <= {"manager", "risk_analyst"}
