"""A role from a module outside the package is asked, fine-tuned, and its adapter learns of M-GRPO's steps."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

import cryptosentinel as cs
from backend.config.load import load_config
from cryptosentinel.agents import registry
from cryptosentinel.agents.registry import STANDARD

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
KEY = "range_analyst"
OWN = ("plugins.roles=own_role:ROLE", f"team.roles={','.join(STANDARD)},{KEY}")
SMALL = (
    "market.bars=900", "market.coins=1", "nano.decisions=60", "nano.steps=20", "training.queries_per_step=1",
    "training.rollouts_per_query=2", "training.validation_queries=1", "training.stage2_steps=0",
)  # fmt: skip


_TABLES: tuple[dict[str, Any], ...] = (
    registry._FOUND,
    registry.SUB_AGENTS,
    registry.ROLES,
    registry.SPEAKERS,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a role of the user's own, where the commands are given; the role is forgotten afterwards."""
    shutil.copy(EXAMPLES / "own_role.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    known = [(table, dict(table)) for table in _TABLES]
    yield tmp_path
    for table, before in known:
        table.clear()
        table.update(before)


def learnt(folder: Path) -> set[str]:
    """The roles whose adapters differ from untrained ones, whose second factor is zero."""
    return {
        path.parent.name if path.stem == "adapter_model" else path.stem.removeprefix("policy-")
        for path in folder.rglob("*.safetensors")
        for name, tensor in load_file(path).items()
        if "lora_B" in name and tensor.any()
    }


@pytest.mark.slow
def test_m_grpo_moves_the_adapter_of_a_fourth_role(folder: Path) -> None:
    """The warm start is longer than that of SMALL: only valid answers are scored, and nothing is learnt without."""
    larger = ("nano.decisions=250", "nano.steps=300", "training.rollouts_per_query=4", f"training.practice={{{KEY}=4}}")
    trained = cs.train("quick", overrides=[*SMALL, *larger, *OWN], store="mem://")
    assert trained.frame()[f"{KEY}/grad_norm"].max() > 0.0
    assert KEY in learnt(trained.folder / "checkpoints")


def test_it_is_fine_tuned_and_scored(folder: Path) -> None:
    small = ("sft.states=8", "sft.steps=2", "sft.score_states=2")
    tuned = cs.sft("scripted", config="quick", overrides=[*SMALL, *OWN, *small])
    assert tuned.frame()["kept"][KEY] > 0
    assert KEY in learnt(tuned.folder / "adapters")


def test_a_role_may_not_take_the_name_of_another() -> None:
    with pytest.raises(cs.UserError, match="its key must be a name of its own"):
        registry.register(registry.SUB_AGENTS["consult_trader"])
    assert load_config("quick").team.roles == STANDARD
