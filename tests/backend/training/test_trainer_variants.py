"""The trainer with the variants turned on: they reach the formulas, repeat from the seed, and dynamic sampling is
bounded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backend.config.schema import ConfigError
from backend.store.store import Store
from backend.training.algorithm.credit import assign_credit, score_main
from backend.training.algorithm.rewards import Outcome
from backend.training.algorithm.trajectory import Trajectory
from backend.training.curriculum.curriculum import credit_settings, curriculum_of
from backend.training.curriculum.queries import Query, QueryPool
from backend.training.rollout.collect import Rollout
from backend.training.rollout.dynamic_sampling import sample_further
from cryptosentinel.team import TeamDecision
from tests.small_world import HORIZON, RUN, TRAIN, SmallTraining, open_trainer, small_config, small_market

VARIANTS: dict[str, dict[str, Any]] = {
    "DAPO with CISPO, GDPO and dynamic sampling": {
        "aggregation": "dapo", "policy_loss": "cispo", "clip_low": 1.0, "clip_high": 4.0, "importance": "mask",
        "reward_aggregation": "normalize_then_sum", "dynamic_rounds": 2, "overlong_length": 60, "overlong_buffer": 30,
        "group": "ordinal", "min_group": 2,
    },
    "questions and a baseline for single calls": {
        "group": "question", "min_group": 2, "single_calls": "batch",
    },
    "Dr. GRPO with Shapley values": {
        "aggregation": "dr_grpo", "constant_length": 50, "scale_rewards": False, "credit": "shapley",
        "mask_truncated": True, "importance": "none", "kl": 0.1, "entropy": 0.01, "clip_cov": 0.02,
        "resampled_answers": 2,
    },
    "BNPO with counterfactuals and copies": {
        "aggregation": "bnpo", "credit": "counterfactual", "alignment": "duplicate_drop", "clip_high": 0.28,
        "invalid_penalty": 0.1, "entropy": 0.001, "entropy_target": 0.05,
    },
}  # fmt: skip


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open("mem://") as opened:
        yield opened


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
    if "dynamic_rounds" in VARIANTS[name]:
        queries = store.queries(RUN, 0)
        assert len(queries) == 4 + metrics["dynamic/queries"]
        assert len({one.seed for one in queries}) == len(queries), "each further query has scenarios of its own"


def _group(query: Query, outcomes: Sequence[float]) -> list[Rollout]:
    """Valid rollouts of a query with these outcomes and no consultations."""
    mask, ids, nothing = np.array([False, True]), np.array([1, 2], np.int32), TeamDecision([], [], [], [])
    group = []
    for number, outcome in enumerate(outcomes):
        main = Trajectory(
            "manager", query.key, number, 0, ids, mask, np.zeros(2, np.float32), "v", True, 1.0, None, False
        )
        group.append(Rollout(query, number, 0, nothing, Outcome(outcome, 0.0, 0.0, 0.0, 0.0), main, ()))
    return group


@pytest.mark.parametrize(
    ("equal", "rounds", "drawn", "missing"),
    [
        ([False, False, False], 3, [], 0),  # nothing is missing
        ([True, False, True, True, False, False], 3, [2, 1], 0),  # two are, then one of their replacements
        ([True] * 20, 2, [3, 3], 3),  # nothing helps: the rounds end it
        ([True] * 20, 0, [], 3),
    ],
)
def test_dynamic_sampling_draws_what_is_missing_in_a_bounded_number_of_rounds(
    equal: list[bool],
    rounds: int,
    drawn: list[int],
    missing: int,
) -> None:
    config = small_config(queries_per_step=3, dynamic_rounds=rounds).training
    pool, stage = QueryPool(small_market(), *TRAIN, HORIZON), curriculum_of(config).stage(2)
    asked: list[list[str]] = []
    collected: list[list[Rollout]] = []

    def collect(queries: Sequence[Query]) -> None:
        asked.append([query.key for query in queries])
        alike = equal[len(collected) :]
        collected.extend(
            _group(query, (0.5, 0.5) if same else (0.4, 0.6)) for query, same in zip(queries, alike, strict=False)
        )

    def groups(complete: int, known: int) -> list[list[Rollout]]:
        assert (complete, known) == (len(asked) - 1, len(collected))
        return collected

    collect(pool.draw(1, 0, 3, easy=False))
    metrics = sample_further(pool, config, 0, stage, groups, lambda number, shards: collect([*chain(*shards)]))
    assert [len(keys) for keys in asked] == [3, *drawn]
    assert metrics == ({"dynamic/queries": float(sum(drawn)), "dynamic/missing": float(missing)} if rounds else {})
    assert [group[0].query.key for group in collected] == [f"0-{number}" for number in range(3 + sum(drawn))]
    settings = credit_settings(config, stage)
    credit = assign_credit(score_main(collected, stage.alpha, settings), settings)
    if rounds:
        assert sum(one.weight for one in credit.items) == pytest.approx(3 - missing), "the others are in no denominator"


@pytest.mark.parametrize(
    ("options", "moves"),
    [
        ({"freeze": ["market_analyst", "trader"]}, [{"manager", "risk_analyst"}] * 2),
        ({"freeze": ["manager", "risk_analyst", "trader"]}, [{"market_analyst"}] * 2),
    ],
)
def test_only_roles_that_are_not_frozen_may_move(
    options: dict[str, Any], moves: list[set[str]], nano: Path, tmp_path: Path, store: Store
) -> None:
    trainer = in_stage_2(nano, tmp_path, store, validation_every=100, queries_per_step=4, warmup_steps=0, **options)
    moved_ever: set[str] = set()
    for allowed in moves:
        before = {role: trainer.policies.version(role) for role in trainer.policies.roles}
        metrics = trainer.step()
        moved = {role for role, version in before.items() if trainer.policies.version(role) != version}
        moved_ever |= moved
        assert moved <= allowed
        assert all(f"{role}/reward/mean" in metrics for role in ("manager", "market_analyst")), (
            "the others are paid too"
        )
    # RiskAnalyst and Trader are asked too seldom here for one of them to have something to learn in every run.
    assert moved_ever or not set.union(*moves) & {"manager", "market_analyst"}


@pytest.mark.parametrize(
    ("freeze", "said"),
    [
        (["analyst"], "freeze names 'analyst', which is no role"),
        (["manager", "market_analyst", "risk_analyst", "trader"], "there is nothing to train"),
    ],
)
def test_nonsense_to_freeze_is_refused(freeze: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        small_config(freeze=freeze)
