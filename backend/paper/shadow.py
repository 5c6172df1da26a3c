"""Another team on the bars of a session: what it would have earned there, and how it takes the place of the first one.

A shadow has an account of its own with the same cash, costs and guard, in a backtest of the recorded bars, and sends
nothing anywhere. The two are compared decision by decision, so that what the market did to both cancels. The interval
is that of the mean difference: its standard error by a stationary bootstrap (Politis and Romano 1994), since returns
that follow each other depend on each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from backend.builders.loaded_team import LoadedTeam
from backend.builders.market import Account, limits_of
from backend.builders.strategies import NamedStrategy
from backend.config.schema import Config
from backend.evaluation.gate import GATE_RECORD
from backend.models.manifest import MANIFEST, team_folder
from backend.models.team_digest import team_digest
from backend.paper.feeds import account_again
from backend.paper.journal import bar_from_json, entries_of, history_from_json
from backend.paper.stored import PROMOTED, promotions, session_subject, session_thinking_time, stored_session
from backend.paper.strategy import StrategyPlayer
from backend.runs.backtest import Subject
from backend.runs.requests import STORE
from backend.statistics.bootstrap import optimal_block, stationary_error
from backend.store.records import JournalRecord, RunRecord
from backend.store.run_record import store_at
from backend.store.store import Store
from cryptosentinel.episode import play
from cryptosentinel.scheduler import run_all
from simulator.arrays import FloatArray
from simulator.backtest.run import BacktestRun, Window, run_backtest
from simulator.errors import UserError
from simulator.live.broker import session_market

LEAST_COMPARED = 20  # decisions
LEAST_DECISIONS = 50  # of a session, since the team passed the gate
_QUANTILE = 1.96  # of the normal distribution, for 95 %


@dataclass(frozen=True)
class ShadowComparison:
    """Two teams on the same `decisions` closes: `gain` is the mean of the shadow's return minus the trading team's, of
    the equity, a decision; `low` and `high` are its 95 % interval. `missing` is what an interval lacks, if anything."""

    team: str
    shadow: str
    decisions: int
    gain: float = 0.0
    low: float = 0.0
    high: float = 0.0
    missing: str = ""

    def sentence(self) -> str:
        """In words."""
        if self.missing:
            return f"shadow {self.shadow} against {self.team}: {self.missing}"
        if self.low > 0.0:
            verdict = "the shadow earns more"
        elif self.high < 0.0:
            verdict = "the shadow earns less"
        else:
            verdict = "no measurable difference"
        gain, low, high = (1e4 * one for one in (self.gain, self.low, self.high))
        return (
            f"shadow {self.shadow} against {self.team}, {self.decisions} decisions: {verdict}, {gain:+.3g} bps a "
            f"decision ({low:+.3g} to {high:+.3g})"
        )


def compare_shadow(run: str, shadow: str, store: Store | str | Path = STORE) -> ShadowComparison:
    """Let the team or strategy `shadow` trade the bars of the session `run`, and compare. Raises `UserError`."""
    with store_at(store) as opened:
        record, config, start = stored_session(opened, run)
        return _compared(record, config, start, entries_of(opened, run), shadow)


def promote(run: str, team: str, store: Store | str | Path = STORE) -> ShadowComparison:
    """Let `team` trade in the place of the team of the session `run`, from its next `paper resume` on. Only the record
    of the session is changed, at once and whole. Returns how the two compare.

    Raises `UserError`, with what to do, where the session runs or is over, where no passed verdict of the gate is in
    the store for exactly these files, where the session took fewer than `LEAST_DECISIONS` decisions since that verdict,
    and where the comparison shows that the team earns less.
    """
    with store_at(store) as opened:
        record, config, start = stored_session(opened, run)
        entries = entries_of(opened, run)
        if entries[-1].kind == "end":
            raise UserError(
                f"session {run} is over ({entries[-1].document['why']}): begin another one with --team {team}"
            )
        if record.status == "running":
            raise UserError(f"session {run} runs: stop it first with `cryptosentinel paper stop {run}`")
        if not (team_folder(team) / MANIFEST).is_file():
            raise UserError(f"'{team}' is not the folder of a training, and only such a team can pass the gate")
        digest = team_digest(team_folder(team), config.training.base_model)
        gate = _gate_run(opened, team, digest)
        passed = gate.finished_at or gate.started_at
        since = 0 if record.started_at >= passed else passed  # bars that came before were there to learn from
        decisions, needed = sum(one.kind == "decision" and one.time >= since for one in entries), LEAST_DECISIONS
        if decisions < needed:
            raise UserError(
                f"session {run} has taken {decisions} decisions since {team} passed the gate, and {needed} are needed: "
                f"resume it for {needed - decisions} more, or begin another one"
            )
        found = _compared(record, config, start, entries, team)
        if not found.missing and found.high < 0.0:
            raise UserError(f"{found.sentence()}: a team that earns less is not promoted; train it further")
        taken = [*promotions(record), {"team": team, "digest": digest, "gate": gate.run}]
        opened.set_document(replace(record, config={**record.config, PROMOTED: taken}))
        return found


def _gate_run(store: Store, team: str, digest: str) -> RunRecord:
    """The run with the newest verdict on these files. Raises `UserError` where there is none, or it is not passed."""
    how = f"`cryptosentinel evaluate {team} --gate`"
    for record in store.runs():  # the newest first
        if record.kind != "evaluate" or record.status != "finished" or record.imported:
            continue
        verdicts = [one.result for one in store.evaluations(record.run) if one.name == GATE_RECORD]
        verdict: Mapping[str, Any] = verdicts[0] if verdicts else {}
        if verdict.get("team_digest") != digest:
            continue
        if not verdict.get("passed"):
            broken = ", ".join(str(rule["name"]) for rule in verdict["rules"] if not rule["passed"])
            raise UserError(f"{team} did not pass the gate in {record.run} ({broken}): train it further, then {how}")
        return record
    raise UserError(f"no verdict of the gate is in the store for the files of {team}: run {how}")


def _compared(
    record: RunRecord, config: Config, start: Mapping[str, Any], entries: Sequence[JournalRecord], shadow: str
) -> ShadowComparison:
    team, every = str(record.config["team"]), int(start["decide_every"])
    bars = [entry for entry in entries if entry.kind == "bar"]
    count = len(bars) // every
    if count < LEAST_COMPARED:
        lacking = f"{LEAST_COMPARED - count} more decisions are missing for a comparison"
        return ShadowComparison(team, shadow, count, missing=lacking)
    equity = np.array([float(start["cash"]), *(float(entry.document["account"]["equity"]) for entry in bars)])
    account = account_again(config, history_from_json(start["history"]), start)
    other = _shadow_equity(session_subject(shadow, config), start, bars, account, config, record.seed)
    gains = _returns(other, every, count) - _returns(equity, every, count)
    mean = float(gains.mean())
    half = _QUANTILE * stationary_error(gains, optimal_block(gains)) if np.ptp(gains) > 0.0 else 0.0
    return ShadowComparison(team, shadow, count, mean, mean - half, mean + half)


def _shadow_equity(
    subject: Subject,
    start: Mapping[str, Any],
    bars: Sequence[JournalRecord],
    account: Account,
    config: Config,
    seed: int,
) -> FloatArray:
    """(bars + 1,): the equity of `subject` at the session's start and after each of its bars."""
    history = history_from_json(start["history"])
    market = session_market(history, [bar_from_json(entry.document["bar"]) for entry in bars])
    window = Window(len(history) - 1, len(market) - 1, int(start["decide_every"]))
    if isinstance(subject, NamedStrategy):
        return run_backtest(market, StrategyPlayer(subject), window, **account.terms).equity
    assert isinstance(subject, LoadedTeam)
    thinking = session_thinking_time(config)
    task = play(
        subject.team, BacktestRun(market, window, **account.terms), limits_of(config.guard), seed,
        price=subject.price, thinking_time=thinking,
    )  # fmt: skip
    [episode] = run_all([task], subject.engine)
    return episode.result.equity


def _returns(equity: FloatArray, every: int, count: int) -> FloatArray:
    """(count,): the return between each decision and the next one; 0 of an account that has nothing left."""
    before, after = equity[: count * every : every], equity[every : count * every + 1 : every]
    returns: FloatArray = np.where(before > 0.0, after / np.where(before > 0.0, before, 1.0) - 1.0, 0.0)
    return returns
