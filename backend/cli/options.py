"""Options that several commands share, and the configuration with what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from backend.cli.data import names
from backend.config.load import config_from_dict
from backend.config.market import NONE
from backend.config.schema import Config

ConfigOption = Annotated[str, typer.Option("--config", "-c", help="A preset (demo, quick, recorded) or a TOML file.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="Override a value: section.key=value. Repeatable.")
]
DataOption = Annotated[Path | None, typer.Option("--data", help="Folder of Parquet bars. Default: as configured.")]
TimeframeOption = Annotated[
    str, typer.Option("--timeframe", help="Bars to load: 1m 5m 15m 30m 1h 4h 1d. Default: as configured.")
]
ResampleOption = Annotated[
    str, typer.Option("--resample", help="Timeframe to decide on, made from those bars: 4h, 1d.")
]
FundingOption = Annotated[Path | None, typer.Option("--funding", help="Folder of funding rates; default: --data.")]
NewsOption = Annotated[Path | None, typer.Option("--news", help="File or folder of headlines; default: --data.")]
BaselinesOption = Annotated[
    str, typer.Option("--baselines", help="Strategies to compare with: hold,ema_cross. 'none' for none.")
]
FinerOption = Annotated[
    str, typer.Option("--finer", help="Finer bars that decide what came first inside a bar: 1m, 5m.")
]
RulesOption = Annotated[
    str, typer.Option("--rules", help="JSON file of the venue's rules; default: rules.json in --data. 'none' for none.")
]
PresetOption = Annotated[
    str,
    typer.Option(
        "--config", "-c", help="A preset or TOML file; default: recorded for recorded bars, demo for synthetic ones."
    ),
]
StartOption = Annotated[str, typer.Option("--start", help="First day, UTC; default: 90 days before the end.")]
EndOption = Annotated[str, typer.Option("--end", help="Last day, UTC, exclusive; default: the end of the data.")]
DecideEveryOption = Annotated[int, typer.Option("--decide-every", min=0, help="Bars between decisions; 0: once a day.")]


def with_market(
    config: Config,
    data: Path | None,
    symbols: str,
    timeframe: str,
    resample: str,
    funding: Path | None,
    news: Path | None,
) -> Config:
    """The configuration with what the options say about the market; an option that is not given changes nothing."""
    document = config.to_dict()
    market = document["market"]
    given = {"data": data, "timeframe": timeframe, "resample": resample, "funding_dir": funding, "news": news}
    market |= {key: str(value) for key, value in given.items() if value}
    if symbols:
        market["symbols"] = list(names(symbols))
    if market["resample"] == market["timeframe"]:
        market["resample"] = ""
    return config_from_dict(document, "the command line")


def with_venue(config: Config, finer: str, rules: str, baselines: str) -> Config:
    """The configuration with what the options say about the venue and the comparison."""
    document = config.to_dict()
    given = {"finer": finer, "rules": rules}
    document["venue"] |= {key: value for key, value in given.items() if value}
    if baselines:
        document["evaluation"]["baselines"] = [] if baselines.strip() == NONE else list(names(baselines))
    return config_from_dict(document, "the command line")
