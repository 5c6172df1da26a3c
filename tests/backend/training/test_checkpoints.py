"""Checkpoints come back whole, or are not taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from backend.config import TrainingConfig
from backend.teams import role_policies
from backend.training import tensor_files
from backend.training.checkpoints import TrainingState, checkpoints, load_checkpoint, save_checkpoint
from backend.training.learner import Learner
from backend.training.policies import RolePolicies
from simulator.errors import RunFailed, UserError
from tests.small_world import tree


@pytest.fixture
def policies(nano: Path) -> RolePolicies:
    return role_policies(nano, TrainingConfig(lora_rank=2))[0]


def learners_of(policies: RolePolicies) -> dict[str, Learner]:
    return {role: Learner(TrainingConfig(lora_rank=2), policies, role) for role in policies.roles}


def test_state_and_kept_parameters_come_back(policies: RolePolicies, tmp_path: Path) -> None:
    state = TrainingState(7, 2, 3, 0.625, 5, [(4, "trader"), (6, "manager")])
    good = {"trader": {name: tensor + 1 for name, tensor in policies.role_state("trader").items()}}
    learners = learners_of(policies)
    learners["trader"].good = good["trader"]
    path = save_checkpoint(tmp_path, state, policies, learners)
    again = learners_of(policies)
    again["manager"].good = good["trader"]  # must not stay
    assert load_checkpoint(path, policies, again) == state
    kept = {role: learner.good for role, learner in again.items() if learner.good is not None}
    assert kept.keys() == {"trader"}
    assert all(torch.equal(kept["trader"][name], tensor) for name, tensor in good["trader"].items())


def test_the_newest_two_are_kept_and_one_that_is_not_whole_is_none(policies: RolePolicies, tmp_path: Path) -> None:
    learners = learners_of(policies)
    for step in (9, 10, 11):
        save_checkpoint(tmp_path, TrainingState(step), policies, learners)
    (tmp_path / "step-000012.tmp").mkdir()
    (tmp_path / "step-000012.tmp" / "state.json").write_text("{}")
    (tmp_path / "step-000013").mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000010", "step-000011"]
    save_checkpoint(tmp_path, TrainingState(12), policies, learners)
    assert checkpoints(tmp_path)[-1].name == "step-000012"
    assert not (tmp_path / "step-000012.tmp").exists()
    assert checkpoints(tmp_path / "nowhere") == []


def test_saving_a_step_again_leaves_the_same_bytes(policies: RolePolicies, tmp_path: Path) -> None:
    learners = learners_of(policies)
    save_checkpoint(tmp_path, TrainingState(1), policies, learners)
    before = tree(tmp_path)
    save_checkpoint(tmp_path, TrainingState(1), policies, learners)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"step": 1, "rollbacks": [], "what": 2}', '{"rollbacks": 3}'])
def test_a_damaged_state_names_the_folder_to_remove(content: str, policies: RolePolicies, tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, TrainingState(1), policies, learners_of(policies))
    (path / "state.json").write_text(content)
    with pytest.raises(UserError, match=f"remove {path}"):
        load_checkpoint(path, policies, learners_of(policies))


@pytest.mark.parametrize("name", ["policies/trader.safetensors", "trainer-manager.safetensors"])
def test_a_missing_or_damaged_file_is_refused(name: str, policies: RolePolicies, tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, TrainingState(1), policies, learners_of(policies))
    (path / name).write_bytes(b"half a file")
    with pytest.raises(UserError, match="damaged"):
        load_checkpoint(path, policies, learners_of(policies))
    (path / name).unlink()
    with pytest.raises(UserError, match="does not exist"):
        load_checkpoint(path, policies, learners_of(policies))


def test_a_full_disk_fails_the_run_and_leaves_the_former_checkpoint(
    policies: RolePolicies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learners = learners_of(policies)
    former = save_checkpoint(tmp_path, TrainingState(1), policies, learners)

    def full(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
        path.write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(tensor_files, "save_file", full)
    with pytest.raises(RunFailed, match=r"No space left on device.*free some space"):
        save_checkpoint(tmp_path, TrainingState(2), policies, learners)
    assert checkpoints(tmp_path) == [former]
    assert load_checkpoint(former, policies, learners_of(policies)).step == 1
