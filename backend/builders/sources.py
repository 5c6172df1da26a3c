"""Bars that come from elsewhere than a folder of them: files of other programs, the user's own data sources, markets of
pandas tables. They are kept in a folder by their hash, so that a run can be repeated without their source."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from backend.config.plugins import DATA_SOURCE, function
from simulator.data.archive import bar_file, write_bars
from simulator.data.formats import NO_DATA, SUFFIXES, FileOptions
from simulator.data.importing import ImportReport, import_tree
from simulator.errors import DataError, UserError
from simulator.folders import data_folder, named_data, timeframes_in
from simulator.market.instruments import MarketKind
from simulator.market.market import Market

_REASONS = 5  # that a refusal lists


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


def bars_at(data: str | Path, runs: Path) -> tuple[Path, str]:
    """The folder with the bars that `data` names, and a sentence about what was done for it, empty for nothing.

    A folder of bars is itself. A file of another program, or a folder of such files, is imported into a folder below
    `runs`, by the hash of its content, and only where every file can be used. Raises `UserError`.
    """
    path = named_data(data)
    if path.is_dir() and any(timeframes_in(one) for one in (path, *path.iterdir()) if one.is_dir()):
        return path, ""  # it has bars, or folders of venues of which one must be named
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if _is_foreign(one))
    if not files:
        return path, ""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(path.parent)}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    kept = runs / "data" / f"{path.stem}-{digest.hexdigest()[:16]}"
    if kept.is_dir():
        return kept, f"{path} was imported before, into {kept}"
    try:
        import_into(path, kept, whole=True)  # where it has several venues, the reader asks for one
    except DataError as error:
        raise DataError(f"{error}. `cryptosentinel data import {path} --out data` takes such options") from error
    return kept, f"{path} was imported into {kept}; `cryptosentinel data import` has options for other files"


def _is_foreign(path: Path) -> bool:
    return path.name.endswith(SUFFIXES) and path.name not in NO_DATA and path.is_file()


def import_into(
    source: Path,
    target: Path,
    instrument: MarketKind | None = None,
    options: FileOptions | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    whole: bool = False,
) -> ImportReport:
    """Import `source` into the new folder `target`: its bars lie in `target` itself, or, where the files are of several
    venues, in a folder of it for each. All of it appears at once, or nothing.

    Raises `UserError` with the reasons where nothing can be used, and for a `whole` import where a file is refused.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".import-", dir=target.parent) as staging:
        made = Path(staging) / "made"
        report = import_tree(source, made, None, progress, instrument, options)
        refused = [one for one in report.sources if one.outcome == "refused"]
        if not report.catalogs or (whole and refused):
            reasons = [f"{one.path}: {one.detail}" for one in refused or report.sources]
            raise DataError("nothing could be imported. " + "; ".join(reasons[:_REASONS]))
        if target.exists():
            raise UserError(f"{target} is there already and is not written over: take another name")
        (made if len(report.catalogs) > 1 else report.catalogs[0]).rename(target)
    return report


def kept_bars(market: Market, runs: Path) -> Path:
    """The folder with the bars of a market, by their hash. Raises `UserError` for a market that is more than bars."""
    beside = {name: bool(getattr(market, name)) for name in ("funding", "news", "series")}
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
