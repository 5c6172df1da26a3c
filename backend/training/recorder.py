"""Records a training step: rollouts, trajectories and rewards to the store; metrics to the store, a file of JSON lines,
TensorBoard and, if wanted, Weights & Biases."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from torch.utils.tensorboard.writer import SummaryWriter

from backend.store.records import (
    QueryRecord,
    RewardRecord,
    RolloutRecord,
    ShardRecord,
    TrajectoryRecord,
)
from backend.store.store import Store
from backend.training.algorithm.credit import RoleCredit, TrajectoryCredit
from backend.training.algorithm.trajectory import Trajectory
from backend.training.learning.training_metrics import ordered_exposure
from backend.training.rollout.collect import Practice, Rollout
from backend.training.rollout.sharding import Shard
from backend.training.wandb_logger import WandbLogger
from cryptosentinel.agents.registry import MANAGER, SUB_AGENTS
from cryptosentinel.conversation.transcript import Transcript
from simulator.documents import parse_json
from simulator.files import write_whole

RoleOutcomes = Mapping[str, Sequence[Sequence[float]]]  # by role, of each rollout of each query


class TrainingRecorder:
    """The records of one run. Writing a step twice, as after a crash, leaves it once in the store. Metrics go to the
    project `wandb_project` of Weights & Biases too, if there is one. Conversations of the newest `keep` steps stay in
    the store, those of all with 0."""

    def __init__(
        self,
        store: Store,
        run: str,
        folder: Path,
        wandb_project: str = "",
        keep: int = 0,
    ) -> None:
        self.store = store
        self._keep = keep
        self._dropped_before = 0  # no conversation of an earlier step is in the store
        self._wandb_project = wandb_project
        self.run = run
        self._jsonl = folder / "metrics.jsonl"
        self._folder = folder

    @cached_property
    def _tensorboard(self) -> SummaryWriter:
        return SummaryWriter(str(self._folder / "tensorboard"))

    @cached_property
    def _wandb(self) -> WandbLogger | None:
        """Begun with the first metrics."""
        return WandbLogger(self._wandb_project, self.run, self._folder) if self._wandb_project else None

    def close(self) -> None:
        """Write what TensorBoard and other programs have not written yet."""
        if "_tensorboard" in self.__dict__:
            self._tensorboard.close()
        if self.__dict__.get("_wandb") is not None:
            self.__dict__["_wandb"].close()

    def drop_metrics_after(self, step: int) -> None:
        """Remove the lines of steps that will be done again, before a run resumes with `step` steps done."""
        if not self._jsonl.is_file():
            return
        kept = [line for line in self._jsonl.read_text().splitlines() if _step_of(line) <= step]
        write_whole(self._jsonl, "".join(line + "\n" for line in kept))

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Add metrics of a step; NaN is written as null to the file."""
        line = {"step": step, **{name: value if math.isfinite(value) else None for name, value in values.items()}}
        with self._jsonl.open("a") as file:
            file.write(json.dumps(line) + "\n")
        for name, value in values.items():
            self._tensorboard.add_scalar(name, value, step)
        self.store.add_metrics(self.run, step, dict(values))
        if self._wandb is not None:
            self._wandb.log(step, values)

    def speed(self, step: int, values: Mapping[str, float]) -> None:
        """Write how fast a step was, to TensorBoard alone: what is stored of a run does not depend on the machine."""
        for name, value in values.items():
            self._tensorboard.add_scalar(name, value, step)

    def rollouts(self, step: int, stage: int, rolled: Shard, role_outcomes: RoleOutcomes) -> list[RolloutRecord]:
        """Write queries, rollouts and conversations of a step; returns the rollouts' records.

        `role_outcomes` are those of the team's rollouts (`rollout.role_outcomes`). Practice has conversations, but no
        team, so no rollout and no caller.
        """
        queries, records, trajectories = self._records(step, stage, rolled, role_outcomes)
        self.store.put(*queries)
        self.store.put(*records)
        self.store.put(*trajectories)
        return records

    def shard(self, step: int, stage: int, number: int, rolled: Shard, role_outcomes: RoleOutcomes) -> None:
        """Write the shard `number` of a step as `rollouts` does, whole or, where it is stored, not at all."""
        queries, records, trajectories = self._records(step, stage, rolled, role_outcomes)
        mark = ShardRecord(self.run, step, number, len(queries), len(records), len(trajectories))
        self.store.add_shard(mark, queries, records, trajectories)

    def _records(
        self, step: int, stage: int, rolled: Shard, role_outcomes: RoleOutcomes
    ) -> tuple[list[QueryRecord], list[RolloutRecord], list[TrajectoryRecord]]:
        groups: list[Sequence[Rollout | Practice]] = [*rolled.team, *rolled.practice]
        queries = [
            QueryRecord(self.run, step, query.number, stage, query.symbols, query.bar, query.view().now, query.seed)
            for query in (group[0].query for group in groups)
        ]
        records: list[RolloutRecord] = []
        trajectories: list[TrajectoryRecord] = []
        for place, group in enumerate(rolled.team):
            for position, one in enumerate(group):
                records.append(self._rollout(step, one))
                shared = {role: rows[place][position] for role, rows in role_outcomes.items()}
                trajectories.append(self._trajectory(step, one, one.main, one.decision.manager, None, None))
                trajectories += [
                    self._trajectory(
                        step, one, call, transcript, (MANAGER.key, 0), shared.get(call.role, one.shared_outcome)
                    )
                    for call, transcript in zip(one.subs, one.decision.transcripts[1:], strict=True)
                ]
        for attempts in rolled.practice:
            for attempt in attempts:
                trajectories += [
                    self._trajectory(step, attempt, call, transcript, None, attempt.shared_outcome)
                    for call, transcript in zip(attempt.subs, attempt.transcripts, strict=True)
                ]
        return queries, records, trajectories

    def rewards(self, step: int, credits: Mapping[str, RoleCredit]) -> None:
        """Write the rewards and advantages of the roles."""
        for credit in credits.values():
            paid = [item for item in credit.items if item.reward is not None]
            self.store.put(*[self._reward(step, item) for item in paid])

    def drop_old_conversations(self, done: int) -> None:
        """Delete the conversations that are not kept any more, once `done` steps are done and their state is saved.

        Nothing reads them again: a resumed run begins with step `done`. What an interrupt leaves is deleted later.
        """
        before = done - self._keep
        if self._keep and before > self._dropped_before:
            self.store.drop_trajectories(self.run, self._dropped_before, before)
            self._dropped_before = before

    def _rollout(self, step: int, rollout: Rollout) -> RolloutRecord:
        roles = [role.key for role in SUB_AGENTS.values()]
        return RolloutRecord(
            run=self.run,
            step=step,
            query=rollout.query.number,
            rollout=rollout.number,
            seed=rollout.seed,
            valid=rollout.main.valid,
            outcome=rollout.outcome.score,
            calls={role: sum(call.role == role for call in rollout.subs) for role in roles},
            parts=rollout_parts(rollout),
        )

    def _trajectory(
        self,
        step: int,
        attempt: Rollout | Practice,
        call: Trajectory,
        transcript: Transcript,
        caller: tuple[str, int] | None,
        shared: float | None,
    ) -> TrajectoryRecord:
        return TrajectoryRecord(
            run=self.run,
            step=step,
            query=attempt.query.number,
            rollout=attempt.number,
            role=call.role,
            ordinal=call.ordinal,
            policy_version=call.policy_version,
            ids=tuple(call.ids.tolist()),
            mask=tuple(call.mask.tolist()),
            sampled_logps=tuple(call.sampled_logps.tolist()),
            valid=call.valid,
            truncated=call.truncated,
            reason=transcript.reason,
            caller=caller,
            format_score=call.format_score,
            expert=call.expert,
            shared=shared,
            thought_tokens=call.thought_tokens,
            thoughts_cut=call.thoughts_cut,
        )

    def _reward(self, step: int, item: TrajectoryCredit) -> RewardRecord:
        assert item.reward is not None
        parts = {"format": item.parts.format if item.parts.valid else 0.0, "outcome": item.parts.outcome}
        if item.parts.expert is not None:
            parts["expert"] = item.parts.expert
        return RewardRecord(
            run=self.run,
            step=step,
            query=int(item.trajectory.query.rpartition("-")[2]),
            rollout=item.trajectory.rollout,
            role=item.trajectory.role,
            ordinal=item.trajectory.ordinal,
            total=item.reward,
            parts=parts,
            advantage=item.advantage,
        )


def rollout_parts(rollout: Rollout) -> dict[str, float]:
    """What a rollout's outcome was made of and what the team did (`training_metrics.ROLLOUT_PARTS`): fractions of the
    equity, numbers of orders, rulings, clamps and tokens; and `exposure`, signed and over all coins, that the decision
    led to."""
    outcome, decision = rollout.outcome, rollout.decision
    return {
        "net_return": outcome.net_return,
        "fees": outcome.fees,
        "spread": outcome.spread,
        "funding": outcome.funding,
        "orders": float(len(decision.orders)),
        "rulings": float(len(decision.rulings)),
        "clamps": float(len(decision.clamps)),
        "tokens": float(sum(len(call.ids) for call in (rollout.main, *rollout.subs))),
        "exposure": ordered_exposure(rollout),
    }


def _step_of(line: str) -> int:
    """The step of a line of metrics; a line cut short by a crash counts as a later step."""
    try:
        return int(parse_json(line)["step"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return 2**62
