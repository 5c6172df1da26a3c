"""The commands of `cryptosentinel data`: make, list, check and import market data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from backend.cli_download import download
from backend.console import bars, console
from simulator.errors import DataError
from simulator.market.timeframes import format_time

data_app = typer.Typer(help="Make, list, check and import market data.", no_args_is_help=True)
data_app.command("download")(download)

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
    from simulator.data.archive import SAMPLE_SEED, write_sample

    for path in write_sample(out, SAMPLE_SEED if seed is None else seed):
        console.print(f"wrote {path}")


@data_app.command("list")
def data_list(data: Annotated[Path, typer.Argument(help="Folder of Parquet files.")] = Path("data/synthetic")) -> None:
    """List the series in a folder."""
    from simulator.data.catalog import Catalog

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
    """Check bars and what stands beside them: order, gaps, impossible and unlikely values. Exit code 2 if unusable."""
    from simulator.data.catalog import Catalog

    issues = Catalog(data).check(names(symbols) or None, timeframe or None)
    for issue in issues:
        console.print(f"{'unusable' if issue.fatal else 'note':<9} {issue}", markup=False)
    fatal = sum(issue.fatal for issue in issues)
    if fatal:
        raise DataError(f"{data}: {fatal} findings make the data unusable; mend or remove the files named above")
    console.print(f"{data}: usable, {len(issues)} notes")


@data_app.command("import")
def data_import(
    source: Annotated[Path, typer.Argument(help="Folder tree of recorded Parquet files.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the catalogs, one for each venue of the tree.")],
    symbols: Annotated[str, typer.Option("--symbols", help="Only these symbols: BTCUSDT,ETHUSDT. Default: all.")] = "",
) -> None:
    """Make catalogs of recorded bars, funding, books, news and series. Exit code 2 if nothing could be used."""
    from simulator.data.importing import import_tree

    with bars() as shown:
        report = import_tree(
            source, out, names(symbols) or None, lambda done, total: shown.report("import", done, total)
        )
    for one in report.sources:
        console.print(f"{one.outcome:<9} {one.path}: {one.detail}", markup=False, soft_wrap=True)
    for catalog in report.catalogs:
        states = {path: state for path, state in report.written if path.parent == catalog}
        counts = ", ".join(
            f"{count} {state}"
            for state in ("written", "unchanged", "replaced")
            if (count := list(states.values()).count(state))
        )
        console.print(f"{catalog}: {counts}", markup=False, soft_wrap=True)
        for path, state in states.items():
            if state == "replaced":
                console.print(f"replaced  {path}: it had other content", markup=False, soft_wrap=True)
    if not report.catalogs:
        raise DataError(f"{source}: nothing could be used; the reasons are above")


def names(text: str) -> tuple[str, ...]:
    """The parts of a list that is written with commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _time_or_dash(time: int | None) -> str:
    return "-" if time is None else format_time(time)
