"""What stands beside the bars about the symbols: the venue's rules (`rules.json`), from exchange metadata in ccxt's
format, and whether each is spot or a perpetual (`instruments.json`).

`{"BTCUSDT": "spot", "ETHUSDT": "perpetual"}` is written by `data import`, and may be written by hand.

ccxt states amounts of contracts in contracts; here all quantities are base units.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from simulator.data.archive import SYMBOL, is_generated
from simulator.documents import read_document, typed
from simulator.errors import DataError
from simulator.exchange.rules import MarginTier, SymbolRules
from simulator.files import write_whole
from simulator.market.instruments import MarketKind, check_kind, kind_of_folder, kind_of_symbol, kind_of_venue

RULES_FILE, INSTRUMENTS_FILE = "rules.json", "instruments.json"
# How ccxt states precision: digits after the point, or the step itself. Its third mode, significant digits, is no step.
DECIMAL_PLACES, TICK_SIZE = 2, 4

_RULE_KEYS = frozenset(SymbolRules.__dataclass_fields__)


def rules_from_ccxt(
    market: Mapping[str, Any], tiers: Sequence[Mapping[str, Any]] | None = None, precision_mode: int = TICK_SIZE
) -> SymbolRules:
    """The rules of a spot market or a linear perpetual, from ccxt's unified `market` structure.

    Args:
        tiers: ccxt's unified leverage tiers of this market, by rising notional; None where they are not known.
        precision_mode: the exchange's `precisionMode`.

    A limit or a fee that ccxt states as None is not known, and then restricts nothing. Precision has to be known.

    Raises:
        DataError: another kind of market, or a field that is missing or absurd.
    """
    symbol = str(market.get("symbol", "a market without a symbol"))
    kind = _kind(symbol, market)
    if kind == "spot" and tiers:
        raise DataError(f"{symbol}: a spot market has no leverage tiers; leave them out.")
    size = Decimal(str(_field(symbol, market, "contractSize", positive=True))) if kind == "perpetual" else Decimal(1)
    smallest = _field(symbol, market, "limits.amount.min", optional=True)
    largest = _field(symbol, market, "limits.amount.max", optional=True)
    try:
        return SymbolRules(
            kind=kind,
            tick=float(_step(symbol, market, "price", precision_mode)),
            lot=float(_step(symbol, market, "amount", precision_mode) * size),
            min_quantity=0.0 if smallest is None else float(Decimal(str(smallest)) * size),
            max_quantity=math.inf if largest is None else float(Decimal(str(largest)) * size),
            min_notional=_field(symbol, market, "limits.cost.min", optional=True) or 0.0,
            maker_fee=_field(symbol, market, "maker", optional=True),
            taker_fee=_field(symbol, market, "taker", optional=True),
            tiers=_tiers(symbol, tiers or ()),
        )
    except DataError as error:
        raise error if str(error).startswith(symbol) else DataError(f"{symbol}: {error}") from None


def write_rules(path: str | Path, rules: Mapping[str, SymbolRules]) -> None:
    """Write the rules by symbol as JSON, in one piece. Equal rules give equal bytes.

    Raises `DataError` when the file cannot be written or a symbol cannot name the file of its bars.
    """
    for symbol in rules:
        _check_symbol("", symbol)
    write_json(Path(path), {
        symbol: asdict(one) | {"max_quantity": None if one.max_quantity == math.inf else one.max_quantity}
        for symbol, one in sorted(rules.items())
    })  # fmt: skip


def read_rules(path: str | Path) -> dict[str, SymbolRules]:
    """What `write_rules` wrote, equal to it. Raises `DataError` that names the file, the symbol and the field."""
    rules = {}
    for symbol, entry in read_json(Path(path)).items():
        _check_symbol(f"{path}: ", symbol)
        try:
            if odd := set(entry if isinstance(entry, dict) else ()) ^ _RULE_KEYS:
                raise ValueError(f"{', '.join(sorted(odd))} is missing or not known")
            largest = math.inf if entry["max_quantity"] is None else entry["max_quantity"]
            rules[symbol] = typed(SymbolRules, entry | {"max_quantity": largest})
        except (ValueError, DataError) as error:
            raise DataError(f"{path}: {symbol}: {error}; fix or remove the entry") from None
    return rules


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON object in one piece: the file is whole or as it was. Raises `DataError` when it cannot be."""
    try:
        write_whole(path, json.dumps(document, indent=2, allow_nan=False) + "\n")
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written: {error.strerror or error}; free some space, or choose another folder"
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises `DataError` when it is missing, unreadable or no object of finite numbers."""
    try:
        document = read_document(path)
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a readable JSON file ({error}); remove or fix it") from None
    if not isinstance(document, dict):
        raise DataError(f"{path}: is not a JSON object; remove or fix it")
    return document


def _kind(symbol: str, market: Mapping[str, Any]) -> MarketKind:
    known = _part(symbol, market, "type")
    if known == "spot":
        return "spot"
    if known != "swap":
        raise DataError(f"{symbol}: is a market of type '{known}'; only spot markets and perpetuals can be simulated.")
    if market.get("linear") is not True:
        raise DataError(f"{symbol}: is not linear; a perpetual must be margined in its quote currency.")
    if market.get("settle") != market.get("quote"):
        raise DataError(
            f"{symbol}: settles in {market.get('settle')}; a perpetual must settle in its quote currency,"
            f" {market.get('quote')}."
        )
    return "perpetual"


def _field(symbol: str, structure: Any, name: str, *, optional: bool = False, positive: bool = False) -> Any:
    """The number at `name`, a way through the structure; `optional`: it may be None, and is not negative but for fees.
    Raises `DataError`."""
    value = _part(symbol, structure, name)
    if value is None and optional:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        raise DataError(f"{symbol}: {name} is {value!r:.60}; it must be a finite number.")
    if (positive and value <= 0.0) or (name.startswith("limits") and value < 0.0):
        raise DataError(f"{symbol}: {name} is {value!r}; it must {'be above 0' if positive else 'not be negative'}.")
    return float(value)


def _part(symbol: str, structure: Any, name: str) -> Any:
    for part in name.split("."):
        if not isinstance(structure, Mapping) or part not in structure:
            raise DataError(f"{symbol}: the exchange's metadata has no {part}; this market cannot be used.")
        structure = structure[part]
    return structure


def _check_symbol(where: str, symbol: str) -> None:
    if not SYMBOL.fullmatch(symbol):
        raise DataError(f"{where}{symbol!r} is not a symbol: use letters, digits, '_' and '-'")


def _step(symbol: str, market: Mapping[str, Any], what: str, mode: int) -> Decimal:
    name = f"precision.{what}"
    value = _field(symbol, market, name, positive=mode == TICK_SIZE)
    if mode == TICK_SIZE:
        return Decimal(str(value))
    if mode == DECIMAL_PLACES:
        if not (value.is_integer() and abs(value) <= 30):
            raise DataError(f"{symbol}: {name} is {value!r}; it must be a whole number of decimal places.")
        return Decimal(1).scaleb(-int(value))
    raise DataError(f"{symbol}: precision mode {mode} gives no price step; decimal places (2) or a tick size (4) does.")


def _tiers(symbol: str, tiers: Sequence[Mapping[str, Any]]) -> tuple[MarginTier, ...]:
    found: list[MarginTier] = []
    ceiling = 0.0
    for number, tier in enumerate(tiers):
        named = f"{symbol}: leverage tier {number}"
        floor, upper = _field(named, tier, "minNotional"), _field(named, tier, "maxNotional", optional=True)
        if floor != ceiling:
            raise DataError(f"{named}: minNotional is {floor}, but the tiers below end at {ceiling}.")
        if (upper is None and number < len(tiers) - 1) or (upper is not None and upper <= floor):
            raise DataError(f"{named}: maxNotional is {upper}; it must be above minNotional {floor}.")
        ceiling = math.inf if upper is None else upper
        rate = _field(named, tier, "maintenanceMarginRate")
        found.append(MarginTier(floor, rate, _field(named, tier, "maxLeverage", positive=True)))
    return tuple(found)


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
        _check_symbol(f"{path}: ", symbol)
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
                f"{root}: {INSTRUMENTS_FILE} has {symbol} as {own[symbol]}, {RULES_FILE} has {of_venue};"
                f" fix one of the two"
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
