"""A training for a reader: what it earned and learned, its curves over the steps, one group of rollouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backend.evaluation.answer import BEHAVIORS
from backend.evaluation.evidence import attribution
from backend.reporting import charts
from backend.reporting.blocks import Missing, Picture, ReportBlock, ReportSection, Table, TableRow, Tile
from backend.reporting.charts import Event, IntervalBar
from backend.reporting.labels import COLUMNS, MEANINGS, Column, number_text, title_of
from backend.reporting.run_summary import RunSummary
from backend.store.records import MetricRecord, QueryRecord, RewardRecord, RolloutRecord
from backend.store.store import Store
from cryptosentinel.agents.registry import MANAGER, ROLES, role_title
from simulator.market.timeframes import format_time

HELD_OUT_VALUE, CONTROL_VALUE = "held_out_value", "control_value"  # the names of the records
_BARS = {
    "trained": ("trained", charts.BLUE),
    "initial": ("before training", charts.VERMILION),
    "teacher": ("its teacher", charts.PINK),
    "holding": ("doing nothing", charts.GREY),
}
_SHARES = (
    Column("initial", "Before training", "share", "of the cases in which the question arises"),
    Column("trained", "Trained", "share", "of the same cases"),
    Column("teacher", "Its teacher", "share", "of the same cases"),
)
_NOTES = {
    "trained": "after M-GRPO",
    "warm_started": "before it",
    "teacher": "the rules that the warm start learned from",
    "scripted": "rules that read all evidence",
    "holding": "leaves every position as it is",
}
_VALUE_COLUMNS = (
    Column("net_return", "Return, bp", "text", "mean over the states and scenarios, net of all costs, in basis points"),
    Column("outcome", "Outcome score", "text", "what training raises, 0 to 1; large losses count more in it"),
    Column("questions", "Questions", "ratio", "put to sub-agents, a decision"),
    Column("traded", "Trades", "share", "decisions that changed a position"),
)
_DIFFERENCES = (
    Column("net_return", "Return, bp", "text", "what the trained team earns more a decision"),
    Column("net_return_ci95", "95 % interval", "text", "of that"),
)
_ROLLOUT_COLUMNS = (
    Column("outcome", "Outcome", "ratio", "the team's result as a score from 0 to 1; 0.5 is break-even"),
    Column("net_return", "Net return", "change", "of the account, after all costs"),
    Column("exposure", "Exposure after", "share", "of the equity, signed, that the decision led to"),
    Column("orders", "Orders", "count", "that the decision sent"),
    Column("valid", "Valid", "text", "whether the manager kept the protocol; else its reward is 0"),
)


def answer_tiles(answer: Mapping[str, Any]) -> list[Tile]:
    """Four cards: what the team earns, what training added, how much is achieved, and what the control shows."""
    low, high = answer["bp_ci95"]["trained"]
    earned = Tile("Earns", f"{answer['bp']['trained']:+.1f} bp", f"a decision; 95 % interval {low:+.1f} to {high:+.1f}")
    gained = Tile("Gained by training", *_shown(answer["minus_initial"]))
    share = answer["achievable_share"]
    achieved = (
        Tile("Leads its teacher by", *_shown(answer["minus_teacher"]))
        if share is None
        else Tile("Achieves", f"{100 * share:.0f} %", "of what the best decision given all evidence is worth")
    )
    control = Tile("Gains without an edge", "–", "there is no control market without an edge")
    if answer["control"] is not None:
        mean, low, high = answer["control"]
        note = f"in a market where nothing can be known, against doing nothing: {low:+.1f} to {high:+.1f} bp"
        control = Tile(control.label, f"{mean:+.1f} bp" if low > 0.0 or high < 0.0 else "nothing", note)
    return [earned, gained, achieved, control]


def _shown(difference: Sequence[float]) -> tuple[str, str]:
    """A difference with its interval; a difference that includes 0 has no number on a card."""
    mean, low, high = difference
    note = f"a decision; 95 % interval {low:+.1f} to {high:+.1f} bp"
    return (f"{mean:+.1f} bp" if low > 0.0 or high < 0.0 else "no measurable difference"), note


def answer_picture(answer: Mapping[str, Any]) -> Picture:
    """What a decision of each team earns, with its interval."""
    rows = {
        label: IntervalBar(answer["bp"][name], answer["bp_ci95"][name][0], answer["bp_ci95"][name][1], color=color)
        for name, (label, color) in _BARS.items()
    }
    caption = "What a decision earns on average, net of all costs, in basis points. Lines are 95 % intervals."
    figure = charts.interval_chart(rows, "basis points a decision", "", digits=1, bars=True)
    return Picture("What a decision earns", caption, figure)


def learned_table(answer: Mapping[str, Any]) -> Table:
    """How often each role does what counts, before training and after it."""
    rows = tuple(
        TableRow(role_title(role), answer["behaviors"].get(role, {}), behavior.does)
        for role, behavior in BEHAVIORS.items()
    )
    caption = (
        "In the held-out states, with the likeliest answers. A dash: the question never arises. Trader's row is of the "
        "team's orders."
    )
    return Table("What each role learned", caption, _SHARES, rows, first="Role")


def comparison_sections(summary: RunSummary) -> list[ReportSection]:
    """The effect of training: what each role learned, what a decision is worth, and the held-out windows."""
    sections = []
    if summary.answer is not None:
        sections.append(ReportSection("What each role learned", (learned_table(summary.answer),)))
    value = summary.evaluations.get(HELD_OUT_VALUE)
    if value is not None:
        sections.append(value_section(value, summary.evaluations.get(CONTROL_VALUE)))
    return [*sections, windows_section(summary.evaluations.get("held_out", {}))]


def value_section(value: Mapping[str, Any], control: Mapping[str, Any] | None) -> ReportSection:
    """What the decisions of each team are worth, and what the trained one earns more than each other, and than holding
    on the no-edge control (the documents of `backend.evaluation.held_out_value`)."""
    ordered = sorted(value["rows"].items(), key=lambda item: -item[1]["outcome"])
    rows = tuple(
        TableRow(
            title_of(name),
            row | {"net_return": f"{1e4 * row['net_return']:+.1f}", "outcome": f"{row['outcome']:.4f}"},
            _NOTES.get(name, ""),
            main=name == "trained",
        )
        for name, row in ordered
    )
    caption = (
        f"Each team decided once in each of {value['states']:,} held-out states, with its likeliest answers. Each "
        f"decision was scored over the same {value['scenario_paths']:,} simulated scenarios, so luck plays no part. "
        "One basis point (bp) is a hundredth of a percent of the equity."
    )
    blocks: list[ReportBlock] = [Table("What a decision is worth", caption, _VALUE_COLUMNS, rows)]
    blocks.append(_differences("Trained, compared", value))
    if control is not None:
        blocks.append(_differences("The same on the no-edge control", control))
    return ReportSection("What a decision is worth", tuple(blocks))


def _differences(title: str, value: Mapping[str, Any]) -> Table:
    rows = tuple(
        TableRow(
            f"Trained − {title_of(row['against'])}",
            {
                "net_return": f"{1e4 * row['net_return']:+.1f}",
                "net_return_ci95": " to ".join(f"{1e4 * end:+.1f}" for end in row["net_return_ci95"]),
            },
        )
        for row in value["differences"]
    )
    caption = (
        f"Over {value['states']:,} held-out states. Intervals are over the means of {value['stretches']} stretches of "
        "the held-out part."
    )
    return Table(title, caption, _DIFFERENCES, rows, first="Difference")


def windows_section(held_out: Mapping[str, Any]) -> ReportSection:
    """The teams on the held-out windows: their difference, their results, and the return of each window."""
    title, rows = "Held-out windows", held_out.get("rows")
    if not rows:
        return ReportSection(title, (Missing(title, "they were not measured"),))
    windows, difference = held_out.get("windows"), held_out.get("difference")
    caption = (
        f"The teams trade the same {windows} windows, which training never saw. These are few, and each has one course "
        "of many: what a decision is worth says more."
    )
    blocks: list[ReportBlock] = [Missing("Trained minus initial", "it was not measured")]
    if difference:
        mean, low, high = (100.0 * end for end in (difference["mean"], *difference["ci95"]))
        row = IntervalBar(mean, low, high, [100.0 * one for one in difference.get("per_window", [])])
        saved = difference.get("costs_saved")
        parts = (
            f" The two parts of {number_text(difference['mean'], 'change')}: "
            f"{attribution(difference['mean'], saved, unit=' %')}."
            if isinstance(saved, int | float)
            else ""
        )
        figure = charts.interval_chart({"Trained minus initial": row}, "difference of return", " %")
        about = f"A dot is one window. An interval wholly right of 0: the trained team earned more.{parts}"
        blocks = [Picture("Trained minus initial", about, figure)]
    about = "Means over the windows. Exposure, trades and long share show a team that hardly traded or was always long."
    listed = tuple(
        TableRow(title_of(name), one, MEANINGS.get(name, ""), main=name == "trained") for name, one in rows.items()
    )
    blocks.append(Table("Results", about, COLUMNS, listed))
    returns = {name: one["per_window"] for name, one in rows.items() if one.get("per_window")}
    if returns:
        about = (
            "Net of fees, spread and funding. Each window is separate and begins without positions, so the marks make "
            "no curve. A click in the legend shows or hides a team or baseline."
        )
        waiting = set(returns) - {"trained", "warm_started", "hold"}
        blocks.append(Picture("Return in each window", about, charts.windows_chart(returns, waiting)))
    return ReportSection(title, tuple(blocks), caption)


# Curves that are drawn for each role: the metric's name without the role, a title, what it means.
CURVES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "How it learned": (
        (
            "reward/mean",
            "Reward",
            "Mean reward of the role's conversations, from 0 to 1. This is what training raises.",
        ),
        ("valid", "Format", "Share of answers that follow the protocol. It must stay near 1."),
        ("expert/mean", "Expert score", "How good the advice itself was, checked against the outcome. 1 is best."),
        ("calls", "Calls in a decision", "How often the manager asked this role. It is free to ask nobody."),
    ),
    "What was paid for": (
        ("reward/format_share", "Paid for format", "Share of the reward that keeping the protocol earned, 0 to 1."),
        ("reward/outcome_share", "Paid for the outcome", "Share that the team's trades earned. Stage 2 is about this."),
        ("reward/expert_share", "Paid for advice", "Share that the role's own advice earned, by its expert score."),
    ),
    "What the optimizer saw": (
        ("reward/std", "Spread of rewards", "Deviation over a role's conversations; without it nothing is learned."),
        ("degenerate_share", "Zero-spread groups", "Groups whose answers all earned the same: they teach nothing."),
        ("entropy", "Entropy", "How undecided the model is at a token, in nats. Near 0 it always says the same."),
        ("kl", "Distance from the start", "Kullback-Leibler divergence from the initial model, in nats a token."),
        ("clip_share", "Clipped tokens", "Share of tokens whose update was clipped. PPO's usual is 0.1 to 0.2."),
        ("grad_norm", "Gradient", "Norm of the gradient before it is clipped. A sudden rise is a bad sign."),
    ),
}
_VALIDATION = (
    "The team on states that it never trains on, always the same ones. Outcome: its result as a score from 0 to 1, 0.5 "
    "is break-even. Hold share: decisions that changed nothing."
)


@dataclass(frozen=True)
class CurveMark:
    """An event that belongs into the pictures of some metrics, named without the role."""

    event: Event
    metrics: frozenset[str]


def curves_section(title: str, summary: RunSummary, marks: Iterable[CurveMark] = ()) -> ReportSection:
    """The curves that `CURVES` has under `title`, as far as the metrics allow, with the events of the training and the
    `marks` that are about them."""
    pictures = []
    for metric, name, caption in CURVES[title]:
        # Nobody calls the manager.
        roles = [role for role in ROLES if metric != "calls" or role != MANAGER.key]
        series = _series(summary.metrics, {f"{role}/{metric}": role for role in roles})
        own = [mark.event for mark in marks if metric in mark.metrics]
        if series:
            pictures.append(Picture(name, caption, charts.step_chart(series, [*summary.events, *own])))
    if title == "How it learned":
        names = {"validation/outcome": "outcome", "validation/hold_share": "hold share"}
        series = _series(summary.metrics, names)
        if series:
            pictures.append(Picture("Validation", _VALIDATION, charts.step_chart(series, summary.events)))
    return ReportSection(title, tuple(pictures) or (Missing("Curves", "the run stored none of them"),), pairs=True)


def _series(metrics: Sequence[MetricRecord], names: Mapping[str, str]) -> dict[str, tuple[list[int], list[float]]]:
    """By label: steps and values of each metric of `names` that was stored."""
    series = {}
    for metric, label in names.items():
        points = [(record.step, record.values[metric]) for record in metrics if metric in record.values]
        if points:
            series[label] = ([step for step, _ in points], [value for _, value in points])
    return series


@dataclass(frozen=True)
class RolloutGroup:
    """The rollouts of one query in step number `step`, with the rewards of their conversations."""

    step: int
    query: QueryRecord | None
    rollouts: tuple[RolloutRecord, ...]
    rewards: tuple[RewardRecord, ...]

    @property
    def title(self) -> str:
        """Which coins, and when."""
        if self.query is None:
            return f"window {self.rollouts[0].query}"
        return f"window {self.query.query}: {', '.join(self.query.symbols)}, {format_time(self.query.time)} UTC"

    def side_by_side(self) -> Table:
        """A row for each rollout: its result, and each role's reward with its advantage."""
        paid = {one.role for one in self.rewards}
        roles = [*(role for role in ROLES if role in paid), *sorted(paid - set(ROLES))]
        columns = [*_ROLLOUT_COLUMNS]
        columns += [
            Column(f"role {role}", role_title(role), "text", "reward of each call, its advantage in brackets")
            for role in roles
        ]
        rows = tuple(
            TableRow(
                f"rollout {rollout.rollout + 1}",
                {
                    "outcome": rollout.outcome,
                    **{key: rollout.parts.get(key) for key in ("net_return", "exposure", "orders")},
                    "valid": "yes" if rollout.valid else "no",
                    **{f"role {role}": self._paid_text(rollout.rollout, role) for role in roles},
                },
            )
            for rollout in self.rollouts
        )
        caption = (
            "All begin in the same state, so only the answers differ. A reward is from 0 to 1. The advantage in "
            "brackets is its distance from the others, in standard deviations: above 0 becomes more likely with the "
            "step, below 0 less."
        )
        return Table("Rollouts side by side", caption, tuple(columns), rows, first="Rollout")

    def _paid_text(self, rollout: int, role: str) -> str:
        of_role = [one for one in self.rewards if one.rollout == rollout and one.role == role]
        return "; ".join(
            f"{one.total:.2f}" + ("" if one.advantage is None else f" ({one.advantage:+.2f})") for one in of_role
        )


def group_steps(store: Store, run: str) -> list[int]:
    """The numbers of the steps that have rollouts, the newest first; the first step is 1."""
    return [step + 1 for step in reversed(store.steps(RolloutRecord, run))]


def step_groups(store: Store, run: str, step: int) -> list[RolloutGroup]:
    """The groups of step number `step`, in the order of their queries. Practice beside the rollouts is left out."""
    number = step - 1  # the records count from 0, metrics and people from 1
    queries = {one.query: one for one in store.queries(run, number)}
    rewards = store.rewards(run, number)
    by_query: dict[int, list[RolloutRecord]] = {}
    for rollout in store.rollouts(run, number):
        by_query.setdefault(rollout.query, []).append(rollout)
    return [
        RolloutGroup(step, queries.get(query), tuple(rollouts), tuple(one for one in rewards if one.query == query))
        for query, rollouts in by_query.items()
    ]
