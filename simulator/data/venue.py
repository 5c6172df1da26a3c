"""What stands beside the bars about the symbols: the venue's rules (`rules.json`), from exchange metadata in ccxt's
format, and whether each is spot or a perpetual (`instruments.json`).

`{"BTCUSDT": "spot", "ETHUSDT": "perpetual"}` is written by `data import`, and may be written by hand.

ccxt states amounts of contracts in contracts; here all quantities are base units.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from simulator.data.archive import SYMBOL, is_generated
from simulator.documents import read_document
from simulator.errors import DataError
from simulator.exchange.rules import MarginTier, SymbolRules
from simulator.files import write_whole
from simulator.market.instruments import MarketKind, check_kind, kind_of_folder, kind_of_symbol, kind_of_venue

RULES_FILE = "rules.json"
# How ccxt states precision: digits after the point, or the step itself. Its third mode, significant digits, is no step.
DECIMAL_PLACES, TICK_SIZE = 2, 4

_RULE_KEYS = frozenset(SymbolRules.__dataclass_fields__)
_TIER_KEYS = frozenset(MarginTier.__dataclass_fields__)
_HUGE = 1e300  # what is beyond is no number of a venue
_OPTIONAL_NUMBERS = ("maker_fee", "taker_fee")


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
    size = "1"
    if kind == "perpetual":
        size = str(_positive(symbol, "contractSize", _field(symbol, market, "contractSize")))
    quantity = Decimal(size)
    lot = _step(symbol, market, "amount", precision_mode)
    smallest = _limit(symbol, market, "amount", "min")
    largest = _limit(symbol, market, "amount", "max")
    try:
        return SymbolRules(
            kind=kind,
            tick=float(_step(symbol, market, "price", precision_mode)),
            lot=float(lot * quantity),
            min_quantity=0.0 if smallest is None else float(Decimal(str(smallest)) * quantity),
            max_quantity=math.inf if largest is None else float(Decimal(str(largest)) * quantity),
            min_notional=_limit(symbol, market, "cost", "min") or 0.0,
            maker_fee=_optional(symbol, "maker", _field(symbol, market, "maker")),
            taker_fee=_optional(symbol, "taker", _field(symbol, market, "taker")),
            tiers=_tiers(symbol, tiers or ()),
        )
    except DataError as error:
        raise error if str(error).startswith(symbol) else DataError(f"{symbol}: {error}") from None


def write_rules(path: str | Path, rules: Mapping[str, SymbolRules]) -> None:
    """Write the rules by symbol as JSON, in one piece. Equal rules give equal bytes.

    Raises `DataError` when the file cannot be written or a symbol cannot name the file of its bars.
    """
    document: dict[str, Any] = {}
    for symbol in sorted(rules):
        if not SYMBOL.fullmatch(symbol):
            raise DataError(f"{symbol!r} is not a symbol: use letters, digits, '_' and '-'")
        one = rules[symbol]
        document[symbol] = {name: getattr(one, name) for name in SymbolRules.__dataclass_fields__} | {
            "max_quantity": None if one.max_quantity == math.inf else one.max_quantity,
            "tiers": [{name: getattr(tier, name) for name in MarginTier.__dataclass_fields__} for tier in one.tiers],
        }
    write_json(Path(path), document)


def read_rules(path: str | Path) -> dict[str, SymbolRules]:
    """What `write_rules` wrote, equal to it. Raises `DataError` that names the file, the symbol and the field."""
    rules = {}
    for symbol, entry in read_json(Path(path)).items():
        where = f"{path}: {symbol}"
        if not SYMBOL.fullmatch(symbol):
            raise DataError(f"{path}: {symbol!r} is not a symbol: use letters, digits, '_' and '-'")
        values = _exact_keys(where, entry, _RULE_KEYS)
        if not isinstance(values["tiers"], list):
            raise DataError(f"{where}: tiers is {values['tiers']!r}; it must be a list.")
        tiers = []
        for number, tier in enumerate(values["tiers"]):
            named = f"{where}: tier {number}"
            fields = _exact_keys(named, tier, _TIER_KEYS)
            tiers.append(MarginTier(**{name: _number(named, name, value) for name, value in fields.items()}))
        numbers: dict[str, Any] = {
            name: _optional(where, name, value) if name in _OPTIONAL_NUMBERS else _number(where, name, value)
            for name, value in values.items()
            if name not in ("kind", "tiers", "max_quantity")
        }
        largest = values["max_quantity"]
        numbers["max_quantity"] = math.inf if largest is None else _number(where, "max_quantity", largest)
        try:
            rules[symbol] = SymbolRules(kind=values["kind"], tiers=tuple(tiers), **numbers)
        except DataError as error:
            raise DataError(f"{where}: {error}") from None
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
    known = _field(symbol, market, "type")
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


def _field(symbol: str, structure: Any, name: str) -> Any:
    if not isinstance(structure, Mapping) or name not in structure:
        raise DataError(f"{symbol}: the exchange's metadata has no {name}; this market cannot be used.")
    return structure[name]


def _number(where: str, name: str, value: Any) -> float:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and -_HUGE < value < _HUGE
    if not usable:
        raise DataError(f"{where}: {name} is {value!r:.60}; it must be a finite number.")
    return float(value)


def _optional(where: str, name: str, value: Any) -> float | None:
    return None if value is None else _number(where, name, value)


def _positive(symbol: str, name: str, value: Any) -> float:
    number = _number(symbol, name, value)
    if number <= 0.0:
        raise DataError(f"{symbol}: {name} is {value!r}; it must be above 0.")
    return number


def _limit(symbol: str, market: Mapping[str, Any], what: str, bound: str) -> float | None:
    name = f"limits.{what}.{bound}"
    limits = _field(symbol, _field(symbol, market, "limits"), what)
    value = _optional(symbol, name, _field(symbol, limits, bound))
    if value is not None and value < 0.0:
        raise DataError(f"{symbol}: {name} is {value}; it must not be negative.")
    return value


def _step(symbol: str, market: Mapping[str, Any], what: str, mode: int) -> Decimal:
    name = f"precision.{what}"
    value = _field(symbol, _field(symbol, market, "precision"), what)
    if mode == TICK_SIZE:
        return Decimal(str(_positive(symbol, name, value)))
    if mode == DECIMAL_PLACES:
        places = _number(symbol, name, value)
        if not (places.is_integer() and abs(places) <= 30):
            raise DataError(f"{symbol}: {name} is {value!r}; it must be a whole number of decimal places.")
        return Decimal(1).scaleb(-int(places))
    raise DataError(f"{symbol}: precision mode {mode} gives no price step; decimal places (2) or a tick size (4) does.")


def _tiers(symbol: str, tiers: Sequence[Mapping[str, Any]]) -> tuple[MarginTier, ...]:
    found: list[MarginTier] = []
    ceiling = 0.0
    for number, tier in enumerate(tiers):
        named = f"{symbol}: leverage tier {number}"
        floor = _number(named, "minNotional", _field(named, tier, "minNotional"))
        if floor != ceiling:
            raise DataError(f"{named}: minNotional is {floor}, but the tiers below end at {ceiling}.")
        last = number == len(tiers) - 1
        upper = _optional(named, "maxNotional", _field(named, tier, "maxNotional"))
        if (upper is None and not last) or (upper is not None and upper <= floor):
            raise DataError(f"{named}: maxNotional is {upper}; it must be above minNotional {floor}.")
        ceiling = math.inf if upper is None else upper
        rate = _number(named, "maintenanceMarginRate", _field(named, tier, "maintenanceMarginRate"))
        leverage = _positive(named, "maxLeverage", _field(named, tier, "maxLeverage"))
        found.append(MarginTier(floor, rate, leverage))
    return tuple(found)


def _exact_keys(where: str, entry: Any, keys: frozenset[str]) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise DataError(f"{where}: is {entry!r}; it must be an object.")
    if set(entry) != keys:
        odd = ", ".join(sorted(set(entry) ^ keys))
        raise DataError(f"{where}: {odd} is missing or not known; the fields are {', '.join(sorted(keys))}.")
    return entry


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
