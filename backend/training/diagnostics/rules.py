"""The rules of the training doctor: what is known to go wrong in a training of the team, as conditions on its metrics.

Each rule is a pure function of the metrics so far. It gives every step at which its condition held, with the value that
met it; none means that it has nothing to say, or that the metrics it reads are not there. Thresholds are constants
below, each with its reason. `docs/diagnostics.md` says the same at more length.

A metric that is NaN or absent at a step is no point of its series: a role that was not called is not judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, stdev
from typing import Literal

from cryptosentinel.agents.registry import MANAGER, ROLES

Severity = Literal["fatal", "warning", "note"]
Scope = Literal["role", "sub-agent", "manager", "team"]
Values = Mapping[str, float]
Point = tuple[int, float]  # step, value

RUN = 5  # steps in a row: one bad step is luck of its few windows
LONG_RUN = 10  # where a quiet stretch is usual, as of a role that is seldom asked
SHORT_RUN = 3  # where each step is certain by itself
TREND_POINTS = 12  # fewer points tell no trend: three groups of four
GATE = 0.97  # share of valid answers that stage 1 asks for
NOISY_VALIDITY = 0.5  # more than half of what rewards differ by is whether an answer was valid at all
LOW_FORMAT_PAY = 0.15  # of a valid answer's reward
LOST_FORMAT = 0.5  # below it a group of 8 has hardly two valid answers to compare
MOSTLY_INVALID = 0.5  # less than half of the answers are of use to anybody, whatever the reason
ALL_TIED = 0.9  # share of groups without spread: next to nothing is left to learn from
OFTEN_ASKED = 0.25  # calls a rollout; of a role that is asked less, groups are of one and tie whatever it says
FEW_DIFFER = 0.8
STANDS_STILL = 0.95
ONE_SIDED = 0.9  # |mean of exposures| / mean of |exposures|; a team that reads its state takes both sides
TIMING = 0.1  # correlation of exposure and move that 100 independent rollouts show by chance about once in three times
EVEN_CALLS = 0.5  # effective share of the calls; below it the many calls of few rollouts bear most of the noise
LOW_ENTROPY = 0.1  # of the entropy it began with
FEW_NATS = 0.05  # a token at this entropy is nearly always the same
MUCH_CLIPPED = 0.3  # PPO keeps it between 0.1 and 0.2; beyond, most of the later updates push against the clip
LONG_TAIL = 10.0  # pi_new / pi_old of the most changed token, where the clip is at 1.2
FAR_KL = 0.5  # nats a token from the warm start: another language, not another habit
SPIKE = 10.0  # times the median of the norms before
_GAP = 0.1  # nats: a thousand times float32's rounding, and more than bfloat16's usual one
OTHER_WEIGHTS = 0.5  # share of importance weights that are cut: the engine answers with other weights than are trained
STALE = 0.5
CUT_OFF = 0.2
MASS = 0.9
GAIN = 0.005  # of a score in [0, 1]; less is not worth calling progress
LOSS = 0.01  # of a validation, or two standard deviations of its noise where these are more
MORE_VALID = 0.05
BETTER_PAID = 0.02


@dataclass(frozen=True)
class History:
    """The metrics of a run by step, ascending; names as in `docs/training.md`."""

    steps: Sequence[tuple[int, Values]]

    def series(self, name: str) -> list[Point]:
        """(step, value) wherever the metric is finite."""
        return [(step, values[name]) for step, values in self.steps if math.isfinite(values.get(name, math.nan))]

    def together(self, *names: str) -> list[tuple[int, tuple[float, ...]]]:
        """(step, values) wherever all the metrics are finite."""
        rows = [(step, tuple(values.get(name, math.nan) for name in names)) for step, values in self.steps]
        return [(step, row) for step, row in rows if all(map(math.isfinite, row))]

    def in_stage_2(self) -> History:
        """The steps in which the team is paid for its outcome; all of them where no stage was recorded."""
        return History([(step, values) for step, values in self.steps if values.get("stage", 2.0) >= 2.0])

    def stepped(self) -> History:
        """The steps that trained: step 0 has only a validation."""
        return History([(step, values) for step, values in self.steps if step > 0])


@dataclass(frozen=True)
class Hit:
    """A step at which a rule's condition held, and the value that met it."""

    step: int
    value: float


@dataclass(frozen=True)
class Rule:
    """`check(history, role)` gives the hits; `needs` are the metrics without which it cannot judge, `{role}` for the
    role's key. `condition` says when it speaks, with its threshold and why there; `advice` what to try.

    `points` is the fewest steps with all of `needs` on which it can speak: on a shorter run its silence means nothing.
    With `stage_2` only the steps of stage 2 count."""

    name: str
    scope: Scope
    severity: Severity
    needs: tuple[str, ...]
    condition: str
    advice: str
    check: Callable[[History, str], list[Hit]]
    points: int
    stage_2: bool = False

    def roles(self) -> list[str]:
        """Whom it is asked about: roles, or the team as ''."""
        if self.scope == "team":
            return [""]
        return [role for role in ROLES if self.scope == "role" or (role == MANAGER.key) == (self.scope == "manager")]


@dataclass(frozen=True)
class DiagnosticFinding:
    """What a rule found: `role` is '' for the team, `step` and `value` are of the first hit, `until` is the last one's
    step."""

    rule: str
    severity: Severity
    role: str
    step: int
    until: int
    value: float
    condition: str
    advice: str

    def sentence(self) -> str:
        """In one line, as for a log."""
        who = self.role or "the team"
        return (
            f"{self.rule} ({self.severity}), {who}, step {self.step}: {self.condition}; there it was {self.value:.4g}"
        )


def diagnose(history: History, rules: Iterable[Rule]) -> list[DiagnosticFinding]:
    """What the rules find, the gravest first, then the earliest."""
    order = {"fatal": 0, "warning": 1, "note": 2}
    findings = [finding for rule in rules for role in rule.roles() if (finding := _finding(rule, role, history))]
    return sorted(findings, key=lambda one: (order[one.severity], one.step, one.rule, one.role))


def can_judge(history: History, rule: Rule) -> bool:
    """Whether the metrics that the rule needs are there, for at least one of its roles."""
    names = {name for _, values in history.steps for name in values}
    return any({need.format(role=role) for need in rule.needs} <= names for role in rule.roles())


def missing_points(history: History, rule: Rule) -> dict[str, int]:
    """How many steps more the rule needs before its silence about a role means something, by role ('' is the team).
    Roles without a single point of its metrics are left out: they are not in the team, or it is not measured."""
    part = history.in_stage_2() if rule.stage_2 else history
    missing = {}
    for role in rule.roles():
        if not rule.needs:
            known, begun = len(part.stepped().steps), True
        else:
            names = [need.format(role=role) for need in rule.needs]
            known = len(part.together(*names))
            begun = len(history.together(*names)) > 0
        if begun and known < rule.points:
            missing[role] = rule.points - known
    return missing


def _finding(rule: Rule, role: str, history: History) -> DiagnosticFinding | None:
    hits = rule.check(history, role)
    if not hits:
        return None
    first, last = hits[0], hits[-1]
    return DiagnosticFinding(
        rule.name, rule.severity, role, first.step, last.step, first.value, rule.condition, rule.advice
    )


# -- format and rewards ---------------------------------------------------------------------------------------------


def terminal_collapse(history: History, role: str) -> list[Hit]:
    """The format is lost and all rewards tie: no gradient can bring it back."""
    rows = history.together(f"{role}/valid", f"{role}/degenerate_share", f"{role}/calls")
    return sustained(rows, SHORT_RUN, lambda row: row[0] < LOST_FORMAT and row[1] >= ALL_TIED and row[2] >= OFTEN_ASKED)


def mostly_invalid(history: History, role: str) -> list[Hit]:
    """Most answers of the run's last third are invalid, in the team or in practice; one step is enough."""
    for name in (f"{role}/valid", f"{role}/practice/valid"):
        points = history.series(name)
        last = points[-max(1, len(points) // 3) :]
        if last and fmean(share for _, share in last) < MOSTLY_INVALID:
            return [Hit(step, share) for step, share in last if share < MOSTLY_INVALID]
    return []


def zero_spread(history: History, role: str) -> list[Hit]:
    """Most groups have equal rewards."""
    return sustained(_single(history.series(f"{role}/degenerate_share")), RUN, lambda row: row[0] >= FEW_DIFFER)


def validity_noise(history: History, role: str) -> list[Hit]:
    """What rewards differ by is mostly whether the answer was valid."""
    rows = history.together(f"{role}/reward/validity_share", f"{role}/valid")
    return sustained(rows, RUN, lambda row: row[0] > NOISY_VALIDITY and row[1] < GATE)


def low_format_weight(history: History, role: str) -> list[Hit]:
    """Malformed answers stay, and little is paid for the format."""
    rows = history.together(f"{role}/reward/format_share", f"{role}/valid")
    hits = []
    for end in range(2 * RUN, len(rows) + 1):
        before, after = rows[end - 2 * RUN : end - RUN], rows[end - RUN : end]
        gain = fmean(row[1] for _, row in after) - fmean(row[1] for _, row in before)
        if gain < LOSS and all(row[0] < LOW_FORMAT_PAY and row[1] < GATE for _, row in after):
            hits.append(Hit(after[-1][0], after[-1][1][0]))
    return hits


def format_only(history: History, role: str) -> list[Hit]:
    """Better paid because more answers are valid, and no better at the work."""
    skill = "team/outcome" if role == MANAGER.key else f"{role}/expert/mean"
    rows = history.in_stage_2().together(f"{role}/valid", f"{role}/reward/mean", skill)
    if len(rows) < TREND_POINTS:
        return []
    valid, paid, skilled = (_gain([row[column] for _, row in rows]) for column in range(3))
    gained = valid >= MORE_VALID and paid >= BETTER_PAID and skilled <= GAIN
    return [Hit(rows[-1][0], skilled)] if gained else []


def not_learning(history: History, role: str) -> list[Hit]:
    """The expert score has not risen by more than its own noise."""
    points = history.stepped().together(f"{role}/expert/mean", f"{role}/trained")
    scores = [row[0] for _, row in points if row[1] > 0.0]
    if len(scores) < TREND_POINTS:
        return []
    third = len(scores) // 3
    noise = math.sqrt(sum(stdev(part) ** 2 / third for part in (scores[:third], scores[-third:])))
    gain = _gain(scores)
    return [Hit(points[-1][0], gain)] if gain < max(GAIN, noise) else []


# -- what the team does ---------------------------------------------------------------------------------------------


def collapse_to_hold(history: History, role: str) -> list[Hit]:
    """Nearly no decision sends an order."""
    rows = _single(history.in_stage_2().series("team/hold_share"))
    return sustained(rows, RUN, lambda row: row[0] >= STANDS_STILL)


def copies_drift(history: History, role: str) -> list[Hit]:
    """Always on the side to which the market drifts, whatever the state."""
    rows = history.together("team/net_exposure", "team/exposure", "team/market_move", "team/timing")
    hits = []
    for end in range(LONG_RUN, len(rows) + 1):
        window = [row for _, row in rows[end - LONG_RUN : end]]
        net, gross, move, timing = (fmean(row[column] for row in window) for column in range(4))
        if gross > 0.0 and abs(net) / gross >= ONE_SIDED and net * move > 0.0 and timing < TIMING:
            hits.append(Hit(rows[end - 1][0], net / gross))
    return hits


def uneven_calls(history: History, role: str) -> list[Hit]:
    """A role's step rests on a small part of its calls."""
    rows = _single(history.series(f"{role}/calls/efficiency"))
    return sustained(rows, RUN, lambda row: row[0] < EVEN_CALLS)


def role_silent(history: History, role: str) -> list[Hit]:
    """A role without a conversation that is learnt from, for many steps."""
    trained = [(step, (values.get(f"{role}/trained", 0.0),)) for step, values in history.in_stage_2().stepped().steps]
    return sustained(trained, LONG_RUN, lambda row: not row[0] > 0.0)


def stale_rollouts(history: History, role: str) -> list[Hit]:
    """Most conversations come from older weights than the newest of the step."""
    return sustained(_single(history.series(f"{role}/stale")), RUN, lambda row: row[0] > STALE)


def cut_off(history: History, role: str) -> list[Hit]:
    """Many conversations end at the token limit."""
    return sustained(_single(history.series(f"{role}/truncated")), RUN, lambda row: row[0] > CUT_OFF)


# -- validation -----------------------------------------------------------------------------------------------------


def unlearnt_warm_start(history: History, role: str) -> list[Hit]:
    """Validation falls below where it began and stays there."""
    points = history.series("validation/outcome")
    if not points or points[0][0] != 0:
        return []
    floor = points[0][1] - max(LOSS, 2.0 * _noise(points))
    return sustained(_single(points[1:]), SHORT_RUN, lambda row: row[0] < floor)


def overfits(history: History, role: str) -> list[Hit]:
    """Training windows go on getting better while validation falls from its best."""
    points = history.series("validation/outcome")
    training = history.series("team/outcome")
    hits = []
    for end in range(SHORT_RUN + 1, len(points) + 1):
        earlier, latest = points[: end - SHORT_RUN], points[end - SHORT_RUN : end]
        best_step, best = max(earlier, key=lambda point: point[1])
        began = earlier[-1][0]
        before = [value for step, value in training if step <= best_step]
        after = [value for step, value in training if began < step <= latest[-1][0]]
        floor = best - max(LOSS, 2.0 * _noise(points[:end]))
        fallen = all(value < floor for _, value in latest)
        if fallen and before and after and fmean(after) > fmean(before) + GAIN:
            hits.append(Hit(latest[-1][0], latest[-1][1] - best))
    return hits


# -- the optimizer --------------------------------------------------------------------------------------------------


def entropy_collapse(history: History, role: str) -> list[Hit]:
    """The role says nearly always the same."""
    points = history.series(f"{role}/entropy")
    if len(points) <= SHORT_RUN:
        return []
    floor = min(FEW_NATS, LOW_ENTROPY * fmean(value for _, value in points[:SHORT_RUN]))
    return sustained(_single(points[SHORT_RUN:]), RUN, lambda row: row[0] < floor)


def much_clipped(history: History, role: str) -> list[Hit]:
    """The updates of a step go further than the clip allows."""
    return sustained(_single(history.series(f"{role}/clip_share")), SHORT_RUN, lambda row: row[0] > MUCH_CLIPPED)


def ratio_tail(history: History, role: str) -> list[Hit]:
    """Some tokens' probabilities change many times over within a step."""
    return sustained(_single(history.series(f"{role}/ratio/max")), SHORT_RUN, lambda row: row[0] > LONG_TAIL)


def far_from_reference(history: History, role: str) -> list[Hit]:
    """The KL to the warm start is large."""
    return sustained(_single(history.series(f"{role}/kl")), RUN, lambda row: row[0] > FAR_KL)


def gradient_spike(history: History, role: str) -> list[Hit]:
    """The norm before clipping leaps."""
    points = history.series(f"{role}/grad_norm")
    return [
        Hit(step, value)
        for number, (step, value) in enumerate(points)
        if number >= RUN and value > SPIKE * median(norm for _, norm in points[:number]) > 0.0
    ]


def skipped_update(history: History, role: str) -> list[Hit]:
    """An update's loss or gradient was not finite."""
    return [Hit(step, value) for step, value in history.series(f"{role}/skipped_updates") if value > 0.0]


def diverged(history: History, role: str) -> list[Hit]:
    """Every update of the role is skipped."""
    rows = history.together(f"{role}/skipped_updates", f"{role}/updates")
    return sustained(rows, SHORT_RUN, lambda row: row[0] > 0.0 and row[1] == 0.0)


def engine_gap(history: History, role: str) -> list[Hit]:
    """Engine and trainer disagree on what was sampled, and do not with older weights by setting."""
    older = {step for step, age in history.series(f"{role}/staleness") if age}
    gaps = [(step, value) for step, value in history.series(f"{role}/engine_gap") if step not in older]
    return sustained(_single(gaps), SHORT_RUN, lambda row: row[0] > _GAP)


def other_weights(history: History, role: str) -> list[Hit]:
    """Most importance weights are cut: the engine does not run the weights that are trained."""
    rows = _single(history.series(f"{role}/importance/cut_share"))
    return sustained(rows, SHORT_RUN, lambda row: row[0] > OTHER_WEIGHTS)


def lopsided_gradients(history: History, role: str) -> list[Hit]:
    """One role has nearly all of the roles' gradient norm."""
    return sustained(_single(history.series(f"{role}/gradient_mass")), LONG_RUN, lambda row: row[0] > MASS)


# -- helpers --------------------------------------------------------------------------------------------------------


def sustained(
    rows: Sequence[tuple[int, tuple[float, ...]]], length: int, holds: Callable[[tuple[float, ...]], bool]
) -> list[Hit]:
    """The steps at which the condition has held for `length` points in a row; the value is the row's first."""
    hits, held = [], 0
    for step, row in rows:
        held = held + 1 if holds(row) else 0
        if held >= length:
            hits.append(Hit(step, row[0]))
    return hits


def _single(points: Sequence[Point]) -> list[tuple[int, tuple[float, ...]]]:
    return [(step, (value,)) for step, value in points]


def _noise(points: Sequence[Point]) -> float:
    """Standard deviation of a series' noise, from its first differences: a slow trend hardly adds to it."""
    values = [value for _, value in points]
    changes = [after - before for before, after in pairwise(values)]
    return stdev(changes) / math.sqrt(2.0) if len(changes) > 1 else 0.0


def _gain(values: Sequence[float]) -> float:
    """Mean of the last third less mean of the first."""
    third = len(values) // 3
    return fmean(values[-third:]) - fmean(values[:third])
