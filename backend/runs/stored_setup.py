"""What a stored backtest was made with, read back from its record: configuration, window, seed, and how its teams were
named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import TypeAdapter, ValidationError

from backend.builders.strategies import named_strategies
from backend.config.load import load_config
from backend.config.schema import SCRIPTED, Config
from backend.decisions.backtest_document import read_backtests
from backend.runs.requests import SILENT, BacktestRequest, Observer
from backend.store.records import RunRecord
from backend.store.run_record import own_config
from backend.store.store import Store
from simulator.backtest.run import Window
from simulator.errors import UserError
from simulator.market.timeframes import format_time

_SOURCES, _EVERY = "sources", "decide_every"  # in the record's document


@dataclass(frozen=True)
class TeamSource:
    """How a subject of a backtest was named, as `--team` takes it, and which variant of it it was, if any."""

    team: str
    variant: str = ""


@dataclass(frozen=True)
class StoredSetup:
    """The run, its configuration, its window on its market, and the subjects that it tested, by name."""

    run: RunRecord
    config: Config
    window: Window
    times: tuple[int, int]
    sources: Mapping[str, TeamSource]

    @property
    def teams(self) -> tuple[str, ...]:
        """Its subjects as `--team` takes them, without their variants."""
        return tuple(dict.fromkeys(source.team for source in self.sources.values()))

    @property
    def window_words(self) -> tuple[str, str]:
        """The window's first and last close, as UTC dates and times."""
        first, last = self.times
        return format_time(first), format_time(last)


def like_stored(store: Store, request: BacktestRequest, observer: Observer = SILENT) -> BacktestRequest:
    """`request` on the market, in the window and with the seed of the stored backtest `request.like`.

    What the request itself names goes before: teams, overrides, data, baselines, another seed. Raises `UserError` for a
    run that is not a backtest or does not say how its teams were named.
    """
    given = [name for name in ("start", "end", "decide_every") if getattr(request, name)]
    if given:
        raise UserError(f"the window is that of run {request.like}: leave out {', '.join(given)}, or leave out --like")
    setup = stored_setup(store, request.like)
    first, last = setup.window_words
    return replace(
        request,
        like="",
        config=load_config(setup.config, request.overrides, name="the options"),
        overrides=(),
        teams=request.teams or setup.teams,
        start=first,
        end=last,
        decide_every=setup.window.decide_every,
        seed=setup.run.seed if request.seed == BacktestRequest.seed else request.seed,
    )


def stored_setup(store: Store, run_id: str) -> StoredSetup:
    """How a stored backtest was made. Raises `UserError` for another kind of run, one without a result, and an
    imported one."""
    run = store.run(run_id)
    results = {one.name: one.document for one in read_backtests(store, run_id)}
    stated = run.config.get("teams")
    tested = [str(name) for name in stated if name in results] if isinstance(stated, list) else []
    if run.kind != "backtest" or not tested:
        raise UserError(f"run {run_id} is not a backtest with a result ({run.kind}, {run.status}): choose a backtest")
    config = own_config(run)
    document = results[tested[0]]
    every = run.config.get(_EVERY)
    if not isinstance(every, int) or every < 1:
        raise UserError(f"run {run_id} does not contain how often its teams decided: make the backtest again")
    window = Window(document.start, document.start + len(document.times) - 1, every)
    return StoredSetup(
        run,
        config,
        window,
        (document.times[0], document.times[-1]),
        {name: source for name in tested if (source := named_source(run, name)) is not None},
    )


def named_source(run: RunRecord, name: str) -> TeamSource | None:
    """How the subject `name` of a run was named, as its record says; None where that is not known.

    An imported run may name nothing that is loaded but what the program has itself.
    """
    document = run.config.get(_SOURCES)
    try:
        source = TypeAdapter(dict[str, TeamSource]).validate_python(document).get(name)
    except ValidationError:
        return None
    inside = source is not None and (source.team == SCRIPTED or source.team in named_strategies())
    return source if inside or not run.imported else None
