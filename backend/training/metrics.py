"""Numbers to watch: what the rollouts of a step did, and what each role was paid. Names are stable, as
`role/reward/mean`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from backend.training.credit import RoleCredit
from backend.training.rollouts import Practice, Rollout


def rollout_metrics(groups: Sequence[Sequence[Rollout]]) -> dict[str, float]:
    """The team's behaviour over all rollouts of a step."""
    rollouts = [one for group in groups for one in group]
    metrics = {
        "team/outcome": float(np.mean([one.outcome.score for one in rollouts])),
        "team/net_return": float(np.mean([one.outcome.net_return for one in rollouts])),
        "team/hold_share": float(np.mean([not one.decision.orders for one in rollouts])),
        "team/rulings": float(np.mean([len(one.decision.rulings) for one in rollouts])),
        "team/clamps": float(np.mean([len(one.decision.clamps) for one in rollouts])),
        "team/tokens": float(sum(len(call.ids) for one in rollouts for call in (one.main, *one.subs))),
    }
    for role, (valid, calls) in format_counts(groups).items():
        metrics[f"{role}/valid"] = valid / calls
        metrics[f"{role}/calls"] = calls / len(rollouts)
    return metrics


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
