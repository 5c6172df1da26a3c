"""The training doctor: eight known ways in which a training of the team fails, as conditions on a run's metrics, judged
by the run's own settings.

Each rule is a pure function of the metrics so far: the steps at which its condition held, with the value. Thresholds
are constants below, each with its reason; `docs/concepts/diagnostics.md` has the causes. A metric that is NaN or absent
at a step is not a point of its series: a role that was not called is not judged.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any, Literal

from backend.store.store import Store
from cryptosentinel.agents.registry import MANAGER, STANDARD
from simulator.errors import UserError

Severity = Literal["fatal", "warning"]
Values = Mapping[str, float]
Row = tuple[int, tuple[float, ...]]  # step, values

RUN = 5  # steps in a row: one bad step is luck of its few windows
LONG_RUN = 10  # where a quiet stretch is usual, as of a role that is seldom asked
SHORT_RUN = 3  # where each step is certain by itself
FEW_VALID = 0.5  # below it a group of 8 has hardly two valid answers to compare
ALL_TIED = 0.9  # share of groups without spread: next to nothing is left to learn from
OFTEN_ASKED = 0.25  # calls a rollout; of a role that is asked less, groups are of one and tie whatever it answers
STANDS_STILL = 0.95
LOW_ENTROPY = 0.1  # of the initial entropy
FEW_NATS = 0.05  # a token at this entropy is nearly always the same
GAP = 0.1  # nats: a thousand times float32's rounding, and more than bfloat16's usual one
LOSS = 0.01  # of a validation, or two standard deviations of its noise where these are more


@dataclass(frozen=True)
class RunSettings:
    """What of a run's settings the rules read: its roles, those of them that learn, and how many valid answers it asks
    for."""

    roles: tuple[str, ...] = (MANAGER.key, *STANDARD)
    learning: tuple[str, ...] = (MANAGER.key, *STANDARD)
    gate: float = 1.0

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> RunSettings:
        """Those of a run's stored configuration."""
        training, team = document.get("training", {}), document.get("team", {})
        roles = (MANAGER.key, *team.get("roles", STANDARD))
        frozen = training.get("freeze", ())
        return cls(roles, tuple(one for one in roles if one not in frozen), float(training.get("gate_format", 1.0)))


@dataclass(frozen=True)
class History:
    """The metrics of a run by step, ascending; names as in `docs/concepts/training.md`."""

    steps: Sequence[tuple[int, Values]]
    settings: RunSettings = RunSettings()

    def rows(self, *names: str) -> list[Row]:
        """(step, values) wherever all the metrics are finite."""
        rows = [(step, tuple(values.get(name, math.nan) for name in names)) for step, values in self.steps]
        return [(step, row) for step, row in rows if all(map(math.isfinite, row))]

    def in_stage_2(self) -> History:
        """The steps in which the team is paid for its outcome; all of them where no stage was recorded."""
        return History([one for one in self.steps if one[1].get("stage", 2.0) >= 2.0], self.settings)


@dataclass(frozen=True)
class Rule:
    """`check(history, role)` gives the rows at which the condition held. `roles` are those it judges: all, those that
    learn, the manager, or the team as ''. `needs` are its metrics, `{role}` for the role's key; `points` is the fewest
    steps with all of them on which it can find anything: on a shorter run no finding means nothing."""

    name: str
    roles: Literal["all", "learning", "manager", "team"]
    severity: Severity
    needs: tuple[str, ...]
    points: int
    condition: str
    advice: str
    check: Callable[[History, str], list[Row]]
    stage_2: bool = False

    def judged(self, settings: RunSettings) -> tuple[str, ...]:
        """The roles of a run that it judges."""
        if self.roles in ("manager", "team"):
            return (MANAGER.key,) if self.roles == "manager" else ("",)
        return settings.roles if self.roles == "all" else settings.learning


@dataclass(frozen=True)
class DiagnosticFinding:
    """A rule whose condition held: `role` is '' for the team, `step` and `value` are of the first time, `until` is the
    last step."""

    rule: str
    severity: Severity
    role: str
    step: int
    until: int
    value: float
    condition: str
    advice: str


# -- conditions -----------------------------------------------------------------------------------------------------


def terminal_collapse(history: History, role: str) -> list[Row]:
    """The format is lost and all rewards tie: no gradient can bring it back."""
    rows = history.rows(f"{role}/valid", f"{role}/degenerate_share", f"{role}/calls")
    return sustained(rows, SHORT_RUN, lambda row: row[0] < FEW_VALID and row[1] >= ALL_TIED and row[2] >= OFTEN_ASKED)


def mostly_invalid(history: History, role: str) -> list[Row]:
    """Most answers of the run's last third are invalid, in the team or in practice; one step is enough."""
    few = min(FEW_VALID, history.settings.gate or FEW_VALID)
    for name in (f"{role}/valid", f"{role}/practice/valid"):
        rows = history.rows(name)
        last = rows[-max(1, len(rows) // 3) :]
        if last and fmean(row[0] for _, row in last) < few:
            return [(step, row) for step, row in last if row[0] < few]
    return []


def diverged(history: History, role: str) -> list[Row]:
    """Every update of the role is skipped."""
    rows = history.rows(f"{role}/skipped_updates", f"{role}/updates")
    return sustained(rows, SHORT_RUN, lambda row: row[0] > 0.0 and row[1] == 0.0)


def collapse_to_hold(history: History, role: str) -> list[Row]:
    """Nearly no decision sends an order."""
    return sustained(history.rows("team/hold_share"), RUN, lambda row: row[0] >= STANDS_STILL)


def role_silent(history: History, role: str) -> list[Row]:
    """A role without a conversation to learn from, for many steps."""
    rows = [(step, (values.get(f"{role}/trained", 0.0),)) for step, values in history.steps if step > 0]
    return sustained(rows, LONG_RUN, lambda row: not row[0] > 0.0)


def entropy_collapse(history: History, role: str) -> list[Row]:
    """The role gives nearly always the same answer."""
    rows = history.rows(f"{role}/entropy")
    if len(rows) <= SHORT_RUN:
        return []
    floor = min(FEW_NATS, LOW_ENTROPY * fmean(row[0] for _, row in rows[:SHORT_RUN]))
    return sustained(rows[SHORT_RUN:], RUN, lambda row: row[0] < floor)


def unlearned_warm_start(history: History, role: str) -> list[Row]:
    """Validation falls below that of step 0 and stays there."""
    rows = history.rows("validation/outcome")
    if not rows or rows[0][0] != 0:
        return []
    changes = [after[0] - before[0] for (_, before), (_, after) in pairwise(rows)]
    # Of first differences, to which a slow trend hardly adds.
    noise = stdev(changes) / math.sqrt(2.0) if len(changes) > 1 else 0.0
    floor = rows[0][1][0] - max(LOSS, 2.0 * noise)
    return sustained(rows[1:], SHORT_RUN, lambda row: row[0] < floor)


def engine_gap(history: History, role: str) -> list[Row]:
    """Engine and trainer disagree on what was sampled."""
    return sustained(history.rows(f"{role}/engine_gap"), SHORT_RUN, lambda row: row[0] > GAP)


def sustained(rows: Sequence[Row], length: int, holds: Callable[[tuple[float, ...]], bool]) -> list[Row]:
    """The rows at which the condition has held for `length` in a row."""
    found, held = [], 0
    for step, row in rows:
        held = held + 1 if holds(row) else 0
        if held >= length:
            found.append((step, row))
    return found


RULES = (
    Rule(
        "terminal collapse", "learning", "fatal",
        ("{role}/valid", "{role}/degenerate_share", "{role}/calls"), SHORT_RUN,
        f"below {FEW_VALID:.0%} valid answers while {ALL_TIED:.0%} of the groups have equal rewards, for {SHORT_RUN} "
        f"steps, of a role with {OFTEN_ASKED:g} calls a rollout or more",
        "return to an earlier checkpoint with a lower training.learning_rate of the role and training.kl above 0; keep "
        "training.rollback_format at 0.9, which undoes such a step",
        terminal_collapse,
    ),
    Rule(
        "every update skipped", "learning", "fatal", ("{role}/skipped_updates", "{role}/updates"), SHORT_RUN,
        f"no update of the role was finite for {SHORT_RUN} steps: its parameters have diverged",
        "return to an earlier checkpoint, lower training.learning_rate of the role, raise training.warmup_steps",
        diverged,
    ),
    Rule(
        "most answers invalid", "all", "warning", ("{role}/valid",), 1,
        f"below {FEW_VALID:.0%} valid answers (or the run's gate, where that is lower) over the last third of the run",
        "see the reasons under `invalid because of`; a longer warm start or `sft`, team.retries, team.max_tokens",
        mostly_invalid,
    ),
    Rule(
        "collapse to hold", "manager", "warning", ("team/hold_share",), RUN,
        f"{STANDS_STILL:.0%} of the decisions send no order, for {RUN} steps of stage 2. On a market without edge that "
        "is right",
        "raise training.stage1_steps so that the sub-agents are worth asking first; training.entropy above 0; `sft`",
        collapse_to_hold, stage_2=True,
    ),
    Rule(
        "role is silent", "learning", "warning", (), LONG_RUN,
        f"no conversation of the role to learn from in {LONG_RUN} steps of stage 2: it is not asked, or it ties",
        "see whether the manager asks it (calls); training.practice, more training.rollouts_per_query",
        role_silent, stage_2=True,
    ),
    Rule(
        "unlearns the warm start", "team", "warning", ("validation/outcome",), SHORT_RUN + 1,
        f"validation/outcome more than {LOSS} and twice its noise below step 0, {SHORT_RUN} validations in a row",
        "a lower training.learning_rate (1e-4 to 2e-4 for nano, 1e-5 for large models), training.kl as an anchor",
        unlearned_warm_start,
    ),
    Rule(
        "entropy collapse", "learning", "warning", ("{role}/entropy",), SHORT_RUN + RUN,
        f"entropy below {LOW_ENTROPY:.0%} of its first {SHORT_RUN} steps and below {FEW_NATS} nats a token, for {RUN} "
        "steps: K equal rollouts compare nothing",
        "training.entropy (1e-3 to 1e-2), a higher training.clip_high (0.28), a lower training.learning_rate",
        entropy_collapse,
    ),
    Rule(
        "engine gap", "learning", "warning", ("{role}/engine_gap",), SHORT_RUN,
        f"log-probs of engine and trainer differ by more than {GAP} nats at some token, {SHORT_RUN} steps in a row; "
        "float32 on both sides gives some 1e-5",
        "use one type of numbers on both sides; see that the server serves the newest adapters of this base",
        engine_gap,
    ),
)  # fmt: skip


# -- the examination ------------------------------------------------------------------------------------------------


def diagnose(history: History, rules: Iterable[Rule] = RULES) -> list[DiagnosticFinding]:
    """What the rules find, fatal findings first, then the earliest."""
    findings = []
    for rule in rules:
        for role in rule.judged(history.settings):
            rows = rule.check(history.in_stage_2() if rule.stage_2 else history, role)
            if rows:
                (step, row), until = rows[0], rows[-1][0]
                said = (rule.condition, rule.advice)
                findings.append(DiagnosticFinding(rule.name, rule.severity, role, step, until, row[0], *said))
    return sorted(findings, key=lambda one: (one.severity != "fatal", one.step, one.rule, one.role))


def missing_points(history: History, rule: Rule) -> dict[str, int]:
    """How many more steps the rule needs to judge a role, by role ('' is the team)."""
    part = history.in_stage_2() if rule.stage_2 else history
    missing = {}
    for role in rule.judged(history.settings):
        names = [need.format(role=role) for need in rule.needs]
        known = len(part.rows(*names)) if names else sum(step > 0 for step, _ in part.steps)
        if known < rule.points:
            missing[role] = rule.points - known
    return missing


@dataclass(frozen=True)
class Examination:
    """The doctor's report on a run. `failures` by role, why answers were invalid and how often; `too_short` the rules
    that cannot judge yet, with the most steps that each still needs."""

    run: str
    steps: int
    findings: tuple[DiagnosticFinding, ...]
    failures: Mapping[str, Mapping[str, int]]
    too_short: Mapping[str, int]

    def verdict(self) -> str:
        """In one sentence; that nothing is wrong only where every rule had the steps that it needs."""
        if self.findings:
            count, worst = len(self.findings), self.findings[0].severity
            return f"{count} finding{'s' if count > 1 else ''}, the most severe is {worst}"
        if self.too_short:
            more = max(self.too_short.values())
            return (
                f"no finding so far, but the run is too short to judge: {len(self.too_short)} of {len(RULES)} rules "
                f"need up to {more} more steps"
            )
        return "no finding: none of the known failures"


def examine_run(store: Store, run: str) -> Examination:
    """From a run's records, also while it runs. Raises `StoreError` for an unknown run, `UserError` without a step."""
    record = store.run(run)
    steps = {record.step: dict(record.values) for record in store.metrics(run)}
    failures: dict[str, Counter[str]] = defaultdict(Counter)
    for one in (talk for step in sorted(steps) if step > 0 for talk in store.trajectories(run, step - 1)):
        if one.reason is not None:
            failures[one.role][one.reason.partition(":")[0]] += 1
    counted = {role: dict(reasons) for role, reasons in failures.items()}
    return examine(run, steps, record.config.get("config") or {}, counted)


def examine(
    run: str,
    steps: Mapping[int, Values],
    settings: Mapping[str, Any],
    failures: Mapping[str, Mapping[str, int]] | None = None,
) -> Examination:
    """The examination of a run's metrics by step, by its stored configuration. Raises `UserError` where there is no
    training step among them."""
    if not any(step > 0 for step in steps):
        raise UserError(f"{run} has no metrics of a training step yet: give a run of `train` or `demo` that has begun")
    history = History([(step, steps[step]) for step in sorted(steps)], RunSettings.of(settings))
    findings = diagnose(history)
    found = {(one.rule, one.role) for one in findings}
    missing = {
        rule.name: [n for role, n in missing_points(history, rule).items() if (rule.name, role) not in found]
        for rule in RULES
    }
    too_short = {name: max(steps) for name, steps in missing.items() if steps}
    return Examination(run, max(steps), tuple(findings), failures or {}, too_short)
