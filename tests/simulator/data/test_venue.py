"""Exchange metadata becomes rules, or is refused with the symbol and the field named; rules survive a file."""

from __future__ import annotations

import copy
import gzip
import json
import math
import os
from pathlib import Path
from typing import Any

import ccxt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.data.venue import DECIMAL_PLACES, TICK_SIZE, read_rules, rules_from_ccxt, write_rules
from simulator.errors import DataError
from simulator.exchange.rules import MarginTier, SymbolRules

ROOT = Path(__file__).resolve().parents[3]
Structure = dict[str, Any]

SPOT: Structure = {
    "symbol": "BTC/USDT",
    "type": "spot",
    "linear": None,
    "base": "BTC",
    "quote": "USDT",
    "settle": None,
    "contractSize": None,
    "precision": {"price": 0.01, "amount": 0.00001},
    "limits": {"amount": {"min": 0.0001, "max": 9000.0}, "cost": {"min": 5.0, "max": None}},
    "maker": 0.001,
    "taker": 0.002,
}
SWAP: Structure = SPOT | {
    "symbol": "BTC/USDT:USDT",
    "type": "swap",
    "linear": True,
    "settle": "USDT",
    "contractSize": 0.01,
    "precision": {"price": 0.1, "amount": 0.1},
    "limits": {"amount": {"min": 0.1, "max": 12000.0}, "cost": {"min": None, "max": None}},
}
TIERS: list[Structure] = [
    {"minNotional": 0.0, "maxNotional": 5000.0, "maintenanceMarginRate": 0.01, "maxLeverage": 50.0},
    {"minNotional": 5000.0, "maxNotional": None, "maintenanceMarginRate": 0.02, "maxLeverage": 25.0},
]


def changed(structure: Structure, path: str, value: Any) -> Structure:
    """The structure with another value at `path`; "absent" removes it."""
    result = copy.deepcopy(structure)
    *way, last = path.split(".")
    inner = result
    for name in way:
        inner = inner[name]
    if value == "absent":
        del inner[last]
    else:
        inner[last] = value
    return result


def fixtures(name: str) -> Path:
    """A recorded file, which is not part of the project; skips where it is absent."""
    path = Path(os.environ.get("CRYPTOSENTINEL_SHARED", ROOT.parent / "shared")) / "exchange-fixtures" / name
    if not path.exists():
        pytest.skip(f"no recorded answers at {path} (set CRYPTOSENTINEL_SHARED to the folder that holds them)")
    return path


def test_a_spot_market() -> None:
    assert rules_from_ccxt(SPOT) == SymbolRules(
        kind="spot", tick=0.01, lot=0.00001, min_quantity=0.0001, max_quantity=9000.0, min_notional=5.0,
        maker_fee=0.001, taker_fee=0.002,
    )  # fmt: skip


def test_contracts_become_base_units_and_tiers_become_margin_tiers() -> None:
    assert rules_from_ccxt(SWAP, TIERS) == SymbolRules(
        kind="perpetual", tick=0.1, lot=0.001, min_quantity=0.001, max_quantity=120.0, min_notional=0.0,
        maker_fee=0.001, taker_fee=0.002, tiers=(MarginTier(0.0, 0.01, 50.0), MarginTier(5000.0, 0.02, 25.0)),
    )  # fmt: skip


@pytest.mark.parametrize(("places", "step"), [(0, 1.0), (2, 0.01), (8, 1e-8), (3.0, 0.001), (-1, 10.0)])
def test_decimal_places(places: float, step: float) -> None:
    market = SPOT | {"precision": {"price": places, "amount": places}}
    rules = rules_from_ccxt(market, None, DECIMAL_PLACES)
    assert (rules.tick, rules.lot) == (step, step)


@pytest.mark.parametrize("path", ["limits.amount.min", "limits.amount.max", "limits.cost.min", "maker", "taker"])
def test_a_limit_that_is_not_known_restricts_nothing(path: str) -> None:
    field = {
        "limits.amount.min": "min_quantity", "limits.amount.max": "max_quantity", "limits.cost.min": "min_notional",
        "maker": "maker_fee", "taker": "taker_fee",
    }[path]  # fmt: skip
    assert getattr(rules_from_ccxt(changed(SPOT, path, None)), field) == getattr(SymbolRules(), field)


@pytest.mark.parametrize(
    ("market", "path", "value", "named"),
    [
        (SPOT, "type", "option", "option"),
        (SPOT, "type", "future", "future"),
        (SPOT, "type", "absent", "type"),
        (SWAP, "linear", False, "linear"),
        (SWAP, "settle", "USDC", "USDC"),
        (SWAP, "contractSize", None, "contractSize"),
        (SWAP, "contractSize", 0, "contractSize"),
        (SPOT, "precision", "absent", "precision"),
        (SPOT, "precision.price", "absent", "price"),
        (SPOT, "precision.price", None, "precision.price"),
        (SPOT, "precision.price", 0.0, "precision.price"),
        (SPOT, "precision.amount", -0.1, "precision.amount"),
        (SPOT, "precision.amount", "0.1", "precision.amount"),
        (SPOT, "precision.amount", math.nan, "precision.amount"),
        (SPOT, "precision.amount", True, "precision.amount"),
        (SPOT, "limits", None, "amount"),
        (SPOT, "limits.amount", "absent", "amount"),
        (SPOT, "limits.amount.min", "absent", "min"),
        (SPOT, "limits.amount.min", -1.0, "limits.amount.min"),
        (SPOT, "limits.amount.max", 0.0, "max_quantity"),
        (SPOT, "limits.amount.max", math.inf, "limits.amount.max"),
        (SPOT, "limits.cost.min", "five", "limits.cost.min"),
        (SPOT, "maker", -0.5, "maker_fee"),
        (SPOT, "taker", 2.0, "taker_fee"),
        (SPOT, "taker", "absent", "taker"),
    ],
)
def test_what_is_missing_or_absurd_is_named(market: Structure, path: str, value: Any, named: str) -> None:
    with pytest.raises(DataError, match=f"^{market['symbol']}: .*{named}"):
        rules_from_ccxt(changed(market, path, value))


@pytest.mark.parametrize(("value", "mode"), [(2.5, DECIMAL_PLACES), (99, DECIMAL_PLACES), (5, 3)])
def test_precision_that_gives_no_step(value: float, mode: int) -> None:
    with pytest.raises(DataError, match=r"^BTC/USDT: precision"):
        rules_from_ccxt(SPOT | {"precision": {"price": value, "amount": value}}, None, mode)


@pytest.mark.parametrize(
    ("number", "field", "value", "named"),
    [
        (0, "minNotional", 1.0, "minNotional"),
        (1, "minNotional", 5001.0, "minNotional"),
        (1, "minNotional", 4999.0, "minNotional"),
        (0, "maxNotional", None, "maxNotional"),
        (1, "maxNotional", 5000.0, "maxNotional"),
        (1, "maintenanceMarginRate", 0.001, "rates must not fall"),
        (1, "maintenanceMarginRate", 1.0, "rates are"),
        (1, "maintenanceMarginRate", "absent", "maintenanceMarginRate"),
        (0, "maxLeverage", 0.0, "maxLeverage"),
        (0, "maxLeverage", None, "maxLeverage"),
    ],
)
def test_tiers_that_no_exchange_could_mean(number: int, field: str, value: Any, named: str) -> None:
    tiers = [changed(tier, field, value) if place == number else tier for place, tier in enumerate(TIERS)]
    with pytest.raises(DataError, match=f"^BTC/USDT:USDT: .*{named}"):
        rules_from_ccxt(SWAP, tiers)


def test_a_spot_market_has_no_tiers() -> None:
    with pytest.raises(DataError, match="no leverage tiers"):
        rules_from_ccxt(SPOT, TIERS)


def amounts(low: float = 0.0, high: float = 1e12) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False)


@st.composite
def symbol_rules(draw: st.DrawFn) -> SymbolRules:
    floors = sorted(draw(st.sets(amounts(0.001), max_size=4)))
    rates = sorted(draw(st.lists(st.floats(0.0, 0.999), min_size=len(floors) + 1, max_size=len(floors) + 1)))
    tiers = [MarginTier(f, r, draw(amounts(0.01, 200.0))) for f, r in zip([0.0, *floors], rates, strict=True)]
    smallest = draw(amounts())
    return SymbolRules(
        kind=draw(st.sampled_from(["spot", "perpetual"])),
        tick=draw(amounts()),
        lot=draw(amounts()),
        min_quantity=smallest,
        max_quantity=draw(st.sampled_from([math.inf, smallest * 2 + 1])),
        min_notional=draw(amounts()),
        maker_fee=draw(st.none() | st.floats(-0.009, 0.9)),
        taker_fee=draw(st.none() | st.floats(-0.009, 0.9)),
        tiers=tuple(tiers) if draw(st.booleans()) else (),
        liquidation_fee=draw(amounts(0.0, 1.0)),
    )


@settings(max_examples=60, deadline=None)
@given(rules=st.dictionaries(st.from_regex(r"[A-Z0-9_-]{1,12}", fullmatch=True), symbol_rules(), max_size=4))
def test_rules_survive_a_file_exactly(rules: dict[str, SymbolRules], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("rules") / "rules.json"
    write_rules(path, rules)
    assert read_rules(path) == rules
    first = path.read_bytes()
    write_rules(path, dict(reversed(rules.items())))
    assert path.read_bytes() == first
    assert [one.name for one in path.parent.iterdir()] == ["rules.json"]


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("tick", "absent", "tick"),
        ("colour", "red", "colour"),
        ("tick", "0.1", "tick"),
        ("tick", True, "tick"),
        ("tick", None, "tick"),
        ("tick", -1.0, "tick"),
        ("kind", "option", "option"),
        ("max_quantity", 0.0, "max_quantity"),
        ("maker_fee", 5.0, "maker_fee"),
        ("tiers", {}, "tiers"),
        ("tiers", [1], "tiers.0"),
        ("tiers", [{"floor": 0.0}], "maintenance_rate"),
        ("tiers", [{"floor": 0.0, "maintenance_rate": None, "max_leverage": 2.0}], "maintenance_rate"),
        ("tiers", [{"floor": 1.0, "maintenance_rate": 0.0, "max_leverage": 2.0}], "first margin tier"),
    ],
)
def test_a_file_that_was_changed_by_hand_is_checked(tmp_path: Path, field: str, value: Any, named: str) -> None:
    path = tmp_path / "rules.json"
    write_rules(path, {"BTCUSDT": rules_from_ccxt(SPOT)})
    document = json.loads(path.read_text())
    path.write_text(json.dumps(changed(document, f"BTCUSDT.{field}", value)))
    with pytest.raises(DataError, match=rf"rules\.json: BTCUSDT.*{named}"):
        read_rules(path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"BTCUSDT": 1}', '{"../x": {}}', '{"BTCUSDT": {"tick": NaN}}', "\x00", "[" * 100_000]
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rules.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"rules\.json: "):
        read_rules(path)


def test_a_missing_file_and_a_symbol_that_names_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_rules(tmp_path / "rules.json")
    with pytest.raises(DataError, match="not a symbol"):
        write_rules(tmp_path / "rules.json", {"../x": SymbolRules()})
    with pytest.raises(DataError, match="cannot be written"):
        write_rules(tmp_path / "no such folder" / "rules.json", {})


@pytest.mark.parametrize(
    ("name", "kind"),
    [("exchangeInfo-spot-2021-10-12-subset.json", "spot"), ("exchangeInfo-usdm-2021-07-22-subset.json", "perpetual")],
)
def test_all_recorded_markets_give_rules_that_agree_with_their_filters(name: str, kind: str, tmp_path: Path) -> None:
    exchange = ccxt.binance()
    exchange.options["crossMarginPairsData"] = exchange.options["isolatedMarginPairsData"] = []
    entries = json.loads(fixtures(f"cryptofeed/{name}").read_text())["symbols"]
    assert len(entries) >= 10
    rules = {}
    for entry in entries:
        found = rules[entry["symbol"]] = rules_from_ccxt(exchange.parse_market(entry), None, exchange.precisionMode)
        filters = {one["filterType"]: one for one in entry["filters"]}
        assert found.kind == kind
        assert found.tick == float(filters["PRICE_FILTER"]["tickSize"])
        assert found.lot == float(filters["LOT_SIZE"]["stepSize"])
        assert found.min_quantity == float(filters["LOT_SIZE"]["minQty"])
        assert found.max_quantity == float(filters["LOT_SIZE"]["maxQty"])
        smallest = filters["MIN_NOTIONAL"].get("minNotional") or filters["MIN_NOTIONAL"]["notional"]
        assert found.min_notional == float(smallest)
        assert found.taker_fee is not None and found.taker_fee > 0
    write_rules(tmp_path / "rules.json", rules)
    assert read_rules(tmp_path / "rules.json") == rules


def test_all_recorded_tiers_give_margin_tiers() -> None:
    with gzip.open(fixtures("freqtrade/binance_leverage_tiers.json.gz")) as file:
        recorded = json.load(file)
    assert len(recorded) > 100
    for symbol, tiers in recorded.items():
        found = rules_from_ccxt(SWAP | {"symbol": symbol}, tiers, TICK_SIZE).tiers
        assert [tier.floor for tier in found] == [tier["minNotional"] for tier in tiers]
        assert [tier.maintenance_rate for tier in found] == [tier["maintenanceMarginRate"] for tier in tiers]
        assert [tier.max_leverage for tier in found] == [tier["maxLeverage"] for tier in tiers]
