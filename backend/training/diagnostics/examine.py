"""The training doctor: what a run's metrics and records say about its health, role by role.

Most numbers are the run's own metrics. Some are derived here, from these or from the stored conversations and rewards,
under names of their own:

    {role}/gradient_mass          the role's share of the roles' summed gradient norms
    {role}/length                 sampled tokens of a conversation, mean
    {role}/truncated              share of conversations that ended at the token limit
    {role}/stale                  share of conversations whose weights are not those of most others of the step
    {role}/calls/max              most calls of a rollout
    {role}/calls/efficiency       effective number of calls, (sum w)^2 / sum w^2 of the alignment's weights (Kish 1965),
                                  by the number of calls; 1 when all rollouts call equally often
    {role}/reward/format_share    the format's part of what valid answers are paid
    {role}/reward/outcome_share   the outcome's; what is left is the expert score's, less penalties for length
    {role}/reward/validity_share  part of the variance of rewards inside groups that lies between valid and invalid
    team/train_gap                team/outcome less validation/outcome, at the steps that have both

Records of a step are numbered from 0 and its metrics from 1: a record of step n belongs to the metrics of step n + 1.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from backend.config.training import TrainingConfig
from backend.store.records import RewardRecord, RolloutRecord, TrajectoryRecord
from backend.store.run_record import stored_config
from backend.store.store import Store
from backend.training.algorithm.alignment import align
from backend.training.curriculum.curriculum import Curriculum
from backend.training.diagnostics.catalogue import RULES
from backend.training.diagnostics.rules import DiagnosticFinding, History, can_judge, diagnose, missing_points
from cryptosentinel.agents.registry import MANAGER, ROLES
from simulator.documents import parse_json, read_bytes
from simulator.errors import UserError

METRICS_FILE = "metrics.jsonl"
_MOST_BYTES = 2**30  # of that file
Steps = dict[int, dict[str, float]]

# What is shown, as (metric, words); `{role}/` stands before those of a role.
ROLE_ROWS = (
    ("reward/mean", "reward"),
    ("reward/std", "reward, sigma"),
    ("reward/format_share", "format's part of it"),
    ("reward/outcome_share", "outcome's part of it"),
    ("reward/validity_share", "variance by validity"),
    ("expert/mean", "expert score"),
    ("valid", "valid answers"),
    ("practice/valid", "valid in practice"),
    ("degenerate_share", "groups without spread"),
    ("unscored", "unscored calls"),
    ("calls", "calls a rollout"),
    ("silent_steps", "steps without a call"),
    ("alignment/target", "d of the alignment"),
    ("calls/max", "most calls"),
    ("calls/efficiency", "effective calls"),
    ("length", "sampled tokens a call"),
    ("truncated", "cut off"),
    ("stale", "older weights"),
    ("entropy", "entropy, nats"),
    ("kl", "KL, nats"),
    ("clip_share", "clipped"),
    ("ratio/p99", "ratio, 99th percentile"),
    ("ratio/max", "largest ratio"),
    ("engine_gap", "engine gap, nats"),
    ("grad_norm", "gradient norm"),
    ("gradient_mass", "part of all norms"),
    ("skipped_updates", "skipped updates"),
)
TEAM_ROWS = (
    ("team/outcome", "outcome"),
    ("validation/outcome", "outcome, validation"),
    ("team/train_gap", "training less validation"),
    ("team/net_return", "net return"),
    ("team/hold_share", "decisions without order"),
    ("validation/hold_share", "the same, validation"),
    ("team/exposure", "exposure"),
    ("team/net_exposure", "net exposure"),
    ("team/market_move", "market's move, sigmas"),
    ("team/timing", "exposure with move"),
    ("team/clamps", "guard's clamps"),
    ("rollbacks", "rollbacks so far"),
)


@dataclass(frozen=True)
class Summary:
    """A metric over the run: means of its first and last third, least and largest value, number of points."""

    first: float
    last: float
    low: float
    high: float
    points: int


@dataclass(frozen=True)
class Examination:
    """What the doctor has to say of a run. `summaries` by metric; `failures` by role, why answers were invalid and how
    often; `unjudged` the rules whose metrics are absent, with these metrics; `too_short` the rules that are silent only
    because the run has too few steps: by role ('' is the team), how many more they need."""

    run: str
    steps: int
    findings: tuple[DiagnosticFinding, ...]
    summaries: Mapping[str, Summary]
    failures: Mapping[str, Mapping[str, int]]
    unjudged: Mapping[str, tuple[str, ...]]
    too_short: Mapping[str, Mapping[str, int]]

    def verdict(self) -> str:
        """In one sentence. It says that nothing shows only where every rule had the steps that it needs."""
        if self.findings:
            gravest = self.findings[0].severity
            return f"{len(self.findings)} finding{'s' if len(self.findings) > 1 else ''}, the gravest is {gravest}"
        if self.too_short:
            more = max(count for by_role in self.too_short.values() for count in by_role.values())
            return (
                f"no finding so far, and the run is too short to say that all is well: {len(self.too_short)} of "
                f"{len(RULES)} rules need up to {more} steps more"
            )
        return "no finding: none of the known failures shows"

    def to_dict(self) -> dict[str, Any]:
        """As JSON knows it."""
        return {"verdict": self.verdict(), **asdict(self)}


def examine(
    run: str, steps: Mapping[int, Mapping[str, float]], failures: Mapping[str, Mapping[str, int]]
) -> Examination:
    """The examination of a run's metrics by step. Raises `UserError` where there is no training step among them."""
    if not any(step > 0 for step in steps):
        raise UserError(f"{run} has no metrics of a training step yet: give a run of `train` or `demo` that has begun")
    history = History([(step, with_derived_metrics(steps[step])) for step in sorted(steps)])
    names = {name for _, values in history.steps for name in values}
    return Examination(
        run,
        max(steps),
        tuple(diagnose(history, RULES)),
        {name: of_run for name in sorted(names) if (of_run := summary(history, name)) is not None},
        failures,
        {rule.name: rule.needs for rule in RULES if not can_judge(history, rule)},
        _too_short(history),
    )


def _too_short(history: History) -> dict[str, dict[str, int]]:
    """The rules that have nothing to say yet, with the steps that they need more, by role."""
    spoken = {(one.rule, one.role) for one in diagnose(history, RULES)}
    silent = {
        rule.name: {
            role: count for role, count in missing_points(history, rule).items() if (rule.name, role) not in spoken
        }
        for rule in RULES
    }
    return {name: by_role for name, by_role in silent.items() if by_role}


def examine_folder(folder: Path) -> Examination:
    """From the metrics in a run's folder alone, also while the run goes on. Raises `UserError`."""
    return examine(folder.name, read_metrics(folder / METRICS_FILE), {})


def examine_run(store: Store, run: str) -> Examination:
    """From a run's records in the store. Raises `StoreError` for an unknown run, `UserError` for one that trained
    nothing."""
    record = store.run(run)
    steps: Steps = {record.step: dict(record.values) for record in store.metrics(run)}
    failures: dict[str, Counter[str]] = defaultdict(Counter)
    training = stored_config(record)[0].training if record.config.get("config") else None
    _merge(steps, reward_metrics(store.rewards(run), steps, training))
    _merge(steps, call_metrics(store.rollouts(run)))
    for step in sorted(steps):
        spoken = store.trajectories(run, step - 1) if step > 0 else []
        _merge(steps, conversation_metrics(spoken))
        for one in spoken:
            if one.reason is not None:
                failures[one.role][one.reason.partition(":")[0]] += 1
    return examine(run, steps, {role: dict(counted) for role, counted in failures.items()})


def read_metrics(path: Path) -> Steps:
    """Metrics by step from a file of JSON lines. Of a step's lines the latter adds to the former; a last line that was
    cut short is left out. Raises `UserError` for a file that is not there or holds something else."""
    try:
        lines = read_bytes(path, _MOST_BYTES).decode("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): give the folder of a training run") from error
    steps: Steps = {}
    for number, line in enumerate(lines, 1):
        try:
            values = {
                name: math.nan if value is None else float(value) for name, value in parse_json(line, nan=True).items()
            }
            steps.setdefault(int(values.pop("step")), {}).update(values)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            if number == len(lines):
                break
            raise UserError(f"{path}, line {number} is no line of metrics ({error}): was it edited?") from error
    return steps


def summary(history: History, name: str) -> Summary | None:
    """The metric over the run; None where it has no finite value."""
    values = [value for _, value in history.series(name)]
    if not values:
        return None
    third = max(1, len(values) // 3)
    return Summary(fmean(values[:third]), fmean(values[-third:]), min(values), max(values), len(values))


# -- derived metrics ------------------------------------------------------------------------------------------------


def with_derived_metrics(values: Mapping[str, float]) -> dict[str, float]:
    """The metrics of a step with those that follow from them: gradient masses, lengths, the gap to validation."""
    metrics = dict(values)
    norms = {role: values.get(f"{role}/grad_norm", math.nan) for role in ROLES}
    known = {role: norm for role, norm in norms.items() if math.isfinite(norm)}
    total = sum(known.values())
    if len(known) > 1 and total > 0.0:
        metrics |= {f"{role}/gradient_mass": norm / total for role, norm in known.items()}
    for role in ROLES:
        if values.get(f"{role}/trained", 0.0) > 0.0:
            metrics.setdefault(f"{role}/length", values.get(f"{role}/tokens", math.nan) / values[f"{role}/trained"])
    if "team/outcome" in values and "validation/outcome" in values:
        metrics["team/train_gap"] = values["team/outcome"] - values["validation/outcome"]
    return metrics


def reward_metrics(
    rewards: Iterable[RewardRecord], steps: Mapping[int, Mapping[str, float]], training: TrainingConfig | None
) -> Steps:
    """The shares of format, outcome and validity by step and role. The weights of the parts are those of the step's
    stage; where the run's settings are not known, there is the last one only."""
    stages = None if training is None else Curriculum(training)
    by_role: dict[tuple[int, str], list[RewardRecord]] = defaultdict(list)
    for one in rewards:
        by_role[one.step + 1, one.role].append(one)
    metrics: Steps = defaultdict(dict)
    for (step, role), records in by_role.items():
        valid = [one for one in records if one.parts["format"] > 0.0 and one.total > 0.0]
        if stages is not None and valid:
            stage = stages.stage(1 if steps.get(step, {}).get("stage") == 1.0 else 2)
            weights = stage.alpha if role == MANAGER.key else stage.beta
            paid = sum(one.total for one in valid)
            for part, weight in zip(("format", "outcome"), weights, strict=False):  # the third is the expert score's
                metrics[step][f"{role}/reward/{part}_share"] = weight * sum(one.parts[part] for one in valid) / paid
        share = validity_share(records)
        if share is not None:
            metrics[step][f"{role}/reward/validity_share"] = share
    return metrics


def validity_share(records: Sequence[RewardRecord]) -> float | None:
    """Part of the sum of squares inside the groups of a step that lies between valid and invalid answers, in [0, 1];
    None where all rewards of each group are equal."""
    groups: dict[int, list[RewardRecord]] = defaultdict(list)
    for one in records:
        groups[one.query].append(one)
    between = inside = 0.0
    for group in groups.values():
        mean = fmean(one.total for one in group)
        inside += sum((one.total - mean) ** 2 for one in group)
        for valid in (True, False):
            part = [one.total for one in group if (one.parts["format"] > 0.0) is valid]
            if part:
                between += len(part) * (fmean(part) - mean) ** 2
    return between / inside if inside > 1e-12 else None


def call_metrics(rollouts: Iterable[RolloutRecord]) -> Steps:
    """calls/max and calls/efficiency by step and sub-agent that was called; under `fractional` weights, whose exact
    expectation `duplicate_drop` has too."""
    counts: dict[tuple[int, str], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for one in rollouts:
        for role, calls in one.calls.items():
            counts[one.step + 1, role][one.query].append(calls)
    metrics: Steps = defaultdict(dict)
    for (step, role), groups in counts.items():
        made = sum(sum(group) for group in groups.values())
        if made == 0:
            continue
        effective = 0.0
        for group in groups.values():
            weights = align(group, "fractional", 1, np.random.default_rng(0))
            if len(weights):
                effective += float(weights.sum() ** 2 / (weights**2).sum())
        metrics[step][f"{role}/calls/max"] = float(max(max(group) for group in groups.values()))
        metrics[step][f"{role}/calls/efficiency"] = effective / made
    return metrics


def conversation_metrics(spoken: Iterable[TrajectoryRecord]) -> Steps:
    """length, truncated and stale by step and role."""
    by_role: dict[tuple[int, str], list[TrajectoryRecord]] = defaultdict(list)
    for one in spoken:
        by_role[one.step + 1, one.role].append(one)
    metrics: Steps = defaultdict(dict)
    for (step, role), records in by_role.items():
        newest = max(Counter(one.policy_version for one in records).values())
        metrics[step][f"{role}/length"] = fmean(sum(one.mask) for one in records)
        metrics[step][f"{role}/truncated"] = fmean(one.truncated for one in records)
        metrics[step][f"{role}/stale"] = 1.0 - newest / len(records)
    return metrics


def _merge(steps: Steps, metrics: Mapping[int, Mapping[str, float]]) -> None:
    """Add metrics to steps that have some; what a run stored of a step that it did not finish is left out. What the run
    itself has measured stays: it knows the weights that its schedules had."""
    for step, values in metrics.items():
        if step in steps:
            steps[step] = {**values, **steps[step]}
