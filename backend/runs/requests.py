"""What a caller gives to a use case: a frozen request, and an observer that shows what happens.

A field of a request that is left out changes nothing: then the configuration decides. No heavy library is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.config.base import suggestion
from backend.config.load import load_config
from backend.config.places import RUNS
from backend.config.places import STORE as STORE
from backend.config.plugins import STRATEGY, installed
from backend.config.schema import BASELINES, PROMPTED, SCRIPTED, Config, model_named
from backend.models.manifest import MANIFEST, SAMPLE_TEAM, read_manifest, team_folder
from simulator.errors import UserError
from simulator.folders import data_folder, sample_data, timeframes_in
from simulator.market.timeframes import TIMEFRAMES, parse_time

if TYPE_CHECKING:  # they import torch and pandas, which take seconds
    from backend.builders.market import Account
    from backend.training.trainer import Progress
    from simulator.backtest.run import Window
    from simulator.market.market import Market

GENERATED, RECORDED_TRAINING = "demo", "recorded_training"  # presets


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
    if "," in name and all(part.strip() in named or Path(part.strip()).exists() for part in name.split(",")):
        each = " ".join(f"--team {part.strip()}" for part in name.split(","))
        raise UserError(f"no team is called '{name}': name each by itself, as {each}")
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

    config: Config | str = "demo"
    overrides: tuple[str, ...] = ()

    def options(self) -> dict[str, Any]:
        """The settings that other fields than the overrides set, by their dotted keys."""
        return {}

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
    """A run on a market: the folder of bars, their symbols and timeframe, and what lies beside them."""

    config: Config | str = ""
    data: str | Path | None = None
    symbols: tuple[str, ...] = ()
    timeframe: str = ""
    resample: str = ""
    funding: str | Path | None = None
    news: str | Path | None = None

    def settings(self) -> Config:
        """As for every request, with the fields of the market. An empty `config` is the preset `demo`, or
        `recorded_training` where `data` is a folder of bars."""
        return self.on(self.config or (RECORDED_TRAINING if self.data else GENERATED))

    def options(self) -> dict[str, Any]:
        """As for every request, with the fields of the market."""
        fields = {
            "data": self.data, "timeframe": self.timeframe, "resample": self.resample, "funding_dir": self.funding,
            "news": self.news,
        }  # fmt: skip
        named = {f"market.{key}": str(value) for key, value in fields.items() if value}
        return named | ({"market.symbols": list(self.symbols)} if self.symbols else {})

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
    """A run over one window: dates in UTC, and `decide_every` in bars, 0 for once a day.

    An empty `config` is the preset for the data. `seed` is that of sampling.
    """

    config: Config | str = ""
    start: str = ""
    end: str = ""
    decide_every: int = 0
    seed: int = 1

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
class TryRequest(WindowRequest):
    """One decision with the model of `engine.model`, which was not trained here."""


@dataclass(frozen=True, kw_only=True)
class BacktestRequest(WindowRequest):
    """Teams and strategies over one window, beside the baselines.

    `teams` are names as `backend.runs.backtest.subject_of` takes them. With `unmasked`, each team also plays with real
    symbols and dates. `record` is the file that the calls of the one team are recorded in. With
    `check_lookahead`, the backtest of a user's strategy ends with the look-ahead verdict.

    `variants` (`backend.builders.variants`) are played of each team besides. `like` is the id of a stored backtest: its
    configuration, data, window and seed are used, and without `teams` its teams. With `in_sample`, a window that
    overlaps what a team was trained on is played, and the result marked for ever; else it is refused.
    """

    teams: tuple[str, ...] = ("scripted",)
    finer: str = ""
    rules: str = ""
    baselines: tuple[str, ...] | None = None
    unmasked: bool = False
    record: Path | None = None
    check_lookahead: bool = True
    variants: tuple[str, ...] = ()
    like: str = ""
    in_sample: bool = False

    @property
    def tested(self) -> tuple[str, ...]:
        """See `WindowRequest`."""
        return self.teams

    def check(self) -> None:
        """As for every window; also the baselines and the names of the teams."""
        if self.like and self.config:
            raise UserError(f"the settings are those of run {self.like}: leave out --config, or leave out --like")
        if not self.like:
            super().check()
        load_config(None, options=self.options())
        for name in self.teams:
            check_subject(name)

    def options(self) -> dict[str, Any]:
        """As on every market; also the venue and the baselines."""
        venue = {"venue.finer": self.finer, "venue.rules": self.rules}
        named = super().options() | {key: value for key, value in venue.items() if value}
        return named | _baselines(self.baselines)


@dataclass(frozen=True, kw_only=True)
class TrainRequest(MarketRequest):
    """A training with M-GRPO. `resume` is the id of a run to go on with; that run's configuration is used. `origin` is
    what the run's record says of where its data came from."""

    resume: str = ""
    origin: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest(MarketRequest):
    """The trained team in `folder` on held-out windows. An empty `config` is the configuration of its training, where
    the store has that. With
    `gate`, the verdict on whether it may take the place of a team that trades is made and recorded. With `in_sample`,
    windows that overlap its training are measured too, and the result is marked for ever."""

    folder: str | Path
    config: Config | str = ""
    baselines: tuple[str, ...] | None = None
    gate: bool = False
    in_sample: bool = False

    def check(self) -> None:
        """As for every request; also the team's folder. What its manifest says is checked later."""
        if not self.config:
            read_manifest(team_folder(self.folder))
        self.on(self.config or None)
        if self.data is not None:
            data_folder(self.data)

    def options(self) -> dict[str, Any]:
        """As on every market; also the baselines."""
        return super().options() | _baselines(self.baselines)


@dataclass(frozen=True, kw_only=True)
class SftRequest(MarketRequest):
    """Supervised fine-tuning of each role on the best conversations of the teams in `sources`; `folder` becomes a team.

    A source is `scripted`, `warm_start` (the base model itself), the folder of a trained team, or of a data set of
    conversations.
    """

    sources: tuple[str, ...] = ("scripted",)
    folder: Path = RUNS / "sft"


@dataclass(frozen=True, kw_only=True)
class CheckRequest(WindowRequest):
    """One strategy or one team, checked for look-ahead or for the history it needs.

    With `greedy`, a team is not sampled: its sampling seeds depend on the number of bars before a decision.
    """

    strategy: str = ""
    team: str = ""
    greedy: bool = False

    @property
    def tested(self) -> tuple[str, ...]:
        """See `WindowRequest`."""
        return (self.team,) if self.team else ()


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


def _baselines(named: tuple[str, ...] | None) -> dict[str, Any]:
    return {} if named is None else {"evaluation.baselines": list(named)}
