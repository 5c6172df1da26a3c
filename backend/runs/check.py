"""The use case check: a strategy or a team on a market, ready to be run on many versions of that market."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from backend.builders.loaded_team import LoadedTeam
from backend.builders.market import account_of, limits_of, load_market
from backend.builders.plugins import load_plugins
from backend.builders.strategies import NamedStrategy, made_ready
from backend.runs.backtest import market_settings, subject_of
from backend.runs.requests import CheckRequest
from backend.runs.strategy_run import lookahead_verdict, play_strategy
from backend.runs.window import choose_window
from backend.training.curriculum.queries import WARM_UP_BARS
from cryptosentinel.episode import play
from cryptosentinel.guard.limits import GuardLimits
from cryptosentinel.llm.engine import RememberingEngine
from cryptosentinel.scheduler import run_all
from simulator.backtest.run import BacktestRun, Window
from simulator.checks.verdict import CheckProgress, Drive, LookaheadVerdict, drive_strategies, verdict_of_drive
from simulator.market.market import Market
from simulator.market.timeframes import format_time


@dataclass(frozen=True)
class CheckCase:
    """What is checked, on which market, in which window, and with which account. `notes` are for the reader;
    `strategy` is there where no team is checked."""

    name: str
    drive: Drive
    market: Market
    window: Window
    account: dict[str, Any]
    notes: tuple[str, ...] = ()
    strategy: NamedStrategy | None = None

    def describe(self) -> dict[str, Any]:
        """The case as a report has it."""
        window, market = self.window, self.market
        return {
            "subject": self.name,
            "source": market.source,
            "symbols": list(market.symbols),
            "timeframe": market.timeframe,
            "window": {"start": window.start, "stop": window.stop, "decide_every": window.decide_every},
            "first_decision": self._close(window.start),
            "last_decision": self._close(window.start + (window.decisions - 1) * window.decide_every),
        }

    def _close(self, bar: int) -> str:
        return format_time(int(self.market.open_time[bar]) + self.market.interval)


def check_case(request: CheckRequest) -> CheckCase:
    """Load the strategy or the team of the request, its market and its account. Raises `UserError`."""
    config, strategy, warm_up = market_settings(request), None, WARM_UP_BARS
    load_plugins(config)
    subject = subject_of(request.team, config)
    if isinstance(subject, NamedStrategy):
        strategy, warm_up = made_ready(subject)
        name, drive = strategy.name, drive_strategies(strategy.make)
        request = replace(request, decide_every=request.decide_every or 1)  # as in a backtest
    else:
        loaded = subject.at_temperature(0.0) if request.greedy else subject
        name, drive = loaded.name, team_drive(loaded, limits_of(config.guard), request.seed)
    market = load_market(config.market, config.costs)
    chosen = choose_window(market, request, warm_up)
    account, notes = account_of(config, market), list(chosen.notes)
    if account.venue.mark is not None:
        # Mark prices belong to the bars of the whole market; the altered markets have fewer bars.
        notes.append("mark prices are left out here; accounts are valued at the trade price")
        account = replace(account, venue=replace(account.venue, mark=None))
    return CheckCase(name, drive, market, chosen.window, account.terms, tuple(notes), strategy)


def case_verdict(case: CheckCase, seed: int, on_progress: CheckProgress | None = None) -> LookaheadVerdict:
    """The look-ahead verdict on a strategy over the whole history, or on a team over its window."""
    own = case.strategy
    if own is None:
        return verdict_of_drive(case.drive, case.market, case.window, case.account, seed)
    subject = replace(own, load=own.load or (lambda: own.make))
    played = play_strategy(subject, case.market, case.window, case.account)
    verdict = lookahead_verdict(played, whole=True, seed=seed, on_progress=on_progress)
    assert verdict is not None  # there is a `load`
    return verdict


def team_drive(loaded: LoadedTeam, limits: GuardLimits, seed: int) -> Drive:
    """Backtests of a team, all sampled with the same seed."""

    def drive(run: BacktestRun) -> None:
        if isinstance(loaded.engine, RememberingEngine):
            loaded.engine.forget()  # entries of an earlier run in the caches may change the last bits of the logits
        run_all([play(loaded.team, run, limits, seed)], loaded.engine)

    return drive
