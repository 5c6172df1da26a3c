"""Writes what happened in a training step: rollouts, trajectories and rewards to the store, metrics to three places."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch.utils.tensorboard.writer import SummaryWriter

from backend.store.records import QueryRecord, RewardRecord, RolloutRecord, TrajectoryRecord
from backend.store.store import Store
from backend.training.credit import Credited, RoleCredit
from backend.training.rollouts import Practice, Rollout
from cryptosentinel.agents.registry import MANAGER, SUB_AGENTS
from cryptosentinel.transcript import Transcript


class Journal:
    """The records of one run. Writing a step twice, as after a crash, leaves it once in the store."""

    def __init__(self, store: Store, run: str, folder: Path) -> None:
        self.store = store
        self.run = run
        self._jsonl = folder / "metrics.jsonl"
        self._tensorboard = SummaryWriter(str(folder / "tensorboard"))

    def close(self) -> None:
        self._tensorboard.close()

    def drop_metrics_after(self, step: int) -> None:
        """Forget the lines of steps that will be done again, before a run resumes with `step` steps done."""
        if not self._jsonl.is_file():
            return
        kept = [line for line in self._jsonl.read_text().splitlines() if _step_of(line) <= step]
        partial = self._jsonl.with_suffix(".tmp")
        partial.write_text("".join(line + "\n" for line in kept))
        partial.replace(self._jsonl)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Add metrics of a step; NaN is written as null to the file."""
        line = {"step": step, **{name: value if math.isfinite(value) else None for name, value in values.items()}}
        with self._jsonl.open("a") as file:
            file.write(json.dumps(line) + "\n")
        for name, value in values.items():
            self._tensorboard.add_scalar(name, value, step)
        self.store.add_metrics(self.run, step, dict(values))

    def step(
        self,
        step: int,
        stage: int,
        groups: Sequence[Sequence[Rollout | Practice]],
        credits: Mapping[str, RoleCredit],
    ) -> None:
        """Write what a step heard: queries, rollouts, conversations, delegations and rewards.

        Practice has conversations and rewards, but no team, so no rollout and no delegation.
        """
        trajectories: list[TrajectoryRecord] = []
        rollouts: list[RolloutRecord] = []
        for number, group in enumerate(groups):
            query = group[0].query
            self.store.add_query(
                QueryRecord(self.run, step, number, stage, (query.symbol,), query.bar, query.view().now, query.seed)
            )
            for one in group:
                if isinstance(one, Rollout):
                    rollouts.append(self._rollout(step, number, one))
                spoken = one.decision.transcripts if isinstance(one, Rollout) else one.transcripts
                caller = (MANAGER.key, 0) if isinstance(one, Rollout) else None
                trajectories += [self._trajectory(step, number, one.number, talk, caller) for talk in spoken]
        self.store.add_rollouts(rollouts)
        self.store.add_trajectories(trajectories)
        number_of = {group[0].query.key: number for number, group in enumerate(groups)}
        for credit in credits.values():
            self.store.add_rewards(
                [
                    self._reward(step, number_of[item.trajectory.query], item)
                    for item in credit.items
                    if item.reward is not None
                ]
            )

    def _rollout(self, step: int, query: int, rollout: Rollout) -> RolloutRecord:
        roles = [role.key for role in SUB_AGENTS.values()]
        outcome = rollout.outcome
        return RolloutRecord(
            run=self.run,
            step=step,
            query=query,
            rollout=rollout.number,
            seed=rollout.seed,
            valid=rollout.main.valid,
            outcome=outcome.score,
            calls={role: sum(call.role == role for call in rollout.subs) for role in roles},
            parts={
                "net_return": outcome.net_return,
                "fees": outcome.fees,
                "spread": outcome.spread,
                "funding": outcome.funding,
            },
        )

    def _trajectory(
        self, step: int, query: int, rollout: int, transcript: Transcript, caller: tuple[str, int] | None
    ) -> TrajectoryRecord:
        return TrajectoryRecord(
            run=self.run,
            step=step,
            query=query,
            rollout=rollout,
            role=transcript.role,
            ordinal=transcript.ordinal,
            policy_version=transcript.policy_version,
            ids=transcript.ids,
            mask=transcript.mask,
            sampled_logps=transcript.logps,
            valid=transcript.valid,
            truncated=transcript.truncated,
            reason=transcript.reason,
            caller=None if transcript.role == MANAGER.key else caller,
        )

    def _reward(self, step: int, query: int, item: Credited) -> RewardRecord:
        assert item.reward is not None
        parts = {"format": item.parts.format if item.parts.valid else 0.0, "outcome": item.parts.outcome}
        if item.parts.expert is not None:
            parts["expert"] = item.parts.expert
        return RewardRecord(
            run=self.run,
            step=step,
            query=query,
            rollout=item.trajectory.rollout,
            role=item.trajectory.role,
            ordinal=item.trajectory.ordinal,
            total=item.reward,
            parts=parts,
            advantage=item.advantage,
        )


def _step_of(line: str) -> int:
    """The step of a line of metrics; a line cut short by a crash counts as a later step."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return 2**62
