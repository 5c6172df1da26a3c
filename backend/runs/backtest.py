"""The use case backtest: teams, strategies and baselines over one window of a market, stored with every decision, and a
report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from backend.builders.loaded_team import LoadedTeam, scripted_team
from backend.builders.market import (
    Account,
    account_of,
    is_historical,
    limits_of,
    load_market,
    other_costs,
    thinking_time_of,
    venue_record,
)
from backend.builders.plugins import load_plugins
from backend.builders.spans import RECORDED
from backend.builders.strategies import NamedStrategy, made_ready, named_strategies, named_strategy
from backend.builders.variants import ALTERED_FUTURE, Variant
from backend.config.load import load_config, merged_settings
from backend.config.plugins import STRATEGY, installed
from backend.config.schema import SCRIPTED, Config, model_named
from backend.decisions.backtest_document import InferenceCost, inference_cost, write_backtest
from backend.decisions.document import write_decisions
from backend.decisions.recording import episode_decisions, remarks
from backend.evaluation.compare import baselines
from backend.evaluation.trials import IN_SAMPLE, overlaps, record_trial
from backend.models.manifest import MANIFEST, TeamManifest, read_manifest, team_folder
from backend.reporting.report import write_report
from backend.reporting.run_summary import summarise
from backend.runs.outcomes import BacktestOutcome
from backend.runs.requests import (
    RUNS,
    SILENT,
    STORE,
    BacktestRequest,
    Observer,
    RunStart,
    WindowRequest,
    check_subject,
)
from backend.runs.stored_setup import TeamSource, like_stored
from backend.runs.strategy_run import lookahead_verdict, play_strategy
from backend.runs.window import DAYS, DAYS_OF_TEAM, choose_window
from backend.store.run_record import new_run_id, recorded_run, store_at
from backend.store.store import Store
from backend.training.curriculum.queries import WARM_UP_BARS
from cryptosentinel.conversation.headlines import masked_headline
from cryptosentinel.conversation.masking import MAX_TEXT_CHARS
from cryptosentinel.episode import EpisodeResult, play
from cryptosentinel.llm.engine import engine_notes
from cryptosentinel.protocol.untrusted import clean
from cryptosentinel.scheduler import Throughput, run_all
from cryptosentinel.team import TeamDecision
from simulator.backtest.run import BacktestResult, BacktestRun, Window
from simulator.checks.perturbation import AlteredRun
from simulator.checks.verdict import LookaheadVerdict
from simulator.errors import UserError
from simulator.folders import sample_data
from simulator.market.coins import COINS, base_coin
from simulator.market.gaps import gap_summary
from simulator.market.market import Market
from simulator.market.timeframes import DAY_MS
from simulator.strategies import MatchedRandom, Oracle
from simulator.synthetic.truth import truth_of

_GENERATED = {"kind", "coins", "bars", "seed", "edge", "drift_ratio", "news_accuracy"}  # settings of a generated market
_NEWS_BEFORE = 30 * DAY_MS  # how far back before a window the tools look
_RECORDED = "recorded"  # the preset of recorded bars; generated ones have the defaults

Subject = LoadedTeam | NamedStrategy  # who is tested


@dataclass(frozen=True)
class BacktestPlan:
    """A backtest that was checked and can be played. `account` is that of `config` and `market`. With `recording`, one
    of the subjects is a team, and its calls are recorded in that file. `markets` are the altered ones of those who
    trade one, by name; `sources` say how each subject was named; `in_sample` is a sentence for each team that was
    trained on this window."""

    config: Config
    market: Market
    account: Account
    window: Window
    subjects: Sequence[Subject]
    seed: int = 1
    notes: tuple[str, ...] = ()
    recording: Path | None = None
    check_lookahead: bool = True
    markets: Mapping[str, Market] = field(default_factory=dict)
    in_sample: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, TeamSource] = field(default_factory=dict)
    why_window: str = ""

    def market_of(self, subject: str) -> Market:
        """The market that a subject trades."""
        return self.markets.get(subject, self.market)


def backtest_teams(
    request: BacktestRequest,
    store: Store | str | Path = STORE,
    runs: Path = RUNS,
    observer: Observer = SILENT,
    own: Mapping[str, NamedStrategy] = MappingProxyType({}),
) -> BacktestOutcome:
    """Play a backtest, record it in `store` and write its report into its folder below `runs`. `own` has the strategies
    among the request's teams that are not names but code of a script or notebook.

    Raises `UserError` for a request that cannot be met; then nothing is recorded.
    """
    if request.like:
        with store_at(store) as opened:
            request = like_stored(opened, request, observer)
    plan, run = plan_backtest(request, own), new_run_id("backtest")
    folder = runs / run
    observer.started(
        RunStart(run, folder, plan.config, plan.market, plan.account, plan.window, plan.notes, plan.why_window)
    )
    with store_at(store) as opened:
        report = play_backtest(plan, opened, run, folder, observer)
        summary = summarise(opened, run)
    return BacktestOutcome(run, folder, report, plan.config, summary)


def plan_backtest(request: BacktestRequest, own: Mapping[str, NamedStrategy] = MappingProxyType({})) -> BacktestPlan:
    """Load what a backtest needs, and check it; `own` as for `backtest_teams`. Raises `UserError`."""
    only_strategies = all(name in own or names_strategy(name) for name in request.tested)
    request = request.native() if only_strategies else request
    config = market_settings(request)
    load_plugins(config)
    market = load_market(config.market, config.costs)
    teams = request.tested
    named = [name for name in teams if name not in own]
    found = {**{name: named_strategy(name) for name in named if names_strategy(name)}, **own}
    strategies = {name: made_ready(found[name]) for name in teams if name in found}
    warm_ups = [strategies[name][1] if name in strategies else WARM_UP_BARS for name in teams]
    own_world = not config.market.data and trained_world(teams) is not None
    days: int | None = DAYS_OF_TEAM if own_world else DAYS
    if only_strategies:  # they are quick: all of the history, and a decision at each bar
        request, days = replace(request, decide_every=request.decide_every or 1), None
    elif not (request.decide_every or config.market.data):
        request = replace(request, decide_every=config.team.decide_every or 0)
    chosen_window = choose_window(market, request, max(warm_ups), days)
    window = chosen_window.window
    first, last = (int(market.open_time[bar]) + market.interval for bar in (window.start, window.stop))
    marked = overlaps(named, config, market, first, last, allowed=request.in_sample)
    subjects = [strategies[name][0] if name in strategies else subject_of(name, config) for name in teams]
    if len({subject.name for subject in subjects}) < len(subjects):
        raise UserError("the same team is named twice: name each once in --team")
    sources = {subject.name: TeamSource(name) for subject, name in zip(subjects, teams, strict=True)}
    altered: dict[str, Market] = {}
    if request.variants:
        subjects, altered = _with_variants(request, config, subjects, sources, market, window)
    if request.record and sum(isinstance(subject, LoadedTeam) for subject in subjects) != 1:
        raise UserError("--record is for the calls of one team: name one, without --variant")
    chosen = [note for subject in subjects if isinstance(subject, LoadedTeam) for note in subject.notes]
    notes = [
        *marked.values(),
        *chosen_window.notes,
        *chosen,
        *notes_on(named, config, market),
        *notes_on_headlines(subjects, market, window),
    ]
    account = account_of(config, market)
    return BacktestPlan(
        config, market, account, window, subjects, request.seed, tuple(notes),
        Path(request.record) if request.record else None, request.check_lookahead, altered, marked, sources,
        chosen_window.why,
    )  # fmt: skip


def _with_variants(
    request: BacktestRequest, config: Config, subjects: Sequence[Subject], sources: dict[str, TeamSource],
    market: Market, window: Window,
) -> tuple[list[Subject], dict[str, Market]]:  # fmt: skip
    """The subjects and behind each its variants, whose sources are added, and the markets that are altered.

    Raises `UserError` for a variant that does not exist or cannot be made of a subject.
    """
    every: list[Subject] = []
    altered: dict[str, Market] = {}
    for subject in subjects:
        every.append(subject)
        for variant in map(Variant.parse, dict.fromkeys(request.variants)):
            changed: Subject
            if isinstance(subject, LoadedTeam):
                changed = variant.of(subject)
            elif variant.changes_market:
                changed = replace(subject, name=f"{subject.name}{variant.suffix}")
            else:
                raise UserError(f"variant {variant} is of a team, and {subject.name} is a strategy: leave it out")
            if changed.name in {one.name for one in (*subjects, *every)}:
                raise UserError(f"{changed.name} would be played twice: leave out the variant {variant}")
            if variant.changes_market:
                if config.venue.finer:
                    raise UserError(f"variant {variant} has no finer bars: run it without them")
                altered[changed.name] = variant.market(market, window.start, window.stop, request.seed)
            every.append(changed)
            sources[changed.name] = TeamSource(sources[subject.name].team, str(variant))
    return every, altered


def market_settings(request: WindowRequest) -> Config:
    """The configuration of a request on a market: its own, or the preset for its data. Without either it is the world
    of a tested team that was trained in a generated market, else the sample.

    Raises `ConfigError` as `load_config` does.
    """
    chosen = request.config or _preset_for(request.overrides, request.data)
    market = merged_settings(chosen, request.overrides, request.options())[0].get("market", {})
    if isinstance(market, dict) and not (market.get("data") or market.get("source") or _GENERATED & set(market)):
        world = None if chosen else trained_world(request.tested)
        if world is not None:
            return request.on(world)
        request = replace(request, data=sample_data())
    return request.on(chosen)


def trained_world(names: Sequence[str]) -> Config | None:
    """Market, costs and team settings of the first of the teams `names` that was trained in a generated market; None
    where none was."""
    for name in names:
        folder = team_folder(name)
        if (folder / MANIFEST).is_file():
            manifest = read_manifest(folder)
            if manifest.trained_on and manifest.trained_on[-1].market is not None:
                span = manifest.trained_on[-1]
                world = {"market": span.market, "costs": span.costs, "team": manifest.team}
                return Config().model_copy(update=world)
    return None


_KINDS = {
    "recorded": "recorded bars",
    "trend": "an invented market of trends",
    "private": "an invented market in which each role knows something of its own",
}


def _kind_note(name: str, manifest: TeamManifest, market: Market) -> str | None:
    """That a team is played on another kind of market than it was trained on; None where it is the same kind, or its
    own is not known."""
    tested = "recorded" if market.truth is None else truth_of(market).config.kind
    spans = manifest.trained_on
    own = {RECORDED if one.origin == RECORDED else one.market and one.market.kind for one in spans} - {None}
    if not own or tested in own:
        return None
    kinds = " and ".join(_KINDS[str(one)] for one in sorted(str(one) for one in own))
    return f"{name} was trained on {kinds} and is played on {_KINDS[tested]}, which it has not learned"


def settings_for(config: str, overrides: Sequence[str], data: str | Path | None) -> Config:
    """The configuration `config`. Empty, it is the preset `recorded` for recorded bars in `data`, else the defaults.

    Without `data`, the folder in the configuration counts. Raises `ConfigError` as `load_config` does.
    """
    return load_config(config or _preset_for(overrides, data), overrides)


def _preset_for(overrides: Sequence[str], data: str | Path | None) -> str | None:
    market = merged_settings(None, overrides)[0].get("market", {})
    folder = data or (market.get("data") if isinstance(market, dict) else "")
    return _RECORDED if folder and is_historical(folder) else None


def names_strategy(name: str) -> bool:
    """Whether `name` is that of a strategy and not of a team. Nothing is imported for the answer."""
    if model_named(name):  # which may have a colon, as qwen3:8b has
        return False
    known = name in named_strategies() or installed(STRATEGY.group, name) is not None
    return known or (":" in name and not Path(name).exists())


def subject_of(name: str, config: Config) -> Subject:
    """The team or strategy called `name`: `scripted`, `model`, `model=NAME`, a strategy by its name or as module:Class,
    a recording, or the folder of a run. Raises `UserError` where there is none."""
    check_subject(name)
    if names_strategy(name):
        return named_strategy(name)
    if name == SCRIPTED:
        return scripted_team(config.team)
    # Neither a strategy nor the scripted team needs them.
    from backend.builders.loaded_team import replayed_team
    from backend.builders.teams import configured_team
    from cryptosentinel.llm.recording import is_recording

    if is_recording(Path(name)):
        return replayed_team(Path(name))
    return configured_team(name, config)


def notes_on(names: Sequence[str], config: Config, market: Market) -> list[str]:
    """What a reader must know of the subjects `names`: a market or costs that differ from those of their training."""
    notes = []
    for name in names:
        folder = team_folder(name)
        if name != SCRIPTED and (folder / MANIFEST).is_file():
            manifest = read_manifest(folder)
            kind = _kind_note(name, manifest, market)
            notes += [kind] if kind else []
            other = other_costs(manifest.costs or config.costs, config.costs)
            if other:
                notes.append(f"{name} was trained with other costs than it is tested with: {', '.join(other)}")
    return notes


def notes_on_headlines(subjects: Sequence[Subject], market: Market, window: Window) -> list[str]:
    """What each masked team reads of the news; nothing where no headline names anything, as on a synthetic market."""
    names = [one.name for one in subjects if isinstance(one, LoadedTeam) and one.team.settings.mask_symbols]
    first, last = (int(market.open_time[bar]) + market.interval for bar in (window.start, window.stop))
    known = [one.text for one in market.news if first - _NEWS_BEFORE <= one.known_at <= last] if names else []
    others = frozenset({base_coin(symbol) for symbol in market.symbols} - COINS.keys())
    masked = [masked_headline(text, others) for text in {clean(text, MAX_TEXT_CHARS) for text in known}]
    changed, withheld = sum(one.replaced > 0 for one in masked), sum(one.withheld for one in masked)
    said = f"headlines were masked, {changed} of {len(masked)}, and {withheld} withheld; some names still pass"
    return [f"{name}: {said}" for name in names] if changed else []


def play_backtest(plan: BacktestPlan, store: Store, run: str, folder: Path, observer: Observer = SILENT) -> Path:
    """Play every subject and the configured baselines, store all of it under `run`, and write the report into `folder`.
    Returns the report's path. A baseline that is a subject already is not played again.
    """
    config, market, window, subjects = plan.config, plan.market, plan.window, plan.subjects
    bars = window.stop - window.start
    marks: dict[str, Any] = {IN_SAMPLE: dict(plan.in_sample)} if plan.in_sample else {}
    with recorded_run(
        store, run, "backtest", plan.seed, market.content_hash, config,
        data=market.source, gaps=gap_summary(market), teams=[subject.name for subject in subjects],
        venue=venue_record(plan.account, market, window), notes=list(plan.notes), decide_every=window.decide_every,
        sources={name: asdict(source) for name, source in plan.sources.items()},
        **marks,
    ):  # fmt: skip
        results: dict[str, BacktestResult] = {}
        later: list[str] = []  # notes that only the playing shows
        refused: list[str] = []
        trials = 1
        for number, subject in enumerate(subjects):

            def advanced(done: int, before: int = number * bars) -> None:
                observer.progress("backtest", before + done, len(subjects) * bars)

            cost: InferenceCost | None = None
            lookahead: LookaheadVerdict | None = None
            if isinstance(subject, NamedStrategy):
                played = play_strategy(subject, plan.market_of(subject.name), window, plan.account.terms)
                result = played.result
                advanced(bars)
                lookahead = lookahead_verdict(
                    played,
                    skip=not plan.check_lookahead,
                    seed=plan.seed,
                    on_progress=lambda done, total: observer.progress("look-ahead", done, total),
                )
                if lookahead is not None and lookahead.status != "clean":
                    later.append(f"{subject.name}: {lookahead.sentence()}")
            else:
                throughput = Throughput()
                episode, notes_on_engine = _episode(subject, plan, throughput, advanced, store, run)
                result = episode.result
                cost = inference_cost(episode.ledger, throughput, subject.replayed)
                later += remarks(subject.name, episode, plan.market_of(subject.name))
                later += notes_on_engine
            counted = record_trial(
                store, run, subject, config, plan.market_of(subject.name), window.start, window.stop,
                every=window.decide_every, seed=plan.seed,
            ).trials  # fmt: skip
            trials = trials if subject.name in plan.markets else counted
            results[subject.name] = result
            refused += [f"{subject.name}: {result.refused}"] if result.refused else []
            write_backtest(store, run, subject.name, result, cost, lookahead)
        for name, result in _baselines(plan, results).items():
            write_backtest(store, run, name, result)
        record = store.run(run)
        notes = [*refused, *plan.notes, *dict.fromkeys(later)]
        store.set_document(replace(record, config={**record.config, "notes": notes, "trials": trials}))
    return write_report(store, run, folder)


def _baselines(plan: BacktestPlan, results: Mapping[str, BacktestResult]) -> dict[str, BacktestResult]:
    """The configured baselines that are not among `results`. They decide once a day at most, as they are meant; but the
    oracle and the random trader that is matched to the first of `results` have its rhythm."""
    names = [name for name in plan.config.evaluation.baselines if name not in results]
    own = plan.window
    calm = replace(own, decide_every=max(own.decide_every, DAY_MS // plan.market.interval))
    played: dict[str, BacktestResult] = {}
    for name in names:
        window = own if name in (MatchedRandom.name, Oracle.name) else calm
        matched = [next(iter(results.values()))]
        for _, [result] in baselines([name], plan.market, [window], plan.account, matched, plan.seed).items():
            played[name] = result
    return played


def _episode(
    subject: LoadedTeam,
    plan: BacktestPlan,
    throughput: Throughput,
    on_decision: Callable[[int], None],
    store: Store,
    run: str,
) -> tuple[EpisodeResult, tuple[str, ...]]:
    """The team's episode with its decisions stored, and the notes of its engine. If it ends early, its decisions so far
    are stored too. `on_decision` gets the bars that are done."""
    market = plan.market_of(subject.name)
    game: BacktestRun
    if subject.name in plan.sources and plan.sources[subject.name].variant == ALTERED_FUTURE:
        game = AlteredRun(market, plan.window, plan.seed, **plan.account.terms)
    else:
        game = BacktestRun(market, plan.window, **plan.account.terms)
    team, recorder = subject, None
    if plan.recording is not None:
        from backend.builders.loaded_team import recording

        team, recorder = recording(subject, plan.recording)
    decisions: list[tuple[int, TeamDecision]] = []
    task = play(
        team.team, game, limits_of(plan.config.guard), plan.seed,
        on_decision=on_decision, price=team.price, decisions=decisions,
        thinking_time=thinking_time_of(plan.config),
    )  # fmt: skip
    try:
        [episode] = run_all([task], team.engine, throughput=throughput)
    except BaseException:  # Ctrl-C, or an engine that died
        episode = EpisodeResult(game.result(), decisions)
        write_decisions(store, episode_decisions(run, team.name, team.team.codec, episode))
        write_backtest(store, run, team.name, episode.result)
        raise
    finally:
        if recorder is not None:
            recorder.close()
    write_decisions(store, episode_decisions(run, team.name, team.team.codec, episode))
    return episode, engine_notes(team.engine)
