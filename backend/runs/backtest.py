"""A backtest run: teams, strategies and baselines over one window of a market, stored with every decision and told in a
report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from backend.builders.market import (
    Account,
    account_of,
    is_historical,
    limits_of,
    load_market,
    other_costs,
    venue_record,
)
from backend.builders.recorded_team import is_cassette, recording, replayed_team
from backend.builders.strategies import NamedStrategy, describe_failure, named_strategies, strategy_maker
from backend.builders.teams import PROMPTED, SCRIPTED, UNMASKED, LoadedTeam, configured_team
from backend.config.base import suggestion
from backend.config.load import load_config
from backend.config.schema import Config
from backend.decisions.document import episode_records, remarks
from backend.evaluation.compare import baselines
from backend.evaluation.memorisation import cutoff_note, masking_note
from backend.models.manifest import MANIFEST, read_manifest
from backend.reporting.inference_cost import thinking_of
from backend.reporting.report import write_report
from backend.store.records import BacktestRecord
from backend.store.run_record import new_run_id, recorded_run
from backend.store.store import Store
from backend.training.curriculum.queries import WARM_UP_BARS
from cryptosentinel.episode import EpisodeResult, play
from cryptosentinel.guard.guard import GuardLimits
from cryptosentinel.llm.cassette.engine import Cassette
from cryptosentinel.scheduler import Throughput, run_all
from cryptosentinel.team import TeamDecision
from simulator.backtest.run import BacktestResult, BacktestRun, Window, run_backtest
from simulator.errors import DataError, UserError
from simulator.market.bar_checks import find_gaps
from simulator.market.market import Market
from simulator.market.timeframes import DAY_MS, format_time, parse_time

RECORDED, SYNTHETIC = "recorded", "demo"  # presets
DEFAULT_DAYS = 90

OnProgress = Callable[[int, int], None]  # bars done, of how many
Subject = LoadedTeam | NamedStrategy  # who is tested


def settings_for(config: str, overrides: Sequence[str], data: Path | None) -> Config:
    """The configuration of a backtest on the folder `data`: `config`, or where it is empty the preset for these bars.

    Without `data` its own folder counts. Raises `ConfigError` as `load_config` does.
    """
    if config:
        return load_config(config, overrides)
    settings = load_config(SYNTHETIC, overrides)
    folder = data or settings.market.data
    return load_config(RECORDED, overrides) if folder and is_historical(folder) else settings


def subject_of(name: str, config: Config) -> Subject:
    """Who is called `name`: `scripted`, `model`, a strategy by its name or as module:Class, or the folder of a run.

    Raises `UserError` where it is nobody.
    """
    known = named_strategies()
    if name in known or (":" in name and not Path(name).exists()):
        return NamedStrategy(name, strategy_maker(name))
    if name not in (SCRIPTED, PROMPTED) and not Path(name).exists():
        close = suggestion(name, [SCRIPTED, PROMPTED, *known])
        raise UserError(
            f"no team '{name}'{close}: give 'scripted', 'model' (see engine.model), a strategy ({', '.join(known)}), "
            f"your own as module:Class, a cassette, or the folder of a finished training (one that holds {MANIFEST})"
        )
    if is_cassette(Path(name)):
        return replayed_team(Path(name))
    return configured_team(name, config)


def notes_on(names: Sequence[str], config: Config, market: Market, window: Window) -> list[str]:
    """What a reader must know of the subjects `names`: the costs that a trained team has not been trained with, and
    that its model may have read about the window."""
    notes = []
    first, last = (int(market.open_time[bar]) + market.interval for bar in (window.start, window.stop))
    for name in names:
        if name != SCRIPTED and (Path(name) / MANIFEST).is_file():
            own = read_manifest(Path(name)).config
            other = other_costs(own.costs, config.costs)
            if other:
                notes.append(f"{name} was trained with other costs than it is tested with: {', '.join(other)}")
            cutoff = config.team.knowledge_cutoff or own.team.knowledge_cutoff
            warning = cutoff_note(name, cutoff, first, last)
            notes += [] if warning is None else [warning]
    return notes


def with_unmasked(subjects: Sequence[Subject]) -> list[Subject]:
    """Each subject, and behind a team that is masked the same team without masks. Raises `UserError` for none such."""
    paired: list[Subject] = []
    for subject in subjects:
        paired.append(subject)
        if isinstance(subject, LoadedTeam) and subject.team.settings.mask_symbols:
            paired.append(subject.unmasked())
    if len(paired) == len(subjects):
        raise UserError("there is no masked team to be shown the names: name a team, and leave team.mask_symbols on")
    return paired


def decision_interval(market: Market, decide_every: int) -> int:
    """Bars between decisions: as given, or a day's where 0, but at least one."""
    return decide_every or max(1, DAY_MS // market.interval)


def window_of(market: Market, start: int | None, end: int | None, decide_every: int) -> Window:
    """The window between two times (ms); by default the last 90 days. Raises `DataError` where too little is left.

    The tools need history, so the first decision comes no earlier than it is there.
    """
    last = len(market) - 1
    if end is not None:
        last = min(last, (end - int(market.open_time[0])) // market.interval - 1)
    if start is None:
        first = last - DEFAULT_DAYS * max(1, DAY_MS // market.interval)
    else:
        first = -((int(market.open_time[0]) - start) // market.interval) - 1  # the first close at or after `start`
    first = max(first, WARM_UP_BARS)
    if first >= last:
        raise DataError(
            f"{market.source}: the window is too short: {WARM_UP_BARS} bars of history must come before its first "
            f"decision and at least one bar after; there are bars from {format_time(int(market.open_time[0]))} to "
            f"{format_time(int(market.open_time[-1]))}. Choose other dates or a finer timeframe"
        )
    return Window(int(first), int(last), decide_every)


def backtest(
    config: Config,
    market: Market,
    account: Account,
    window: Window,
    subjects: Sequence[Subject],
    store: Store,
    run: str,
    folder: Path,
    seed: int,
    on_progress: OnProgress,
    notes: Sequence[str] = (),
    cassette: Path | None = None,
) -> Path:
    """Run every subject and the configured baselines over `window`, store all of it under `run` with the `notes`, and
    write the report. Returns its path. `account` is that of `config` and `market`.

    A baseline that is a subject already is not run again. The calls of teams are recorded in `cassette`, where it is
    given; then only one of the subjects may be a team.
    """
    limits = limits_of(config.guard)
    bars = window.stop - window.start
    with recorded_run(
        store, run, "backtest", seed, market.content_hash, config,
        data=market.source, find_gaps=find_gaps(market).summary(), teams=[one.name for one in subjects],
        venue=venue_record(account.venue, market), notes=list(notes),
    ):  # fmt: skip
        results: dict[str, BacktestResult] = {}
        seen: list[str] = []  # what only shows while it is played and a reader must know
        for number, subject in enumerate(subjects):

            def advanced(done: int, before: int = number * bars) -> None:
                on_progress(before + done, len(subjects) * bars)

            more: dict[str, Any] = {}
            if isinstance(subject, NamedStrategy):
                results[subject.name] = _tested(subject, market, window, account)
                advanced(bars)
            else:
                game, throughput = BacktestRun(market, window, **account.terms), Throughput()
                team, recorder = (subject, None) if cassette is None else recording(subject, cassette)
                try:
                    episode = _episode(team, game, limits, seed, advanced, throughput, store, run)
                finally:
                    if recorder is not None:
                        recorder.close()
                results[subject.name] = episode.result
                seen += remarks(subject.name, episode, market)
                more = thinking_of(episode.ledger, throughput, isinstance(subject.engine, Cassette))
            store.add_backtest(BacktestRecord(run, subject.name, {**results[subject.name].to_dict(), **more}))
        names = [name for name in config.evaluation.baselines if name not in results]
        matched = [next(iter(results.values()))]
        for name, [result] in baselines(names, market, [window], account, matched, seed).items():
            store.add_backtest(BacktestRecord(run, name, result.to_dict()))
        for name in results:
            if name + UNMASKED in results:
                seen.append(masking_note(name, results[name], results[name + UNMASKED], seed))
        if seen:
            record = store.run(run)
            store.add_run(replace(record, config={**record.config, "notes": [*notes, *dict.fromkeys(seen)]}))
    return write_report(store, run, folder)


def _episode(
    subject: LoadedTeam,
    game: BacktestRun,
    limits: GuardLimits,
    seed: int,
    on_decision: Callable[[int], None],
    throughput: Throughput,
    store: Store,
    run: str,
) -> EpisodeResult:
    """The team's episode, its decisions stored: also those up to where it ended early, if it does."""
    decisions: list[tuple[int, TeamDecision]] = []
    talk = play(subject.team, game, limits, seed, on_decision=on_decision, budget=subject.budget, decisions=decisions)
    try:
        [episode] = run_all([talk], subject.engine, throughput=throughput)
    except BaseException:  # Ctrl-C, or an engine that died: what was decided is not lost with it
        episode = EpisodeResult(game.result(), decisions)
        store.add_decisions(episode_records(run, subject.name, subject.team.codec, episode))
        store.add_backtest(BacktestRecord(run, subject.name, episode.result.to_dict()))
        raise
    store.add_decisions(episode_records(run, subject.name, subject.team.codec, episode))
    return episode


def _tested(subject: NamedStrategy, market: Market, window: Window, account: Account) -> BacktestResult:
    """The strategy's run. Raises `UserError` where the user's own strategy fails."""
    strategy = subject.make(market)
    try:
        return run_backtest(market, strategy, window, **account.terms)
    except UserError:
        raise
    except Exception as error:
        if ":" not in subject.name:
            raise
        raise UserError(f"{subject.name} failed: {describe_failure(error)}; mend it first") from error


def run_backtest_job(
    store: Store,
    *,
    data: Path,
    symbols: list[str],
    timeframe: str,
    team: str,
    start: str | None,
    end: str | None,
    seed: int,
    folder: Path,
    on_progress: OnProgress,
    overrides: Sequence[str] = (),
) -> str:
    """A backtest as a page asks for it: one team or strategy on a folder of data, with `overrides` of the preset such
    as `costs.impact=0`. Returns the run's id. Raises `UserError`."""
    market_of = [f"market.data={str(data)!r}", f"market.timeframe={timeframe}", f"market.symbols={','.join(symbols)!r}"]
    config = settings_for("", [*market_of, *overrides], data)
    market = load_market(config.market, config.costs)
    interval = decision_interval(market, config.team.decide_every)
    window = window_of(market, parse_optional(start), parse_optional(end), interval)
    run, subject = new_run_id("backtest"), subject_of(team, config)
    notes = notes_on([team], config, market, window)
    account = account_of(config, market)
    backtest(config, market, account, window, [subject], store, run, folder / run, seed, on_progress, notes)
    return run


def parse_optional(text: str | None) -> int | None:
    """Milliseconds of a date, None for none."""
    return parse_time(text) if text else None
