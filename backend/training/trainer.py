"""The M-GRPO trainer (arXiv 2511.13288): rollouts, learning, validation, and the next step.

One step: draw queries, roll the team out K times on each, score, and then for each role apart: align, group, advantage,
objective, optimizer step. New weights go to the engine before the next step, so every rollout is on-policy. Where the
rollouts come from and who learns is not decided here: see `components.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from backend.policies.adapters import save_versions
from backend.store.records import AdapterRecord
from backend.training.checkpoints import TrainingState
from backend.training.components import LearnerPool, RolloutSource, StateStore, TrainingParts
from backend.training.curriculum.curriculum import Curriculum, StepPlan
from backend.training.learning.learner import MAX_IDLE_STEPS, tokens_of
from backend.training.validation import validate
from cryptosentinel.scheduler import FILLING, SPEED
from cryptosentinel.team import derive_seed
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
    """Trains the team of `parts`, validates it, and keeps the best version.

    Results lie in the run's folder: `adapters/` (a version for each validation that was the best so far),
    `metrics.jsonl`, `tensorboard/`. After `resume` a run continues as if it never was interrupted, bit for bit on the
    CPU. Metrics of step n tell about the n-th step and the team after it; those of step 0 about the team before any
    training.
    """

    def __init__(
        self, parts: TrainingParts, rollouts: RolloutSource, learners: LearnerPool, states: StateStore
    ) -> None:
        self.config = parts.config
        self.state = TrainingState()
        self._parts = parts
        self._rollouts = rollouts
        self._learners = learners
        self._states = states
        self._recorder = parts.recorder
        self._curriculum = Curriculum(parts.config)
        self._validation_queries = parts.validation_pool.draw(
            derive_seed(parts.config.seed, "validation"), 0, parts.config.validation_queries, easy=False
        )

    def resume(self) -> bool:
        """Go to where the run was after the last step that it completed; False if there is none.

        Raises `UserError` for a state of another model.
        """
        state = self._states.load()
        if state is not None:
            self.state = state
        self._recorder.drop_metrics_after(-1 if state is None else state.step)
        return state is not None

    def run(self, on_progress: Callable[[Progress], None] | None = None) -> TrainingState:
        """Train to the end of the curriculum. Raises `RunFailed` when the gate of stage 1 stays shut."""
        self.start()
        while not self._done():
            metrics = self.step()
            if on_progress is not None:
                on_progress(Progress(self.state.step, self._total(), self.state.stage, metrics))
        return self.state

    def start(self) -> None:
        """Let the engine answer with the weights of the next step, and validate the team before the first one."""
        self._learners.load_weights(self.state.step)
        if self.state.step == 0:
            metrics: dict[str, float] = {}
            self._validate(metrics)
            self._recorder.metrics(0, metrics)

    # -- one step ---------------------------------------------------------------------------------------------------

    def step(self) -> dict[str, float]:
        """One step of training; its metrics. Raises `RunFailed` where the run cannot continue."""
        state, step = self.state, self.state.step
        stage = self._curriculum.stage(state.stage, self._spent_of_stage2())
        rollouts = self._rollouts.collect(StepPlan(step, stage))
        learning = self._learners.train_step(step, rollouts.data)
        self._recorder.rewards(step, learning.credits)
        metrics = {**rollouts.metrics, **learning.metrics}
        state.rollbacks += learning.rollbacks
        state.step += 1
        state.tokens += tokens_of(rollouts.data)
        if self._validates_after(state.step) or self._tokens_spent():
            self._validate(metrics)
        self._record(metrics, rollouts.engine)
        self._states.save(state)
        self._recorder.drop_old_conversations(state.step)
        warn_of_silent_roles(self._parts.policies.roles, metrics, self._recorder.run)
        if learning.failure is not None:  # the state of the step is kept by then
            raise RunFailed(learning.failure)
        return metrics

    def _record(self, metrics: dict[str, float], engine: Mapping[str, float]) -> None:
        """Write the metrics of the step that was just done."""
        state = self.state
        metrics["rollbacks"] = float(len(state.rollbacks))
        metrics |= {f"engine/{name}": engine[name] for name in FILLING if name in engine}
        self._recorder.metrics(state.step, metrics)
        self._recorder.speed(state.step, {f"engine/{name}": engine[name] for name in SPEED if name in engine})

    # -- stages and validation --------------------------------------------------------------------------------------

    def _validate(self, metrics: dict[str, float]) -> None:
        """Measure the team, keep it if it is the best so far, and open the gate when stage 1 has done its work."""
        state, parts, curriculum = self.state, self._parts, self._curriculum
        result = validate(parts.shards, self._validation_queries, self.config.shards, self.config.seed)
        metrics |= result.metrics()
        if "team/outcome" in metrics:
            metrics["team/train_gap"] = metrics["team/outcome"] - result.outcome
        if curriculum.gate_passed(result.valid) and (state.best_score is None or result.outcome > state.best_score):
            state.best_score, state.best_step = result.outcome, state.step
            self._keep_version()
        if state.stage == 1 and state.step >= self.config.stage1_steps:
            if curriculum.gate_passed(result.valid):
                state.stage, state.stage_began, state.stage1_tokens = 2, state.step, state.tokens
            elif state.step >= self.config.stage1_max_steps:
                raise RunFailed(
                    f"stage 1 did not reach {self.config.gate_format:.0%} valid answers in {state.step} steps "
                    f"({curriculum.failed_roles(result.valid)}): give the warm start more steps, or lower the rates"
                )

    def _keep_version(self) -> None:
        """Write the policies as a version of their own and record it."""
        policies, folder, run = self._parts.policies, self._parts.folder, self._recorder.run
        versions = save_versions(policies, self.adapters(self.state.step), run, self.state.step)
        for role, (path, checksum) in versions.items():
            self._recorder.store.put(
                AdapterRecord(
                    run=run,
                    role=role,
                    version=policies.version(role),
                    step=self.state.step,
                    path=str(path.relative_to(folder)),
                    checksum=checksum,
                )
            )

    def adapters(self, step: int) -> Path:
        """The folder of the version that was kept after `step`."""
        return self._parts.folder / "adapters" / f"step-{step:06d}"

    def _done(self) -> bool:
        return self._tokens_spent() or (self.state.stage == 2 and self.state.step >= self._total())

    def _validates_after(self, steps: int) -> bool:
        """Whether a validation is due after that number of steps, apart from tokens that are spent."""
        return steps % self.config.validation_every == 0 or steps == self._total(steps)

    def _tokens_spent(self) -> bool:
        """Whether the rollouts have taken all tokens that they may."""
        return 0 < self.config.tokens <= self.state.tokens

    def _spent_of_stage2(self) -> float:
        """The share of stage 2's tokens that its rollouts have taken; 0 in stage 1, and where tokens end nothing."""
        state, limit = self.state, self.config.tokens
        if not limit or state.stage == 1:
            return 0.0
        return min(1.0, (state.tokens - state.stage1_tokens) / max(1, limit - state.stage1_tokens))

    def _total(self, done: int | None = None) -> int:
        """Steps of the whole run, as far as is known once `done` of them are (as many as now): stage 1 may take longer
        than its least."""
        state, config = self.state, self.config
        done = state.step if done is None else done
        began = state.stage_began if state.stage == 2 else max(config.stage1_steps, done + 1)
        return began + config.stage2_steps


def warn_of_silent_roles(roles: Sequence[str], metrics: Mapping[str, float], run: str) -> None:
    """Log, once, each role that has had no conversation in `MAX_IDLE_STEPS` steps."""
    for role in roles:
        if metrics.get(f"{role}/silent_steps") == MAX_IDLE_STEPS:
            _log.warning(
                "run %s: %s had no conversation in %d steps, so it learns nothing; see whether the manager asks it",
                run, role, MAX_IDLE_STEPS,
            )  # fmt: skip
