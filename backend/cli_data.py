"""The commands of `cryptosentinel data`: make, list and check market data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from backend.console import console
from simulator.errors import DataError
from simulator.market import format_time

data_app = typer.Typer(help="Make, list and check market data.", no_args_is_help=True)

SymbolsOption = Annotated[
    str, typer.Option("--symbols", help="Symbols to use: BTCUSDT,ETHUSDT. Default: as configured, or all there are.")
]


@data_app.command("sample")
def data_sample(
    out: Annotated[Path, typer.Option("--out", help="Folder to write `synthetic` and `no_edge` to.")] = Path("data"),
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of the generator; default: that of the shipped data.")
    ] = None,
) -> None:
    """Write the synthetic sample and its no-edge twin, exactly as they are shipped in data/."""
    from simulator.archive import SAMPLE_SEED, write_sample

    for path in write_sample(out, SAMPLE_SEED if seed is None else seed):
        console.print(f"wrote {path}")


@data_app.command("list")
def data_list(data: Annotated[Path, typer.Argument(help="Folder of Parquet files.")] = Path("data/synthetic")) -> None:
    """List the series in a folder."""
    from simulator.catalog import Catalog

    table = Table("symbol", "timeframe", "bars", "first (UTC)", "last (UTC)", title=str(data), title_justify="left")
    for info in Catalog(data).series():
        table.add_row(info.symbol, info.timeframe, str(info.bars), _time_or_dash(info.first), _time_or_dash(info.last))
    console.print(table)


@data_app.command("check")
def data_check(
    data: Annotated[Path, typer.Argument(help="Folder of Parquet files.")] = Path("data/synthetic"),
    symbols: SymbolsOption = "",
    timeframe: Annotated[str, typer.Option("--timeframe", help="Check only these bars.")] = "",
) -> None:
    """Check bars: order, duplicates, gaps, impossible values, zero volume. Exit code 2 if they cannot be used."""
    from simulator.catalog import Catalog

    issues = Catalog(data).check(names(symbols) or None, timeframe or None)
    for issue in issues:
        console.print(f"{'unusable' if issue.fatal else 'note':<9} {issue}", markup=False)
    fatal = sum(issue.fatal for issue in issues)
    if fatal:
        raise DataError(f"{data}: {fatal} findings make the data unusable; mend or remove the files named above")
    console.print(f"{data}: usable, {len(issues)} notes")


def names(text: str) -> tuple[str, ...]:
    """The parts of a list that is written with commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _time_or_dash(time: int | None) -> str:
    return "-" if time is None else format_time(time)
