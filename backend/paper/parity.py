"""Whether a session did what a backtest does: its recorded inputs are played again, and everything is compared.

The inputs are the history, the bars, how late each close was acted on, when nothing was decided, where a model was cut
off, and what the operator ordered. Decisions, what the guard did, orders and fills must follow from them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, get_args

from backend.builders.loaded_team import LoadedTeam
from backend.builders.market import Account
from backend.builders.strategies import NamedStrategy
from backend.decisions.recording import decision_document
from backend.paper.journal import bar_from_json, history_from_json, requests_from_json
from backend.paper.thinking import StrategyPlayer
from backend.store.records import JournalRecord
from cryptosentinel.episode import EpisodeResult, play
from cryptosentinel.guard.guard import Guard
from cryptosentinel.guard.limits import GuardLimits
from cryptosentinel.guard.pending import closing_orders
from cryptosentinel.llm.engine import Completion, Engine, Request, failed_completion
from cryptosentinel.team import AgentTask, TeamDecision
from simulator.backtest.run import BacktestResult, BacktestRun, Watch, Window
from simulator.errors import DataError
from simulator.exchange.exchange_records import AccountView, record_to_json
from simulator.exchange.orders import OrderRequest
from simulator.live.bar_assembly import Reason
from simulator.live.broker import session_market
from simulator.market.market import MarketView

# Sums that begin elsewhere differ in the last digits.
_TOLERANCE = 1e-9
# What measures the machine, or is only known later.
_NOT_COMPARED = frozenset({"equity_before", "equity_after", "net_return", "later", "cost", "seconds"})


@dataclass(frozen=True)
class Parity:
    """What was compared, and each difference in words. `inputs` are things that a backtest would not have by itself,
    and that were played as they were recorded: how often each happened."""

    bars: int
    decisions: int
    fills: int
    differences: tuple[str, ...]
    inputs: Mapping[str, int]


@dataclass
class _Close:
    """What was recorded at one close."""

    late: int = 0
    decision: Mapping[str, Any] | None = None
    earlier: list[Mapping[str, Any]] = field(default_factory=list)  # orders of the operator before that
    controls: list[Mapping[str, Any]] = field(default_factory=list)  # and those after it


class ReplayedSession:
    """A backtest that decides at the closes at which the session did, as late as it did."""

    def __init__(self, run: BacktestRun, closes: Mapping[int, _Close]) -> None:
        self._run, self._closes = run, closes
        self._watch: Watch | None = None
        self._thought: list[int] = []
        self._killed = False

    @property
    def index(self) -> int:
        """The bar at whose close it stands."""
        return self._run.index

    @property
    def window(self) -> Window:
        """The session's."""
        return self._run.window

    @property
    def done(self) -> bool:
        """Whether the record is over."""
        return self._run.done

    def view(self) -> MarketView:
        """The market at this close."""
        return self._run.view()

    def account(self) -> AccountView:
        """The account at this close."""
        return self._run.account()

    def watched_by(self, watch: Watch) -> None:
        """As of a session."""
        self._watch = watch
        if self._here().decision is None:
            self._look()
            self._advance()
        else:
            self._begin()

    def late_ms(self, thought_ms: int) -> int:
        """What was recorded of this decision."""
        return self._thought.pop(0) if self._thought else thought_ms

    def apply(self, requests: Sequence[OrderRequest], thinking_ms: Sequence[int] = ()) -> None:
        """Send the orders as late as they were, and continue to the next close at which something was decided."""
        recorded = self._here().decision
        if recorded is not None and not recorded["dropped"]:
            late = [max(one, int(recorded["begun"])) for one in thinking_ms or [0] * len(requests)]
            self._run.submit(requests, late)
        self._operate(self._here().controls)
        self._advance()

    def earned(self) -> Mapping[str, float]:
        """Net profit of each symbol so far."""
        return self._run.earned()

    def result(self) -> BacktestResult:
        """The result so far."""
        return self._run.result()

    @property
    def recorded(self) -> Mapping[str, Any]:
        """The recorded decision of this close."""
        return self._here().decision or {}

    def _here(self) -> _Close:
        return self._closes.get(self._run.index) or _Close()

    def _begin(self) -> None:
        self._operate(self._here().earlier)
        recorded = self._here().decision
        if recorded is None:
            self._thought = []
        else:  # a strategy says nothing, and all its requests are equally late
            thought = [int(one["thinking_ms"]) for one in recorded["decisions"]]
            self._thought = thought or [max((int(late) for _, late in recorded["requests"]), default=0)]

    def _advance(self) -> None:
        while not self._run.done:
            self._run.catch_up(self._run.index + 1)
            if self._run.index >= self._run.window.stop:
                return
            if self._here().decision is not None:
                self._begin()
                return
            self._look()

    def _look(self) -> None:
        self._operate(self._here().earlier)
        account = self._run.account()
        assert self._watch is not None
        requests = closing_orders(account) if self._killed else self._watch(self.view(), account)
        self._run.submit(requests, [self._here().late] * len(requests))
        self._operate(self._here().controls)

    def _operate(self, controls: Sequence[Mapping[str, Any]]) -> None:
        for control in controls:
            self._run.submit(*requests_from_json(control["requests"]))
            self._killed = control["what"] == "flatten" or (self._killed and control["what"] != "resume")


class CutOffEngine:
    """`engine`, which gives no answer from the request on that the session did not wait for."""

    def __init__(self, engine: Engine, closes: Mapping[int, _Close], session: ReplayedSession) -> None:
        self._engine, self._closes, self._session = engine, closes, session
        self._bar, self._answered = -1, 0

    def answers(self, requests: Sequence[Request]) -> list[Completion]:
        """The engine's, or failures with the reason of then."""
        if self._bar != self._session.index:
            self._bar, self._answered = self._session.index, 0
        recorded = (self._closes.get(self._bar) or _Close()).decision or {}
        why = recorded.get("cut_off", "")
        if why and self._answered + len(requests) > int(recorded["answered"]):
            return [failed_completion(f"cut off: {why}") for _ in requests]
        self._answered += len(requests)
        return self._engine.generate(requests)


def check_parity(
    entries: Sequence[JournalRecord],
    subject: LoadedTeam | NamedStrategy,
    account: Account,
    limits: GuardLimits,
    seed: int,
) -> Parity:
    """Play the journal `entries` again with `subject` and compare. Raises `DataError` for a session without a bar."""
    start = entries[0].document
    history = history_from_json(start["history"])
    bars = [bar_from_json(entry.document["bar"]) for entry in entries if entry.kind == "bar"]
    if not bars:
        raise DataError("the session has no bar yet: there is nothing to compare")
    market = session_market(history, bars)
    first, last = len(history) - 1, len(market) - 1
    closes, inputs = _closes(entries, first)
    run = BacktestRun(market, Window(first, last, int(start["decide_every"])), **account.terms)
    session = ReplayedSession(run, closes)
    if isinstance(subject, NamedStrategy):
        theirs = _traded(StrategyPlayer(subject), session)
    else:
        decided: list[tuple[int, TeamDecision]] = []
        task = play(subject.team, session, limits, seed, guard=Guard(limits), decisions=decided)
        _play(task, CutOffEngine(subject.engine, closes, session))
        theirs = [(bar, decision_document(subject.team.codec, one).to_json()) for bar, one in decided]
    result = session.result()
    differences: list[str] = []
    mine = _recorded_decisions(entries, last)
    _compare("decision", mine, theirs, differences)
    recorded = [
        (int(one["bar"]), one)
        for entry in entries
        if entry.kind == "bar"
        for one in entry.document["happened"]["ledger"]
        if one["kind_of_record"] == "Fill"
    ]
    again = [(fill.bar, record_to_json(fill)) for fill in result.fills]
    _compare("fill", recorded, again, differences)
    equity = [
        (int(entry.document["bar_index"]), entry.document["account"]["equity"])
        for entry in entries
        if entry.kind == "bar"
    ]
    _compare("equity", equity, [(first + n, float(one)) for n, one in enumerate(result.equity)][1:], differences)
    return Parity(len(bars), len(mine), len(recorded), tuple(differences), inputs)


def _play(task: AgentTask[EpisodeResult], silent: CutOffEngine) -> None:
    answers: Sequence[Completion] | None = None
    with suppress(StopIteration):
        while True:
            requests = next(task) if answers is None else task.send(answers)
            answers = silent.answers(requests)


def _traded(player: StrategyPlayer, session: ReplayedSession) -> list[tuple[int, Any]]:
    """Let a strategy trade the session; what it sends at each close, as a journal has it."""
    sent: list[tuple[int, Any]] = []
    session.watched_by(lambda _view, _account: ())
    while not session.done:
        requests = player.again(session.view(), session.account(), session.recorded)
        sent.append((session.index, [record_to_json(one) for one in requests]))
        session.apply(requests, [session.late_ms(0)] * len(requests))
    return sent


def _closes(entries: Sequence[JournalRecord], first: int) -> tuple[dict[int, _Close], dict[str, int]]:
    closes: dict[int, _Close] = {}
    inputs = dict.fromkeys(("missed decisions", "cut off", "orders by the operator", "data not used"), 0)
    due = True  # whether a decision is due at the newest close and not written yet
    meanwhile: list[Mapping[str, Any]] = []  # what the operator ordered since
    for entry in entries[1:]:
        data = entry.document
        if entry.kind in ("decision", "missed"):
            here = closes.setdefault(int(data["bar" if entry.kind == "decision" else "bar_index"]), _Close())
            # A decision that was under way had begun before, and nothing of it was sent.
            (here.controls if data.get("dropped") else here.earlier).extend(meanwhile)
            meanwhile, due = [], False
        elif entry.kind == "bar":
            due, meanwhile = bool(data["due"]), []
        if entry.kind == "decision":
            closes.setdefault(int(data["bar"]), _Close()).decision = data
            inputs["cut off"] += bool(data.get("cut_off"))
        elif entry.kind in ("bar", "missed"):
            closes.setdefault(int(data["bar_index"]), _Close()).late = int(data.get("late", 0))
            inputs["missed decisions"] += bool(data.get("missed"))
        elif entry.kind == "control":
            (meanwhile if due else closes.setdefault(int(data["bar_index"]), _Close()).controls).append(data)
            inputs["orders by the operator"] += len(data["requests"])
        elif entry.kind == "notice":
            inputs["data not used"] += data["kind"] in get_args(Reason)
    return closes, inputs


def _recorded_decisions(entries: Sequence[JournalRecord], last: int) -> list[tuple[int, Any]]:
    """Those whose orders met a bar: a backtest decides nothing at its last close."""
    return [
        (int(entry.document["bar"]), one)
        for entry in entries
        if entry.kind == "decision" and int(entry.document["bar"]) < last
        for one in entry.document["decisions"] or [[request for request, _ in entry.document["requests"]]]
    ]


def _compare(
    what: str, mine: Sequence[tuple[int, Any]], theirs: Sequence[tuple[int, Any]], differences: list[str]
) -> None:
    if len(mine) != len(theirs):
        differences.append(f"{len(mine)} {what}s in the session, {len(theirs)} in the backtest")
    for number, ((bar, one), (other_bar, other)) in enumerate(zip(mine, theirs, strict=False)):
        where = f"{what} {number} at bar {bar}"
        if bar != other_bar:
            differences.append(f"{where}: the backtest has it at bar {other_bar}")
            continue
        for place, ours, its in _unequal(one, other, ""):
            differences.append(f"{where}: {place or 'it'} was {ours!r:.120}, the backtest has {its!r:.120}")


def _unequal(one: Any, other: Any, place: str) -> list[tuple[str, Any, Any]]:
    if isinstance(one, dict) and isinstance(other, dict):
        names = [name for name in {**one, **other} if name not in _NOT_COMPARED]
        return [
            found
            for name in names
            for found in _unequal(one.get(name), other.get(name), f"{place}.{name}" if place else name)
        ]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [
            found
            for number, (left, right) in enumerate(zip(one, other, strict=True))
            for found in _unequal(left, right, f"{place}[{number}]")
        ]
    if isinstance(one, float) and isinstance(other, float | int):
        return [] if math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=1e-12) else [(place, one, other)]
    return [] if one == other else [(place, one, other)]
