"""Runs of the trainer: what resumes is equal, what fails leaves the rest usable, no role touches another."""

from __future__ import annotations

import errno
import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.config.schema import Config, StoreConfig
from backend.policies.role_policies import RolePolicies
from backend.store.records import KINDS, TrajectoryRecord
from backend.store.store import Store
from backend.training import trainer as trainer_module
from backend.training.checkpoints import checkpoints, load_checkpoint
from backend.training.components import LearningStep, RolloutBatch
from backend.training.curriculum.curriculum import StepPlan
from backend.training.in_process import CheckpointFolder
from backend.training.learning import learner
from backend.training.learning.learner import MAX_IDLE_STEPS, StepData
from backend.training.trainer import Trainer
from backend.training.validation import Validation
from simulator.errors import Interrupted, RunFailed
from tests.small_world import (
    RUN,
    SmallTraining,
    open_trainer,
    records_of,
    small_config,
    smaller_config,
    train_as_told,
    tree,
)

STEPS = 4


def everything(store: Store) -> list[Any]:
    """All that a training writes to the store."""
    return [*store.metrics(RUN), *store.adapters(RUN), *records_of(store, STEPS)]


@pytest.fixture(scope="module")
def undisturbed(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], list[Any]]:
    """Files and records of a run of four steps that nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with Store.open("mem://") as opened:
        train_as_told(small_config(base_model=str(nano)), folder, opened)
        return tree(folder), everything(opened)


def test_a_run_learns_and_leaves_its_steps(undisturbed: tuple[dict[str, bytes], list[Any]]) -> None:
    files, records = undisturbed
    lines = [json.loads(line) for line in files["metrics.jsonl"].splitlines()]
    assert [line["step"] for line in lines] == list(range(STEPS + 1))
    assert [line.get("stage") for line in lines] == [None, 1.0, 2.0, 2.0, 2.0]
    first, last = (files[f"checkpoints/step-{step:06d}/policies/manager.safetensors"] for step in (STEPS - 1, STEPS))
    assert first != last, "the last step moved the manager"
    assert {name.split("/")[1] for name in files if name.startswith("checkpoints")} == {"step-000003", "step-000004"}
    assert len(records) > 4 * 8


@pytest.mark.parametrize(
    ("stop_after", "error", "status"),
    [
        (1, OSError(errno.ENOSPC, "No space left"), "failed"),
        pytest.param(2, KeyboardInterrupt(), "interrupted", marks=pytest.mark.slow),
    ],
)
def test_ended_between_steps_and_inside_one_and_resumed_is_bit_equal(
    stop_after: int,
    error: BaseException,
    status: str,
    undisturbed: tuple[dict[str, bytes], list[Any]],
    nano: Path,
    tmp_path: Path,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = small_config(base_model=str(nano))
    with pytest.raises(Interrupted, match=f"--resume {RUN}"):
        train_as_told(config, tmp_path, store, stop_after)
    assert store.run(RUN).status == "interrupted"
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "sta')  # a line that a crash has cut short is written again

    save = RolePolicies.save

    def fails(self: RolePolicies, folder: Path) -> None:
        save(self, folder)
        if folder.parent.name == "step-000003.tmp":
            (folder / "trader.safetensors").write_bytes(b"half")
            raise error

    monkeypatch.setattr(RolePolicies, "save", fails)
    with pytest.raises(RunFailed, match=r"--resume|step-000003 cannot be written \(No space left\): free some space"):
        train_as_told(config, tmp_path, store)  # `Interrupted` is a `RunFailed`
    assert store.run(RUN).status == status
    assert [path.name for path in checkpoints(tmp_path / "checkpoints")] == ["step-000001", "step-000002"]

    monkeypatch.setattr(RolePolicies, "save", save)
    train_as_told(config, tmp_path, store)
    assert store.run(RUN).status == "finished"
    assert tree(tmp_path) == undisturbed[0]
    assert everything(store) == undisturbed[1]


def test_a_ruined_role_is_rolled_back_also_after_a_resume(nano: Path, tmp_path: Path, store: Store) -> None:
    config = small_config(queries_per_step=6, gate_format=0.1, rollback_format=0.05, validation_every=100)
    trainer = open_trainer(config, nano, tmp_path, store, stage=2)  # all queries are the manager's
    kept = trainer.policies.role_state("manager")
    trainer.step()
    assert trainer.learners["manager"].last_valid_parameters is not None
    trainer = open_trainer(config, nano, tmp_path, store)  # what was good is in the checkpoint
    trainer.publish()
    garbage = {name: torch.full_like(tensor, 0.7) for name, tensor in kept.items()}
    trainer.policies.load_role_state("manager", garbage)
    trainer.publish()
    metrics = trainer.step()
    assert metrics["manager/valid"] == 0.0
    assert trainer.state.rollbacks == [(1, "manager")]
    assert metrics["rollbacks"] == 1.0
    for name, tensor in trainer.policies.role_state("manager").items():
        assert torch.equal(tensor, kept[name])
    assert trainer.learners["manager"].trainer.updates == 0, "the momentum that led astray is gone"
    assert trainer.engine.policy_version("manager") == trainer.policies.version("manager")
    after = trainer.step()
    assert after["manager/valid"] > 0.0, "the next rollouts are the restored policy's"


def _validated(monkeypatch: pytest.MonkeyPatch, shares: list[dict[str, float]]) -> None:
    """Let the validations find these shares of valid answers, one after the other."""
    found = iter([Validation(0.5, 0.0, 0.0, valid=valid, expert={}) for valid in shares])
    monkeypatch.setattr(trainer_module, "validate", lambda *args: next(found))


def test_stage_2_begins_only_when_every_role_keeps_the_format(
    nano: Path, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = smaller_config(stage1_max_steps=5, stage2_steps=1, gate_format=0.9, rollback_format=0.0)
    bad, good = {"manager": 1.0, "trader": 0.89}, {"manager": 0.9, "trader": 0.9}
    _validated(monkeypatch, [good, bad, bad, good, bad])  # of steps 0 to 4: the first is before stage 1 has its steps
    trainer = open_trainer(config, nano, tmp_path, store)
    state = trainer.run()
    assert (state.stage, state.stage_began, state.step) == (2, 3, 4)
    assert [line.values.get("stage") for line in store.metrics(RUN)] == [None, 1.0, 1.0, 1.0, 2.0]
    assert state.best_step == 0, "an equal score later is no better, and a team without its format is not kept"


def test_a_gate_that_stays_shut_fails_the_run_and_names_the_roles(
    nano: Path, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = smaller_config(base_model=str(nano), gate_format=0.9, rollback_format=0.0)
    _validated(monkeypatch, [{"manager": 0.95, "trader": 0.5}] * 3)
    with pytest.raises(RunFailed, match=r"90% valid answers in 2 steps \(trader 50.0%\)"):
        train_as_told(config, tmp_path, store)
    assert store.run(RUN).status == "failed"
    assert "trader" in str(store.run(RUN).message)


def test_the_best_validation_is_what_the_team_folder_names(
    nano: Path, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([Validation(outcome, 0.0, 0.0, {"manager": 1.0}, {}) for outcome in (0.5, 0.6, 0.7, 0.65, 0.69)])
    monkeypatch.setattr(trainer_module, "validate", lambda *args: next(found))
    train_as_told(smaller_config(base_model=str(nano)), tmp_path, store)
    assert json.loads((tmp_path / "team.json").read_text())["adapters"] == "adapters/step-000002"


def test_a_training_ends_when_its_tokens_are_spent(nano: Path, store: Store, tmp_path: Path) -> None:
    """The last step is validated as the last of any training is."""
    one = open_trainer(
        smaller_config(stage1_steps=0, stage2_steps=50, tokens=1), nano, tmp_path / "one", store, stage=2
    )
    spent = one.run()
    assert spent.step == 1 and spent.tokens == sum(len(call.ids) for call in store.trajectories(RUN, 0))
    assert "validation/outcome" in store.metrics(RUN)[-1].values


def versions(trainer: SmallTraining) -> list[str]:
    return [trainer.policies.version(role) for role in trainer.policies.roles]


def test_updates_that_are_never_finite_end_the_run_with_its_parameters_intact(
    nano: Path, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(queries_per_step=4, validation_every=100)
    monkeypatch.setattr(learner, "MAX_SKIPPED", 2)
    trainer = open_trainer(config, nano, tmp_path, store, stage=2)
    trainer.publish()
    before = versions(trainer)

    def never_finite(parameters: object, norm: float) -> torch.Tensor:
        return torch.tensor(float("nan"))

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", never_finite)
    metrics = trainer.step()
    assert metrics["manager/skipped_updates"] > 0.0 and metrics["manager/updates"] == 0.0
    trainer = open_trainer(config, nano, tmp_path, store)  # the count survives a resume
    trainer.publish()
    with pytest.raises(RunFailed, match=r"every update of (\w+) was skipped in 2 steps.*training\.learning_rate\.\1"):
        trainer.step()
    state = load_checkpoint(checkpoints(tmp_path / "checkpoints")[-1], trainer.policies, trainer.learners)
    assert state.step == 2 and versions(trainer) == before
    assert [record.step for record in store.metrics(RUN)] == [1, 2], "the step is recorded before the run ends"


class NoRollouts:
    """A source of rollouts whose steps are empty."""

    def collect(self, plan: StepPlan) -> RolloutBatch:
        return RolloutBatch(StepData(plan.stage, [], []), {}, {})


class SilentTrader:
    """Learners whose trader has had no conversation for one step less than is too many, then for more."""

    def load_weights(self, step: int) -> None:
        pass

    def train_step(self, step: int, data: StepData) -> LearningStep:
        return LearningStep({"trader/silent_steps": MAX_IDLE_STEPS - 1.0 + step, "manager/silent_steps": 0.0})


def test_a_role_that_nobody_asks_is_named_once(
    nano: Path, tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    parts = open_trainer(small_config(validation_every=100), nano, tmp_path, store).parts
    trainer = Trainer(
        parts, NoRollouts(), SilentTrader(), CheckpointFolder(tmp_path / "checkpoints", parts.policies, {})
    )
    with caplog.at_level(logging.WARNING):
        trainer.step()
        assert caplog.messages == []
        for _ in range(2):
            trainer.step()
    [said] = caplog.messages
    assert "trader" in said and RUN in said


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


def keeping(nano: Path, keep: int) -> Config:
    return smaller_config(base_model=str(nano), validation_queries=1).model_copy(
        update={"store": StoreConfig(keep=keep)}
    )


def test_only_old_conversations_go_and_a_resumed_run_is_equal(nano: Path, tmp_path: Path) -> None:
    """A run that kept all before, or was killed between its checkpoint and the deletion, drops what it has too much;
    and in the end it has the bits of an undisturbed one that keeps all."""
    with Store.open("mem://") as everything, Store.open("mem://") as last_only:
        train_as_told(keeping(nano, 0), tmp_path / "all", everything)
        for step, keep, kept in ((2, 0, [0, 1]), (3, 1, [2])):
            with pytest.raises(Interrupted):
                train_as_told(keeping(nano, keep), tmp_path / "last", last_only, stop_after=step)
            assert last_only.steps(TrajectoryRecord, RUN) == kept, "dropped while it runs"
        train_as_told(keeping(nano, 1), tmp_path / "last", last_only)
        assert tree(tmp_path / "all") == tree(tmp_path / "last")
        for kind in KINDS[:-1]:
            expected = list(everything.each(kind, RUN))
            if kind is TrajectoryRecord:
                expected = [one for one in expected if vars(one)["step"] == STEPS - 1]
            assert list(last_only.each(kind, RUN)) == expected, kind.table
        assert last_only.run(RUN).config["config"]["store"] == {"keep": 1}
