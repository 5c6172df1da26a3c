"""The use case evaluate: a trained team against its warm start and the baselines, on held-out windows."""

from __future__ import annotations

import time
from pathlib import Path

from backend.builders.market import account_of, load_market, other_costs, venue_record
from backend.builders.teams import configured_team, scripted_team
from backend.config.load import override
from backend.config.schema import Config
from backend.evaluation.evaluate import TRAINED, WARM_STARTED, measure, summary_record, verdict
from backend.models.manifest import MANIFEST, read_manifest
from backend.reporting.report import write_report
from backend.runs.outcomes import EvaluationOutcome
from backend.runs.requests import RUNS, SILENT, STORE, EvaluateRequest, Observer, RunStart
from backend.store.run_record import new_run_id, recorded_run, store_at
from backend.store.store import Store


def evaluate_team(
    request: EvaluateRequest,
    store: Store | str | Path = STORE,
    runs: Path = RUNS,
    observer: Observer = SILENT,
) -> EvaluationOutcome:
    """Measure the team in the request's folder, record it in `store`, and write its report into a folder below `runs`.

    Raises `UserError` for a request that cannot be met; then nothing is recorded.
    """
    config = _settings(request)
    market = load_market(config.market, config.costs)
    name = str(request.folder)
    teams = [
        configured_team(name, config).renamed(TRAINED),
        configured_team(name, config, trained=False).renamed(WARM_STARTED),
        scripted_team(config.team),
    ]
    account = account_of(config, market)
    run, started = new_run_id("evaluate"), time.monotonic()
    folder = runs / run
    observer.started(RunStart(run, folder, config, market, account))
    with store_at(store) as opened:
        with recorded_run(
            opened, run, "evaluate", config.evaluation.seed, market.content_hash, config, team=name,
            venue=venue_record(account.venue, market),
        ):  # fmt: skip
            held_out = measure(config, market, teams, "held_out", opened, run, observer.progress).result
            no_edge = None
            if market.truth is not None and config.market.edge and not config.market.data:
                twin = load_market(config.market.model_copy(update={"edge": False}), config.costs)
                no_edge = measure(config, twin, teams[:2], "no_edge", opened, run, observer.progress).result
            has_manifest = (Path(request.folder) / MANIFEST).is_file()
            trained_on = read_manifest(Path(request.folder)).config if has_manifest else config
            sentence = verdict(held_out, no_edge, other_costs(trained_on.costs, config.costs))
            opened.add_evaluation(summary_record(run, sentence, time.monotonic() - started))
        report = write_report(opened, run, folder)
    return EvaluationOutcome(run, folder, report, config, sentence, held_out, no_edge)


def _settings(request: EvaluateRequest) -> Config:
    """The configuration of the request, or that of the team's training with the request's overrides."""
    if request.config:
        config = request.settings()
    else:
        config = request.on_market(override(read_manifest(Path(request.folder)).config, request.overrides))
    return request.compared(config)
