"""Runs of the trainer: what resumes is equal, what fails leaves the rest usable, no role touches another."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backend.policies.role_policies import RolePolicies
from backend.store.store import Store
from backend.training import trainer as trainer_module
from backend.training.checkpoints import checkpoints
from backend.training.validation import Validation
from cryptosentinel.agents.registry import ROLES
from simulator.errors import Interrupted, RunFailed, UserError
from tests.small_world import (
    RUN,
    open_trainer,
    small_config,
    small_nano,
    smaller_config,
    train_as_told,
    tree,
)

STEPS = 4


def everything(store: Store) -> list[Any]:
    """All that a training writes to the store."""
    records: list[Any] = [*store.metrics(RUN), *store.adapters(RUN)]
    for step in range(STEPS):
        records += store.queries(RUN, step)
        records += store.rollouts(RUN, step)
        records += store.trajectories(RUN, step)
        records += store.rewards(RUN, step)
    return records


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


def test_a_role_without_credit_keeps_its_parameters(
    nano: Path, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = open_trainer(small_config(queries_per_step=4), nano, tmp_path, store, stage=2)
    for role, learner in trainer.learners.items():
        if role != "manager":
            monkeypatch.setattr(learner, "_scored_groups", lambda *arguments: [])
    before = {role: trainer.policies.role_state(role) for role in ROLES}
    trainer.step()
    moved = {
        role: any(not torch.equal(before[role][name], tensor) for name, tensor in after.items())
        for role, after in ((role, trainer.policies.role_state(role)) for role in ROLES)
    }
    assert moved == {**dict.fromkeys(ROLES, False), "manager": True}


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
    found = iter(shares)
    monkeypatch.setattr(
        trainer_module, "validate", lambda *args: Validation(0.5, 0.0, 0.0, valid=next(found), expert={})
    )


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
    outcomes = iter([0.5, 0.6, 0.7, 0.65, 0.69])
    monkeypatch.setattr(
        trainer_module, "validate", lambda *args: Validation(next(outcomes), 0.0, 0.0, {"manager": 1.0}, {})
    )
    train_as_told(smaller_config(base_model=str(nano)), tmp_path, store)
    assert json.loads((tmp_path / "team.json").read_text())["adapters"] == "adapters/step-000002"


def test_a_checkpoint_of_another_model_is_refused(
    nano: Path, tmp_path: Path, store: Store, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = smaller_config(validation_every=100)
    open_trainer(config, nano, tmp_path, store).step()
    before = tree(tmp_path / "checkpoints")
    other = small_nano(tmp_path_factory.mktemp("other") / "nano", hidden=32, steps=1, decisions=10)
    for settings, base in ((config, other), (smaller_config(validation_every=100, lora_rank=4), nano)):
        with pytest.raises(UserError, match="another model"):
            open_trainer(settings, base, tmp_path, store)
    assert tree(tmp_path / "checkpoints") == before


def test_a_training_ends_when_its_tokens_are_spent(nano: Path, store: Store, tmp_path: Path) -> None:
    """The last step is validated as the last of any training is."""
    one = open_trainer(
        smaller_config(stage1_steps=0, stage2_steps=50, tokens=1), nano, tmp_path / "one", store, stage=2
    )
    spent = one.run()
    assert spent.step == 1 and spent.tokens == sum(len(call.ids) for call in store.trajectories(RUN, 0))
    assert "validation/outcome" in store.metrics(RUN)[-1].values


def test_rates_fall_over_the_tokens_of_stage_2(nano: Path, store: Store, tmp_path: Path) -> None:
    """Where these end a training before its steps; those of stage 1 do not count, and a resume counts on."""
    options = {"stage2_steps": 50, "validation_every": 1, "gate_format": 0.0, "lr_end": 0.1}
    config = smaller_config(stage1_steps=1, tokens=9_000, **options)
    begun = open_trainer(config, nano, tmp_path, store)
    begun.trainer.start()
    begun.step()
    state = open_trainer(config, nano, tmp_path, store).run()
    assert state.tokens >= config.training.tokens
    rates = {one.step - 1: one.values["manager/lr"] for one in store.metrics(RUN) if "manager/lr" in one.values}
    taken = [sum(len(call.ids) for call in store.trajectories(RUN, step)) for step in range(state.step)]
    shares = np.cumsum([0, *taken[1:-1]]) / (config.training.tokens - taken[0])
    factors = [1.0, *(1.0 - 0.9 * shares)]
    expected = config.training.rate_of("manager") * np.asarray(factors)
    assert list(rates.values()) == pytest.approx(expected[list(rates)])
    assert len(set(rates.values())) > 2
