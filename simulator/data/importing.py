"""Files of other programs, made into catalogs: one folder of Parquet files for each venue.

`simulator.data.formats` reads the files. Files of one series are joined with each other and with what the catalog
already has: an import adds rows and deletes nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from simulator.data.archive import MARKET_MANIFEST
from simulator.data.catalog import BAR_FILE, Catalog, read_bars
from simulator.data.formats import NO_DATA, SUFFIXES, FileOptions, Recorded, read_recorded
from simulator.data.venue import INSTRUMENTS_FILE, StatedKind, read_instruments, write_instruments
from simulator.errors import DataError
from simulator.market.bar_checks import BAR_VALUES, check_bars
from simulator.market.events import read_funding
from simulator.market.instruments import MarketKind
from simulator.market.timeframes import format_time, interval_of
from simulator.tables import timestamp_array, write_table

ImportOutcome = Literal["taken", "refused", "left out", "unknown"]


@dataclass(frozen=True)
class SourceFile:
    """What became of one file; `path` is relative to the tree, `detail` says what was taken or why nothing was."""

    path: Path
    outcome: ImportOutcome
    detail: str


class Change(NamedTuple):
    """What an import did to a file of a catalog: rows `added` to those that were there."""

    new: bool
    added: int

    @property
    def state(self) -> Literal["written", "unchanged", "extended"]:
        return "written" if self.new else "extended" if self.added else "unchanged"


@dataclass(frozen=True)
class ImportReport:
    """Every file that might hold data, and every file of the catalogs with what was done to it."""

    sources: tuple[SourceFile, ...]
    written: tuple[tuple[Path, Change], ...]
    catalogs: tuple[Path, ...]
    kinds: dict[Path, dict[str, StatedKind]]  # of the symbols of each catalog
    series: tuple[str, ...] = ()  # the series that were made, with their gaps


@dataclass
class _Work:
    """An import under way."""

    root: Path
    out: Path
    sources: list[SourceFile] = field(default_factory=list)
    written: dict[Path, Change] = field(default_factory=dict)
    traded: dict[str, dict[str, MarketKind | None]] = field(default_factory=dict)  # venue -> symbol -> kind in its name
    series: list[str] = field(default_factory=list)

    def tell(self, path: Path, outcome: ImportOutcome, detail: object) -> None:
        self.sources.append(SourceFile(path.relative_to(self.root), outcome, str(detail).removeprefix(f"{path}: ")))


def import_tree(
    root: str | Path,
    out: str | Path,
    symbols: Sequence[str] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    instrument: MarketKind | None = None,
    options: FileOptions | None = None,
) -> ImportReport:
    """Add the files below `root`, or the file `root`, to catalogs in the folder `out`, one for each venue.

    Args:
        symbols: only these; None: all. progress: called with the files done and their number.
        instrument: what the bars are of, where the files do not say it.
        options: what the user states about files that do not state it themselves.

    A file that cannot be used is refused or unknown in the report. Raises `DataError` where nothing can be read or
    written at all.
    """
    place = Path(root)
    work = _Work(place.parent if place.is_file() else place, Path(out))
    paths, found = _paths(place, work), list[tuple[Path, Recorded]]()
    for number, path in enumerate(paths):
        progress(number, len(paths))
        found += [(path, one) for one in _read(path, work, symbols, options or FileOptions())]
    for _, one in found:
        if place.is_dir() and (work.out / one.venue).resolve().is_relative_to(place.resolve()):
            raise DataError(f"{work.out / one.venue}: lies in the tree that is imported; choose another folder")
    if missing := sorted(set(symbols or ()) - {one.symbol for _, one in found if one.kind == "bars"}):
        raise DataError(f"{place}: no bars of {', '.join(missing)}; ask for symbols that have some, or for none")
    with import_lock(work.out):
        groups: dict[tuple[bool, str, str], list[tuple[Path, Recorded]]] = {}
        for path, one in found:  # bars first: funding and mark prices need them
            groups.setdefault((one.kind != "bars", one.venue, one.file), []).append((path, one))
        for key in sorted(groups):
            _take(groups[key], work)
        kinds = {
            work.out / venue: _state_kinds(work.out / venue, stated, instrument)
            for venue, stated in sorted(work.traded.items())
        }
    progress(len(paths), len(paths))
    changed = {path.relative_to(work.out).parts[0] for path in work.written}
    return ImportReport(
        tuple(sorted(work.sources, key=lambda one: one.path)),
        tuple(sorted(work.written.items())),
        tuple(work.out / venue for venue in sorted(changed | set(work.traded))),
        kinds,
        tuple(work.series),
    )


@contextmanager
def import_lock(out: Path) -> Iterator[None]:
    """Hold the folder `out`, which is made, for a block, so that no import loses the rows of another one; the end of
    the process releases it too. A folder that was made and holds nothing is removed again.

    Raises `DataError` where it cannot be made, or another import holds it.
    """
    made, folder = not out.exists(), -1
    try:
        out.mkdir(parents=True, exist_ok=True)
        folder = os.open(out, os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if folder != -1:
            os.close(folder)
        if error.errno == errno.EWOULDBLOCK:
            raise DataError(f"{out}: another import is writing here; repeat the command when it ends") from None
        raise DataError(f"{out}: cannot be written: {error.strerror or error}") from error
    try:
        yield
    finally:
        os.close(folder)
        if made and not any(out.iterdir()):
            out.rmdir()


def _paths(root: Path, work: _Work) -> list[Path]:
    """The files that may hold data. Raises `DataError` where there are none."""
    if root.is_file():
        return [root]
    if not root.is_dir():
        special = "it is a FIFO, device or socket" if root.exists() else "there is no such folder or file"
        raise DataError(f"{root}: {special}; name a folder of recorded files, or one of them")
    if work.out.resolve().is_relative_to(root.resolve()):
        raise DataError(f"{work.out}: lies in the tree that is imported; choose a folder outside {root}")
    named = [path for path in root.rglob("*") if path.name.endswith(SUFFIXES) and path.name not in NO_DATA]
    for path in named:
        if not path.is_file() and not path.is_dir():
            work.tell(path, "refused", "it is a FIFO, device or socket, or a link that leads nowhere")
    paths = sorted(path for path in named if path.is_file())
    if not paths and not work.sources:
        raise DataError(f"{root}: holds no file that ends with {', '.join(SUFFIXES)}")
    return paths


def _read(path: Path, work: _Work, symbols: Collection[str] | None, options: FileOptions) -> list[Recorded]:
    """What a file holds that can be taken; everything else is reported."""
    found: list[Recorded] = []
    try:
        for one in read_recorded(path, work.root, options):
            if isinstance(one, str):
                work.tell(path, "unknown", one)
            elif symbols is not None and one.symbol not in symbols:
                work.tell(path, "left out", f"{one.kind} of {one.symbol}, which was not asked for")
            else:
                found.append(one)
    except DataError as error:
        work.tell(path, "refused", error)
    return found


def _take(group: list[tuple[Path, Recorded]], work: _Work) -> None:
    """Write the series that the files of a group are parts of. A file that contradicts what is there is refused."""
    first = group[0][1]
    target = work.out / first.venue / first.file
    try:
        _check_place(first, work)
        before = _stored(target, first) if target.exists() else None
    except DataError as error:
        for path, _ in group:
            work.tell(path, "refused", error)
        return
    while group:
        rows, contradiction = _joined(before, [one for _, one in group], target)
        if contradiction is None:
            break
        work.tell(group.pop(contradiction[0])[0], "refused", contradiction[1])
    else:
        return
    for path, one in group:
        if one.kind == "bars":
            kinds = work.traded.setdefault(one.venue, {})
            kinds[one.symbol] = one.instrument or kinds.get(one.symbol)
        said = f"{one.kind}: {one.format}, {len(one.rows)} {_span(one.rows)} for {one.venue}/{one.file}"
        work.tell(path, "taken", "; ".join([said, *one.notes]))
    change = Change(before is None, len(rows) - (0 if before is None else len(before)))
    columns = {name: rows[name].to_numpy(np.float64) for name in first.rows.columns[1:]}
    time = rows["time"].to_numpy(np.int64)
    if change.state != "unchanged":
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{target.parent}: cannot be written: {error.strerror or error}") from error
        write_table(target, {"timestamp": timestamp_array(time), **columns})
    work.written[target] = change
    notes = []
    if first.kind != "funding":
        issues = check_bars(first.file, interval_of(first.timeframe), time, columns)
        notes = [issue.detail for issue in issues if first.kind == "bars" or issue.kind == "gap"]
    count = f"{len(group)} file{'s' * (len(group) > 1)}"
    made = f"{first.venue}/{first.file}: {len(rows)} rows {_span(rows)} with those of {count}"
    work.series.append("; ".join([made, *notes]))


def _check_place(one: Recorded, work: _Work) -> None:
    """Raise `DataError` where a series has no place in its catalog."""
    folder = work.out / one.venue
    if (folder / MARKET_MANIFEST).exists():
        raise DataError(f"{folder} holds a market that was written as a whole; choose another folder")
    names = (path.name for path in folder.iterdir()) if folder.is_dir() else ()
    stored = {match[1] for name in names if (match := BAR_FILE.fullmatch(name))}
    if one.kind != "bars" and one.symbol not in {*work.traded.get(one.venue, ()), *stored}:
        raise DataError(
            f"there are no bars of {one.symbol} in {one.venue} for it to stand beside; import both together"
        )


def _stored(path: Path, one: Recorded) -> pd.DataFrame:
    """The rows of the file `path`, by time (ms). Raises `DataError` where it cannot be extended."""
    try:
        if one.kind == "funding":
            events = [(event.time, event.rate) for event in read_funding(path)]
            return pd.DataFrame(events, columns=["time", "funding_rate"])
        time, columns, issues = read_bars(path, interval_of(one.timeframe))
        for issue in issues:
            if issue.fatal:
                raise DataError(f"{path}: {issue.detail}")
        if more := sorted(set(columns) - set(BAR_VALUES)):
            raise DataError(f"{path} has the column {more[0]}, which the imported file lacks")
    except DataError as error:
        raise DataError(f"the stored file cannot be extended: {error}; fix it, or move it away") from None
    return pd.DataFrame({"time": time, **columns})


def _joined(
    before: pd.DataFrame | None, parts: Sequence[Recorded], stored: Path
) -> tuple[pd.DataFrame, tuple[int, str] | None]:
    """The stored rows and those of all parts, by time, equal ones once; and the number of a part with a row that
    differs from another one of the same time, in words."""
    frames = [part.rows.assign(owner=owner, line=part.rows.index) for owner, part in enumerate(parts)]
    if before is not None:
        frames.insert(0, before.assign(owner=-1, line=0))
    rows = pd.concat(frames, ignore_index=True).sort_values("time", kind="stable", ignore_index=True)
    same = rows["time"].diff() == 0
    names = list(parts[0].rows.columns[1:])
    differs = rows[names].ne(rows[names].shift())
    wrong = differs.any(axis=1) & same
    if not wrong.any():
        return rows[~same], None
    at = int(wrong.to_numpy().argmax())
    name = names[int(differs.iloc[at].to_numpy().argmax())]
    its, mine = rows.iloc[at - 1], rows.iloc[at]
    owner, time = int(mine["owner"]), format_time(int(mine["time"]))
    part = parts[owner]
    if its["owner"] < 0:
        own = rows["owner"] == owner
        return rows, (owner, (
            f"{name} of {time} is {mine[name]:.10g} here and {its[name]:.10g} in {stored} ({int((wrong & own).sum())}"
            f" of {int((same & own).sum())} common rows differ); move the stored file away to replace it"
        ))  # fmt: skip
    other = parts[int(its["owner"])]
    return rows, (owner, (
        f"{part.unit} {int(mine['line'])} has {name} {mine[name]:g} of {time}, {other.label} {other.unit}"
        f" {int(its['line'])} has {its[name]:g}; keep one of the files"
    ))  # fmt: skip


def _state_kinds(
    catalog: Path, stated: dict[str, MarketKind | None], instrument: MarketKind | None
) -> dict[str, StatedKind]:
    """Write down what is known of the kinds of the symbols in `catalog`; what was written there before stays, unless
    `instrument` says something else. What files state comes after it. Raises `DataError` as `stated_kinds` does."""
    path = catalog / INSTRUMENTS_FILE
    before = read_instruments(path) if path.exists() else {}
    by_file = {symbol: kind for symbol, kind in stated.items() if kind is not None}
    known = before | dict.fromkeys(stated, instrument) if instrument else by_file | before
    if known != before:
        write_instruments(path, known)
    found = Catalog(catalog).kinds()
    own = {symbol: one.kind for symbol, one in found.items() if symbol in stated and one.kind is not None}
    if known | own != known:
        write_instruments(path, known | own)
    return {symbol: found[symbol] for symbol in sorted(stated)}


def _span(rows: pd.DataFrame) -> str:
    first, last = (format_time(int(rows["time"].iloc[row])) for row in (0, -1))
    return f"from {first} to {last}"
