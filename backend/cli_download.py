"""`cryptosentinel data download`: history of an exchange into a folder of Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from backend.console import bars, console, narrow_table
from simulator.market.timeframes import format_time, parse_time


def download(
    symbols: Annotated[str, typer.Option("--symbols", help="Symbols of the exchange: BTC/USDT,ETH/USDT.")],
    start: Annotated[str, typer.Option("--start", help="First day, UTC, as 2023-01-01.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write to, or to go on in.")],
    exchange: Annotated[str, typer.Option("--exchange", help="Id of the exchange in ccxt.")] = "binance",
    timeframe: Annotated[str, typer.Option("--timeframe", help="Bars to load: 1m 5m 15m 30m 1h 4h 1d.")] = "1h",
    end: Annotated[str, typer.Option("--end", help="Last day, UTC, exclusive; default: now.")] = "",
    market: Annotated[str, typer.Option("--market", help="spot, or swap for linear perpetuals.")] = "spot",
    url: Annotated[str, typer.Option("--url", help="Server to ask instead of the exchange's own.")] = "",
) -> None:
    """Download bars, funding rates and rules of an exchange; no key is needed. The same command goes on later.

    --symbols and --timeframe take several, with commas. Ctrl-C is safe.
    """
    from simulator.data.download import DownloadRequest
    from simulator.data.download import download as run_download
    from simulator.data.download_client import MarketType

    request = DownloadRequest(
        exchange=exchange,
        symbols=_parts(symbols),
        timeframes=_parts(timeframe),
        start=parse_time(start),
        end=parse_time(end) if end else None,
        market=cast(MarketType, market),  # the request refuses any other
        url=url,
    )
    with bars() as shown:
        found = run_download(request, out, report=shown.report)
    table = narrow_table(str(out))
    for heading in ("rows", "new", "absent", "first (UTC)", "last (UTC)"):
        table.add_column(heading)
    for one in found.series:
        first, last = ("-" if time is None else format_time(time) for time in (one.first, one.last))
        table.add_row(one.file, str(one.rows), str(one.added), str(one.absent), first, last)
    console.print(table)
    if found.without_tiers:
        console.print(
            f"note: {exchange} shows margin tiers only with a key, so {out / 'rules.json'} has none for"
            f" {', '.join(found.without_tiers)}",
            markup=False,
        )


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
