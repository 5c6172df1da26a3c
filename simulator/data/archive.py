"""Writing a market to a folder, and the truth of synthetic ones back from it.

A written folder is read by `simulator.data.catalog`. Equal markets give equal bytes.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.documents import read_document, typed
from simulator.errors import DataError
from simulator.files import write_whole
from simulator.market.events import funding_columns, news_columns
from simulator.market.market import Market
from simulator.market.series import series_columns, series_file
from simulator.market.timeframes import BAR_COLUMNS
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from simulator.synthetic.truth import STATE_COLUMNS, Truth, truth_of
from simulator.tables import numbers, read_table, times, timestamp_array, write_table

MARKET_MANIFEST = "market.json"
# What may stand in a file name: no way out of the folder, and nothing that reads like a series.
SYMBOL = re.compile(r"(?!series-)[A-Za-z0-9_-]+")
SAMPLE_SEED = 20_240
SAMPLE_BARS = 3_285  # a year and a half of 4h bars
SAMPLE_MARKETS = {"synthetic": True, "no_edge": False}  # folder: has edge


@dataclass(frozen=True)
class _Manifest:
    """What was written to a folder; `unfinished` while its `files` are being written."""

    timeframe: str
    symbols: tuple[str, ...]
    content_hash: str
    synthetic: SyntheticConfig | None
    files: tuple[str, ...]
    unfinished: bool = False


def write_market(market: Market, root: str | Path) -> None:
    """Write `market` into the folder `root`, in place of a market written there before.

    Raises `DataError` when the folder holds Parquet files that this did not write or cannot be written to, when a
    symbol cannot name a file, or for a market of private knowledge, which is made from its recipe each time.
    """
    folder = Path(root)
    if market.signs is not None:
        raise DataError(f"{market.source}: a market of private knowledge has no files; its recipe makes it each time")
    _check_names(market)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        former = _former_files(folder)
    except OSError as error:
        raise _unwritable(folder, error) from error
    files: dict[str, dict[str, Any]] = {}
    for column, symbol in enumerate(market.symbols):
        bars = _bars_of(market, column)
        if market.partial is not None:
            bars["partial"] = market.partial[market.present[:, column], column].astype(np.int8)
        files[bar_file(symbol, market.timeframe)] = bars
        events = market.funding.get(symbol)
        if events:
            files[f"{symbol}-funding.parquet"] = funding_columns(events)
    for name, series in market.series.items():
        files[series_file(name)] = series_columns(series)
    if market.news:
        files["news.parquet"] = news_columns(market.news)
    truth = None if market.truth is None else truth_of(market)
    if truth is not None:
        files["truth.parquet"] = _truth_columns(truth)
    config = None if truth is None else truth.config
    manifest = _Manifest(market.timeframe, market.symbols, market.content_hash, config, tuple(sorted(files)))
    # First what there may be meanwhile: nobody reads that, and it can be written over.
    _write_manifest(folder, replace(manifest, files=tuple(sorted({*former, *files})), unfinished=True))
    for name in former:
        (folder / name).unlink(missing_ok=True)
    for name, columns in files.items():
        write_table(folder / name, columns)
    _write_manifest(folder, manifest)


def bar_file(symbol: str, timeframe: str) -> str:
    """The name of the file with the bars of a symbol."""
    return f"{symbol}-{timeframe}.parquet"


def write_bars(market: Market, root: str | Path) -> None:
    """Write the bars of a market into the folder `root` as recorded ones, and nothing that lies beside them. Raises
    `DataError`."""
    folder = Path(root)
    _check_names(market)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    for column, symbol in enumerate(market.symbols):
        write_table(folder / bar_file(symbol, market.timeframe), _bars_of(market, column))


def _check_names(market: Market) -> None:
    for symbol in market.symbols:
        if not SYMBOL.fullmatch(symbol):
            raise DataError(f"{symbol!r} cannot name a file: use letters, digits, '_' and '-'")


def _bars_of(market: Market, column: int) -> dict[str, Any]:
    """The columns of the file of a symbol's bars."""
    rows = market.present[:, column]
    values = {name: getattr(market, name)[rows, column] for name in BAR_COLUMNS}
    return {"timestamp": timestamp_array(market.open_time[rows]), **values}


def write_sample(root: str | Path, seed: int = SAMPLE_SEED) -> list[Path]:
    """Write the shipped sample, a market with edge and its no-edge control, into folders of `root`; returns these."""
    folders = []
    for name, edge in SAMPLE_MARKETS.items():
        write_market(generate(SyntheticConfig(bars=SAMPLE_BARS, seed=seed, edge=edge)), Path(root) / name)
        folders.append(Path(root) / name)
    return folders


def check_finished(folder: Path) -> None:
    """Raise `DataError` where `write_market` was cut short in `folder`, so that some of the market is absent."""
    manifest = _manifest(folder)
    if manifest is not None and manifest.unfinished:
        raise DataError(
            f"{folder}: the market was not written to its end, as when a program is killed: write it again with the "
            "same command, or give another folder"
        )


def read_truth(
    folder: Path, symbols: tuple[str, ...], timeframe: str, open_time: npt.NDArray[np.int64]
) -> Truth | None:
    """The truth about the bars at `open_time`; None where the folder has none for this timeframe or these bars.

    Raises `DataError` when the recipe or the truth cannot be read.
    """
    manifest = _manifest(folder)
    config = None if manifest is None else manifest.synthetic
    if manifest is None or config is None or config.timeframe != timeframe:
        return None
    path, kept = folder / "truth.parquet", manifest.symbols
    table = read_table(path, ("timestamp", "storm", *(f"{name}_{symbol}" for name in STATE_COLUMNS for symbol in kept)))
    time = times(table, "timestamp", path)
    rows = np.searchsorted(time, open_time)
    if rows[-1] >= len(time) or not (time[rows] == open_time).all():
        return None
    arrays: dict[str, Any] = {}
    for name in STATE_COLUMNS:
        columns = np.stack([numbers(table, f"{name}_{symbol}", path) for symbol in symbols], axis=1)[rows]
        integer = name in ("regime", "signal", "spike_left")
        arrays[name] = np.ascontiguousarray(columns.astype(np.int8) if integer else columns)
    storm = numbers(table, "storm", path)[rows].astype(np.int8)
    return Truth(config=config, symbols=symbols, open_time=open_time, storm=storm, **arrays)


def is_generated(folder: Path) -> bool:
    """Whether a synthetic market was written to `folder`. Raises `DataError` when its recipe cannot be read."""
    manifest = _manifest(folder)
    return manifest is not None and manifest.synthetic is not None


def recorded_hash(folder: Path) -> tuple[tuple[str, ...], str, str] | None:
    """Symbols, timeframe and content hash of the market that was written to `folder`; None where none was."""
    manifest = _manifest(folder)
    return None if manifest is None else (manifest.symbols, manifest.timeframe, manifest.content_hash)


def _truth_columns(truth: Truth) -> dict[str, Any]:
    columns: dict[str, Any] = {"timestamp": timestamp_array(truth.open_time), "storm": truth.storm}
    for name in STATE_COLUMNS:
        for column, symbol in enumerate(truth.symbols):
            columns[f"{name}_{symbol}"] = np.ascontiguousarray(getattr(truth, name)[:, column])
    return columns


def _manifest(folder: Path) -> _Manifest | None:
    """What was written to `folder`, None for nothing. Raises `DataError` where that cannot be read."""
    path = folder / MARKET_MANIFEST
    if not path.exists():
        return None
    try:
        return typed(_Manifest, read_document(path))
    except (OSError, ValueError, ArithmeticError, DataError) as error:
        raise DataError(f"{path}: not the list of a market that this version wrote ({error}); make it again") from error


def _write_manifest(folder: Path, manifest: _Manifest) -> None:
    document = asdict(manifest)
    if not manifest.unfinished:
        del document["unfinished"]
    try:
        write_whole(folder / MARKET_MANIFEST, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise _unwritable(folder / MARKET_MANIFEST, error) from error


def _unwritable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path}: cannot be written: {error.strerror or error}; free some space, or choose another folder")


def _former_files(folder: Path) -> list[str]:
    """What an earlier `write_market` wrote. Raises `DataError` when there is Parquet of other origin."""
    manifest = _manifest(folder)
    written = () if manifest is None else manifest.files
    strangers = sorted(path.name for path in folder.glob("*.parquet") if path.name not in written)
    if strangers:
        raise DataError(f"{folder}: holds {strangers[0]}, which is not of a written market; choose an empty folder")
    return [name for name in written if Path(name).name == name]  # it may have been edited: never reach outside
