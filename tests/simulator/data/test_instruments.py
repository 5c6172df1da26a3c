"""Spot or perpetual: what names and files beside the bars state, and what an import writes down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.data.archive import write_market
from simulator.data.catalog import Catalog
from simulator.data.importing import import_tree
from simulator.data.venue import INSTRUMENTS_FILE, RULES_FILE, StatedKind, read_instruments, write_rules
from simulator.errors import DataError
from simulator.exchange.rules import SymbolRules
from simulator.market.instruments import kind_of_folder, kind_of_symbol, kind_of_venue
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Bars of two symbols in a folder that says nothing about them."""
    folder = tmp_path / "plain"
    write_market(generate(SyntheticConfig(bars=200, seed=1, symbols=("AAAUSDT", "BBBUSDT"), timeframe="1h")), folder)
    for path in folder.iterdir():
        if not path.name.endswith("-1h.parquet"):
            path.unlink()
    return folder


def kinds(folder: Path) -> dict[str, str]:
    return {symbol: str(stated) for symbol, stated in Catalog(folder).kinds().items()}


@pytest.mark.parametrize(
    ("symbol", "kind"),
    [
        ("BTC/USDT:USDT", "perpetual"), ("BTC_USDT_USDT", "perpetual"), ("BTC-PERP", "perpetual"),
        ("BTC-USDT-SWAP", "perpetual"), ("BTCUSDT_PERP", "perpetual"), ("BTC/USDT", "spot"), ("BTCUSDT", None),
        ("BTC/USDT:USDT-240628", None), ("BTC/USD:BTC", None), ("BTC_USDT", None), ("SWAPUSDT", None),
    ],
)  # fmt: skip
def test_forms_of_symbols(symbol: str, kind: str | None) -> None:
    assert kind_of_symbol(symbol) == kind


@pytest.mark.parametrize(
    ("name", "folder", "venue"),
    [
        ("binance-usdm", "perpetual", "spot"), ("binanceusdm", "perpetual", None), ("krakenfutures", "perpetual", None),
        ("okx-swap", "perpetual", None), ("my-spot-bars", "spot", None), ("binance", None, "spot"),
        ("yahoo", None, "spot"), ("binance-coinm", None, None), ("bars", None, None), ("2024", None, None),
    ],
)  # fmt: skip
def test_names_of_folders(name: str, folder: str | None, venue: str | None) -> None:
    """A name that says more goes first, so binance-usdm is not taken for the bare venue."""
    assert (kind_of_folder(name), kind_of_venue(name)) == (folder, venue)


def test_what_says_more_goes_first(plain: Path, tmp_path: Path) -> None:
    assert kinds(plain) == {"AAAUSDT": "not stated", "BBBUSDT": "not stated"}
    assert Catalog(plain).load().kinds == {}
    venue = plain.rename(tmp_path / "binance")
    assert kinds(venue)["AAAUSDT"] == "spot (folder binance)"
    full = tmp_path / "full"
    write_market(generate(SyntheticConfig(bars=200, seed=1, symbols=("AAAUSDT", "BBBUSDT"), timeframe="1h")), full)
    assert kinds(full)["AAAUSDT"] == "perpetual (generated)"
    (full / "AAAUSDT-funding.parquet").rename(venue / "AAAUSDT-funding.parquet")
    assert kinds(venue) == {"AAAUSDT": "perpetual (funding)", "BBBUSDT": "spot (folder binance)"}
    write_rules(venue / RULES_FILE, {"BBBUSDT": SymbolRules(kind="perpetual")})
    assert kinds(venue)["BBBUSDT"] == "perpetual (rules.json)"
    (venue / INSTRUMENTS_FILE).write_text('{"AAAUSDT": "spot"}')
    assert kinds(venue)["AAAUSDT"] == "spot (instruments.json)"
    assert Catalog(venue).load().kinds == {"AAAUSDT": "spot", "BBBUSDT": "perpetual"}


def test_statements_that_contradict_or_cannot_be_read_are_refused(plain: Path) -> None:
    write_rules(plain / RULES_FILE, {"AAAUSDT": SymbolRules(kind="perpetual")})
    for text, said in (
        ('{"AAAUSDT": "spot"}', "has AAAUSDT as spot, rules.json has perpetual"),
        ('{"AAAUSDT": "future"}', "AAAUSDT is 'future'; a symbol is 'spot' or 'perpetual'"),
        ('{"../A": "spot"}', "is not a symbol"),
        ("[]", "not a JSON object"),
    ):
        (plain / INSTRUMENTS_FILE).write_text(text)
        with pytest.raises(DataError, match=said):
            Catalog(plain).load()
        assert any(said in str(issue) or "instruments" in str(issue) for issue in Catalog(plain).check())


def test_an_import_writes_down_what_it_knows(plain: Path, tmp_path: Path) -> None:
    tree, out = tmp_path / "tree", tmp_path / "out"
    (tree / "coinbase").mkdir(parents=True)
    (tree / "mine").mkdir()
    for path in plain.iterdir():
        (tree / "coinbase" / path.name).write_bytes(path.read_bytes())
        (tree / "mine" / path.name).write_bytes(path.read_bytes())
    report = import_tree(tree, out)
    assert read_instruments(out / "coinbase" / INSTRUMENTS_FILE) == {"AAAUSDT": "spot", "BBBUSDT": "spot"}
    assert not (out / "mine" / INSTRUMENTS_FILE).exists()
    assert report.kinds[out / "mine"]["AAAUSDT"] == StatedKind()
    import_tree(tree, out, ["AAAUSDT"], instrument="perpetual")
    assert read_instruments(out / "coinbase" / INSTRUMENTS_FILE) == {"AAAUSDT": "perpetual", "BBBUSDT": "spot"}
    assert read_instruments(out / "mine" / INSTRUMENTS_FILE) == {"AAAUSDT": "perpetual"}
    import_tree(tree, out)  # what was said stays said
    assert json.loads((out / "coinbase" / INSTRUMENTS_FILE).read_text())["AAAUSDT"] == "perpetual"
