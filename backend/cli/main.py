"""The command line: `cryptosentinel data | backtest | train | evaluate | runs | config | demo`."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from backend.cli import serve
from backend.cli.check import check_app
from backend.cli.console import bars, comparison_table, console, difference_line, errors, narrow_table
from backend.cli.data import SymbolsOption, data_app
from backend.cli.diagnose import doctor
from backend.cli.models import models_app
from backend.cli.options import (
    BaselinesOption,
    ConfigOption,
    DataOption,
    DecideEveryOption,
    EndOption,
    FinerOption,
    FundingOption,
    NewsOption,
    PresetOption,
    ResampleOption,
    RulesOption,
    SetOption,
    StartOption,
    TimeframeOption,
    with_market,
    with_venue,
)
from backend.cli.runs import StoreOption, runs_app
from backend.cli.serve import serve_app
from backend.cli.sft import sft
from backend.cli.store import runs_export, runs_import, runs_upgrade
from backend.config.load import config_from_dict, describe, load_config, override
from backend.config.schema import Config
from backend.distributed.parent import follow_parent
from backend.errors import message_and_code
from simulator.errors import Interrupted, RunFailed, UserError
from simulator.market.timeframes import format_time, parse_time

# Libraries are imported inside the commands: torch takes seconds, and `--help` should not.

app = typer.Typer(
    help="A laboratory for crypto-trading agents: a team of role LLMs, backtested and trained with M-GRPO.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(data_app, name="data")
app.add_typer(check_app, name="check")
app.add_typer(runs_app, name="runs")
app.add_typer(models_app, name="models")
app.add_typer(serve_app, name="serve")
app.command()(sft)
app.command()(doctor)
for command, name in ((runs_export, "export"), (runs_import, "import"), (runs_upgrade, "upgrade")):
    runs_app.command(name)(command)


class Launch(StrEnum):
    """How the parts of a training are started."""

    PROCESSES = "processes"
    RAY = "ray"


RunsOption = Annotated[Path, typer.Option("--runs", help="Folder that holds a folder for each run.")]


@app.command()
def backtest(
    data: DataOption = None,
    symbols: SymbolsOption = "",
    timeframe: TimeframeOption = "",
    resample: ResampleOption = "",
    team: Annotated[
        list[str] | None,
        typer.Option(
            "--team",
            help="Who is tested: 'scripted', the folder of a training run, 'model' (one that was not trained, see "
            "engine.model), a strategy like ema_cross, or your own as module:Class. Repeatable.",
        ),
    ] = None,
    baselines: BaselinesOption = "",
    start: StartOption = "",
    end: EndOption = "",
    decide_every: DecideEveryOption = 0,
    funding: FundingOption = None,
    news: NewsOption = None,
    finer: FinerOption = "",
    rules: RulesOption = "",
    seed: Annotated[int, typer.Option("--seed", help="Seed of sampling and of the random baseline.")] = 1,
    unmasked: Annotated[
        bool, typer.Option("--unmasked", help="Play each team again with names and dates shown, and compare the two.")
    ] = False,
    cassette: Annotated[
        Path | None,
        typer.Option(
            "--record",
            help="Record the team's calls in this folder, a cassette. --team FOLDER plays it; the same command goes on "
            "with one that was interrupted and asks nothing twice.",
        ),
    ] = None,
    config: PresetOption = "",
    set_: SetOption = None,
    store: StoreOption = "runs/store",
    runs: RunsOption = Path("runs"),
) -> None:
    """Backtest teams and strategies against the baselines over one window, store every decision, and write a report."""
    from backend.builders.market import account_of, describe_costs, describe_venue, load_market
    from backend.builders.teams import LoadedTeam
    from backend.reporting.inference_cost import thinking_line
    from backend.runs.backtest import backtest as run_backtest
    from backend.runs.backtest import decision_interval, notes_on, settings_for, subject_of, window_of, with_unmasked
    from backend.store.run_record import new_run_id
    from backend.store.store import Store
    from simulator.market.bar_checks import find_gaps

    settings = settings_for(config, set_ or [], data)
    if data is None and not settings.market.data:
        data = Path("data/synthetic")
    settings = with_market(settings, data, symbols, timeframe, resample, funding, news)
    settings = with_venue(settings, finer, rules, baselines)
    market = load_market(settings.market, settings.costs)
    interval = decision_interval(market, decide_every)
    window = window_of(market, parse_time(start) if start else None, parse_time(end) if end else None, interval)
    named = team or ["scripted"]
    teams = [subject_of(name, settings) for name in named]
    if len({one.name for one in teams}) < len(teams):
        raise UserError("the same team is named twice: give each --team once")
    teams = with_unmasked(teams) if unmasked else teams
    if cassette is not None and sum(isinstance(one, LoadedTeam) for one in teams) != 1:
        raise UserError("--record is for the calls of one team: name one, without --unmasked")
    console.print(
        f"{market.source}: {', '.join(market.symbols)}, {market.timeframe} bars, decisions every {interval} bars from "
        f"{format_time(int(market.open_time[window.start]) + market.interval)} to "
        f"{format_time(int(market.open_time[window.stop]) + market.interval)} UTC "
        f"({'as asked' if start else 'the last 90 days; choose with --start and --end'})"
    )
    console.print(f"data: {find_gaps(market).summary()}")
    account = account_of(settings, market)
    console.print(f"costs: {describe_costs(account.costs, market)}", markup=False)
    console.print(f"venue: {describe_venue(account.venue, market)}", markup=False)
    notes = notes_on(named, settings, market, window)
    for note in notes:
        console.print(f"note: {note}", markup=False)
    run = new_run_id("backtest")
    with Store.open(store) as opened, bars() as shown:
        path = run_backtest(
            settings, market, account, window, teams, opened, run, runs / run, seed,
            lambda done, total: shown.report("backtest", done, total), notes, cassette,
        )  # fmt: skip
        records = opened.backtests(run)
        told_after = [note for note in opened.run(run).config.get("notes", []) if note not in notes]
    table = narrow_table(f"run {run}")
    for heading in ("return%", "Sharpe", "loss%", "expo", "trades", "long", "costs"):
        table.add_column(heading, justify="right", no_wrap=True)
    for record in sorted(records, key=lambda one: -one.result["metrics"]["total_return"]):
        metrics = record.result["metrics"]
        table.add_row(
            record.name,
            f"{100 * metrics['total_return']:+.2f}",
            f"{metrics['sharpe']:.2f}",
            f"{100 * metrics['max_drawdown']:.1f}",
            f"{metrics['exposure']:.2f}",
            f"{metrics['trades']:.0f}",
            f"{metrics['long_share']:.2f}",
            f"{sum(record.result['costs'].values()):.2f}",
        )
    console.print(table)
    for record in records:
        line = thinking_line(record.result)
        if line is not None:
            console.print(f"{record.name}: {line}", markup=False)
    for note in told_after:
        console.print(f"note: {note}", markup=False)
    console.print(f"report: {path}")


@app.command()
def train(
    config: ConfigOption = "demo",
    set_: SetOption = None,
    data: DataOption = None,
    symbols: SymbolsOption = "",
    timeframe: TimeframeOption = "",
    resample: ResampleOption = "",
    funding: FundingOption = None,
    news: NewsOption = None,
    resume: Annotated[
        str, typer.Option("--resume", help="Id of a run to go on with; its own configuration is used.")
    ] = "",
    store: StoreOption = "runs/store",
    runs: RunsOption = Path("runs"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration and stop.")] = False,
    dry_run_step: Annotated[
        bool,
        typer.Option(
            "--dry-run-step",
            help="Estimate the memory, do one step with random weights of that architecture, and stop.",
        ),
    ] = False,
    launch: Annotated[
        Launch | None,
        typer.Option(
            "--launch",
            help="Rollout workers and a trainer for each role apart: processes of this machine, or actors on Ray.",
        ),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Rollout workers of --launch.")] = 1,
    ray_address: Annotated[
        str,
        typer.Option(
            "--ray-address",
            help="HOST:PORT of a Ray cluster that this machine has joined, or auto; default: RAY_ADDRESS, else one of "
            "our own on this machine, for as long as the run lasts.",
        ),
    ] = "",
) -> None:
    """Train a team with M-GRPO. Ctrl-C is safe: go on with --resume."""
    from backend.builders.market import account_of, load_market, unknown_to_training
    from backend.policies.hardware import described, moved
    from backend.store.run_record import new_run_id, recorded_run
    from backend.store.store import Store
    from backend.training.rl_job import check_ready
    from backend.training.rl_job import train as run_training

    settings = with_market(load_config(config, set_ or []), data, symbols, timeframe, resample, funding, news)
    if dry_run:
        _print_config(settings)
        return
    if dry_run_step:
        from backend.cli.dry_run import dry_run_step as dry_run_once

        dry_run_once(settings)
        return
    if launch and not resume:
        serve.check(settings, workers)
    elif not resume:
        check_ready(settings)  # before anything is recorded
    cluster = serve.cluster_of(launch == Launch.RAY, ray_address, store)
    with ExitStack() as stack:
        address = stack.enter_context(serve.served_store(store, runs)) if launch else store
        opened = stack.enter_context(Store.open(address))
        run = resume or new_run_id("train")
        if resume:
            if opened.run(resume).kind != "train":
                raise UserError(f"run {resume} is no training run: `cryptosentinel runs` lists those that are")
            if not (runs / run).is_dir():
                raise UserError(f"{runs / run}: no such folder, so nothing to go on from: give --runs as before")
            settings = config_from_dict(opened.run(resume).config["config"], f"the configuration of run {resume}")
            serve.check_resumed(runs / run, launch is not None)
            if launch:
                serve.check(settings, workers)
            serve.claim(opened, run)
        market = load_market(settings.market, settings.costs)
        if resume and opened.run(resume).data_hash != market.content_hash:
            raise UserError(
                f"run {resume} was trained on other data (its hash differs from that of {market.source} now): resume "
                "with the same files, or start a new run"
            )
        beyond = unknown_to_training(account_of(settings, market))
        if beyond:
            console.print(f"note: training does not score {', '.join(beyond)}; `evaluate` and `backtest` do")
        how = f" --launch {launch} --workers {workers}" if launch else ""
        how += f" --ray-address {ray_address}" if ray_address else ""
        console.print(
            f"run {run} in {runs / run}; stop with Ctrl-C and go on with: cryptosentinel train --resume {run}{how}"
        )
        hardware = described(settings.training)
        told = moved(opened.run(run).config.get("hardware", {}), hardware) if resume else None
        if told:
            console.print(f"note: {told}", markup=False)
        with (
            recorded_run(
                opened, run, "train", settings.training.seed, market.content_hash, settings, how, hardware=hardware
            ),
            bars() as shown,
        ):
            if launch:
                state = serve.launched(settings, market, address, run, runs, workers, shown, cluster)
            else:
                state = run_training(settings, market, opened, run, runs / run, shown.report, shown.trained).state
    console.print(f"done: {state.step} steps, best at step {state.best_step} (validation outcome {state.best_score})")
    console.print(f"the team is in {runs / run}; try: cryptosentinel evaluate {runs / run}")


@app.command()
def evaluate(
    folder: Annotated[Path, typer.Argument(help="Folder of a finished training run, such as runs/demo.")],
    data: DataOption = None,
    symbols: SymbolsOption = "",
    timeframe: TimeframeOption = "",
    resample: ResampleOption = "",
    funding: FundingOption = None,
    news: NewsOption = None,
    config: Annotated[
        str, typer.Option("--config", "-c", help="A preset or TOML file; default: the configuration of the run.")
    ] = "",
    set_: SetOption = None,
    baselines: BaselinesOption = "",
    store: StoreOption = "runs/store",
    runs: RunsOption = Path("runs"),
) -> None:
    """Measure a trained team against its warm start and the baselines on held-out windows, with an interval."""
    from backend.builders.market import (
        account_of,
        describe_costs,
        describe_venue,
        load_market,
        other_costs,
        venue_record,
    )
    from backend.builders.teams import configured_team, scripted_team
    from backend.evaluation.evaluate import TRAINED, WARM_STARTED, measure, summary_record, verdict
    from backend.models.manifest import MANIFEST, read_manifest
    from backend.reporting.report import write_report
    from backend.store.run_record import new_run_id, recorded_run
    from backend.store.store import Store

    own = load_config(config, set_ or []) if config else override(read_manifest(folder).config, set_ or [])
    settings = with_market(own, data, symbols, timeframe, resample, funding, news)
    settings = with_venue(settings, "", "", baselines)
    market = load_market(settings.market, settings.costs)
    teams = [
        configured_team(str(folder), settings).renamed(TRAINED),
        configured_team(str(folder), settings, trained=False).renamed(WARM_STARTED),
        scripted_team(settings.team),
    ]
    account = account_of(settings, market)
    console.print(f"costs: {describe_costs(account.costs, market)}", markup=False)
    console.print(f"venue: {describe_venue(account.venue, market)}", markup=False)
    run, started = new_run_id("evaluate"), time.monotonic()
    with Store.open(store) as opened, bars() as shown:
        with recorded_run(
            opened, run, "evaluate", settings.evaluation.seed, market.content_hash, settings, team=str(folder),
            venue=venue_record(account.venue, market),
        ):  # fmt: skip
            held_out = measure(settings, market, teams, "held_out", opened, run, shown.report).result
            twin = None
            if market.truth is not None and settings.market.edge and not settings.market.data:
                other = load_market(settings.market.model_copy(update={"edge": False}), settings.costs)
                twin = measure(settings, other, teams[:2], "no_edge", opened, run, shown.report).result
            trained = read_manifest(folder).config if (folder / MANIFEST).is_file() else settings
            sentence = verdict(held_out, twin, other_costs(trained.costs, settings.costs))
            opened.add_evaluation(summary_record(run, sentence, time.monotonic() - started))
        path = write_report(opened, run, runs / run)
    console.print(comparison_table("Held out", held_out))
    console.print(difference_line(held_out))
    console.print(sentence)
    console.print(f"report: {path}")


@app.command("config")
def config_command(config: ConfigOption = "demo", set_: SetOption = None) -> None:
    """Show every setting of a configuration with its meaning."""
    _print_config(load_config(config, set_ or []))


@app.command()
def demo(
    config: ConfigOption = "demo",
    set_: SetOption = None,
    store: StoreOption = "runs/store",
    runs: RunsOption = Path("runs"),
) -> None:
    """The whole loop in minutes: make a market, train a team in it, and measure what that changed."""
    from backend.runs.demo import run_demo
    from backend.store.store import Store

    settings = load_config(config, set_ or [])
    with Store.open(store) as opened, bars() as shown:
        result = run_demo(settings, opened, runs / "demo", console.print, shown.report, shown.trained)
    console.print(comparison_table("Held out", result.held_out))
    console.print(difference_line(result.held_out))
    console.print(comparison_table("No-edge twin", result.no_edge))
    console.print(difference_line(result.no_edge))
    console.print(f"\n{result.verdict}\n", style="bold")
    console.print(f"report: {result.report}\nnext: make ui, or cryptosentinel backtest --team {runs / 'demo'}")


def main() -> None:
    """Entry point. A user's mistake ends with exit code 2, a failed run with 1, both with one clear message."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    follow_parent()
    try:
        app()
    except (UserError, Interrupted, RunFailed, OSError) as error:
        known = message_and_code(error)
        if known is None:
            raise
        _fail(*known)


def _fail(message: str, code: int) -> None:
    errors.print(f"error: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)


def _print_config(config: Config) -> None:
    values = config.to_dict()
    table = Table("key", "value", "meaning", title="configuration", title_justify="left")
    for entry in describe():
        value: object = values
        for part in entry.key.split("."):
            assert isinstance(value, dict)
            value = value[part]
        table.add_row(entry.key, str(value), entry.meaning)
    console.print(table)


if __name__ == "__main__":
    main()
