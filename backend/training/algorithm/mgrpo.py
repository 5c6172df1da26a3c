"""M-GRPO for any hierarchical team: calls with rewards in, advantages, weights and a loss for each role out.

    batches = cs.mgrpo.batches(calls, main="planner")
    for role, batch in batches.items():
        new = log_probs(models[role], batch.ids, batch.mask)   # (B, T), of each token under the present weights
        batch.loss(new).backward()

A main agent answers each query in K rollouts, and in each of them asks sub-agents a varying number of times. Every
call is a token sequence with a reward of its own. The calls of one role on one query are a group: aligned so that each
rollout counts once, compared with each other, and learned from. Nothing is read but the calls (arXiv 2511.13288).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from backend.training.algorithm.alignment import AlignmentMethod, align, target_count
from simulator.arrays import BoolArray, FloatArray

if TYPE_CHECKING:
    from torch import Tensor

    from backend.training.algorithm.recipes import Recipe


@dataclass(frozen=True)
class Call:
    """What one call of one role leaves behind.

    Attributes:
        role: who answered. rollout: the number of the rollout within its query.
        ids: (L,) all tokens of the conversation. mask: (L,) bool, True where the model sampled the token.
        logps: (L,) log-probs of the sampled tokens when they were sampled; others are not read.
        reward: any real number, or parts by name, which are added.
        query: what the rollouts that are compared have in common.
        valid: whether its format can be used; see `invalid_penalty` of the recipe.
    """

    role: str
    rollout: int
    ids: Sequence[int] | npt.NDArray[np.int64]
    mask: Sequence[bool] | BoolArray
    logps: Sequence[float] | FloatArray
    reward: float | Mapping[str, float]
    query: Hashable = 0
    valid: bool = True

    def __post_init__(self) -> None:
        lengths = {len(self.ids), len(self.mask), len(self.logps)}
        if len(lengths) != 1 or not lengths.pop():
            raise ValueError(
                f"a call of {self.role} has {len(self.ids)} ids, {len(self.mask)} of mask, {len(self.logps)} logps"
            )
        if self.mask[0]:
            raise ValueError(f"a call of {self.role} samples its first token, which has nothing before it")
        if not np.isfinite(self.total):
            raise ValueError(f"a call of {self.role} has the reward {self.reward}; give finite numbers")

    @property
    def total(self) -> float:
        """The reward as one number."""
        return float(sum(self.reward.values()) if isinstance(self.reward, Mapping) else self.reward)


@dataclass(frozen=True, eq=False)
class RoleBatch:
    """The B calls of one role, padded on the right to T tokens.

    Attributes:
        ids: (B, T) int64, 0 as padding. mask: (B, T) bool. logps: (B, T) float32, when sampled.
        advantages, weights: (B,). The weights of a group sum to 1.
        groups: queries with a call of the role. degenerate: those of them in which all calls earned the same.
    """

    calls: Sequence[Call]
    ids: Tensor
    mask: Tensor
    logps: Tensor
    advantages: Tensor
    weights: Tensor
    groups: int
    degenerate: int
    recipe: Recipe

    def loss(self, new_logps: Tensor) -> Tensor:
        """The loss to minimize, -J of the recipe: a scalar. new_logps (B, T) are those of the present weights."""
        objective, _ = self.recipe.objective(new_logps, self.logps, self.mask, self.advantages, self.weights)
        return -objective


def batches(
    calls: Sequence[Call],
    *,
    main: str = "",
    alignment: AlignmentMethod = "fractional",
    recipe: Recipe | None = None,
    target: int | None = None,
    seed: int = 0,
) -> dict[str, RoleBatch]:
    """A batch for each role, in the order in which the roles first appear.

    Args:
        calls: of any number of queries and rollouts, in any order.
        main: the role that is called once in each rollout; with it, a rollout in which nobody asked a sub-agent counts
            in the target of `duplicate_drop`.
        alignment: see `alignment`; a recipe with a method of its own takes that.
        recipe: `recipes.Mgrpo()` by default.
        target: calls that stand for a rollout in `duplicate_drop`; by default the smallest number that 99 % of the
            rollouts do not exceed. `seed` draws its copies.

    Raises `ValueError` for a main agent that is not called exactly once in each rollout.
    """
    from backend.training.algorithm.recipes import Mgrpo  # torch

    recipe = recipe or Mgrpo()
    rollouts = list(dict.fromkeys((call.query, call.rollout) for call in calls))
    by_role: dict[str, list[Call]] = {}
    for call in calls:
        by_role.setdefault(call.role, []).append(call)
    if main and Counter((call.query, call.rollout) for call in by_role.get(main, ())) != Counter(rollouts):
        raise ValueError(f"the main agent {main} must be called exactly once in each rollout")
    rng, method = np.random.default_rng(seed), recipe.alignment or alignment
    return {role: _batch(own, rollouts, method, recipe, target, rng) for role, own in by_role.items()}


def _batch(
    calls: Sequence[Call],
    rollouts: Sequence[tuple[Hashable, int]],
    method: AlignmentMethod,
    recipe: Recipe,
    target: int | None,
    rng: np.random.Generator,
) -> RoleBatch:
    """The batch of one role: its calls by query and rollout, each group aligned and compared."""
    import torch

    made = Counter((call.query, call.rollout) for call in calls)
    wanted = target or target_count(Counter(made[one] for one in rollouts))
    ordered: list[Call] = []
    weights, advantages, degenerate = [np.empty(0)], [np.empty(0)], 0
    queries = dict.fromkeys(call.query for call in calls)
    for query in queries:
        numbers = [number for other, number in rollouts if other == query]
        group = [call for number in numbers for call in calls if (call.query, call.rollout) == (query, number)]
        own = align([made[query, number] for number in numbers], method, wanted, rng)
        gained, equal = recipe.advantages([call.total for call in group], [call.valid for call in group], own.tolist())
        ordered += group
        weights.append(own)
        advantages.append(gained)
        degenerate += equal
    shape = (len(ordered), max(len(call.ids) for call in ordered))
    ids, mask, logps = np.zeros(shape, np.int64), np.zeros(shape, np.bool_), np.zeros(shape, np.float32)
    for row, call in enumerate(ordered):
        length = len(call.ids)
        ids[row, :length], mask[row, :length] = call.ids, call.mask
        logps[row, :length] = np.where(call.mask, call.logps, 0.0)
    return RoleBatch(
        tuple(ordered), torch.from_numpy(ids), torch.from_numpy(mask), torch.from_numpy(logps),
        torch.from_numpy(np.concatenate(advantages).astype(np.float32)),
        torch.from_numpy(np.concatenate(weights).astype(np.float32)),
        len(queries), degenerate, recipe,
    )  # fmt: skip
