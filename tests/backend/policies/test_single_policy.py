"""One model for all roles: its gradient is the sum of the roles' own, and its life is that of one model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import Qwen3ForCausalLM

from backend.config.experimental import ExperimentalConfig
from backend.config.load import config_from_dict
from backend.config.schema import ConfigError
from backend.config.training import TrainingConfig
from backend.distributed.entrypoints import check_distributed
from backend.policies.role_policies import PolicyMode, RolePolicies
from backend.policies.single_policy import SinglePolicy
from backend.training.algorithm.rewards import Outcome
from backend.training.algorithm.trajectory import Trajectory
from backend.training.curriculum.curriculum import Stage
from backend.training.learning.learner import MIN_CALLS, Learner
from backend.training.learning.role_trainer import RoleTrainer
from backend.training.learning.shared_model import step_jointly, train_jointly
from backend.training.learning.step_data import StepData
from backend.training.sft_job import run_sft
from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.local.engine import LocalEngine
from simulator.errors import UserError
from tests.small_world import small_config, small_market
from tests.standard_settings import lora_settings, trainer_settings

ROLES = ("manager", "market_analyst", "trader")
LORA = lora_settings(lora_rank=2, lora_alpha=4)
FREE = trainer_settings(learning_rate=1e-2, warmup_steps=1, max_grad_norm=1e9)

Make = Callable[..., Trajectory]
BatchOf = tuple[list[Trajectory], list[float], list[float]]


def batch_of(make: Make, role: str, seed: int, size: int) -> BatchOf:
    """`size` trajectories of a role with advantages and weights."""
    rng = np.random.default_rng([seed, len(role)])
    calls = [make(100 * seed + number, role, answer=2 + number) for number in range(size)]
    return calls, rng.normal(size=size).tolist(), rng.uniform(0.1, 1.0, size).tolist()


def moved(policies: RolePolicies, seed: int) -> RolePolicies:
    """The policies somewhere else than at their beginning, where one half of an adapter is 0: equal roles stay so."""
    for role in policies.roles:
        torch.manual_seed(seed)
        policies.load_role_state(role, {n: p + 0.1 * torch.randn_like(p) for n, p in policies.role_state(role).items()})
    return policies


def taken(policies: RolePolicies, role: str) -> list[Tensor]:
    """The gradient that a role's parameters have, which they have no longer."""
    found = []
    for one in policies.trainable(role):
        found.append(torch.zeros_like(one) if one.grad is None else one.grad)
        one.grad = None
    return found


def test_the_gradient_is_the_sum_of_the_roles_own(tiny: Qwen3ForCausalLM, make: Make) -> None:
    """At equal parameters, whatever the roles' batches: each with a normalizer of its own."""
    shared, apart = SinglePolicy(tiny, ROLES, lora=LORA), RolePolicies(tiny, ROLES, lora=LORA)

    @settings(max_examples=12, deadline=None)
    @given(
        sizes=st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any),
        seed=st.integers(1, 99),
        aggregation=st.sampled_from(["grpo", "dapo", "bnpo"]),
        kl=st.sampled_from([0.0, 0.3]),
    )
    def check(sizes: list[int], seed: int, aggregation: Any, kl: float) -> None:
        own = trainer_settings(learning_rate=1e-2, warmup_steps=1, max_grad_norm=1e9, aggregation=aggregation, kl=kl)
        batches = {role: batch_of(make, role, seed, size) for role, size in zip(ROLES, sizes, strict=True) if size}
        moved(shared, seed)
        total: list[Tensor] = []
        for role, batch in batches.items():
            apart.load_role_state(role, shared.role_state(role))
            trainer = RoleTrainer(apart, role, own)
            trainer.accumulate_gradients(trainer.split_batch(*batch), 0)
            found = taken(apart, role)
            total = [a + b for a, b in zip(total, found, strict=True)] if total else found
        seen: list[list[Tensor]] = []
        trainers = {role: RoleTrainer(shared, role, own) for role in ROLES}

        def look(losses: Sequence[Any], rate: float = 1.0) -> None:
            assert len(losses) == len(batches)
            seen.append(taken(shared, "trader"))

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(trainers["manager"], "optimizer_step", look)
            step_jointly(trainers, {role: trainers[role].split_batch(*batch) for role, batch in batches.items()})
        [together] = seen
        for a, b in zip(together, total, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)

    check()


@pytest.mark.parametrize("mode", ["lora", "full"])
@pytest.mark.parametrize("minibatches", [1, 2])
def test_a_role_alone_learns_as_it_does_apart_to_the_bit(
    tiny: Qwen3ForCausalLM, make: Make, mode: PolicyMode, minibatches: int
) -> None:
    own = trainer_settings(learning_rate=1e-2, warmup_steps=3, minibatches=minibatches)
    shared, apart = SinglePolicy(tiny, ROLES, mode, LORA), RolePolicies(tiny, ["trader"], mode, LORA)
    apart.load_role_state("trader", shared.role_state("trader"))
    alone, trainers = RoleTrainer(apart, "trader", own), {"trader": RoleTrainer(shared, "trader", own)}
    for seed in (1, 2):
        batch = batch_of(make, "trader", seed, 4)
        wanted = alone.step(*batch)
        assert step_jointly(trainers, {"trader": trainers["trader"].split_batch(*batch)}) == {"trader": wanted}
        assert wanted["trader/updates"] == minibatches
    for role in ROLES:
        assert all(torch.equal(shared.role_state(role)[n], t) for n, t in apart.role_state("trader").items())


def test_the_optimizer_is_the_first_role_s_also_where_that_one_is_silent(tiny: Qwen3ForCausalLM, make: Make) -> None:
    policies = SinglePolicy(tiny, ROLES, lora=LORA)
    trainers = {role: RoleTrainer(policies, role, FREE) for role in ROLES}
    before = policies.version("manager")
    metrics = step_jointly(trainers, {"trader": trainers["trader"].split_batch(*batch_of(make, "trader", 1, 3))})
    assert policies.version("manager") != before and list(metrics) == ["trader"]
    assert [one.updates for one in trainers.values()] == [1, 0, 0]
    assert [bool(one.state_dict()[0]) for one in trainers.values()] == [True, False, False]


def test_what_is_not_finite_in_one_role_stops_the_update_of_all(tiny: Qwen3ForCausalLM, make: Make) -> None:
    policies = SinglePolicy(tiny, ROLES, lora=LORA)
    trainers = {role: RoleTrainer(policies, role, FREE) for role in ROLES}
    before = policies.version("trader")
    good, bad = batch_of(make, "manager", 1, 3), batch_of(make, "trader", 2, 3)
    batch = trainers["trader"].split_batch(*bad)
    [(rows, total)] = batch.updates
    broken = replace(batch, updates=[([replace(rows[0], advantage=float("nan")), *rows[1:]], total)])
    metrics = step_jointly(trainers, {"manager": trainers["manager"].split_batch(*good), "trader": broken})
    assert policies.version("trader") == before
    assert [metrics[role][f"{role}/skipped_updates"] for role in ("manager", "trader")] == [1.0, 1.0]


# -- files and the engine -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_files_are_a_role_s_and_must_be_of_one_model(tiny: Qwen3ForCausalLM, mode: PolicyMode, tmp_path: Path) -> None:
    policies = moved(SinglePolicy(tiny, ROLES, mode, LORA), 3)
    policies.save(tmp_path / "a")
    fresh = SinglePolicy(tiny, ROLES, mode, LORA)
    fresh.load(tmp_path / "a")
    assert [fresh.version(role) for role in ROLES] == [policies.version(role) for role in ROLES]
    assert len({fresh.version(role).partition("-")[2] for role in ROLES}) == 1
    apart = RolePolicies(tiny, ROLES, mode, LORA)
    apart.load(tmp_path / "a")  # whoever reads them cannot tell them from models that are equal
    assert [apart.version(role) for role in ROLES] == [policies.version(role) for role in ROLES]
    moved(policies, 4).save(tmp_path / "b")
    (tmp_path / "a" / "trader.safetensors").write_bytes((tmp_path / "b" / "trader.safetensors").read_bytes())
    with pytest.raises(UserError, match=r"of different weights, and training\.experimental\.models = 'shared'"):
        fresh.load(tmp_path / "a")
    assert fresh.version("trader") == apart.version("trader")


def test_the_engine_holds_one_model(tiny: Qwen3ForCausalLM) -> None:
    tiny.resize_token_embeddings(make_byte_codec().vocab_size)
    policies = SinglePolicy(tiny, ROLES, lora=LORA)
    sizes = []
    engine = LocalEngine(make_byte_codec(), policies.base_config, {})
    for seed in (1, 2):  # also when all get new weights, one after the other
        moved(policies, seed)
        for number, role in enumerate(ROLES):
            engine.set_weights(role, policies.merged_state(role), policies.version(role))
            sizes += [engine.weight_bytes] if number in (0, len(ROLES) - 1) else []
    assert sizes[0] == sizes[1] == sizes[3]


# -- a step of all learners -----------------------------------------------------------------------------------------


class Attempt:
    """One rollout as learners see it."""

    def __init__(self, make: Make, number: int, broken: Sequence[str]) -> None:
        rollout = {"rollout": number, "policy_version": "v0", "expert": 0.1 * (number % 7)}
        self.main, *subs = (
            make(10 * number + at, role, valid=role not in broken, **rollout) for at, role in enumerate(ROLES)
        )
        self.subs = tuple(subs)
        self.outcome = Outcome(0.1 * (number % 5), 0.0, 0.0, 0.0, 0.0)
        self.shared_outcome = self.outcome.score
        self.resampled_from = None


def data(make: Make, broken: Sequence[str] = ()) -> StepData:
    group = [Attempt(make, number, broken) for number in range(MIN_CALLS)]
    return StepData(Stage(2, False, (0.1, 0.9), (0.1, 0.4, 0.5)), [group], [group])


def test_a_lost_format_takes_all_weights_back_and_nobody_learns(tiny: Qwen3ForCausalLM, make: Make) -> None:
    config = TrainingConfig(warmup_steps=1, lora_rank=2, experimental=ExperimentalConfig(models="shared"))
    policies = SinglePolicy(tiny, ROLES, lora=LORA)
    learners = {role: Learner(config, policies, role) for role in ROLES}
    first = policies.version("manager")
    learnt = train_jointly(learners, 0, data(make))
    kept, second = learners["trader"].last_valid_parameters, policies.version("manager")
    assert kept is not None and second != first and not any(one.rolled_back for one in learnt.values())
    assert {len({one.metrics[f"{role}/grad_norm"]}) for role, one in learnt.items()} == {1}
    learnt = train_jointly(learners, 1, data(make, broken=["trader"]))
    assert {role: one.rolled_back for role, one in learnt.items()} == {
        "manager": False, "market_analyst": False, "trader": True,
    }  # fmt: skip
    assert policies.version("manager") == first and learners["manager"].trainer.updates == 0
    assert all(one.credit is not None and f"{role}/updates" not in one.metrics for role, one in learnt.items())


def test_what_one_role_says_well_is_not_remembered_while_another_is_malformed(
    tiny: Qwen3ForCausalLM, make: Make
) -> None:
    config = TrainingConfig(warmup_steps=1, lora_rank=2, experimental=ExperimentalConfig(models="shared"))
    policies = SinglePolicy(tiny, ROLES, lora=LORA)
    learners = {role: Learner(config, policies, role) for role in ROLES}
    learnt = train_jointly(learners, 0, data(make, broken=["trader"]))
    assert [one.last_valid_parameters for one in learners.values()] == [None] * 3
    assert not any(one.rolled_back for one in learnt.values()), "there is nothing to go back to"


# -- what contradicts it --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"learning_rate": {"trader": 1e-5}}, "learning_rate several rates"),
        ({"freeze": "trader"}, "freeze is about separate roles"),
        ({"data_parallel": 2, "device": "cuda"}, "data_parallel is about"),
        ({"per_role": {"trader": {"lora_rank": 4}}}, r"per_role\.trader\.lora_\* is about"),
    ],
)
def test_what_needs_models_apart_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"models = 'shared'.*{named}"):
        small_config(models="shared", **options)
    small_config(**options)


def test_processes_and_specialisation_apart_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.experimental\.models = 'shared'.*--launch"):
        check_distributed(small_config(models="shared"), 1)
    with pytest.raises(ConfigError, match=r"training\.experimental\.models = 'shared'.*trains each role apart"):
        config = config_from_dict({"training": {"models": "shared"}})
        run_sft(config, small_market(), ["scripted"], tmp_path, lambda what, done, total: None)
