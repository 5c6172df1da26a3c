"""The whole loop in one command: make a market, train a team in it, and measure honestly what that changed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from backend.builders.market import account_of, load_market
from backend.builders.teams import LoadedTeam, load_team, scripted_team
from backend.config.schema import Config
from backend.evaluation.compare import Report
from backend.evaluation.evaluate import TRAINED, WARM_STARTED, measure, most_telling, summary_record, verdict
from backend.policies.hardware import described
from backend.reporting.report import write_report
from backend.store.records import EvaluationRecord
from backend.store.run_record import new_run_id, recorded_run
from backend.store.store import Store
from backend.training.rl_job import check_ready, train
from backend.training.trainer import Progress
from simulator.errors import UserError

STATE = "demo.json"


@dataclass(frozen=True)
class DemoResult:
    """The run's id, the report, and the evaluations behind it."""

    run: str
    report: Path
    verdict: str
    held_out: dict[str, object]
    no_edge: dict[str, object]


def run_demo(
    config: Config,
    store: Store,
    folder: Path,
    say: Callable[[str], None],
    report: Report,
    on_progress: Callable[[Progress], None],
) -> DemoResult:
    """Run the demo in `folder`. An unfinished one of the same configuration goes on where it stopped; the folder of a
    finished one is kept under its run's id.

    Raises `UserError` for recorded data, which has no twin.
    """
    if config.market.data:
        raise UserError(
            "the demo makes its own market and that one's no-edge twin: leave market.data out, or use `cryptosentinel "
            "train` and `evaluate` on recorded bars"
        )
    started = time.monotonic()
    market = load_market(config.market, config.costs)
    account_of(config, market)  # what is wrong with the venue is said now, not after the training
    check_ready(config)
    run, spent = _begin(config, folder)
    twin = load_market(config.market.model_copy(update={"edge": False}), config.costs)
    say(
        f"1. Market: {len(market)} bars of {market.timeframe}, {len(market.symbols)} coins whose drift is hidden but "
        "hinted at by trend, funding and news; and a twin with the same volatility in which nothing can be known."
    )
    hardware = described(config.training)
    with recorded_run(store, run, "demo", config.training.seed, market.content_hash, config, hardware=hardware):
        try:
            say("2. Warm start: a small model learns the team's language from transcripts, and little of the trade.")
            say("3. M-GRPO: stage 1, format and expert rewards; after the gate stage 2, the team's outcome.")
            trained = train(config, market, store, run, folder, report, on_progress)
            say("4. Measuring on held-out windows that no step has seen, and on the twin.")
            teams = _teams(config, folder)
            held_out = measure(config, market, teams, "held_out", store, run, report)
            no_edge = measure(config, twin, teams[:2], "no_edge", store, run, report)
        finally:
            spent += time.monotonic() - started
            _save(folder, config, run, spent, finished=False)
        story = most_telling(held_out.decisions)
        if story is not None:
            store.add_evaluation(
                EvaluationRecord(run, "story", 0, {**story.story, "window": story.backtest, "time": story.time})
            )
        sentence = verdict(held_out.result, no_edge.result)
        store.add_evaluation(
            summary_record(
                run,
                sentence,
                spent,
                stages=[{"stage": 1, "from_step": 0}, {"stage": 2, "from_step": trained.state.stage_began}],
                rollbacks=[{"step": step, "role": role} for step, role in trained.state.rollbacks],
                best_step=trained.state.best_step,
            )
        )
    _save(folder, config, run, spent, finished=True)
    return DemoResult(run, write_report(store, run, folder), sentence, held_out.result, no_edge.result)


def _teams(config: Config, folder: Path) -> list[LoadedTeam]:
    """The trained team and how it began, both as they are trained (sampled) and greedy; and the scripted teacher."""
    trained = load_team(str(folder), config.team)
    warm = load_team(str(folder), config.team, trained=False)
    return [
        trained.renamed(TRAINED),
        warm.renamed(WARM_STARTED),
        trained.at_temperature(0.0).renamed("trained, greedy"),
        warm.at_temperature(0.0).renamed("warm_started, greedy"),
        scripted_team(config.team),
    ]


def _begin(config: Config, folder: Path) -> tuple[str, float]:
    """The run to do in `folder` and the seconds already spent on it."""
    state = folder / STATE
    if state.is_file():
        before = json.loads(state.read_text())
        if not before["finished"] and before["config"] == config.to_dict():
            return str(before["run"]), float(before["seconds"])
        folder.rename(folder.with_name(str(before["run"])))
    folder.mkdir(parents=True, exist_ok=True)
    run = new_run_id("demo")
    _save(folder, config, run, 0.0, finished=False)
    return run, 0.0


def _save(folder: Path, config: Config, run: str, seconds: float, *, finished: bool) -> None:
    state = {"run": run, "config": config.to_dict(), "seconds": seconds, "finished": finished}
    partial = folder / f"{STATE}.tmp"
    partial.write_text(json.dumps(state))
    partial.replace(folder / STATE)
