"""Writing a market to a folder, and the truth of synthetic ones back from it.

A written folder is read by `simulator.data.catalog`. Equal markets give equal bytes.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.documents import read_document
from simulator.errors import DataError
from simulator.files import write_whole
from simulator.market.events import funding_columns, news_columns
from simulator.market.market import Market
from simulator.market.series import BOOK_SUFFIX, book_columns, series_columns, series_file
from simulator.market.timeframes import BAR_COLUMNS
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from simulator.synthetic.truth import STATE_COLUMNS, Truth, truth_of
from simulator.tables import numbers, read_table, times, timestamp_array, write_table

MARKET_MANIFEST = "market.json"
_UNFINISHED = "unfinished"  # in the manifest, while the files are being written
# What may stand in a file name: no way out of the folder, and nothing that reads like a series.
SYMBOL = re.compile(r"(?!series-)[A-Za-z0-9_-]+")
_MANIFEST_KEYS = {"timeframe": str, "symbols": list, "content_hash": str, "synthetic": dict | None, "files": list}
SAMPLE_SEED = 20_240
SAMPLE_BARS = 3_285  # a year and a half of 4h bars
SAMPLE_MARKETS = {"synthetic": True, "no_edge": False}  # folder: has edge


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
        if symbol in market.books:
            files[f"{symbol}{BOOK_SUFFIX}"] = book_columns(market.books[symbol])
    for name, series in market.series.items():
        files[series_file(name)] = series_columns(series)
    if market.news:
        files["news.parquet"] = news_columns(market.news)
    truth = None if market.truth is None else truth_of(market)
    if truth is not None:
        files["truth.parquet"] = _truth_columns(truth)
    manifest = {
        "timeframe": market.timeframe,
        "symbols": market.symbols,
        "content_hash": market.content_hash,
        "synthetic": None if truth is None else asdict(truth.config),
        "files": sorted(files),
    }
    # First what there may be meanwhile: nobody reads that, and it can be written over.
    _write_manifest(folder, manifest | {"files": sorted({*former, *files}), _UNFINISHED: True})
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
    """Write the shipped sample, a market with edge and its no-edge twin, into folders of `root`; returns these."""
    folders = []
    for name, edge in SAMPLE_MARKETS.items():
        write_market(generate(SyntheticConfig(bars=SAMPLE_BARS, seed=seed, edge=edge)), Path(root) / name)
        folders.append(Path(root) / name)
    return folders


def check_finished(folder: Path) -> None:
    """Raise `DataError` where `write_market` was cut short in `folder`, so that some of the market is absent."""
    if (folder / MARKET_MANIFEST).exists() and _manifest(folder).get(_UNFINISHED):
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
    if not (folder / MARKET_MANIFEST).exists():
        return None
    manifest = _manifest(folder)
    recipe = manifest["synthetic"]
    if recipe is None or recipe.get("timeframe") != timeframe:
        return None
    config = _recipe(recipe, folder / MARKET_MANIFEST)
    path = folder / "truth.parquet"
    kept = tuple(manifest["symbols"])
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


def _recipe(recipe: dict[str, Any], path: Path) -> SyntheticConfig:
    """The recipe as it was written. Raises `DataError` for another version's, and for values of another type."""
    known = asdict(SyntheticConfig(bars=1, seed=0))
    odd = [name for name, value in recipe.items() if name not in known or not _of_the_kind(value, known[name])]
    try:
        if odd:
            raise TypeError(f"{odd[0][:40]} is {recipe[odd[0]]!r:.40}")
        values: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in recipe.items()}
        return SyntheticConfig(**values)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise DataError(f"{path}: not a recipe of this version ({error}); make the sample again") from error


def _of_the_kind(value: Any, example: Any) -> bool:
    """Whether a value of JSON may stand for one like `example`."""
    if isinstance(example, tuple):
        pair = not isinstance(example[0], str)  # symbols are as many as there are
        fits = isinstance(value, list) and len(value) == len(example) if pair else isinstance(value, list)
        return fits and all(_of_the_kind(one, example[0]) for one in value)
    if isinstance(example, float):
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
    return type(value) is type(example) and not (isinstance(value, int) and abs(value) >= 2**63)


def is_generated(folder: Path) -> bool:
    """Whether a synthetic market was written to `folder`. Raises `DataError` when its recipe cannot be read."""
    return (folder / MARKET_MANIFEST).exists() and _manifest(folder)["synthetic"] is not None


def recorded_hash(folder: Path) -> tuple[tuple[str, ...], str, str] | None:
    """Symbols, timeframe and content hash of the market that was written to `folder`; None where none was."""
    if not (folder / MARKET_MANIFEST).exists():
        return None
    manifest = _manifest(folder)
    return tuple(manifest["symbols"]), manifest["timeframe"], manifest["content_hash"]


def _truth_columns(truth: Truth) -> dict[str, Any]:
    columns: dict[str, Any] = {"timestamp": timestamp_array(truth.open_time), "storm": truth.storm}
    for name in STATE_COLUMNS:
        for column, symbol in enumerate(truth.symbols):
            columns[f"{name}_{symbol}"] = np.ascontiguousarray(getattr(truth, name)[:, column])
    return columns


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MARKET_MANIFEST
    try:
        manifest = read_document(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not valid JSON ({error}); make the data again") from error
    if not isinstance(manifest, dict) or not all(
        name in manifest and isinstance(manifest[name], kind) for name, kind in _MANIFEST_KEYS.items()
    ):
        raise DataError(f"{path}: not the list of a written market; make the data again")
    if not all(isinstance(name, str) for name in (*manifest["symbols"], *manifest["files"])):
        raise DataError(f"{path}: not the list of a written market; make the data again")
    return manifest


def _write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    try:
        write_whole(folder / MARKET_MANIFEST, json.dumps(manifest, indent=1) + "\n")
    except OSError as error:
        raise _unwritable(folder / MARKET_MANIFEST, error) from error


def _unwritable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path}: cannot be written: {error.strerror or error}; free some space, or choose another folder")


def _former_files(folder: Path) -> list[str]:
    """What an earlier `write_market` wrote. Raises `DataError` when there is Parquet of other origin."""
    written = _manifest(folder)["files"] if (folder / MARKET_MANIFEST).exists() else []
    strangers = sorted(path.name for path in folder.glob("*.parquet") if path.name not in written)
    if strangers:
        raise DataError(f"{folder}: holds {strangers[0]}, which is not of a written market; choose an empty folder")
    return [name for name in written if Path(name).name == name]  # it may have been edited: never reach outside
