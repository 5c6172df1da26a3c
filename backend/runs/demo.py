"""The use case demo: make a market, train a team in it, and measure the effect of training."""

from __future__ import annotations

import json
import time
from pathlib import Path

from backend.builders.market import account_of, load_market
from backend.config.schema import Config
from backend.evaluation.answer import answer_text
from backend.evaluation.evaluate import summary_record, verdict, write_example
from backend.evaluation.held_out_value import SCENARIOS
from backend.policies.hardware import describe_hardware
from backend.processes import Workers, started
from backend.reporting.report import write_report
from backend.runs.evaluation import MeasuredTeam, TeamResult, measure_team
from backend.runs.outcomes import EvaluationOutcome
from backend.runs.requests import RUNS, SILENT, STORE, Observer, RunRequest, RunStart
from backend.store.records import valid_run_id
from backend.store.run_record import new_run_id, recorded_run, store_at
from backend.store.store import Store
from backend.training.checkpoints import TrainingState
from backend.training.rl_job import check_training, processes_for, run_rl
from backend.training.start import begin
from simulator.documents import read_document
from simulator.errors import UserError
from simulator.files import write_whole
from simulator.folders import check_links
from simulator.market.market import Market

_STATE = "demo.json"


def run_demo(
    request: RunRequest,
    store: Store | str | Path = STORE,
    runs: Path = RUNS,
    observer: Observer = SILENT,
    workers: int | None = None,
) -> EvaluationOutcome:
    """Run the demo in the folder `demo` below `runs`. An unfinished demo of the same configuration resumes where it
    stopped; the folder of a finished one is renamed to its run's id and kept.

    `workers` processes share the work, this one included; by default one for each core, and no more than the training
    has shards. The result does not depend on how many there are.

    Raises `UserError` for recorded bars, which have no no-edge control.
    """
    config, folder = request.settings(), runs / "demo"
    if config.market.data:
        raise UserError(
            "the demo makes its own market and that one's no-edge control: leave market.data out, or use "
            "`cryptosentinel train` and `evaluate` on recorded bars"
        )
    began = time.monotonic()
    market = load_market(config.market, config.costs)
    account = account_of(config, market)  # an impossible venue is refused now, not after the training
    check_training(config)
    most = processes_for(config)
    with store_at(store) as opened:
        run, spent = _begin(config, folder)
        observer.started(RunStart(run, folder, config, market, account))
        hardware = describe_hardware(config.training)
        with recorded_run(
            opened,
            run,
            "demo",
            config.training.seed,
            market.content_hash,
            config,
            resumes=True,
            hardware=hardware,
            folder=str(folder.resolve()),
        ):
            try:
                with started(min(workers or most, most)) as processes:
                    trained, result = _train_and_measure(
                        config, market, opened, run, folder, observer, processes, spent - began
                    )
            finally:
                spent += time.monotonic() - began
                _save(folder, config, run, spent, finished=False)
            write_example(opened, run, result.windows.decisions)
            said = "" if result.answer is None else answer_text(result.answer)
            sentence = verdict(result.windows.result, answer=said)
            opened.put(
                summary_record(
                    run,
                    sentence,
                    spent,
                    stages=[{"stage": 1, "from_step": 0}, {"stage": 2, "from_step": trained.stage_began}],
                    rollbacks=[{"step": step, "role": role} for step, role in trained.rollbacks],
                    best_step=trained.best_step,
                    helpers=processes.number - 1,
                )
            )
        _save(folder, config, run, spent, finished=True)
        report = write_report(opened, run, folder)
    held_out, value, answer = result.windows.result, result.value, result.answer
    return EvaluationOutcome(run, folder, report, config, sentence, held_out, value=value, answer=answer)


def _train_and_measure(
    config: Config,
    market: Market,
    store: Store,
    run: str,
    folder: Path,
    observer: Observer,
    processes: Workers,
    offset: float,
) -> tuple[TrainingState, TeamResult]:
    """The training, and what was measured of the team. `offset` added to the clock is the seconds that the demo has
    taken."""
    private = "Each role's tools show something of their own. " if config.market.kind == "private" else ""
    shared = f"{processes.number} processes share the work." if processes.number > 1 else "One process does the work."
    observer.message(
        f"1. The market: {len(market):,} bars of {market.timeframe}, {len(market.symbols)} coins. Each drifts up, down "
        f"or sideways for weeks. The drift is hidden; trend, funding and headlines hint at it. {private}{shared}"
    )
    given = config.training.base_model or config.training.start_from
    observer.message(
        "2. Warm start: "
        + ("the model is given." if given else "a small model learns the format from transcripts of a scripted team.")
    )
    begin(config, market, folder, observer.progress, processes)
    observer.message(
        "3. M-GRPO. Each step shows the team's outcome score (0.5: nothing earned) and the share of valid answers. "
        "'validation' is the outcome in states that training never uses; the best version there is kept."
    )
    trained = run_rl(config, market, store, run, folder, observer.progress, observer.trained, processes)
    observer.message(
        "4. Measuring, on held-out data: the trained team, the initial team and the teacher play "
        f"{config.evaluation.windows} windows and decide in the same {config.evaluation.states:,} states. Each "
        f"decision is scored over {SCENARIOS:,} common scenarios, so luck plays no part. The "
        "trained team also decides in a no-edge control, where there is nothing to learn."
    )
    measured = MeasuredTeam(config, str(folder))
    return trained.state, measure_team(
        measured, store, run, processes, observer.progress, lambda: time.monotonic() + offset
    )


def _begin(config: Config, folder: Path) -> tuple[str, float]:
    """The run to do in `folder`, and the seconds that were spent on it before."""
    state = folder / _STATE
    if state.is_file():
        check_links(folder)
        try:
            before = read_document(state)
            run, spent = valid_run_id(before["run"]), float(before["seconds"])
            unfinished = not before["finished"] and before["config"] == config.to_dict()
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(f"{state} cannot be read ({error}): move {folder} away to begin again") from error
        if unfinished:
            return run, spent
        folder.rename(folder.with_name(run))
    folder.mkdir(parents=True, exist_ok=True)
    run = new_run_id("demo")
    _save(folder, config, run, 0.0, finished=False)
    return run, 0.0


def _save(folder: Path, config: Config, run: str, seconds: float, *, finished: bool) -> None:
    state = {"run": run, "config": config.to_dict(), "seconds": seconds, "finished": finished}
    write_whole(folder / _STATE, json.dumps(state))
