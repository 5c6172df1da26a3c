"""Checkpoints come back whole, or are not taken for one."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend.config.training import TrainingConfig
from backend.policies.build import role_policies
from backend.policies.role_policies import RolePolicies
from backend.training.checkpoints import TrainingState, checkpoints, load_checkpoint, load_newest, save_checkpoint
from backend.training.learning.learner import Learner
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
    learners["trader"].last_valid_parameters = good["trader"]
    path = save_checkpoint(tmp_path, state, policies, learners)
    again = learners_of(policies)
    again["manager"].last_valid_parameters = good["trader"]  # must not stay
    assert load_checkpoint(path, policies, again) == state
    kept = {
        role: learner.last_valid_parameters
        for role, learner in again.items()
        if learner.last_valid_parameters is not None
    }
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


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"step": 1, "rollbacks": [], "what": 2}', '{"rollbacks": 3}'])
def test_a_damaged_state_names_the_folder_to_remove(content: str, policies: RolePolicies, tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, TrainingState(1), policies, learners_of(policies))
    (path / "state.json").write_text(content)
    with pytest.raises(UserError, match=f"remove {path}"):
        load_checkpoint(path, policies, learners_of(policies))


def test_a_removal_that_was_cut_short_is_finished(policies: RolePolicies, tmp_path: Path) -> None:
    learners = learners_of(policies)
    saved = [save_checkpoint(tmp_path, TrainingState(step), policies, learners) for step in (2, 3)]
    (tmp_path / "step-000001" / "policies").mkdir(parents=True)
    state = load_newest(tmp_path, policies, learners)
    assert state is not None and state.step == 3
    assert sorted(tmp_path.iterdir()) == saved
    assert load_newest(tmp_path / "none", policies, learners) is None


@contextmanager
def _files_up_to(size: int) -> Iterator[None]:
    """No file may become larger than `size` bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_wherever_the_disk_is_full_the_former_checkpoint_is_intact(
    share: float, policies: RolePolicies, tmp_path: Path
) -> None:
    learners = learners_of(policies)
    former = save_checkpoint(tmp_path, TrainingState(1), policies, learners)
    before = tree(tmp_path)
    largest = max(len(content) for content in before.values())
    with _files_up_to(int(share * largest)), pytest.raises(RunFailed, match=r"cannot be written.*free some space"):
        save_checkpoint(tmp_path, TrainingState(2), policies, learners)
    assert tree(tmp_path) == before, "what was begun is removed, to make room"
    assert list(tmp_path.iterdir()) == [former], "its folders too"
    assert checkpoints(tmp_path) == [former]
    again = learners_of(policies)
    assert load_checkpoint(former, policies, again).step == 1
    assert again["trader"].state == learners["trader"].state


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    name=st.sampled_from(["policies/trader.safetensors", "learner-trader.json", "state.json"]), share=st.floats(0, 1)
)
def test_a_file_cut_short_anywhere_is_refused(name: str, share: float, policies: RolePolicies, tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, TrainingState(1), policies, learners_of(policies))
    before = {role: policies.version(role) for role in policies.roles}
    content = (path / name).read_bytes()
    (path / name).write_bytes(content[: int(share * (len(content) - 1))])
    with pytest.raises(UserError, match=r"(damaged|cannot be read)"):
        load_checkpoint(path, policies, learners_of(policies))
    assert {role: policies.version(role) for role in policies.roles} == before
