"""One group of a training step: the rollouts from one state side by side, what each role was paid in them, and how the
alignment makes equally many items of unequally many calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backend.reporting.blocks import Picture, Table, TableRow
from backend.reporting.charts import GREY, ROLE_COLOURS, blank_figure
from backend.reporting.drawing.figure import trace
from backend.reporting.labels import Column
from backend.store.records import QueryRecord, RewardRecord, RolloutRecord
from backend.store.store import Store
from cryptosentinel.agents.registry import ROLES, role_title
from simulator.market.timeframes import format_time

_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star")  # of the roles, so that no colour is needed
_PARTS = (
    Column("format", "Format", "ratio", "part of the reward for keeping the protocol, before it is weighed"),
    Column("outcome", "Outcome", "ratio", "part for the team's trades, before it is weighed"),
    Column("expert", "Expert", "ratio", "part for the advice itself, before it is weighed"),
)
_ROLLOUT_COLUMNS = (
    Column("outcome", "Outcome", "ratio", "the team's result squashed to 0 to 1; 0.5 is break-even"),
    Column("net_return", "Net return", "change", "of the account, after all costs"),
    Column("exposure", "Exposure after", "share", "of the equity, signed, that the decision led to"),
    Column("orders", "Orders", "count", "that the decision sent"),
    Column("valid", "Valid", "text", "whether the manager kept the protocol; else its reward is 0"),
)


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

    @property
    def roles(self) -> list[str]:
        """The roles that were paid here, in the order of the team."""
        paid = {one.role for one in self.rewards}
        return [*(role for role in ROLES if role in paid), *sorted(paid - set(ROLES))]

    def side_by_side(self) -> Table:
        """A row for each rollout: what came of it, and each role's reward with its advantage."""
        columns = [*_ROLLOUT_COLUMNS]
        columns += [
            Column(f"role {role}", role_title(role), "text", "reward of each call, its advantage in brackets")
            for role in self.roles
        ]
        rows = tuple(
            TableRow(
                f"rollout {rollout.rollout + 1}",
                {
                    "outcome": rollout.outcome,
                    **{key: rollout.parts.get(key) for key in ("net_return", "exposure", "orders")},
                    "valid": "yes" if rollout.valid else "no",
                    **{f"role {role}": self._paid_text(rollout.rollout, role) for role in self.roles},
                },
            )
            for rollout in self.rollouts
        )
        caption = (
            "All begin in the same state, so what differs is what was said. A reward is from 0 to 1; the advantage in "
            "brackets says how far it lies from those it is compared with, in deviations: above 0 is said more often "
            "after the step, below 0 less."
        )
        return Table("Rollouts side by side", caption, tuple(columns), rows, first="Rollout")

    def conversations(self) -> Table:
        """A row for each conversation, with the parts of its reward."""
        columns = (
            Column("role", "Role", "text", ""),
            Column("call", "Call", "count", "first, second, … call of the role in the rollout"),
            Column("reward", "Reward", "ratio", "from 0 to 1"),
            Column("advantage", "Advantage", "ratio", "above 0: said more often after the step"),
            *_PARTS,
        )
        rows = tuple(
            TableRow(
                f"rollout {one.rollout + 1}",
                {"role": role_title(one.role), "call": one.ordinal + 1, "reward": one.total,
                 "advantage": one.advantage, **{part.key: one.parts.get(part.key) for part in _PARTS}},
            )
            for one in self.rewards
        )  # fmt: skip
        return Table("What each conversation was paid", "", columns, rows, first="Rollout", folded=True)

    def picture(self) -> Picture:
        """The reward of each conversation over the rollouts."""
        figure = blank_figure("rollout", "reward", "")
        for number, role in enumerate(self.roles):
            of_role = [one for one in self.rewards if one.role == role]
            figure.add_trace(
                trace(
                    "scatter",
                    x=[one.rollout + 1 for one in of_role],
                    y=[one.total for one in of_role],
                    name=role_title(role),
                    mode="markers",
                    marker={"color": ROLE_COLOURS.get(role, GREY), "size": 11,
                            "symbol": _SYMBOLS[number % len(_SYMBOLS)]},
                    customdata=["none" if one.advantage is None else f"{one.advantage:+.2f}" for one in of_role],
                    hovertemplate="reward %{y:.3f}, advantage %{customdata}",
                )
            )  # fmt: skip
        figure.update_xaxes(dtick=1)
        caption = "A role whose marks lie on one line has nothing to learn from this group: it has no spread."
        return Picture("Rewards of the group", caption, figure)

    def alignment(self, method: str, targets: Mapping[str, float]) -> Picture:
        """How many calls each rollout made of each sub-agent and what the alignment `method` makes of them; `targets`
        is d by role, for `duplicate_drop`."""
        asked = [role for role in self.rollouts[0].calls if any(one.calls.get(role) for one in self.rollouts)]
        figure = blank_figure("calls", "", "")
        labels: list[str] = []
        kept: list[int] = []
        copied: list[int] = []
        dropped: list[int] = []
        for role in asked:
            target = max(1, round(targets.get(role, 0.0)))
            for one in self.rollouts:
                calls = one.calls.get(role, 0)
                labels.append(f"{role_title(role)}, {one.rollout + 1}")
                both = method == "duplicate_drop"
                kept.append(min(calls, target) if both else calls)
                copied.append(max(0, target - calls) if both and calls else 0)
                dropped.append(max(0, calls - target) if both else 0)
        parts: tuple[tuple[str, list[int], dict[str, Any]], ...] = (
            ("counts as it is", kept, {"color": "#0072b2"}),
            ("random copy", copied, {"color": "#56b4e9", "pattern": {"shape": "/"}}),
            ("dropped at random", dropped, {"color": "#c5cdd5", "pattern": {"shape": "x"}}),
        )
        for name, values, marker in parts:
            if any(values):
                figure.add_trace(trace("bar", y=labels, x=values, name=name, orientation="h", marker=marker,
                                        hovertemplate="%{x}"))  # fmt: skip
        figure.update_layout(barmode="stack", bargap=0.25, height=110 + 22 * len(labels))
        figure.update_yaxes(autorange="reversed", automargin=True)
        figure.update_xaxes(dtick=1, rangemode="tozero")
        return Picture("Alignment", _ALIGNMENT.get(method, method), figure)

    def _paid_text(self, rollout: int, role: str) -> str:
        of_role = [one for one in self.rewards if one.rollout == rollout and one.role == role]
        return "; ".join(
            f"{one.total:.2f}" + ("" if one.advantage is None else f" ({one.advantage:+.2f})") for one in of_role
        )


_ALIGNMENT = {
    "duplicate_drop": "The manager asks a sub-agent as often as it likes. So that a rollout with many calls does not "
    "count for more, each is brought to d calls (duplicate_drop): copies are added, or calls are dropped.",
    "fractional": "Each rollout counts alike (fractional): its calls share its weight, nothing is copied or dropped.",
    "none": "Nothing is aligned (none): a rollout counts for more the more often it asked.",
}


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
