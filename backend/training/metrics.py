"""Numbers to watch: what the rollouts of a step did, and what each role was paid. Names are stable, as
`role/reward/mean`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from backend.store.records import RolloutRecord
from backend.training.credit import RoleCredit
from backend.training.rollouts import Practice, Rollout
from backend.training.trajectory import Trajectory

# What a record of a rollout holds beside its outcome's score; see `journal.rollout_parts`.
PARTS = (
    "net_return", "fees", "spread", "funding", "orders", "rulings", "clamps", "tokens", "exposure", "move",
)  # fmt: skip


def team_metrics(rollouts: Sequence[RolloutRecord]) -> dict[str, float]:
    """The team's behaviour over all rollouts of a step, from their records alone. Empty where there is none.

    `team/timing` is the correlation of the exposure that was decided with the coin's move over the horizon on the
    recorded path, absent where one of them does not vary: whether the team reads its states, or copies the drift.
    """
    if not rollouts:
        return {}
    parts = {name: np.array([one.parts[name] for one in rollouts]) for name in PARTS}
    metrics = {
        "team/outcome": float(np.mean([one.outcome for one in rollouts])),
        "team/net_return": float(np.mean(parts["net_return"])),
        "team/hold_share": float(np.mean(parts["orders"] == 0)),
        "team/rulings": float(np.mean(parts["rulings"])),
        "team/clamps": float(np.mean(parts["clamps"])),
        "team/tokens": float(np.sum(parts["tokens"])),
        "team/exposure": float(np.mean(np.abs(parts["exposure"]))),
        "team/net_exposure": float(np.mean(parts["exposure"])),
        "team/market_move": float(np.mean(parts["move"])),
    }
    if parts["exposure"].std() > 0.0 and parts["move"].std() > 0.0:
        metrics["team/timing"] = float(np.corrcoef(parts["exposure"], parts["move"])[0, 1])
    return metrics


def spoken_metrics(role: str, spoken: Sequence[Trajectory], rollouts: int) -> dict[str, float]:
    """Share of valid answers among a role's conversations in rollouts of the team, and how many there were in each.
    Empty where it was never asked."""
    if not spoken:
        return {}
    return {
        f"{role}/valid": sum(call.valid for call in spoken) / len(spoken),
        f"{role}/calls": len(spoken) / rollouts,
    }


def credit_metrics(role: str, credit: RoleCredit) -> dict[str, float]:
    """What a role was paid. Absent where it has no scored trajectory."""
    rewards = [item.reward for item in credit.items if item.reward is not None]
    metrics = {f"{role}/unscored": float(credit.unscored)}
    if not rewards:
        return metrics
    metrics[f"{role}/reward/mean"] = float(np.mean(rewards))
    metrics[f"{role}/reward/std"] = float(np.std(rewards))
    metrics[f"{role}/degenerate_share"] = credit.degenerate / credit.groups
    experts = [item.parts.expert for item in credit.items if item.parts.expert is not None]
    if experts:
        metrics[f"{role}/expert/mean"] = float(np.mean(experts))
    return metrics


def format_counts(groups: Sequence[Sequence[Rollout | Practice]]) -> dict[str, tuple[int, int]]:
    """Per role: how many conversations ended in a valid answer, and how many there were."""
    counts: dict[str, tuple[int, int]] = {}
    for group in groups:
        for one in group:
            spoken = (one.main, *one.subs) if isinstance(one, Rollout) else one.subs
            for call in spoken:
                valid, calls = counts.get(call.role, (0, 0))
                counts[call.role] = (valid + call.valid, calls + 1)
    return counts
