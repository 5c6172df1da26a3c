"""What a caller gives to a use case: a frozen request, and an observer that shows what happens.

A request is declared once: its fields are the options of the command line, the arguments of the Python API and what a
page hands to a job. A field that is left out changes nothing: then the configuration decides. No heavy library is
imported.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, get_type_hints

from backend.config.base import suggestion
from backend.config.load import load_config
from backend.config.market import NONE
from backend.config.places import RUNS
from backend.config.places import STORE as STORE
from backend.config.plugins import STRATEGY, installed
from backend.config.schema import BASELINES, PROMPTED, SCRIPTED, Config, model_named
from backend.models.manifest import MANIFEST, SAMPLE_TEAM, read_manifest, team_folder
from cryptosentinel.team_settings import split_names
from simulator.errors import UserError
from simulator.folders import data_folder, named_data, sample_data, timeframes_in
from simulator.market.timeframes import TIMEFRAMES, parse_time

if TYPE_CHECKING:  # they import torch and pandas, which take seconds
    from backend.builders.market import Account
    from backend.training.trainer import Progress
    from simulator.backtest.run import Window
    from simulator.market.market import Market

GENERATED, RECORDED_TRAINING = "demo", "recorded_training"  # presets
DATA, WHO, COSTS, CHECKS, ADVANCED = "Data", "Who", "Costs", "Checks", "Advanced"  # parts of a command's help


@dataclass(frozen=True)
class Option:
    """How a field of a request is given on the command line; it stands in the field's annotation.

    `names` are other than the field's own; `setting` is the key of the configuration that it sets. A `repeated` option
    is given once for each value, which may hold commas; an `argument` has no name.
    """

    panel: str
    help: str
    names: tuple[str, ...] = ()
    setting: str = ""
    repeated: bool = False
    argument: bool = False


Baselines = Annotated[
    tuple[str, ...] | None,
    Option(WHO, "Strategies to compare with: hold,ema_cross; none for none.", (), "evaluation.baselines"),
]


def options_of(request: type[RunRequest] | RunRequest) -> Iterator[tuple[str, Any, Option]]:
    """Name, default and option of each field of a request that is one."""
    hints = get_type_hints(request if isinstance(request, type) else type(request), include_extras=True)
    for one in fields(request):
        declared = next(
            (mark for mark in getattr(hints[one.name], "__metadata__", ()) if isinstance(mark, Option)), None
        )
        if declared is not None:
            names = declared.names or (f"--{one.name.replace('_', '-')}",)
            yield one.name, one.default, replace(declared, names=names)


def is_list(default: Any) -> bool:
    """Whether a field with this default takes a list: an empty one, or None where the configuration has one."""
    return isinstance(default, tuple) or default is None


def check_subject(name: str) -> None:
    """Raise `UserError` where `name` is neither that of a team or strategy nor a folder, nor `module:Class`, nor
    `file.py:Class`."""
    known = sorted(set(BASELINES) - {"matched_random", "oracle"})  # these two need arguments
    path, _, attribute = name.partition(":")
    if path.endswith(".py") and not (attribute and Path(path).is_file()):
        raise UserError(_about_file(Path(path), attribute))
    if name in (SCRIPTED, PROMPTED, SAMPLE_TEAM, *known) or model_named(name) or ":" in name or Path(name).exists():
        return
    if installed(STRATEGY.group, name):
        return
    named = [SCRIPTED, PROMPTED, SAMPLE_TEAM, *known]
    raise UserError(
        f"no team '{name}'{suggestion(name, named)}: give 'scripted', 'sample' (a shipped trained team), 'model' (see "
        f"engine.model) or 'model=NAME', a strategy ({', '.join(known)}), your own as module:Class, a recording, or "
        f"the folder of a finished training (one that holds {MANIFEST})"
    )


def _about_file(path: Path, attribute: str) -> str:
    """How to name a strategy in the Python file `path`, which is read and not run."""
    if not path.is_file():
        return f"{path}: there is no such file; name your own strategy as module:Class, like my_module:MyStrategy"
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        return f"{path}: is not valid Python ({error}); fix it first"
    classes = [one for one in tree.body if isinstance(one, ast.ClassDef)]
    deciding = [one.name for one in classes if any(getattr(part, "name", "") == "decide" for part in one.body)]
    where = f" in the folder {path.parent}" if path.parent != Path() else ""
    named = [attribute] if attribute else deciding
    if not named:
        return f"{path}: has no class with a method decide(self, view, account); add one, and name it {path.stem}:CLASS"
    each = " or ".join(f"{path.stem}:{one}" for one in named)
    return f"{path} is a file; name its strategy as a module{where}: {each}"


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """`config` is a preset, the path of a TOML file, or a configuration. `overrides` are like `training.seed=5`."""

    config: Annotated[
        Config | str, Option(ADVANCED, "A preset (demo, quick, recorded, ...) or a TOML file.", ("--config", "-c"))
    ] = "demo"
    overrides: Annotated[
        tuple[str, ...],
        Option(ADVANCED, "Override a setting: section.key=value. Repeatable.", ("--set", "-s"), repeated=True),
    ] = ()

    @classmethod
    def of(cls, **given: Any) -> Self:
        """The request of what a user gives. A list may be a text with commas, or several of them; what is None or empty
        text is left out."""
        values = {name: value for name, value in given.items() if value is not None and value != ""}
        for name, default, declared in options_of(cls):
            if name in values and is_list(default) and not declared.repeated:
                values[name] = _listed(values[name], default)
            elif name in values and isinstance(default, tuple | Path):
                values[name] = type(default)(values[name]) if isinstance(default, tuple) else Path(values[name])
        return cls(**values)

    def options(self) -> dict[str, Any]:
        """The settings that other fields than the overrides set, by their dotted keys."""
        given = ((getattr(self, name), default, one.setting) for name, default, one in options_of(self) if one.setting)
        values = {key: list(value) if isinstance(value, tuple) else value for value, default, key in given
                  if value is not None and value != default}  # fmt: skip
        return {key: str(value) if isinstance(value, Path) else value for key, value in values.items()}

    def settings(self) -> Config:
        """The configuration with the overrides and the other fields applied. Raises `ConfigError`."""
        return self.on(self.config)

    def on(self, source: Config | str | None) -> Config:
        """`settings` over another preset, file or configuration; None: over the defaults."""
        return load_config(source, self.overrides, self.options())

    def check(self) -> None:
        """Refuse at once what can be seen without reading any data and without any heavy library.

        Raises `UserError`: for the settings, and for a folder of bars that is not there. The use case itself checks
        everything.
        """
        config = self.settings()
        if config.market.data:
            data_folder(config.market.data)


@dataclass(frozen=True, kw_only=True)
class MarketRequest(RunRequest):
    """A run on a market: the folder of bars, their symbols and timeframe."""

    config: Annotated[
        Config | str, Option(ADVANCED, "A preset or a TOML file; default: one that fits the data.", ("--config", "-c"))
    ] = ""
    data: Annotated[
        str | Path,
        Option(
            DATA, "Folder of bars, CSV files (imported), or 'sample'. Default: as configured.", setting="market.data"
        ),
    ] = ""
    symbols: Annotated[
        tuple[str, ...],
        Option(DATA, "Symbols: BTCUSDT,ETHUSDT. Default: as configured, or all there are.", setting="market.symbols"),
    ] = ()
    timeframe: Annotated[str, Option(DATA, f"Bars to read: {' '.join(TIMEFRAMES)}.", (), "market.timeframe")] = ""
    resample: Annotated[
        str, Option(DATA, "Longer bars to decide on, made of those: 4h, 1d.", (), "market.resample")
    ] = ""

    def settings(self) -> Config:
        """As for every request, with the fields of the market. An empty `config` is the preset `demo`, or
        `recorded_training` where `data` is a folder of bars."""
        return self.on(self.config or (RECORDED_TRAINING if self.data else GENERATED))

    def imported(self, runs: Path = RUNS) -> tuple[Self, str]:
        """The request with the files of other programs in `data` imported into a folder of bars below `runs`, and a
        sentence about it, empty where there are none. Raises `UserError` for files that cannot be used."""
        path = Path(self.data or "")
        if not self.data or not os.path.exists(path) or timeframes_in(named_data(path)):
            return self, ""
        if not path.is_file() and not any(one.is_file() for one in path.rglob("*")):
            return self, ""
        from backend.builders.sources import bars_at  # pandas, for those who have such files

        folder, done = bars_at(path, runs)
        return replace(self, data=folder), done

    def on(self, source: Config | str | None) -> Config:
        """As for every request. Where a data source of the user's own is set, what it gives is in `market.data`."""
        config = super().on(source)
        market = config.market
        if market.source and not market.data:
            return load_config(config, options=self._from_source(config))
        there = timeframes_in(Path(market.data)) if market.data else set()
        if len(there) == 1 and there <= TIMEFRAMES.keys() and not self._sets_timeframe(source):
            [only] = there
            if TIMEFRAMES[market.timeframe] % TIMEFRAMES[only]:  # nor can its bars be made of those
                return load_config(config, options={"market.timeframe": only, "market.resample": ""})
        return config

    def native(self) -> Self:
        """The request on the bars as they are, where they are of one timeframe and none is asked for. (A preset makes
        longer ones of them for teams, which take their time.)"""
        there = timeframes_in(Path(self.data)) & TIMEFRAMES.keys() if self.data else set()
        if len(there) != 1 or self._sets_timeframe(self.config):
            return self
        return replace(self, timeframe=there.pop())

    def _sets_timeframe(self, source: Config | str | None) -> bool:
        """Whether the user states the timeframe; the presets do so for the sample."""
        keys = {one.partition("=")[0].strip() for one in self.overrides}
        own = isinstance(source, Config) or (isinstance(source, str) and source.endswith(".toml"))
        return bool(self.timeframe or self.resample or own or keys & {"market.timeframe", "market.resample"})

    @staticmethod
    def _from_source(config: Config) -> dict[str, Any]:
        """The folder and timeframe of what the user's own source gives, as settings."""
        from backend.builders.sources import bars_of_source  # pyarrow and numpy, for those who have a source

        market = config.market
        folder, timeframe = bars_of_source(market.source, RUNS)
        if timeframe and market.timeframe not in (timeframe, Config().market.timeframe):
            raise UserError(
                f"market.timeframe = {market.timeframe}, and market.source = {market.source} gives bars of "
                f"{timeframe}: leave the timeframe out (market.resample makes longer bars)"
            )
        return {"market.data": str(folder)} | ({"market.timeframe": timeframe} if timeframe else {})


@dataclass(frozen=True, kw_only=True)
class WindowRequest(MarketRequest):
    """A run over one window: dates in UTC, and `decide_every` in bars, 0 for the default.

    An empty `config` is the preset for the data. `seed` is that of sampling.
    """

    start: Annotated[
        str, Option(DATA, "First day, UTC, as 2024-01-31. Default: all bars for strategies, 90 days with a team.")
    ] = ""
    end: Annotated[str, Option(DATA, "Last day, UTC, not included. Default: the end of the data.")] = ""
    decide_every: Annotated[
        int, Option(DATA, "Bars between decisions. Default: 1 for strategies, once a day with a team.")
    ] = 0
    seed: Annotated[int, Option(ADVANCED, "Seed of sampling and of random baselines.")] = 1

    @property
    def tested(self) -> tuple[str, ...]:
        """The teams and strategies that are played, by the names that the user gave."""
        return ()

    def check(self) -> None:
        """As for every request; also the dates, and the sample where no data is named."""
        config = self.on(self.config or None)
        data_folder(config.market.data or sample_data())
        for text in (self.start, self.end):
            if text:
                parse_time(text)


@dataclass(frozen=True, kw_only=True)
class BacktestRequest(WindowRequest):
    """Teams and strategies over one window, beside the baselines.

    `teams` are names as `backend.runs.backtest.subject_of` takes them. `record` is the file that the calls of the one
    team are recorded in. With `check_lookahead`, the backtest of a user's strategy ends with the look-ahead verdict.

    `variants` (`backend.builders.variants`) are played of each team besides. `like` is the id of a stored backtest: its
    configuration, data, window and seed are used. Without `teams`, its teams are played, else the scripted one. With
    `in_sample`, a window that overlaps what a team was trained on is played, and the result marked for ever; else it is
    refused.
    """

    teams: Annotated[
        tuple[str, ...],
        Option(
            WHO,
            "Who is tested: scripted, a training's folder, model or model=NAME (see engine.model), a "
            "strategy like ema_cross, your own as module:Class. Several with commas.",
            ("--team",),
        ),
    ] = ()
    baselines: Baselines = None
    variants: Annotated[
        tuple[str, ...],
        Option(
            WHO,
            "Play each team changed, too: without:ROLE, no_veto, unmasked, shuffled_news, "
            "shuffled_days, altered_future.",
            ("--variant",),
        ),
    ] = ()
    like: Annotated[
        str, Option(WHO, "A stored backtest whose data, window and settings are used, by default its teams.")
    ] = ""
    finer: Annotated[
        str, Option(COSTS, "Finer bars that decide what came first inside a bar: 1m.", (), "venue.finer")
    ] = ""
    rules: Annotated[
        str,
        Option(
            COSTS,
            "JSON of the venue's fees and limits; none for none. Default: rules.json in --data.",
            setting="venue.rules",
        ),
    ] = ""
    check_lookahead: Annotated[bool, Option(CHECKS, "Whether your own strategy looks ahead; if so, exit code 1.")] = (
        True
    )
    in_sample: Annotated[bool, Option(CHECKS, "Play a window that a team was trained on, marked so for ever.")] = False
    record: Annotated[
        str | Path,
        Option(
            ADVANCED, "Record the team's calls in NAME.jsonl; --team NAME.jsonl replays them. The same command resumes."
        ),
    ] = ""

    @property
    def tested(self) -> tuple[str, ...]:
        """See `WindowRequest`."""
        return self.teams or (() if self.like else (SCRIPTED,))

    def check(self) -> None:
        """As for every window; also the baselines and the names of the teams."""
        if self.like and self.config:
            raise UserError(f"the settings are those of run {self.like}: leave out --config, or leave out --like")
        if not self.like:
            super().check()
        load_config(None, options=self.options())
        for name in self.teams:
            check_subject(name)


@dataclass(frozen=True, kw_only=True)
class TrainRequest(MarketRequest):
    """A training with M-GRPO. `resume` is the id of a run to continue; its configuration is used. `origin` is
    what the run's record says of where its data came from."""

    resume: Annotated[str, Option(ADVANCED, "Id of a run to resume; its own configuration is used.")] = ""
    origin: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest(MarketRequest):
    """The trained team in `folder` on held-out windows. An empty `config` is the configuration of its training, where
    the store has that. With `in_sample`, windows that overlap its training are measured too, and the result is marked
    for ever."""

    folder: Annotated[
        str | Path, Option("", "Folder of a finished training, such as runs/demo.", ("folder",), argument=True)
    ] = ""
    config: Annotated[
        Config | str,
        Option(ADVANCED, "A preset or a TOML file; default: the configuration of its training.", ("--config", "-c")),
    ] = ""
    baselines: Baselines = None
    in_sample: Annotated[bool, Option(CHECKS, "Measure on windows that it was trained on, marked so for ever.")] = False

    def check(self) -> None:
        """As for every request; also the team's folder. Its manifest is checked later."""
        if not self.config:
            read_manifest(team_folder(self.folder))
        self.on(self.config or None)
        if self.data:
            data_folder(self.data)


@dataclass(frozen=True, kw_only=True)
class SftRequest(MarketRequest):
    """Supervised fine-tuning of each role on the best conversations of the teams in `sources`; `folder` becomes a team.

    A source is `scripted`, `warm_start` (the base model itself), the folder of a trained team, or of a data set of
    conversations.
    """

    sources: Annotated[
        tuple[str, ...],
        Option(
            WHO,
            "Whose conversations are learned: scripted, warm_start (the base itself), the folder of a "
            "trained team, or of a data set. Several with commas. The best of teams is kept, and all of a data set.",
            ("--from",),
        ),
    ] = ("scripted",)
    folder: Annotated[Path, Option(ADVANCED, "Folder of the run, which becomes a team.", ("--out",))] = RUNS / "sft"


@dataclass(frozen=True, kw_only=True)
class CheckRequest(WindowRequest):
    """The strategy or team `team`, checked for look-ahead or for the history it needs.

    With `greedy`, a team is not sampled: its sampling seeds depend on the number of bars before a decision.
    """

    team: Annotated[
        str, Option(WHO, "A strategy, your own as module:Class, scripted, or the folder of a training.")
    ] = ""
    greedy: bool = False

    @property
    def tested(self) -> tuple[str, ...]:
        """See `WindowRequest`."""
        return (self.team,) if self.team else ()

    def check(self) -> None:
        """As for every window; also the name."""
        super().check()
        if not self.team:
            raise UserError("nothing to check is named: give --team, such as my_module:MyStrategy")
        check_subject(self.team)


@dataclass(frozen=True, kw_only=True)
class PaperRequest(WindowRequest):
    """A paper session of a team or strategy, named as for a backtest. Without `exchange` and a setting `paper.feed` the
    data is recorded. `session` is the id of the session, made where it is empty."""

    team: Annotated[
        str,
        Option(
            WHO,
            "Who trades, as for backtest: 'scripted', 'model' (see engine.model), a training's folder, a strategy like "
            "ema_cross, or your own as buy.py:Buy.",
        ),
    ] = SCRIPTED
    exchange: Annotated[
        str,
        Option(
            DATA,
            "Exchange whose live data is traded on, by its name in ccxt: binance, kraken.",
            setting="paper.feed",
        ),
    ] = ""
    url: Annotated[str, Option(DATA, "Server to ask instead of the exchange's own.", setting="paper.url")] = ""
    session: str = ""


@dataclass(frozen=True)
class RunStart:
    """A run that was checked and is about to begin. `notes` are what a reader must know before the numbers;
    `why_window` says where the window comes from."""

    run: str
    folder: Path
    config: Config
    market: Market
    account: Account
    window: Window | None = None
    notes: tuple[str, ...] = ()
    why_window: str = ""


class Observer:
    """Watches a run. This one shows nothing: override the methods whose news should be shown."""

    def started(self, start: RunStart) -> None:
        """The run begins."""

    def message(self, text: str) -> None:
        """A line for people about what happens next."""

    def progress(self, what: str, done: int, total: int) -> None:
        """`done` of `total` parts of `what` are finished."""

    def trained(self, progress: Progress) -> None:
        """A step of training is finished."""
        self.progress("M-GRPO", progress.step, progress.total)


SILENT = Observer()


def _listed(given: Any, default: tuple[str, ...] | None) -> tuple[str, ...]:
    """The names in one text with commas, or in several. An existing path may hold commas itself; where the
    configuration has a list (`default` is None), `none` is the empty one."""
    texts = [given] if isinstance(given, str) else [str(one) for one in given]
    names = tuple(name for text in texts for name in ((text,) if os.path.exists(text) else split_names(text)))
    return () if default is None and names == (NONE,) else names
