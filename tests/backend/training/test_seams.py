"""Where the parts of a training meet: every role, and not the first alone, is paid with the right sign, compared with
its own policy, sampled and scored at one temperature, and answers with its newest weights; and a team is validated on
windows that it never trains on. Each mistake that is planted here is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from backend.builders.market import split
from backend.builders.teams import LoadedTeam, model_team
from backend.policies.adapters import InProcess
from backend.policies.role_policies import RolePolicies
from backend.store.records import RunRecord
from backend.store.store import Store
from backend.training import trainer as trainer_module
from backend.training.algorithm.trajectory import Trajectory
from backend.training.components import TrainingParts
from backend.training.curriculum.queries import Query
from backend.training.learning.batches import MicroBatch
from backend.training.learning.role_trainer import Batch, PolicyGradient, RoleTrainer
from backend.training.rollout import sharding
from backend.training.rollout.shared_shards import SharedShards
from backend.training.trainer import Trainer
from backend.training.validation import Validation
from cryptosentinel.agents.registry import ROLES, STANDARD
from tests.backend.training.bandit import TEAM, Bandit, open_bandit
from tests.small_world import HORIZON, RUN, one_process_trainer, small_config, small_market

STEPS = 6
SMALL_GAP = 1e-4  # nats between two computations of one log-prob

Plant = Callable[[pytest.MonkeyPatch], None]


# -- the bandit -----------------------------------------------------------------------------------------------------


def run_bandit(folder: Path, store: Store) -> dict[str, str]:
    """What is wrong with a training of the bandit, by role; empty where every rule holds."""
    bandit = open_bandit(folder, store)
    before = {role: bandit.chance(role) for role in TEAM}
    metrics = [bandit.trainer.step() for _ in range(STEPS)]
    wrong: dict[str, str] = {}
    for role in TEAM:
        after = bandit.chance(role)
        if max(gaps[role] for gaps in bandit.rollouts.gaps) > SMALL_GAP:
            wrong[role] = "the engine does not sample from the role's present policy at the temperature"
        elif not unmoved_ratios_are_one(bandit, role):
            wrong[role] = "the ratio is not to the role's own policy"
        elif max(one.get(f"{role}/engine_gap", 0.0) for one in metrics) > SMALL_GAP:
            wrong[role] = "the trainer does not score what was sampled as the engine did"
        elif not (0.3 < before[role] < 0.7 and after > 0.85):
            wrong[role] = f"its arm went from {before[role]:.2f} to {after:.2f}"
    return wrong


def unmoved_ratios_are_one(bandit: Bandit, role: str) -> bool:
    """Whether every ratio is 1 in all the updates of a step that moves nothing."""
    data, learner = bandit.rollouts.last, bandit.learners[role]
    assert data is not None
    said = learner.conversations(data)
    advantages, weights = [(-1.0) ** i for i in range(len(said))], [1.0 / len(said)] * len(said)
    found = learner.trainer.step(said, advantages, weights, learner.config.temperature, rate=0.0)
    low, high = found[f"{role}/ratio/p01"], found[f"{role}/ratio/max"]
    return (
        found[f"{role}/updates"] == 2.0 and low == pytest.approx(1.0, abs=1e-5) and high == pytest.approx(1.0, abs=1e-5)
    )


def test_every_role_of_a_bandit_learns_its_arm(tmp_path: Path, store: Store) -> None:
    assert run_bandit(tmp_path, store) == {}


def _traders_sign(patch: pytest.MonkeyPatch) -> None:
    whole = RoleTrainer.split_batch

    def split(self: RoleTrainer, calls: Sequence[Trajectory], advantages: Sequence[float], *others: Any) -> Batch:
        sign = -1.0 if self.role == "trader" else 1.0
        return whole(self, calls, [sign * one for one in advantages], *others)

    patch.setattr(RoleTrainer, "split_batch", split)


def _anothers_old_logps(patch: pytest.MonkeyPatch) -> None:
    whole = PolicyGradient.logps

    def logps(self: PolicyGradient, batches: Sequence[MicroBatch], temperature: float) -> list[list[Tensor]]:
        return whole(PolicyGradient(self.policies, self.policies.roles[0], self.config), batches, temperature)

    patch.setattr(PolicyGradient, "logps", logps)


def _learner_without_temperature(patch: pytest.MonkeyPatch) -> None:
    whole = RolePolicies.logps

    def logps(
        self: RolePolicies, role: str, ids: Tensor, mask: Tensor, temperature: float = 1.0, gradient: bool = False
    ) -> tuple[Tensor, Tensor]:
        return whole(self, role, ids, mask, 1.0, gradient)

    patch.setattr(RolePolicies, "logps", logps)


def _only_the_first_is_published(patch: pytest.MonkeyPatch) -> None:
    whole = InProcess.publish
    patch.setattr(InProcess, "publish", lambda self, roles: whole(self, list(roles)[:1]))


def _nothing_is_published(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InProcess, "publish", lambda self, roles: None)


@pytest.mark.parametrize(
    ("plant", "who", "what"),
    [
        (_traders_sign, {"trader"}, "its arm went"),
        (_anothers_old_logps, {"trader"}, "the ratio"),
        (_learner_without_temperature, {"manager", "trader"}, "the trainer does not score"),
        (_only_the_first_is_published, {"trader"}, "the engine does not sample"),
        (_nothing_is_published, {"manager", "trader"}, "the engine does not sample"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_a_mistake_between_learner_policy_and_engine_is_noticed(
    plant: Plant, who: set[str], what: str, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    wrong = run_bandit(tmp_path, store)
    assert wrong.keys() == who and all(reason.startswith(what) for reason in wrong.values()), wrong


# -- one step of a training as the command line starts it ------------------------------------------------------------


def run_step(nano: Path, folder: Path, store: Store, patch: pytest.MonkeyPatch) -> dict[str, str]:
    """What is wrong with the first step of a training and its validation, by what it is about."""
    config = small_config(
        base_model=str(nano),
        temperature=0.7,
        practice=dict.fromkeys(STANDARD, 4),
        scenario_paths=1,
    )
    validated: list[Query] = []

    def validate(shared: SharedShards, queries: Sequence[Query], *rest: object) -> Validation:
        validated.extend(queries)
        return Validation(0.5, 0.0, 0.0, dict.fromkeys(ROLES, 1.0), {})

    patch.setattr(trainer_module, "validate", validate)
    store.add_run(RunRecord(RUN, "train", 1, small_market().content_hash, 1_700_000_000_000, {}))
    training = one_process_trainer(config, small_market(), store, folder, nano)
    training.state.stage = 2
    metrics = training.step()
    parts = split(small_market(), config.market, HORIZON)
    wrong: dict[str, str] = {}
    drawn = [record.bar for record in store.queries(RUN, 0)]
    for name, bars, part in (
        ("training", drawn, parts.train),
        ("validation", [query.bar for query in validated], parts.validation),
    ):
        assert bars
        if not all(part[0] <= bar and bar + HORIZON < part[1] for bar in bars):
            wrong[name] = f"windows at {bars} are not those of {part}"
    for role in ROLES:
        if metrics[f"{role}/engine_gap"] > SMALL_GAP:
            wrong[role] = "the trainer does not score what was sampled as the engine did"
    return wrong


def test_a_step_trains_on_what_was_sampled_and_validates_elsewhere(
    nano: Path, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_step(nano, tmp_path, store, monkeypatch) == {}


def _rollouts_without_temperature(patch: pytest.MonkeyPatch) -> None:
    def cold(*args: Any) -> LoadedTeam:
        name, policies, codec, team, _, precision = args
        return model_team(name, policies, codec, team, 1.0, precision)

    patch.setattr(sharding, "model_team", cold)


def _validation_on_training_windows(patch: pytest.MonkeyPatch) -> None:
    whole = Trainer.__init__

    def begin(self: Trainer, parts: TrainingParts, *rest: Any) -> None:
        whole(self, replace(parts, validation_pool=parts.pool), *rest)

    patch.setattr(Trainer, "__init__", begin)


def _training_on_validation_windows(patch: pytest.MonkeyPatch) -> None:
    whole = sharding.pools_of

    def pools(training: Any, market: Any, parts: Any, *rest: Any) -> Any:
        return whole(training, market, (parts[1], parts[1]), *rest)

    patch.setattr(sharding, "pools_of", pools)


@pytest.mark.parametrize(
    ("plant", "where"),
    [
        (_rollouts_without_temperature, set(ROLES)),
        (_validation_on_training_windows, {"validation"}),
        (_training_on_validation_windows, {"training"}),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_a_mistake_of_how_a_training_is_put_together_is_noticed(
    plant: Plant, where: set[str], nano: Path, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert run_step(nano, tmp_path, store, monkeypatch).keys() == where
