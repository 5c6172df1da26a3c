"""The M-GRPO trainer (arXiv 2511.13288), all in one process: rollouts, credit, one optimiser a role, and again.

One step: draw queries, roll the team out K times on each, score, and then for each role apart: align, group, advantage,
objective, optimiser step. New weights go to the engine before the next step, so every rollout is on-policy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from backend.config import TrainingConfig
from backend.store.records import AdapterRecord
from backend.training.alignment import target_count
from backend.training.checkpoints import TrainingState, checkpoints, load_checkpoint, save_checkpoint
from backend.training.credit import RoleCredit, calls_histogram, credit_main, credit_sub
from backend.training.curriculum import Curriculum, Stage
from backend.training.journal import Journal
from backend.training.metrics import credit_metrics, format_counts, rollout_metrics
from backend.training.policies import RolePolicies
from backend.training.queries import Query, QueryPool
from backend.training.role_trainer import RoleTrainer, RoleTrainerSettings
from backend.training.rollouts import Practice, Rollout, RolloutSettings, collect, practise
from backend.training.validation import validate
from cryptosentinel.agents.registry import MANAGER, ROLES, SUB_AGENTS
from cryptosentinel.llm.transformers_engine import TransformersEngine
from cryptosentinel.team import Team, derive_seed
from simulator.errors import RunFailed

MIN_CALLS = 20  # fewer conversations of a role than these tell nothing about its format


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
        engine: TransformersEngine,
        policies: RolePolicies,
        pool: QueryPool,
        validation_pool: QueryPool,
        journal: Journal,
        folder: Path,
    ) -> None:
        self.config = config
        self.rollout_settings = rollout_settings
        self.team = team
        self.engine = engine
        self.policies = policies
        self.pool = pool
        self.journal = journal
        self.folder = folder
        self.curriculum = Curriculum(
            config.stage1_steps,
            config.stage1_max_steps,
            config.stage2_steps,
            config.gate_format,
            config.alpha,
            config.beta,
        )
        self.trainers = {role: RoleTrainer(policies, role, self._role_settings(role)) for role in ROLES}
        self.state = TrainingState()
        self.good: dict[str, dict[str, Tensor]] = {}  # parameters of roles as they last kept their format
        self.validation_queries = validation_pool.draw(
            derive_seed(config.seed, "validation"), 0, config.validation_queries, easy=False
        )

    def resume(self) -> bool:
        """Go to the newest checkpoint; False if there is none. Raises `UserError` for one of another model."""
        found = checkpoints(self.folder / "checkpoints")
        if found:
            self.state, self.good = load_checkpoint(found[-1], self.policies, self.trainers)
        self.journal.drop_metrics_after(self.state.step if found else -1)
        return bool(found)

    def run(self, on_progress: Callable[[Progress], None] | None = None) -> TrainingState:
        """Train to the end of the curriculum and put the best policies in place.

        Raises `RunFailed` when the gate of stage 1 stays shut.
        """
        self._publish(ROLES)
        if self.state.step == 0:
            metrics: dict[str, float] = {}
            self._validate(metrics)
            self.journal.metrics(0, metrics)
        while not self._done():
            metrics = self._step()
            if on_progress is not None:
                on_progress(Progress(self.state.step, self._total(), self.state.stage, metrics))
        if self.state.best_step is not None:
            self.policies.load(self.adapters(self.state.best_step))
            self._publish(ROLES)
        return self.state

    # -- one step ---------------------------------------------------------------------------------------------------

    def _step(self) -> dict[str, float]:
        # What the validation before left in the engine's cache would move log-probs by a rounding; a resumed run has
        # none.
        self.engine.forget()
        state = self.state
        stage = self.curriculum.stage(state.stage)
        queries = self.pool.draw(self.config.seed, state.step, self.config.queries_per_step, stage.easy)
        seed = derive_seed(self.config.seed, "step", state.step)
        if stage.number == 1:
            # A quarter of the queries is for the manager's format; on the others the sub-agents practise without it.
            quarter = -(-len(queries) // 4)
            team_groups = self._collect(queries[:quarter], seed)
            practice = practise(self.team, self.engine, queries[quarter:], self.rollout_settings, seed)
        else:
            team_groups, practice = self._collect(queries, seed), []
        groups: list[Sequence[Rollout | Practice]] = [*team_groups, *practice]
        metrics = {"stage": float(stage.number), **rollout_metrics(team_groups)}
        ruined = self._roll_back(groups)
        credits = self._credit(team_groups, groups, stage)
        for role, credit in credits.items():
            metrics |= credit_metrics(role, credit)
            if role not in ruined:
                metrics |= self._learn(role, credit)
        self.journal.step(state.step, stage.number, groups, credits)
        self._publish(credits)
        state.step += 1
        if state.step % self.config.validation_every == 0 or state.step == self._total():
            self._validate(metrics)
        metrics["rollbacks"] = float(len(state.rollbacks))
        self.journal.metrics(state.step, metrics)
        save_checkpoint(self.folder / "checkpoints", state, self.policies, self.trainers, self.good)
        return metrics

    def _collect(self, queries: Sequence[Query], seed: int) -> list[list[Rollout]]:
        return collect(self.team, self.engine, queries, self.rollout_settings, seed)

    def _credit(
        self, team_groups: Sequence[Sequence[Rollout]], groups: Sequence[Sequence[Rollout | Practice]], stage: Stage
    ) -> dict[str, RoleCredit]:
        credits = {MANAGER.key: credit_main(team_groups, stage.alpha)}
        for role in SUB_AGENTS.values():
            target = target_count(calls_histogram(team_groups, role.key))
            rng = np.random.default_rng(derive_seed(self.config.seed, "alignment", self.state.step, role.key))
            credits[role.key] = credit_sub(groups, role.key, stage.beta, self.config.alignment, target, rng)
        valid, calls = format_counts(team_groups)[MANAGER.key]
        if stage.number == 1 and valid >= self.config.gate_format * calls:
            # Paid for its format alone, a manager that has it can only learn to say less: to ask nobody.
            del credits[MANAGER.key]
        return credits

    def _learn(self, role: str, credit: RoleCredit) -> dict[str, float]:
        items = [item for item in credit.items if item.reward is not None]
        if not items:
            return {}
        return self.trainers[role].step(
            [item.trajectory for item in items],
            [item.advantage for item in items],
            [item.weight for item in items],
            self.config.temperature,
        )

    def _roll_back(self, groups: Sequence[Sequence[Rollout | Practice]]) -> set[str]:
        """Take back the parameters of every role whose last steps ruined its format; remember those that keep it."""
        ruined: set[str] = set()
        for role, (valid, calls) in format_counts(groups).items():
            if calls < MIN_CALLS:
                continue
            if valid >= self.config.gate_format * calls:
                self.good[role] = self.policies.role_state(role)
            elif valid < self.config.rollback_format * calls and role in self.good:
                self.policies.load_role_state(role, self.good[role])
                # The optimiser's momentum points to where the format was lost.
                self.trainers[role] = RoleTrainer(self.policies, role, self._role_settings(role))
                self.state.rollbacks.append((self.state.step, role))
                ruined.add(role)
        return ruined

    # -- stages and validation --------------------------------------------------------------------------------------

    def _validate(self, metrics: dict[str, float]) -> None:
        """Measure the team, keep it if it is the best so far, and open the gate when stage 1 has done its work."""
        state, curriculum = self.state, self.curriculum
        result = validate(self.team, self.engine, self.validation_queries, self.rollout_settings, self.config.seed)
        metrics |= result.metrics()
        if curriculum.gate_passed(result.valid) and (state.best_score is None or result.outcome > state.best_score):
            state.best_score, state.best_step = result.outcome, state.step
            self._keep()
        if state.stage == 1 and state.step >= curriculum.min_steps:
            if curriculum.gate_passed(result.valid):
                state.stage, state.stage_began = 2, state.step
            elif state.step >= curriculum.max_steps:
                raise RunFailed(
                    f"stage 1 did not reach {curriculum.gate:.0%} valid answers in {state.step} steps "
                    f"({curriculum.failed_roles(result.valid)}): give the warm start more steps, or lower the rates"
                )

    def _keep(self) -> None:
        """Write the policies as a version of their own and record it."""
        folder = self.adapters(self.state.step)
        self.policies.save(folder)
        for role in ROLES:
            path = folder / f"{role}.safetensors"
            self.journal.store.add_adapter(
                AdapterRecord(
                    run=self.journal.run,
                    role=role,
                    version=self.policies.version(role),
                    step=self.state.step,
                    path=str(path.relative_to(self.folder)),
                    checksum=hashlib.sha256(path.read_bytes()).hexdigest(),
                )
            )

    def adapters(self, step: int) -> Path:
        return self.folder / "adapters" / f"step-{step:06d}"

    def _publish(self, roles: Iterable[str]) -> None:
        """Hand the present weights of `roles` to the engine."""
        for role in roles:
            self.engine.set_weights(role, self.policies.merged_state(role), self.policies.version(role))

    def _done(self) -> bool:
        return self.state.stage == 2 and self.state.step >= self._total()

    def _total(self) -> int:
        """Steps of the whole run, as far as is known: stage 1 may take longer than its least."""
        began = self.state.stage_began if self.state.stage == 2 else max(self.curriculum.min_steps, self.state.step + 1)
        return began + self.curriculum.steps2

    def _role_settings(self, role: str) -> RoleTrainerSettings:
        config = self.config
        return RoleTrainerSettings(
            lr=getattr(config.learning_rate, role),
            warmup_steps=config.warmup_steps,
            eps_low=config.clip_low,
            eps_high=config.clip_high,
            ratio=config.ratio,
            kl_coef=config.kl,
            entropy_coef=config.entropy,
            max_grad_norm=config.max_grad_norm,
            minibatches=config.minibatches,
            seed=config.seed,
        )
