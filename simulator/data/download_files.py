"""What a download keeps in its folder: series that grow page by page, and a manifest of where they come from.

A page is a small file in a hidden folder beside its series, whole or not there. `SeriesFile.close` joins pages and
series. Pages that a killed process left are read and joined next time.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulator.arrays import FloatArray, IntArray
from simulator.data.venue import read_json, write_json
from simulator.errors import UserError
from simulator.market.timeframes import format_time
from simulator.tables import numbers, read_table, times, timestamp_array, write_table

_MANIFEST = "download.json"


class SeriesFile:
    """Rows in order of time in the Parquet file `path`: `timestamp` and the float `columns`."""

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        self.path = path
        self.columns = columns
        self._pages = path.parent / f".{path.stem}"
        self._time: list[IntArray] = []
        self._values: list[FloatArray] = []  # (n, len(columns)) each
        left = sorted(self._pages.glob("*.parquet")) if self._pages.is_dir() else []
        for file in [path, *left] if path.exists() else left:
            self._read(file)
        self._dirty = self._pages.is_dir()

    @property
    def last(self) -> int | None:
        """Time of the last row, ms; None where there are no rows."""
        return int(self._time[-1][-1]) if self._time else None

    @property
    def last_row(self) -> tuple[int, tuple[float, ...]] | None:
        """The last row's time (ms) and values; None where there are no rows."""
        return (int(self._time[-1][-1]), tuple(self._values[-1][-1].tolist())) if self._time else None

    @property
    def time(self) -> IntArray:
        """(n,) times of all rows, rising."""
        return np.concatenate(self._time) if self._time else np.empty(0, np.int64)

    def append(self, time: IntArray, values: FloatArray) -> None:
        """Store a page: `time` `(n,)`, n >= 1, rising and after `last`; `values` `(n, len(columns))`."""
        self._pages.mkdir(parents=True, exist_ok=True)
        self._dirty = True
        # Names sort as their times do.
        write_table(self._pages / f"{int(time[0]):015d}.parquet", self._table(time, values))
        self._time.append(time)
        self._values.append(values)

    def close(self) -> None:
        """Join the pages with the series. Without rows there is no file."""
        if self._dirty and self._time:
            write_table(self.path, self._table(self.time, np.concatenate(self._values)))
        if self._dirty:
            shutil.rmtree(self._pages)
            self._dirty = False

    def _read(self, file: Path) -> None:
        table = read_table(file, ("timestamp", *self.columns))
        time = times(table, "timestamp", file)
        values = np.stack([numbers(table, name, file) for name in self.columns], axis=1)
        # A process that ended between joining and clearing up left pages that the series already has.
        fresh = np.ones(len(time), np.bool_) if self.last is None else time > self.last
        if fresh.any():
            self._time.append(time[fresh])
            self._values.append(values[fresh])

    def _table(self, time: IntArray, values: FloatArray) -> dict[str, Any]:
        columns = {name: np.ascontiguousarray(values[:, place]) for place, name in enumerate(self.columns)}
        return {"timestamp": timestamp_array(time), **columns}


@dataclass
class Manifest:
    """Which exchange and market the series of a folder come from, and from when on each was asked for.

    Attributes:
        files: file name -> symbol of the exchange and start (ms).
    """

    root: Path
    exchange: str
    market: str
    files: dict[str, tuple[str, int]]

    @classmethod
    def open(cls, root: Path, exchange: str, market: str) -> Manifest:
        """The manifest of `root`, empty where there is none yet. Raises `UserError` for a folder of another source."""
        path = root / _MANIFEST
        if not path.exists():
            return cls(root, exchange, market, {})
        document = read_json(path)
        try:
            source = str(document["exchange"]), str(document["market"])
            files = {str(name): (str(one["symbol"]), int(one["start"])) for name, one in document["files"].items()}
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UserError(f"{path}: is not as a download writes it; mend it, or download into a new folder") from None
        if source != (exchange, market):
            raise UserError(
                f"{root}: holds {source[1]} data of {source[0]}; choose another folder for {market} data of {exchange}"
            )
        return cls(root, exchange, market, files)

    def enter(self, name: str, symbol: str, start: int) -> None:
        """Say that the file `name` is of `symbol` from `start` on, before anything is stored in it.

        Raises `UserError` where the file is of something else, was not downloaded, or begins later.
        """
        known = self.files.get(name)
        if known is None:
            if (self.root / name).exists():
                raise UserError(f"{self.root / name}: was not downloaded by this command; choose another folder")
            self.files[name] = (symbol, start)
            document = {file: {"symbol": of, "start": since} for file, (of, since) in sorted(self.files.items())}
            write_json(self.root / _MANIFEST, {"exchange": self.exchange, "market": self.market, "files": document})
        elif known[0] != symbol:
            raise UserError(f"{self.root / name}: holds {known[0]}; choose another folder for {symbol}")
        elif start < known[1]:
            raise UserError(
                f"{self.root / name}: was downloaded from {format_time(known[1])} on, and earlier rows cannot be put in"
                " front: start then or later, or choose another folder"
            )
