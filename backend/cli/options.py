"""Options that several commands share, each declared once.

A command takes a group of options as one argument: with `@grouped`, a parameter `market: MarketOptions` becomes the
options --data, --symbols and the others, and the command gets them as one object.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from backend.cli.console import console
from backend.cli.parts.places import RunsOption, StoreOption
from backend.config.base import split_names
from backend.config.market import NONE
from backend.runs.requests import RUNS, STORE
from simulator.folders import named_data, timeframes_in
from simulator.market.timeframes import TIMEFRAMES

ConfigOption = Annotated[str, typer.Option("--config", "-c", help="A preset (demo, quick, recorded) or a TOML file.")]
TrainingConfigOption = Annotated[
    str,
    typer.Option(
        "--config", "-c", help="A preset or a TOML file; default: demo, or recorded_training with recorded bars."
    ),
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="Override a value: section.key=value. Repeatable.")
]
SymbolsOption = Annotated[
    str, typer.Option("--symbols", help="Symbols to use: BTCUSDT,ETHUSDT. Default: as configured, or all there are.")
]
BaselinesOption = Annotated[
    str, typer.Option("--baselines", help="Strategies to compare with: hold,ema_cross. 'none' for none.")
]


@dataclass(frozen=True)
class MarketOptions:
    """The bars of a run and what lies beside them."""

    data: Annotated[
        Path | None,
        typer.Option("--data", help="Folder of Parquet bars, or CSV, which is imported. Default: as configured."),
    ] = None
    symbols: SymbolsOption = ""
    timeframe: Annotated[
        str,
        typer.Option("--timeframe", help=f"Bars to load: {' '.join(TIMEFRAMES)}. Default: as configured."),
    ] = ""
    resample: Annotated[
        str, typer.Option("--resample", help="Timeframe to decide on, made from those bars: 4h, 1d, 1w.")
    ] = ""
    funding: Annotated[Path | None, typer.Option("--funding", help="Folder of funding rates; default: --data.")] = None
    news: Annotated[Path | None, typer.Option("--news", help="File or folder of headlines; default: --data.")] = None

    def given(self) -> dict[str, Any]:
        """The fields of a request. Files of other programs are imported for it, which is printed."""
        data = self.data
        bars = data is None or not data.exists() or timeframes_in(named_data(data))
        if data is not None and not bars and (data.is_file() or any(one.is_file() for one in data.rglob("*"))):
            from backend.builders.sources import bars_at  # pandas, for those who have such files

            data, done = bars_at(data, RUNS)
            if done:
                console.print(done, soft_wrap=True)
        return {**vars(self), "data": data, "symbols": split_names(self.symbols)}


@dataclass(frozen=True)
class WindowOptions:
    """The configuration of a run over one window of a market, and the window."""

    config: Annotated[
        str,
        typer.Option(
            "--config",
            "-c",
            help="A preset or TOML file; default: recorded for recorded bars, else the defaults.",
        ),
    ] = ""
    set_: SetOption = None
    start: Annotated[str, typer.Option("--start", help="First day, UTC; default: 90 days before the end.")] = ""
    end: Annotated[str, typer.Option("--end", help="Last day, UTC, exclusive; default: the end of the data.")] = ""
    decide_every: Annotated[
        int, typer.Option("--decide-every", min=0, help="Bars between decisions; 0: once a day.")
    ] = 0

    def given(self) -> dict[str, Any]:
        """The fields of a request."""
        return {
            "config": self.config,
            "overrides": tuple(self.set_ or ()),
            "start": self.start,
            "end": self.end,
            "decide_every": self.decide_every,
        }


@dataclass(frozen=True)
class RecordOptions:
    """Where a run is recorded, and where its folder is."""

    store: StoreOption = STORE
    runs: RunsOption = RUNS


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its dataclass parameters as options of their own."""
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            hints = get_type_hints(parameter.annotation, include_extras=True)
            parameters += [
                inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
                )
                for field in fields(parameter.annotation)
            ]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    # Typer reads a command's options from here.
    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def baseline_names(text: str) -> tuple[str, ...] | None:
    """The strategies of --baselines; None where the configuration decides."""
    if not text:
        return None
    return () if text.strip() == NONE else split_names(text)
