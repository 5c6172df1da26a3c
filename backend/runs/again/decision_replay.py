"""One decision of a stored backtest again, with an observation edited or a role's answer replaced.

The team plays its window once more up to that decision, by the same code, with the stored answers in the place of its
model; so the account, the guard and the lessons are those of the run. In the decision itself whoever is shown something
else than then answers anew: the team's own model, or rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from backend.builders.loaded_team import LoadedTeam
from backend.builders.market import account_of, limits_of, thinking_time_of
from backend.builders.variants import Variant
from backend.decisions.backtest_document import BacktestDocument, read_backtests
from backend.decisions.document import StoredDecision
from backend.decisions.recording import episode_decisions
from backend.decisions.tree import DecisionTree, decision_tree, find_decision
from backend.reporting.market_reload import market_of
from backend.runs.again.decision_edit import DecisionEdit, checked_answers, edited_team, replacement
from backend.runs.again.stored_answers import StoredAnswers, StoredTurn, seeds_of, stored_turns
from backend.runs.backtest import subject_of
from backend.runs.stored_setup import StoredSetup, source_of, stored_setup
from backend.store.store import Store
from cryptosentinel.episode import play
from cryptosentinel.llm.engine import Engine
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import expert_policies
from cryptosentinel.team import Team, derive_seed
from simulator.backtest.run import BacktestRun, Window
from simulator.errors import UserError
from simulator.market.market import Market

Answering = Literal["team", "rules"]
_CLOSE = 1e-6  # relative difference of equity that is rounding


@dataclass(frozen=True)
class DecisionReplay:
    """The stored decision and the same one replayed. `asked` requests were answered anew."""

    then: StoredDecision
    now: StoredDecision
    then_tree: DecisionTree
    now_tree: DecisionTree
    asked: int

    @property
    def same(self) -> bool:
        """Whether the orders are those that were sent."""
        return self.then.document.orders == self.now.document.orders


def replay_decision(
    store: Store,
    run_id: str,
    number: int,
    edit: DecisionEdit,
    *,
    backtest: str | None = None,
    team: str = "",
    by: Answering = "team",
) -> DecisionReplay:
    """Replay decision `number` of the team `backtest` in a run (default: the only one that has decisions).

    Args:
        team: how the team was named in the backtest, where its run does not say. by: who answers what was not asked
            then, the team's own engine or the rules of the scripted team.

    Raises `UserError` for a decision, role or tool that is not there, an answer of another shape, a team whose folder
    is gone, and data or settings that have changed since.
    """
    then, then_tree = find_decision(store, run_id, number, backtest, option="--backtest")
    setup = stored_setup(store, run_id)
    result = {one.name: one.document for one in read_backtests(store, run_id)}.get(then.backtest)
    if result is None:
        raise UserError(f"run {run_id} has no result of '{then.backtest}', so its decisions cannot be replayed")
    decisions = [StoredDecision.from_record(record) for record in store.decisions(run_id, then.backtest)]
    loaded, variant = _loaded(setup, then.backtest, team)
    market = market_of(setup.run)
    if variant is not None:
        market = variant.market(market, setup.window.start, setup.window.stop, setup.run.seed)
    calls = checked_answers(loaded.team, edit)
    edited = edited_team(loaded.team, edit, then.time, then.document.symbols)
    turns, seed = _turns(setup, result, decisions, then)
    answers = StoredAnswers(
        loaded.team.codec,
        loaded.engine if by == "team" else _rules(loaded.team),
        turns,
        seeds_of(seed, loaded.team.roles),
        {key: replacement(loaded.team, key, call) for key, call in calls.items()},
    )
    played = _played(setup, replace(loaded, team=edited, engine=answers), market, result, then)
    now = played[then.ordinal]
    before, stored_before = now.document.equity_before, then.document.equity_before
    if before is None or stored_before is None or abs(before - stored_before) > _CLOSE * abs(stored_before):
        raise UserError(
            f"the replay came to an account of {before} at that decision, where the run had {stored_before}: the "
            "settings or the program have changed since; make the backtest anew"
        )
    return DecisionReplay(then, now, then_tree, decision_tree(now.document), answers.asked)


def _loaded(setup: StoredSetup, name: str, team: str) -> tuple[LoadedTeam, Variant | None]:
    """The team that is called `name` in the run, and the variant that it is. Raises `UserError` where it is gone."""
    source = source_of(setup, name, team)
    subject = subject_of(source.team, setup.config)
    if not isinstance(subject, LoadedTeam):
        raise UserError(f"{source.team} is a strategy, which has no conversations to replay")
    if not source.variant:
        return subject, None
    variant = Variant.parse(source.variant)
    return variant.of(subject), variant


def _rules(team: Team) -> Engine:
    """The rules of the scripted team in place of a model."""
    settings = team.settings
    policies = expert_policies(settings.roles, portfolio=settings.portfolio, inherits=settings.inherit_tools)
    return ScriptedEngine(team.codec, policies)


def _turns(
    setup: StoredSetup, result: BacktestDocument, decisions: Sequence[StoredDecision], then: StoredDecision
) -> tuple[dict[int, StoredTurn], int]:
    """The stored turns of all decisions up to those at the same close, and the seed of the one that is replayed."""
    bar_of = {time: result.start + row for row, time in enumerate(result.times)}
    turns: dict[int, StoredTurn] = {}
    place, before, late, chosen = 0, -1, 0, 0
    for decision in sorted(decisions, key=lambda one: one.ordinal):
        if decision.time > then.time:
            break
        # Several decisions at one close are taken one after the other, and each waits for those before it.
        place, late = (place + 1, late) if decision.time == before else (0, 0)
        before = decision.time
        seed = derive_seed(setup.run.seed, bar_of[decision.time], place)
        thought = decision.document.thinking_ms or 0
        turns |= stored_turns(decision, seed, (thought - late) / 1000.0)
        late = thought
        if decision.ordinal == then.ordinal:
            chosen = seed
    return turns, chosen


def _played(
    setup: StoredSetup, loaded: LoadedTeam, market: Market, result: BacktestDocument, then: StoredDecision
) -> list[StoredDecision]:
    """The decisions of the window up to the close of the next decision."""
    config, window = setup.config, setup.window
    bar = result.start + result.times.index(then.time)
    stop = min(bar + window.decide_every, window.stop)
    game = BacktestRun(market, Window(window.start, stop, window.decide_every), **account_of(config, market).terms)
    task = play(
        loaded.team, game, limits_of(config.guard), setup.run.seed, price=loaded.price,
        thinking_time=thinking_time_of(config),
    )  # fmt: skip
    [episode] = run_all([task], loaded.engine)
    return episode_decisions(setup.run.run, then.backtest, loaded.team.codec, episode)
