"""Bars that come from code and not from a folder: the user's own data sources, and markets of pandas tables. They are
kept in a folder by their hash, so that a run can be repeated without that code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backend.config.plugins import DATA_SOURCE, function
from simulator.data.archive import bar_file, write_bars
from simulator.errors import UserError
from simulator.folders import data_folder
from simulator.market.market import Market


def bars_of_source(name: str, runs: Path) -> tuple[Path, str]:
    """The folder with what the source `name` gives, below `runs`, and the timeframe of its bars.

    A source is a function without arguments. It gives a `Market`, a pandas table of bars, several by symbol, or the
    path of a folder that it has written itself, whose timeframe is not looked up and comes as "". Raises `UserError`.
    """
    given = function(DATA_SOURCE, name)()
    if isinstance(given, str | Path):
        return data_folder(given), ""
    market = _market(given, name)
    return kept_bars(market, runs), market.timeframe


def kept_bars(market: Market, runs: Path) -> Path:
    """The folder with the bars of a market, by their hash. Raises `UserError` for a market that is more than bars."""
    beside = {name: bool(getattr(market, name)) for name in ("funding", "news", "series", "books")}
    beside |= {name: getattr(market, name) is not None for name in ("truth", "signs", "partial")}
    lost = [name for name, there in beside.items() if there]
    if lost:
        raise UserError(
            f"the market has {', '.join(lost)} beside its bars, and data= keeps the bars alone: write it with "
            "simulator.data.archive.write_market, and give the folder"
        )
    folder = runs / "data" / market.content_hash[:16]
    if not all((folder / bar_file(symbol, market.timeframe)).is_file() for symbol in market.symbols):
        write_bars(market, folder)
    return folder


def _market(given: Any, name: str) -> Market:
    if isinstance(given, Market):
        return given
    tables = given if isinstance(given, Mapping) else {"BTCUSDT": given}
    if not tables or not all(hasattr(table, "columns") and hasattr(table, "index") for table in tables.values()):
        raise UserError(
            f"the source {name} gave a {type(given).__name__}: give a Market, a pandas table of bars, a dict of them "
            "by symbol, or the path of a folder"
        )
    return Market.from_frame(dict(tables))
