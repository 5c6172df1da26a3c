"""The use case evaluate: a trained team against the initial team, its teacher and the baselines, on held-out data."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from backend.builders.market import account_of, load_market, other_costs, venue_record
from backend.builders.teams import configured_team
from backend.config.schema import Config
from backend.evaluation.answer import answer_text
from backend.evaluation.evaluate import (
    TRAINED,
    held_out_windows,
    summary_record,
    verdict,
)
from backend.evaluation.gate import GATE_RECORD, GateRule, GateVerdict, held_out_rules, judged
from backend.evaluation.in_sample import IN_SAMPLE, overlaps
from backend.models.manifest import MANIFEST, read_manifest, team_digest, team_folder
from backend.processes import started
from backend.reporting.report import write_report
from backend.runs.backtest import notes_on_headlines
from backend.runs.measured_team import MeasuredTeam, TeamResult, measure_team
from backend.runs.outcomes import EvaluationOutcome
from backend.runs.requests import RUNS, SILENT, STORE, EvaluateRequest, Observer, RunStart
from backend.store.records import EvaluationRecord, RunRecord
from backend.store.run_record import new_run_id, recorded_run, store_at, stored_config
from backend.store.store import Store
from backend.training.rl_job import processes_for
from simulator.backtest.run import Window
from simulator.market.market import Market

_TRAININGS = ("train", "sft", "demo")  # kinds of runs that make a team


def evaluate_team(
    request: EvaluateRequest,
    store: Store | str | Path = STORE,
    runs: Path = RUNS,
    observer: Observer = SILENT,
) -> EvaluationOutcome:
    """Measure the team in the request's folder, record it in `store`, and write its report into a folder below `runs`.

    Raises `UserError` for a request that cannot be met; then nothing is recorded.
    """
    with store_at(store) as opened:
        trained = training_of(opened, team_folder(request.folder))
    config, notes = _settings(request, trained)
    market = load_market(config.market, config.costs)
    name = str(request.folder)
    digest = team_digest(team_folder(request.folder), config.training.base_model) if request.gate else ""
    team = configured_team(name, config).renamed(TRAINED)
    windows = held_out_windows(config, market)
    whole = Window(min(one.start for one in windows), max(one.stop for one in windows), 1)
    first, last = (int(market.open_time[bar]) + market.interval for bar in (whole.start, whole.stop))
    marked = overlaps([name], config, market, first, last, allowed=request.in_sample)
    notes += tuple(marked.values())
    marks: dict[str, Any] = {IN_SAMPLE: marked} if marked else {}
    notes += tuple(notes_on_headlines([team], market, whole))
    account = account_of(config, market)
    run, began = new_run_id("evaluate"), time.monotonic()
    folder = runs / run
    observer.started(RunStart(run, folder, config, market, account, notes=notes))
    with store_at(store) as opened:
        with recorded_run(
            opened, run, "evaluate", config.evaluation_seed, market.content_hash, config, team=name,
            venue=venue_record(account, market), notes=list(notes), **marks,
        ):  # fmt: skip
            with started(processes_for(config)) as workers:
                result = measure_team(
                    MeasuredTeam(config, name), opened, run, workers, observer.progress,
                    lambda: time.monotonic() - began,
                )  # fmt: skip
            folder_of_team = team_folder(request.folder)
            has_manifest = (folder_of_team / MANIFEST).is_file()
            trained_at = read_manifest(folder_of_team).costs if has_manifest else None
            said = "" if result.answer is None else answer_text(result.answer)
            sentence = verdict(result.windows.result, other_costs(trained_at or config.costs, config.costs), said)
            if marked:
                sentence = f"{'. '.join(marked.values())}. {sentence}"
            gate = _gate(request, config, market, result, digest, trained) if request.gate else None
            if gate is not None:
                opened.add_evaluation(EvaluationRecord(run, GATE_RECORD, 0, gate.to_json()))
            opened.add_evaluation(summary_record(run, sentence, time.monotonic() - began))
        report = write_report(opened, run, folder)
    held_out, value, answer = result.windows.result, result.value, result.answer
    return EvaluationOutcome(run, folder, report, config, sentence, held_out, gate=gate, value=value, answer=answer)


def _gate(
    request: EvaluateRequest,
    config: Config,
    market: Market,
    result: TeamResult,
    digest: str,
    trained: RunRecord | None,
) -> GateVerdict:
    """The verdict on the team whose files had the digest `digest` when it was measured."""
    folder = team_folder(request.folder)
    rules = judged(config.evaluation_seed, result.windows.result, result.control, result.windows.decisions)
    windows = held_out_windows(config, market)
    rules += held_out_rules(read_manifest(folder), config, market, windows, trained_here=trained is not None)
    if result.control is None and market.truth is not None and config.market.edge:
        advice = "the control was not measured: evaluate with --set evaluation.states=400 or more"
        rules.append(GateRule("no-edge control", False, advice))
    if team_digest(folder, config.training.base_model) != digest:
        rules.append(GateRule("files", False, f"the files in {folder} changed while the team was measured"))
    return GateVerdict(str(folder), digest, market.content_hash, tuple(rules))


def training_of(store: Store, folder: Path) -> RunRecord | None:
    """The run of this store that trained the team in `folder`; None for a team of any other origin."""
    where = folder.resolve()
    trainings = (one for one in store.runs() if one.kind in _TRAININGS and not one.imported)
    return next((one for one in trainings if one.run == where.name or one.config.get("folder") == str(where)), None)


def _settings(request: EvaluateRequest, trained: RunRecord | None) -> tuple[Config, tuple[str, ...]]:
    """The configuration of the request, or that of the team's training with the request's overrides; and what a reader
    must know of it."""
    if not request.config and trained is not None:
        return request.on(stored_config(trained)), ()
    config = request.settings()
    if request.config:
        return config, ()
    measured_on = config.market.data or "the market of the preset demo"
    return config, (f"no run in this store trained {request.folder}: it is measured on {measured_on} (see --config)",)
