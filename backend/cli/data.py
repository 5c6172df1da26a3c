"""The commands of `cryptosentinel data`: make, list, check and import market data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.table import Table

from backend.cli.console import console, narrow_table
from backend.cli.options import SymbolsOption
from backend.cli.progress import bars
from cryptosentinel.team_settings import split_names
from simulator.errors import DataError
from simulator.folders import data_folder
from simulator.market.instruments import check_kind
from simulator.market.timeframes import TIMEFRAMES, format_time, parse_time

if TYPE_CHECKING:  # it imports numba
    from simulator.data.importing import ImportReport
    from simulator.data.venue import StatedKind

data_app = typer.Typer(help="Make, list, check and import market data.", no_args_is_help=True)


@data_app.command("sample")
def data_sample(
    out: Annotated[Path, typer.Option("--out", help="Folder to write `synthetic` and `no_edge` to.")] = Path("data"),
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of the generator; default: that of the shipped data.")
    ] = None,
) -> None:
    """Write the synthetic sample and its no-edge control, exactly as they are shipped in data/."""
    from simulator.data.archive import SAMPLE_SEED, write_sample

    for path in write_sample(out, SAMPLE_SEED if seed is None else seed):
        console.print(f"wrote {path}")


@data_app.command("list")
def data_list(data: Annotated[Path, typer.Argument(help="Folder of Parquet files.")] = Path("sample")) -> None:
    """List the series in a folder."""
    data = data_folder(data)
    from simulator.data.catalog import Catalog

    catalog = Catalog(data)
    kinds = catalog.kinds()
    headings = ("symbol", "timeframe", "bars", "first (UTC)", "last (UTC)", "kind")
    table = Table(*headings, title=str(data), title_justify="left")
    for info in catalog.series():
        times = (_time_or_dash(time) for time in (info.first, info.last))
        table.add_row(info.symbol, info.timeframe, str(info.bars), *times, str(kinds[info.symbol]))
    console.print(table)


@data_app.command("check")
def data_check(
    data: Annotated[Path, typer.Argument(help="Folder of Parquet files.")] = Path("sample"),
    symbols: SymbolsOption = "",
    timeframe: Annotated[str, typer.Option("--timeframe", help="Check only these bars.")] = "",
) -> None:
    """Check bars and what stands beside them: order, gaps, impossible and unlikely values. Exit code 2 if unusable."""
    data = data_folder(data)
    from simulator.data.catalog import Catalog

    issues = Catalog(data).check(split_names(symbols) or None, timeframe or None)
    for issue in issues:
        console.print(f"{'unusable' if issue.fatal else 'note':<9} {issue}")
    fatal = sum(issue.fatal for issue in issues)
    if fatal:
        raise DataError(f"{data}: {fatal} findings make the data unusable; fix or remove the files named above")
    console.print(f"{data}: usable, {len(issues)} notes")


@data_app.command("import")
def data_import(
    source: Annotated[Path, typer.Argument(help="Folder tree of recorded files, or one file.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the catalogs, one for each venue of the tree.")],
    symbols: Annotated[str, typer.Option("--symbols", help="Only these symbols: BTCUSDT,ETHUSDT. Default: all.")] = "",
    instrument: Annotated[
        str, typer.Option("--instrument", help="What the bars are of, spot or perpetual, where the tree does not say.")
    ] = "",
    symbol: Annotated[str, typer.Option("--symbol", help="Symbol of all files of other programs.")] = "",
    timeframe: Annotated[
        str, typer.Option("--timeframe", help="Timeframe of all files of other programs, where their names lack it.")
    ] = "",
    venue: Annotated[
        str, typer.Option("--venue", help="Name of the catalog for files of other programs. Default: of their folder.")
    ] = "",
    columns: Annotated[
        str,
        typer.Option("--columns", help="Columns of a CSV, by heading or number: time=Date,open=Open,high=…"),
    ] = "",
    time_format: Annotated[
        str, typer.Option("--time-format", help="Form of the dates of a CSV, as '%d.%m.%Y %H:%M'.")
    ] = "",
    time_zone: Annotated[
        str, typer.Option("--time-zone", help="Zone of the times of a CSV that name none: UTC, Europe/Berlin.")
    ] = "",
    decimal: Annotated[str, typer.Option("--decimal", help="Decimal point of a CSV: . or ,")] = "",
) -> None:
    """Add bars, mark prices and funding of other programs to catalogs. Nothing that is stored there is deleted.

    Exit code 1 if a file was refused, 2 if nothing could be used. CSV of Binance, CryptoDataDownload, TradingView,
    Kraken, Yahoo and Kaggle and files of freqtrade and ccxt are recognized; for other CSV give --columns.
    """
    from simulator.data.formats import FileOptions, columns_of
    from simulator.data.importing import import_tree

    kind = check_kind("--instrument", instrument) if instrument else None
    given = FileOptions(columns_of(columns), symbol, timeframe, venue, decimal, time_format, time_zone)
    with bars() as shown:
        report = import_tree(
            source,
            out,
            split_names(symbols) or None,
            lambda done, total: shown.progress("import", done, total),
            kind,
            given,
        )
    for one in report.sources:
        console.print(f"{one.outcome:<9} {one.path}: {one.detail}", soft_wrap=True)
    for line in report.series:
        console.print(f"made      {line}", soft_wrap=True)
    for catalog in report.catalogs:
        _print_changes(catalog, report)
    refused = sum(one.outcome == "refused" for one in report.sources)
    if not report.catalogs:
        raise DataError(f"{source}: nothing could be used; the reasons are above")
    folder = quote(str(report.catalogs[0]))
    console.print(f"next      cryptosentinel backtest --team hold --data {folder}", soft_wrap=True)
    if refused:
        console.print(f"{source}: {refused} of {len(report.sources)} files were refused; the reasons are above")
        raise typer.Exit(1)


def _print_changes(catalog: Path, report: ImportReport) -> None:
    """What an import did to the files of a catalog, and the kinds of its symbols."""
    changes = {path: change for path, change in report.written if path.is_relative_to(catalog)}
    states = [change.state for change in changes.values()]
    found = (state for state in ("written", "extended", "unchanged") if state in states)
    console.print(
        f"{catalog}: {', '.join(f'{states.count(state)} {state}' for state in found) or 'unchanged'}", soft_wrap=True
    )
    _print_kinds(catalog, report.kinds.get(catalog, {}))
    for path, change in changes.items():
        if change.state == "extended":
            console.print(f"{change.state:<9} {path}: {change.added} rows added", soft_wrap=True)


@data_app.command("download")
def download(
    symbols: Annotated[str, typer.Option("--symbols", help="Symbols of the exchange: BTC/USDT,ETH/USDT.")],
    start: Annotated[str, typer.Option("--start", help="First day, UTC, as 2023-01-01.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write to, or to continue in.")],
    exchange: Annotated[str, typer.Option("--exchange", help="Id of the exchange in ccxt.")] = "binance",
    timeframe: Annotated[str, typer.Option("--timeframe", help=f"Bars to load: {' '.join(TIMEFRAMES)}.")] = "1h",
    end: Annotated[str, typer.Option("--end", help="Last day, UTC, exclusive; default: now.")] = "",
    market: Annotated[str, typer.Option("--market", help="spot, or swap for linear perpetuals.")] = "spot",
    url: Annotated[str, typer.Option("--url", help="Server to ask instead of the exchange's own.")] = "",
) -> None:
    """Download bars, funding rates and rules of an exchange; no key is needed. The same command continues later.

    --symbols and --timeframe take several, with commas. Ctrl-C is safe.
    """
    from simulator.data.download import DownloadRequest, MarketType, download_history

    request = DownloadRequest(
        exchange=exchange,
        symbols=split_names(symbols),
        timeframes=split_names(timeframe),
        start=parse_time(start),
        end=parse_time(end) if end else None,
        market=cast(MarketType, market),  # the request refuses any other
        url=url,
    )
    with bars() as shown:
        downloaded = download_history(request, out, report=shown.progress)
    table = narrow_table(str(out))
    for heading in ("rows", "new", "absent", "first (UTC)", "last (UTC)"):
        table.add_column(heading)
    for one in downloaded.series:
        first, last = ("-" if time is None else format_time(time) for time in (one.first, one.last))
        table.add_row(one.file, str(one.rows), str(one.added), str(one.absent), first, last)
    console.print(table)
    if downloaded.without_tiers:
        console.print(
            f"note: {exchange} shows margin tiers only with a key, so {out / 'rules.json'} has none for"
            f" {', '.join(downloaded.without_tiers)}",
        )


def _print_kinds(catalog: Path, kinds: Mapping[str, StatedKind]) -> None:
    """What the symbols of a catalog are, those of one kind together."""
    by_kind: dict[str, list[str]] = {}
    for symbol, stated in kinds.items():
        by_kind.setdefault(str(stated), []).append(symbol)
    for stated_kind, named in by_kind.items():
        console.print(f"{catalog}: {', '.join(named)}: {stated_kind}", soft_wrap=True)
    unknown = [symbol for symbol, stated in kinds.items() if stated.kind is None]
    if unknown:
        console.print(
            f"note: nothing states whether {', '.join(unknown)} are spot or perpetual, so shorts and borrowed cash pay"
            " interest; say it with --instrument, or in instruments.json beside the bars",
            soft_wrap=True,
        )


def _time_or_dash(time: int | None) -> str:
    return "-" if time is None else format_time(time)
