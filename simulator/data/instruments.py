"""The kinds of a catalog's symbols: `instruments.json`, and what else stands beside the bars.

`{"BTCUSDT": "spot", "ETHUSDT": "perpetual"}` is written by `data import`, and may be written by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulator.data.archive import SYMBOL, is_generated
from simulator.data.venue import RULES_FILE, read_json, read_rules, write_json
from simulator.errors import DataError
from simulator.market.instruments import (
    MarketKind,
    check_kind,
    kind_of_folder,
    kind_of_symbol,
    kind_of_venue,
)

INSTRUMENTS_FILE = "instruments.json"


@dataclass(frozen=True)
class StatedKind:
    """The kind of a symbol and what states it; both empty (None, "") where nothing does."""

    kind: MarketKind | None = None
    source: str = ""

    def __str__(self) -> str:
        return "not stated" if self.kind is None else f"{self.kind} ({self.source})"


def read_instruments(path: str | Path) -> dict[str, MarketKind]:
    """The kinds by symbol in `path`. Raises `DataError` that names the file and the symbol."""
    kinds = {}
    for symbol, kind in read_json(Path(path)).items():
        if not SYMBOL.fullmatch(symbol):
            raise DataError(f"{path}: {symbol!r} is not a symbol: use letters, digits, '_' and '-'")
        kinds[symbol] = check_kind(f"{path}: {symbol}", kind)
    return kinds


def write_instruments(path: str | Path, kinds: Mapping[str, MarketKind]) -> None:
    """Write the kinds, in one piece, sorted by symbol. Raises `DataError` when the file cannot be written."""
    write_json(Path(path), dict(sorted(kinds.items())))


def stated_kinds(root: Path, symbols: Sequence[str], funded: Sequence[str]) -> dict[str, StatedKind]:
    """What the folder `root` states about `symbols`, of which `funded` have funding rates.

    What says more goes first: `instruments.json`; the venue's `rules.json`; the recipe of a generated market; the form
    of the symbol; a folder called spot, perp, futures and the like; funding; the bare name of a spot venue.

    Raises `DataError` for files that cannot be read, and for two that contradict each other.
    """
    own = read_instruments(root / INSTRUMENTS_FILE) if (root / INSTRUMENTS_FILE).exists() else {}
    rules = read_rules(root / RULES_FILE) if (root / RULES_FILE).exists() else {}
    generated, folder = is_generated(root), root.resolve().name
    kinds: dict[str, StatedKind] = {}
    for symbol in symbols:
        of_venue = rules[symbol].kind if symbol in rules else None
        if symbol in own and of_venue is not None and of_venue != own[symbol]:
            raise DataError(
                f"{root}: {INSTRUMENTS_FILE} says that {symbol} is {own[symbol]}, {RULES_FILE} says {of_venue};"
                f" mend one of the two"
            )
        statements: list[tuple[MarketKind | None, str]] = [
            (own.get(symbol), INSTRUMENTS_FILE),
            (of_venue, RULES_FILE),
            ("perpetual" if generated else None, "generated"),
            (kind_of_symbol(symbol), "form of the symbol"),
            (kind_of_folder(folder), f"folder {folder}"),
            ("perpetual" if symbol in funded else None, "funding"),
            (kind_of_venue(folder), f"folder {folder}"),
        ]
        found = [StatedKind(kind, source) for kind, source in statements if kind is not None]
        kinds[symbol] = found[0] if found else StatedKind()
    return kinds
