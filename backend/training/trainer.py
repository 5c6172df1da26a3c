"""The M-GRPO trainer (arXiv 2511.13288), all in one process: rollouts, credit, one optimiser a role, and again.

One step: draw queries, roll the team out K times on each, score, and then for each role apart: align, group, advantage,
objective, optimiser step. New weights go to the engine before the next step, so every rollout is on-policy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from backend.config.training import TrainingConfig
from backend.policies.adapters import load_versions, save_versions
from backend.policies.role_policies import RolePolicies
from backend.policies.weight_sync import publisher
from backend.store.records import AdapterRecord
from backend.training.algorithm.credit import RoleCredit
from backend.training.checkpoints import TrainingState, checkpoints, load_checkpoint, save_checkpoint
from backend.training.curriculum.curriculum import Stage, curriculum_of
from backend.training.curriculum.hard_windows import Gaps, Hard
from backend.training.curriculum.queries import Query, QueryPool
from backend.training.diagnostics.catalogue import should_stop
from backend.training.learning.learner import SILENT_STEPS, Learner
from backend.training.learning.metrics import team_metrics
from backend.training.learning.role_trainer import GradientPool
from backend.training.learning.shared_model import learn_together
from backend.training.learning.step_data import Learnt, StepData
from backend.training.recorder import Journal
from backend.training.rollout import dynamic_sampling
from backend.training.rollout.collect import Rollout, RolloutSettings, collect
from backend.training.rollout.counterfactual import role_shares
from backend.training.rollout.sharding import Shard, part, roll_out
from backend.training.validation import Validation, validate
from cryptosentinel.llm.engine import Engine
from cryptosentinel.scheduler import FILLING, SPEED, Throughput
from cryptosentinel.team import Team, derive_seed
from simulator.errors import RunFailed

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """What a caller may show after each step."""

    step: int
    total: int
    stage: int
    metrics: Mapping[str, float]


class Trainer:
    """Trains the team's policies on queries from `pool`, validates on `validation_pool`, and keeps the best.

    Results lie in `folder`: `checkpoints/`, `adapters/` (a version for each validation that was the best so far),
    `metrics.jsonl`, `tensorboard/`. `resume` continues from the newest checkpoint, bit for bit on the CPU. Metrics of
    step n tell about the n-th step and the team after it; those of step 0 about the team before any training.
    """

    def __init__(
        self,
        config: TrainingConfig,
        rollout_settings: RolloutSettings,
        team: Team,
        engine: Engine,
        policies: RolePolicies,
        pool: QueryPool,
        validation_pool: QueryPool,
        journal: Journal,
        folder: Path,
        gradients: GradientPool | None = None,
    ) -> None:
        self.config = config
        self.rollout_settings = rollout_settings
        self.team = team
        self.engine = engine
        self.policies = policies
        self.publisher = publisher(engine, policies, folder / "served")
        self.pool = pool
        self.journal = journal
        self.folder = folder
        self.curriculum = curriculum_of(config)
        self.learners = {role: Learner(config, policies, role, team.roles, gradients) for role in policies.roles}
        self.state = TrainingState()
        self.throughput = Throughput()  # of the rollouts of the step
        self.gaps = Gaps(journal.store, journal.run, pool.cell_of)
        self.validation_queries = validation_pool.draw(
            derive_seed(config.seed, "validation"), 0, config.validation_queries, easy=False
        )

    def resume(self) -> bool:
        """Go to the newest checkpoint; False if there is none. Raises `UserError` for one of another model."""
        found = checkpoints(self.folder / "checkpoints")
        if found:
            self.state = load_checkpoint(found[-1], self.policies, self.learners)
        self.journal.drop_metrics_after(self.state.step if found else -1)
        return bool(found)

    def run(self, on_progress: Callable[[Progress], None] | None = None) -> TrainingState:
        """Train to the end of the curriculum and put the best policies in place.

        Raises `RunFailed` when the gate of stage 1 stays shut.
        """
        self._start()
        if self.state.step == 0:
            metrics: dict[str, float] = {}
            self._validate(metrics)
            self.journal.metrics(0, metrics)
        while not self._done():
            metrics = self._step()
            if on_progress is not None:
                on_progress(Progress(self.state.step, self._total(), self.state.stage, metrics))
        if self.state.best_step is not None:
            load_versions(self.policies, self.adapters(self.state.best_step))
            self.publisher.publish(self.policies.roles)
        return self.state

    def _start(self) -> None:
        """Let the engine answer with the policies as they are."""
        self.publisher.publish(self.policies.roles)

    # -- one step ---------------------------------------------------------------------------------------------------

    def _step(self) -> dict[str, float]:
        self.throughput = Throughput()
        state = self.state
        stage = self._stage(state.step, state.stage, state.step - state.stage_began)
        data, metrics = self._roll_out(stage)
        metrics |= self._learn(data)
        if stage.hard is not None:
            metrics |= stage.hard.metrics()
        state.step += 1
        if state.step % self.config.validation_every == 0 or state.step == self._total():
            self._validate(metrics)
        metrics["rollbacks"] = float(len(state.rollbacks))
        if self.config.collapse_margin:
            metrics["rejections"] = float(len(state.rejections))
        engine = self.throughput.metrics()
        metrics |= {f"engine/{name}": engine[name] for name in FILLING if name in engine}
        self.journal.metrics(state.step, metrics)
        self.journal.speed(state.step, {f"engine/{name}": engine[name] for name in SPEED if name in engine})
        self._save()
        self._check(metrics)
        return metrics

    def _stage(self, step: int, number: int, done: int) -> Stage:
        """The stage of a step, with `done` steps of it behind, and how its windows are drawn."""
        stage = self.curriculum.stage(number, done)
        if number == 1 or not self.config.hard_share:
            return stage
        gaps = self.gaps.before(step)
        return replace(stage, hard=Hard(self.config.hard_share, gaps)) if gaps else stage

    def _check(self, metrics: Mapping[str, float]) -> None:
        """Say which roles have fallen silent. Raise `RunFailed` where the run cannot recover from what its metrics
        show; the checkpoint of the step is written."""
        silent = [role for role in self.policies.roles if metrics.get(f"{role}/silent_steps", 0.0) >= SILENT_STEPS]
        for role in silent:
            if metrics[f"{role}/silent_steps"] == SILENT_STEPS:
                _log.warning(
                    "run %s: %s had no conversation in %d steps, so it learns nothing; see whether the manager asks it",
                    self.journal.run, role, SILENT_STEPS,
                )  # fmt: skip
        for learner in self.learners.values():
            failure = learner.failure()
            if failure is not None:
                raise RunFailed(failure)
        if not self.config.auto_stop:
            return
        if silent:
            raise RunFailed(
                f"stopped by training.auto_stop: {', '.join(silent)} had no conversation in {SILENT_STEPS} steps; "
                "train with a higher training.per_role.manager.entropy or a longer stage 1, or without auto_stop"
            )
        records = self.journal.store.metrics(self.journal.run)
        finding = should_stop([(record.step, record.values) for record in records])
        if finding is not None:
            raise RunFailed(f"stopped by training.auto_stop: {finding.sentence()}")

    def _roll_out(self, stage: Stage) -> tuple[StepData, dict[str, float]]:
        """The step's rollouts, recorded, and what the team did in them."""
        shards = [self._shard(stage, number) for number in range(self.config.shards)]
        team = [group for shard in shards for group in shard.team]
        practice = [group for shard in shards for group in shard.practice]
        team, sampled = self._sample_on(team, stage)
        method = self.config.credit if stage.pays_outcome else "broadcast"  # stage 1 pays for no outcome
        shares = role_shares(self.team, team, self.rollout_settings, method)
        records = self.journal.rollouts(self.state.step, stage.number, team, practice, shares)
        metrics = {"stage": float(stage.number), **team_metrics(records), **sampled}
        return StepData(stage, team, [*team, *practice], shares), metrics

    def _shard(self, stage: Stage, number: int) -> Shard:
        # What validation or another shard left in the engine's cache would move log-probs by a rounding; a resumed run,
        # or a worker that has not done those, has none of it.
        self.publisher.forget()
        return roll_out(
            self.team, self.engine, self.pool, self.rollout_settings, self.config, self.state.step, stage, number,
            self.throughput,
        )  # fmt: skip

    def _collect(self, queries: Sequence[Query]) -> list[list[Rollout]]:
        """Rollouts of further queries of the step, as a shard of their own."""
        self.publisher.forget()
        seed = derive_seed(self.config.seed, "step", self.state.step)
        return collect(self.team, self.engine, queries, self.rollout_settings, seed, throughput=self.throughput)

    def _sample_on(self, groups: list[list[Rollout]], stage: Stage) -> tuple[list[list[Rollout]], dict[str, float]]:
        """Roll out further queries in place of those that teach the manager nothing (`dynamic`), and say how many."""
        config, step = self.config, self.state.step
        if not dynamic_sampling.samples_on(config, stage):
            return groups, {}
        lacking = dynamic_sampling.missing(config, stage, groups)
        for number in range(config.dynamic_rounds):
            if not lacking:
                break
            queries = dynamic_sampling.further(self.pool, config, step, stage, number, len(groups), lacking)
            shards = [part(queries, shard, config.shards) for shard in range(config.shards)]
            groups = [*groups, *(group for shard in shards for group in self._collect(shard))]
            lacking = dynamic_sampling.missing(config, stage, groups)
        return groups, dynamic_sampling.told(config, len(groups), lacking)

    def _learn(self, data: StepData) -> dict[str, float]:
        """Let every role learn from the step's rollouts; the engine answers with what they became."""
        metrics: dict[str, float] = {}
        credits: dict[str, RoleCredit] = {}
        for role, learnt in self._learnt(data).items():
            metrics |= learnt.metrics
            if learnt.rolled_back:
                self.state.rollbacks.append((self.state.step, role))
            if learnt.credit is not None:
                credits[role] = learnt.credit
        self.journal.rewards(self.state.step, credits)
        self.publisher.publish(self.policies.roles if self.config.models == "shared" else credits)
        return metrics

    def _learnt(self, data: StepData) -> dict[str, Learnt]:
        """What came of the step for each role."""
        if self.config.models == "shared":
            return learn_together(self.learners, self.state.step, data)
        return {role: learner.learn(self.state.step, data) for role, learner in self.learners.items()}

    def _save(self) -> None:
        """A checkpoint of everything."""
        save_checkpoint(self.folder / "checkpoints", self.state, self.policies, self.learners)

    # -- stages and validation --------------------------------------------------------------------------------------

    def _validate(self, metrics: dict[str, float]) -> None:
        """Measure the team, keep it if it is the best so far, put the best back if it has collapsed, and open the gate
        when stage 1 has done its work."""
        state, curriculum = self.state, self.curriculum
        result = validate(self.team, self.engine, self.validation_queries, self.rollout_settings, self.config.seed)
        metrics |= result.metrics()
        if "team/outcome" in metrics:
            metrics["team/train_gap"] = metrics["team/outcome"] - result.outcome
        if curriculum.gate_passed(result.valid) and (state.best_score is None or result.outcome > state.best_score):
            state.best_score, state.best_step = result.outcome, state.step
            self._keep()
        elif self._collapsed(result):
            self._reject()
        if state.stage == 1 and state.step >= curriculum.stage1_steps:
            if curriculum.gate_passed(result.valid):
                state.stage, state.stage_began = 2, state.step
            elif state.step >= curriculum.stage1_max_steps:
                raise RunFailed(
                    f"stage 1 did not reach {curriculum.gate_format:.0%} valid answers in {state.step} steps "
                    f"({curriculum.failed_roles(result.valid)}): give the warm start more steps, or lower the rates"
                )

    def _collapsed(self, result: Validation) -> bool:
        """Whether the outcome is `collapse_margin` or more below the best, or a role lost its format.

        The format is lost below `rollback_format`, not below the gate: a few malformed answers are no collapse.
        """
        margin, best = self.config.collapse_margin, self.state.best_score
        if not margin or best is None:
            return False
        lost = any(share < self.config.rollback_format for share in result.valid.values())
        return lost or result.outcome <= best - margin

    def _reject(self) -> None:
        """Put the best version of every role back, each with a fresh optimiser; later steps draw other states."""
        assert self.state.best_step is not None  # there is a best score
        load_versions(self.policies, self.adapters(self.state.best_step))
        for learner in self.learners.values():
            learner.restart()
        self.state.rejections.append(self.state.step)
        self.publisher.publish(self.policies.roles)

    def _keep(self) -> None:
        """Write the policies as a version of their own and record it."""
        folder = self.adapters(self.state.step)
        for role, (path, checksum) in save_versions(self.policies, folder, self.journal.run, self.state.step).items():
            self.journal.store.add_adapter(
                AdapterRecord(
                    run=self.journal.run,
                    role=role,
                    version=self.policies.version(role),
                    step=self.state.step,
                    path=str(path.relative_to(self.folder)),
                    checksum=checksum,
                )
            )

    def adapters(self, step: int) -> Path:
        return self.folder / "adapters" / f"step-{step:06d}"

    def _done(self) -> bool:
        return self.state.stage == 2 and self.state.step >= self._total()

    def _total(self) -> int:
        """Steps of the whole run, as far as is known: stage 1 may take longer than its least."""
        began = (
            self.state.stage_began if self.state.stage == 2 else max(self.curriculum.stage1_steps, self.state.step + 1)
        )
        return began + self.curriculum.stage2_steps
