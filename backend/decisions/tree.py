"""A stored decision (see `backend.decisions.document`) as a tree: who asked whom, with what words, and what came of it.

Nothing is judged or shortened here; `backend.reporting.decision_narrative` says it in sentences,
`backend.reporting.decision_views` shows it whole. What models and news said is untrusted: show it through `visible`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from backend.store.records import DecisionRecord
from backend.store.store import Store
from cryptosentinel.agents.manager import AskSeveral
from cryptosentinel.agents.registry import ROLES, SPEAKERS, SUB_AGENTS
from cryptosentinel.protocol.tool_calls import MalformedCall, ToolCall, parse
from simulator.errors import UserError

# Controls, which a terminal obeys; formats, which turn or hide text; lone surrogates; separators of lines.
_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))


@dataclass(frozen=True)
class Turn:
    """One turn of a model: its exact words, the call that they are or why they are none, what came back (None where
    nothing did), and the conversations that it opened, none or one, or several side by side."""

    content: str
    call: ToolCall | MalformedCall
    result: str | None
    consulted: tuple[Talk, ...]

    @property
    def consults(self) -> bool:
        """Whether it asks another role."""
        return bool(_questions(self.call))


@dataclass(frozen=True)
class Talk:
    """One conversation of one role. `usage` is that of `backend.decisions.document.usage`, empty in older stores."""

    role: str
    title: str
    ordinal: int
    version: str
    asked: Mapping[str, Any]
    system: str
    prompt: str
    turns: tuple[Turn, ...]
    answer: dict[str, Any] | None
    problem: str | None
    truncated: bool
    usage: Mapping[str, Any]

    def everyone(self) -> Iterator[Talk]:
        """This conversation and all below it, in the order in which they began."""
        yield self
        for turn in self.turns:
            for talk in turn.consulted:
                yield from talk.everyone()


@dataclass(frozen=True)
class DecisionTree:
    """A decision and what followed. `fills` and `rejections` are those of its orders, as `BacktestResult.to_dict` has
    them, None where the result of that backtest is not stored."""

    record: DecisionRecord
    manager: Talk | None
    fills: tuple[Mapping[str, Any], ...] | None
    rejections: tuple[Mapping[str, Any], ...] | None

    @property
    def story(self) -> dict[str, Any]:
        return self.record.story

    @property
    def total(self) -> dict[str, int]:
        """Tokens and turns over all conversations; empty where the store has none."""
        talks = [] if self.manager is None else list(self.manager.everyone())
        if not talks or not all(talk.usage for talk in talks):
            return {}
        return {key: sum(int(talk.usage[key]) for talk in talks) for key in ("prompt", "sampled", "turns", "read")}


@dataclass
class _Reading:
    """A conversation being read: its turns so far, and what the last of them was told."""

    turns: list[Turn] = field(default_factory=list)
    spoken: tuple[str, ToolCall | MalformedCall, tuple[Talk, ...]] | None = None

    def close(self, result: str | None) -> None:
        if self.spoken is not None:
            content, call, consulted = self.spoken
            self.turns.append(Turn(content, call, result, consulted))
        self.spoken = None


def visible(text: str) -> str:
    """`text` with every character that a terminal or a page would obey or hide spelled out; only new lines stay."""
    return "".join(
        one if one == "\n" or unicodedata.category(one) not in _UNSEEN else f"\\u{{{ord(one):x}}}" for one in text
    )


def manager_talk(story: Mapping[str, Any]) -> Talk | None:
    """The manager's conversation, each consultation at the place where it was asked; None where nothing was said."""
    talks = story.get("conversations") or []
    return _read(talks[0], iter(talks[1:])) if talks else None


def decision_tree(store: Store, run_id: str, number: int, team: str | None) -> DecisionTree:
    """Decision `number` of `team` in a run. Without `team` it is the only one whose decisions are stored.

    Raises `UserError` where there is no such run, team or decision, and says what there is.
    """
    store.run(run_id)  # an unknown one is told with those there are
    records = store.decisions(run_id)
    there = decisions_told(records)
    if not records:
        raise UserError(
            f"run {run_id} stores no decisions: only backtests and evaluations of teams do, so choose one of those "
            "with `cryptosentinel runs`"
        )
    by_team: dict[str, list[DecisionRecord]] = {}
    for record in records:
        by_team.setdefault(record.backtest, []).append(record)
    if team is None and len(by_team) > 1:
        raise UserError(f"run {run_id} has decisions of several teams: choose one with --team; there are {there}")
    own = by_team.get(team or next(iter(by_team)))
    found = next((record for record in own or [] if record.ordinal == number), None)
    if own is None or found is None:
        missing = f"decisions of '{team}'" if own is None else f"decision {number}"
        raise UserError(f"run {run_id} has no {missing}; there are {there}")
    # An evaluation's episodes are numbered below the team, and the result of the first is stored.
    names = (found.backtest, found.backtest.rpartition("/")[0])
    result = next((one.result for one in store.backtests(run_id) if one.name in names), None)
    return tree_from(found, own, result)


def tree_from(record: DecisionRecord, own: Sequence[DecisionRecord], result: Mapping[str, Any] | None) -> DecisionTree:
    """The tree of `record`, one of the team's `own` decisions; `result` is that of their backtest, where it is
    stored."""
    fills, rejections = (None, None) if result is None else _followed(record, own, result)
    return DecisionTree(record, manager_talk(record.story), fills, rejections)


def decisions_told(records: Sequence[DecisionRecord]) -> str:
    """Which decisions there are: "0 to 59 of scripted, ..."."""
    numbers: dict[str, list[int]] = {}
    for record in records:
        numbers.setdefault(record.backtest, []).append(record.ordinal)
    return ", ".join(f"{min(own)} to {max(own)} of {name}" for name, own in numbers.items())


def _questions(call: ToolCall | MalformedCall) -> int:
    """How many conversations a turn opens."""
    if isinstance(call, MalformedCall):
        return 0
    return len(call.arguments.questions) if isinstance(call.arguments, AskSeveral) else int(call.name in SUB_AGENTS)


def _read(talk: Mapping[str, Any], others: Iterator[Mapping[str, Any]]) -> Talk:
    """One conversation; `others` are the consulted ones that have not found their place yet."""
    role = talk["role"]
    types = SPEAKERS[role].argument_types() if role in SPEAKERS else {}
    system = prompt = ""
    reading = _Reading()
    for message in talk["messages"]:
        kind, content = message["role"], message["content"]
        if kind == "assistant":
            reading.close(None)
            call = parse(content, types)
            consulted = islice(others, _questions(call))
            reading.spoken = content, call, tuple(_read(other, iter(())) for other in consulted)
        elif kind == "tool":
            reading.close(content)
        elif kind == "system":
            system = content
        else:
            prompt = content
    reading.close(None)
    return Talk(
        role=role,
        title=talk.get("title") or (ROLES[role].title if role in ROLES else role),
        ordinal=talk.get("ordinal", 0),
        version=talk.get("policy_version") or "",
        asked=talk.get("asked") or {},
        system=system,
        prompt=prompt,
        turns=tuple(reading.turns),
        answer=talk.get("answer"),
        problem=talk.get("problem"),
        truncated=bool(talk.get("truncated")),
        usage=talk.get("usage") or {},
    )


def _followed(
    record: DecisionRecord, own: Sequence[DecisionRecord], result: Mapping[str, Any]
) -> tuple[tuple[Mapping[str, Any], ...], tuple[Mapping[str, Any], ...]]:
    """Fills and rejections that came of a decision's orders.

    An order of a later decision on the same coin replaces what still waits of it, so up to there the coin's fills are
    this decision's, those of its stop and target included. Bars are found by their closing times.
    """
    bar_of = {time: result["start"] + row for row, time in enumerate(result["times"])}
    begin, last = bar_of.get(record.time), result["start"] + len(result["times"])
    if begin is None:  # another window than the one whose result is stored
        return (), ()
    fills: list[Mapping[str, Any]] = []
    rejections: list[Mapping[str, Any]] = []
    orders = record.story.get("orders", [])
    for symbol in dict.fromkeys(order["symbol"] for order in orders):
        later = (
            bar_of.get(one.time, last)
            for one in own
            if one.time > record.time and any(order["symbol"] == symbol for order in one.story.get("orders", []))
        )
        end = min(later, default=last)
        fills += [fill for fill in result["fills"] if fill["symbol"] == symbol and begin < fill["bar"] <= end]
        mine = [order for order in orders if order["symbol"] == symbol]
        for one in result["rejections"]:
            known = any(all(one["order"].get(key) == value for key, value in order.items()) for order in mine)
            if known and begin <= one["bar"] <= end:
                rejections.append(one)
    return tuple(sorted(fills, key=lambda fill: fill["bar"])), tuple(rejections)
