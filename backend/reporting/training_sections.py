"""A training for a reader: what it earned and learned, its curves over the steps, one group of rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backend.evaluation.answer import BEHAVIORS
from backend.reporting import charts
from backend.reporting.blocks import Missing, Picture, ReportBlock, ReportSection, Table, TableRow, Tile
from backend.reporting.charts import IntervalBar
from backend.reporting.labels import COLUMNS, MEANINGS, Column, title_of
from backend.reporting.run_summary import RunSummary
from backend.store.records import MetricRecord, RolloutRecord
from backend.store.store import Store
from cryptosentinel.agents.registry import MANAGER, ROLES, role_title

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
_VALUE_COLUMNS = (
    Column("net_return", "Return, bp", "text", "mean over the states and scenarios, net of all costs, in basis points"),
    Column("less", "Trained earns more, bp", "text", "a decision, with the 95 % interval"),
    Column("outcome", "Outcome score", "text", "what training raises, 0 to 1; large losses count more in it"),
    Column("questions", "Questions", "ratio", "put to sub-agents, a decision"),
    Column("traded", "Trades", "share", "decisions that changed a position"),
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
    value, control = (summary.evaluations.get(name) for name in (HELD_OUT_VALUE, CONTROL_VALUE))
    if value is not None:
        caption = (
            f"Each team decided once in each of {value['states']:,} held-out states, with its likeliest answers. Each "
            f"decision was scored over the same {value['scenario_paths']:,} simulated scenarios, so luck plays no "
            "part. One basis point (bp) is a hundredth of a percent of the equity. Intervals are over the means of "
            f"{value['stretches']} stretches of the held-out part."
        )
        blocks = [_value_table("In the held-out states", value)]
        blocks += [] if control is None else [_value_table("The same on the no-edge control", control)]
        sections.append(ReportSection("What a decision is worth", tuple(blocks), caption))
    return [*sections, windows_section(summary.evaluations.get("held_out", {}))]


def _value_table(title: str, value: Mapping[str, Any]) -> Table:
    """What the decisions of each team are worth, and what the trained one earns more than each other (a document of
    `backend.evaluation.held_out_value`)."""
    less = {
        row["against"]: f"{1e4 * row['net_return']:+.1f} ("
        + " to ".join(f"{1e4 * end:+.1f}" for end in row["net_return_ci95"])
        + ")"
        for row in value["differences"]
    }
    rows = tuple(
        TableRow(
            title_of(name),
            row
            | {
                "net_return": f"{1e4 * row['net_return']:+.1f}",
                "outcome": f"{row['outcome']:.4f}",
                "less": less.get(name, ""),
            },
            MEANINGS.get(name, ""),
            main=name == "trained",
        )
        for name, row in sorted(value["rows"].items(), key=lambda item: -item[1]["outcome"])
    )
    return Table(title, "", _VALUE_COLUMNS, rows)


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
        figure = charts.interval_chart({"Trained minus initial": row}, "difference of return", " %")
        about = "A dot is one window. An interval wholly right of 0: the trained team earned more."
        blocks = [Picture("Trained minus initial", about, figure)]
    about = "Means over the windows. Exposure, trades and long share show a team that hardly traded or was always long."
    listed = tuple(
        TableRow(title_of(name), one, MEANINGS.get(name, ""), main=name == "trained") for name, one in rows.items()
    )
    blocks.append(Table("Results", about, COLUMNS, listed))
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


def curves_section(title: str, summary: RunSummary) -> ReportSection:
    """The curves that `CURVES` has under `title`, as far as the metrics allow, with the events of the training."""
    pictures = []
    for metric, name, caption in CURVES[title]:
        # Nobody calls the manager.
        roles = [role for role in ROLES if metric != "calls" or role != MANAGER.key]
        series = _series(summary.metrics, {f"{role}/{metric}": role for role in roles})
        if series:
            pictures.append(Picture(name, caption, charts.step_chart(series, summary.events)))
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


def group_steps(store: Store, run: str) -> list[int]:
    """The numbers of the steps that have rollouts, the newest first; the first step is 1."""
    return [step + 1 for step in reversed(store.steps(RolloutRecord, run))]


def step_rollouts(store: Store, run: str, step: int) -> Table:
    """All rollouts of step number `step`, those of a market window below each other: each one's result, and each
    role's reward with its advantage. Practice beside the rollouts is left out."""
    number = step - 1  # the records count from 0, metrics and people from 1
    paid: dict[tuple[int, int], dict[str, list[str]]] = {}
    for one in store.rewards(run, number):
        advantage = "" if one.advantage is None else f" ({one.advantage:+.2f})"
        of_roles = paid.setdefault((one.query, one.rollout), {})
        of_roles.setdefault(one.role, []).append(f"{one.total:.2f}{advantage}")
    roles = dict.fromkeys(role for of_roles in paid.values() for role in of_roles)
    about = "reward of each call, its advantage in brackets"
    rows = tuple(
        TableRow(
            f"window {one.query}, rollout {one.rollout + 1}",
            {
                "outcome": one.outcome,
                **{key: one.parts.get(key) for key in ("net_return", "exposure", "orders")},
                "valid": "yes" if one.valid else "no",
                **{role: "; ".join(texts) for role, texts in paid.get((one.query, one.rollout), {}).items()},
            },
        )
        for one in sorted(store.rollouts(run, number), key=lambda one: (one.query, one.rollout))
    )
    caption = (
        "Rollouts of a window begin in the same state, so only the answers differ. A reward is from 0 to 1. The "
        "advantage in brackets is its distance from the others of the group, in standard deviations: above 0 becomes "
        "more likely with the step, below 0 less."
    )
    columns = (*_ROLLOUT_COLUMNS, *(Column(role, role_title(role), "text", about) for role in roles))
    return Table("Rollouts side by side", caption, columns, rows, first="Rollout")
