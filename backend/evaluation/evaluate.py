"""Measure a trained team against the initial team on held-out windows."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backend.builders.loaded_team import LoadedTeam
from backend.builders.market import (
    account_of,
    limits_of,
    split,
    thinking_time_of,
    unknown_to_training,
    venue_record,
)
from backend.config.schema import Config
from backend.decisions.backtest_document import write_backtest
from backend.decisions.document import EXAMPLE_DECISION, StoredDecision, write_decisions
from backend.decisions.recording import episode_decisions
from backend.evaluation.compare import (
    baselines,
    chained_equity,
    difference,
    play_windows,
    split_windows,
    table,
)
from backend.evaluation.trials import record_trial
from backend.processes import WorkReport
from backend.statistics.mean_interval import RESAMPLES
from backend.store.records import EvaluationRecord
from backend.store.store import Store
from cryptosentinel.episode import EpisodeResult
from simulator.backtest.run import BacktestResult, Window
from simulator.market.market import Market

TRAINED, WARM_STARTED = "trained", "warm_started"


@dataclass(frozen=True)
class Measurement:
    """The evaluation's document, and the decisions of the trained team, of which one can be shown."""

    result: dict[str, Any]
    decisions: list[StoredDecision]


def measure(
    config: Config,
    market: Market,
    teams: Sequence[LoadedTeam],
    name: str,
    store: Store,
    run: str,
    episodes: Mapping[str, list[EpisodeResult]],
) -> Measurement:
    """Compare `teams` (named `trained` and `warm_started`, and any others), whose `play_held_out` are `episodes` by
    name, with the baselines on the held-out windows.

    Stores the evaluation as `name`, and the first window's backtests with the trained team's decisions as `name/...`.
    """
    evaluation, account = config.evaluation, account_of(config, market)
    thinking = thinking_time_of(config)
    windows = held_out_windows(config, market)
    results: dict[str, list[BacktestResult]] = {
        team: [episode.result for episode in of_team] for team, of_team in episodes.items()
    }
    results |= baselines(evaluation.baselines, market, windows, account, results[TRAINED], config.evaluation_seed)
    document = {
        "windows": len(windows),
        "rows": table(results, episodes),
        "difference": difference(results, TRAINED, WARM_STARTED, RESAMPLES, config.evaluation_seed),
        **chained_equity(results, market.interval),
        "venue": venue_record(account, market),
        "unknown_to_training": unknown_to_training(account, thinking != 0.0),
    }
    for row, runs in results.items():
        write_backtest(store, run, f"{name}/{row}", runs[0])
    trained = next(one for one in teams if one.name == TRAINED)
    trials = record_trial(
        store, run, trained, config, market, windows[0].start, windows[-1].stop,
        every=windows[0].decide_every, seed=config.evaluation_seed, of=name,
    )  # fmt: skip
    document |= {"trials": trials.trials, "looks": trials.looks}
    store.put(EvaluationRecord(run, name, 0, document))
    decisions: list[StoredDecision] = []
    for number, episode in enumerate(episodes[TRAINED]):
        decisions += episode_decisions(run, f"{name}/{TRAINED}/{number}", trained.team.codec, episode)
    write_decisions(store, [decision for decision in decisions if decision.backtest.endswith("/0")])
    return Measurement(document, decisions)


def play_held_out(config: Config, team: LoadedTeam, market: Market, report: WorkReport) -> list[EpisodeResult]:
    """The team's backtests of the held-out windows."""
    return play_windows(
        team, market, held_out_windows(config, market), account_of(config, market), limits_of(config.guard),
        config.evaluation_seed, report, thinking_time_of(config),
    )  # fmt: skip


def held_out_windows(config: Config, market: Market) -> list[Window]:
    """The windows that `measure` plays. Raises `DataError` where they do not fit."""
    evaluation, held_out = config.evaluation, split(market, config.market, config.team.horizon_bars).held_out
    return split_windows(*held_out, evaluation.windows, evaluation.decisions_per_window, config.team.decide_every or 1)


def verdict(held_out: dict[str, Any], other_costs: Sequence[str] = (), answer: str = "") -> str:
    """What training changed, in plain sentences: the `answer` in money where decisions could be scored over scenarios,
    else the difference over the held-out windows. What a reader must know of the windows follows: costs that training
    does not score or that were others, and how often they were looked at."""
    sentence = answer or _describe_difference(held_out)
    beyond = held_out.get("unknown_to_training") or []
    if beyond:
        sentence += f" Measured with {', '.join(beyond)}, which training does not score."
    looks = held_out.get("looks") or 1
    if looks > 1 and not answer:
        teams = "1 team" if held_out["trials"] == 1 else f"{held_out['trials']} teams"
        sentence += f" {looks} runs have used these held-out windows so far, with {teams}."
    if other_costs:
        sentence += f" Measured with other costs than it was trained with: {', '.join(other_costs)}."
    return sentence


def _describe_difference(held_out: dict[str, Any]) -> str:
    gain, (low, high) = held_out["difference"]["mean"], held_out["difference"]["ci95"]
    size = f"{100 * gain:+.2f} percentage points a window (95 % interval {100 * low:+.2f} to {100 * high:+.2f})"
    if low > 0.0:
        return f"On held-out windows the trained team earns more than the initial team: {size}."
    if high < 0.0:
        return f"On held-out windows the trained team earns less than the initial team: {size}."
    return f"No measurable difference between the trained and the initial team on held-out windows: {size}."


def summary_record(run: str, sentence: str, wall_seconds: float, helpers: int = 0, **more: Any) -> EvaluationRecord:
    """The record that closes a run: its verdict, what it took, and whatever else its report should show. The memory is
    that of this process and, for each of the `helpers` that have ended, of the largest."""
    # Linux gives the peak in KiB, macOS in bytes.
    unit = 2**20 if sys.platform == "darwin" else 2**10
    own, largest = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    peak = (own + helpers * largest) / unit
    result = {"verdict": sentence, "wall_seconds": round(wall_seconds, 1), "peak_memory_mb": round(peak, 1), **more}
    return EvaluationRecord(run, "summary", 0, result)


def choose_example(decisions: Sequence[StoredDecision]) -> StoredDecision | None:
    """The decision to show of an evaluation: with orders, the most roles, RiskAnalyst or guard at work, and then what
    it earned in either direction. Losses are as likely to be shown as gains."""

    def weight(decision: StoredDecision) -> tuple[int, int, int, float]:
        document = decision.document
        interventions = len(document.rulings) + len(document.clamps)
        roles = len({conversation.role for conversation in document.conversations})
        return (bool(document.orders), roles, interventions, abs(document.net_return or 0.0))

    return max(decisions, key=weight, default=None)


def write_example(store: Store, run: str, decisions: Sequence[StoredDecision]) -> None:
    """Store which of the decisions of an evaluation the run's report shows; nothing where there is none."""
    chosen = choose_example(decisions)
    if chosen is not None:
        store.put(EvaluationRecord(run, EXAMPLE_DECISION, 0, chosen.example().to_json()))
