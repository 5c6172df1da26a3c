"""The curves of a training, which the report and the page draw alike: what was learnt, what was paid for, and what the
optimizer saw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from backend.reporting.blocks import Picture
from backend.reporting.charts import Event, step_chart
from backend.store.records import MetricRecord
from cryptosentinel.agents.registry import MANAGER, ROLES

Series = dict[str, tuple[list[int], list[float]]]  # name -> steps, values

# Curves that are drawn for each role: the metric's name without the role, a title, what it means.
_LEARNT = (
    ("reward/mean", "Reward", "Mean reward of the role's conversations, from 0 to 1. This is what training raises."),
    ("valid", "Format", "Share of answers that follow the protocol. It must stay near 1."),
    ("expert/mean", "Expert score", "How good the advice itself was, checked against what happened. 1 is best."),
    ("calls", "Calls in a decision", "How often the manager asked this role. It is free to ask nobody."),
)
_PAID = (
    ("reward/format_share", "Paid for format", "Share of the reward that keeping the protocol earned, from 0 to 1."),
    ("reward/outcome_share", "Paid for the outcome", "Share that the team's trades earned. Stage 2 is about this one."),
    ("reward/expert_share", "Paid for advice", "Share that the role's own advice earned, by its expert score."),
)
_OPTIMIZER = (
    ("reward/std", "Spread of rewards", "Deviation over a role's conversations; without it nothing is learnt."),
    ("degenerate_share", "Zero-spread groups", "Groups whose answers all earned the same: they teach nothing."),
    ("entropy", "Entropy", "How undecided the model is at a token, in nats. Near 0 it says the same each time."),
    ("kl", "Distance from the start", "Kullback-Leibler divergence from the model before training, in nats a token."),
    ("clip_share", "Clipped tokens", "Share of tokens whose update was cut off. PPO's usual is 0.1 to 0.2."),
    ("grad_norm", "Gradient", "Norm of the gradient before it is cut off. A sudden rise is a bad sign."),
)  # fmt: skip


@dataclass(frozen=True)
class Curves:
    """One picture of metrics over the steps; `metric` is their name without the role."""

    metric: str
    title: str
    caption: str
    series: Series

    def picture(self, events: Sequence[Event], marks: Iterable[CurveMark] = ()) -> Picture:
        """As a picture, with the events and those marks that are about this metric."""
        marked = [mark.event for mark in marks if self.metric in mark.metrics]
        return Picture(self.title, self.caption, step_chart(self.series, [*events, *marked]))


@dataclass(frozen=True)
class CurveMark:
    """An event that belongs into the pictures of some metrics, named without the role."""

    event: Event
    metrics: frozenset[str]


def learning_curves(metrics: Sequence[MetricRecord]) -> list[Curves]:
    """What each role earned and how it kept the protocol, and the validation, as far as the metrics allow."""
    asked = [role for role in ROLES if role != MANAGER.key]  # nobody calls the manager
    curves = [
        _by_role(metrics, suffix, title, caption, asked if suffix == "calls" else list(ROLES))
        for suffix, title, caption in _LEARNT
    ]
    caption = (
        "The team on states that it never trains on, always the same ones. Outcome: its result squashed to "
        "0…1, 0.5 is break-even. Hold share: decisions that changed nothing."
    )
    names = {"validation/outcome": "outcome", "validation/hold_share": "hold share"}
    curves.append(Curves("validation/outcome", "Validation", caption, _series(metrics, names)))
    return [one for one in curves if one.series]


def reward_curves(metrics: Sequence[MetricRecord]) -> list[Curves]:
    """What each role's reward was made of, as far as the metrics allow."""
    return _drawn(metrics, _PAID)


def optimizer_curves(metrics: Sequence[MetricRecord]) -> list[Curves]:
    """What the optimizer saw, as far as the metrics allow."""
    return _drawn(metrics, _OPTIMIZER)


def _drawn(metrics: Sequence[MetricRecord], kinds: Sequence[tuple[str, str, str]]) -> list[Curves]:
    curves = [_by_role(metrics, suffix, title, caption, list(ROLES)) for suffix, title, caption in kinds]
    return [one for one in curves if one.series]


def _by_role(metrics: Sequence[MetricRecord], suffix: str, title: str, caption: str, roles: Sequence[str]) -> Curves:
    return Curves(suffix, title, caption, _series(metrics, {f"{role}/{suffix}": role for role in roles}))


def _series(metrics: Sequence[MetricRecord], names: Mapping[str, str]) -> Series:
    series: Series = {}
    for metric, label in names.items():
        points = [(record.step, record.values[metric]) for record in metrics if metric in record.values]
        if points:
            series[label] = ([step for step, _ in points], [value for _, value in points])
    return series
