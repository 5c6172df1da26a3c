"""Numbers to watch: what the rollouts of a step did, and what each role was paid. Names are stable, as
`role/reward/mean`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from backend.store.records import RolloutRecord
from backend.training.algorithm.credit import RoleCredit, TrajectoryCredit
from backend.training.algorithm.trajectory import Trajectory
from backend.training.rollout.collect import Practice, Rollout

# What a record of a rollout holds beside its outcome's score; see `recorder.rollout_parts`.
ROLLOUT_PARTS = (
    "net_return", "fees", "spread", "funding", "orders", "rulings", "clamps", "tokens", "exposure",
)  # fmt: skip


def team_metrics(rollouts: Sequence[RolloutRecord]) -> dict[str, float]:
    """The behavior of a team over all rollouts of a step, from their records alone. Empty where there is none."""
    if not rollouts:
        return {}
    parts = {name: np.array([one.parts[name] for one in rollouts]) for name in ROLLOUT_PARTS}
    return {
        "team/outcome": float(np.mean([one.outcome for one in rollouts])),
        "team/net_return": float(np.mean(parts["net_return"])),
        "team/hold_share": float(np.mean(parts["orders"] == 0)),
        "team/rulings": float(np.mean(parts["rulings"])),
        "team/clamps": float(np.mean(parts["clamps"])),
        "team/tokens": float(np.sum(parts["tokens"])),
        "team/exposure": float(np.mean(np.abs(parts["exposure"]))),
    }


def conversation_metrics(role: str, spoken: Sequence[Trajectory], rollouts: int) -> dict[str, float]:
    """What a role's conversations in that number of rollouts of the team were like. Empty where it was never asked.

    valid, truncated      share that ended in a valid answer, at the token limit
    calls, calls/max      conversations in a rollout, mean and largest
    length                sampled tokens of a conversation, mean
    thoughts/length       tokens of the thoughts in a conversation, mean; absent where there are none
    thoughts/cut          thoughts in a conversation that were closed because their budget was spent, mean
    failed/{kind}         share that ended with that reason, as `bad_json` (`protocol.Malformed`)
    """
    if not spoken:
        return {}
    number = len(spoken)
    calls = Counter((one.query, one.rollout) for one in spoken)
    failed = Counter(one.failure for one in spoken if one.failure is not None)
    metrics = {
        "valid": sum(call.valid for call in spoken) / number,
        "calls": number / rollouts,
        "calls/max": float(max(calls.values())),
        "length": float(np.mean([one.mask.sum() for one in spoken])),
        "truncated": sum(call.truncated for call in spoken) / number,
    }
    if any(one.thought_tokens for one in spoken):
        metrics["thoughts/length"] = sum(one.thought_tokens for one in spoken) / number
        metrics["thoughts/cut"] = sum(one.thoughts_cut for one in spoken) / number
    metrics |= {f"failed/{kind}": count / number for kind, count in sorted(failed.items())}
    return {f"{role}/{name}": value for name, value in metrics.items()}


def practice_metrics(role: str, spoken: Sequence[Trajectory], everything: Sequence[Trajectory]) -> dict[str, float]:
    """practice/valid, the share that ended in a valid answer of those in `everything`, conversations of a role, that
    are its practice and not `spoken` in rollouts of the team. Empty where there are none."""
    number = len(everything) - len(spoken)
    if not number:
        return {}
    valid = sum(one.valid for one in everything) - sum(one.valid for one in spoken)
    return {f"{role}/practice/valid": valid / number}


def credit_metrics(role: str, credit: RoleCredit, coefficients: Sequence[float]) -> dict[str, float]:
    """What a role was paid. All but `unscored` is absent where it has no scored trajectory.

    `coefficients` are the weights of format, outcome and, of a sub-agent, expert score in its reward. The parts' means,
    as `format/mean`, and their shares of the reward, as `reward/format_share`, are those of valid conversations: an
    invalid one is paid nothing, whatever the outcome. `calls/efficiency` is the effective number of calls, (sum w)^2 /
    sum w^2 inside a query (Kish 1965) by the alignment's weights, by the number of calls: 1 where all count alike.
    """
    paid = [item for item in credit.items if item.reward is not None]
    metrics = {f"{role}/unscored": float(credit.unscored)}
    if not paid:
        return metrics
    rewards = [item.reward for item in paid if item.reward is not None]
    metrics[f"{role}/reward/mean"] = float(np.mean(rewards))
    metrics[f"{role}/reward/std"] = float(np.std(rewards))
    metrics[f"{role}/degenerate_share"] = credit.degenerate / credit.groups
    metrics[f"{role}/calls/efficiency"] = _efficiency(paid)
    experts = [item.parts.expert for item in credit.items if item.parts.expert is not None]
    if experts:
        metrics[f"{role}/expert/mean"] = float(np.mean(experts))
    valid = [item.parts.terms() for item in paid if item.parts.valid]
    if valid:
        means = np.mean(valid, axis=0)[: len(coefficients)]
        parts = means * np.asarray(coefficients)
        metrics |= {
            f"{role}/{name}/mean": float(value) for name, value in zip(("format", "outcome"), means, strict=False)
        }
        if parts.sum() > 0.0:
            names = ("format", "outcome", "expert")
            shares = zip(names, parts / parts.sum(), strict=False)
            metrics |= {f"{role}/reward/{name}_share": float(share) for name, share in shares}
    return metrics


def _efficiency(paid: Sequence[TrajectoryCredit]) -> float:
    weights: dict[str, list[float]] = defaultdict(list)
    for item in paid:
        weights[item.trajectory.query].append(item.weight)
    effective = 0.0
    for group in weights.values():
        row = np.array(group)
        effective += float(row.sum() ** 2 / (row**2).sum())
    return effective / len(paid)


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


def ordered_exposure(rollout: Rollout) -> float:
    """The net exposure to the query's coins if all orders of the decision fill, at the last closes: signed, of the
    equity."""
    query, orders = rollout.query, [*rollout.decision.orders, *rollout.later]
    account, held, total = query.account(), query.exposures(), 0.0
    for symbol in query.symbols:
        change = sum(order.quantity for order in orders if order.symbol == symbol)
        total += held[symbol] + (change * query.view().last_close(symbol) / account.equity if change else 0.0)
    return total
