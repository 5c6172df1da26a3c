"""The venue of a configuration: found beside the bars or named, and what a run is told about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.builders.market import (
    Account,
    account_of,
    describe_carry,
    describe_costs,
    describe_venue,
    is_historical,
    load_market,
    other_costs,
    thinking_time_of,
    unknown_to_training,
    venue_of,
    venue_record,
)
from backend.config.load import config_from_dict
from backend.config.schema import Config, ConfigError
from simulator.backtest.run import BacktestRun, Window, orders_for_target, run_backtest
from simulator.data.archive import write_market
from simulator.data.venue import INSTRUMENTS_FILE, write_instruments, write_rules
from simulator.errors import DataError
from simulator.exchange.orders import Order
from simulator.exchange.rules import SymbolRules
from simulator.exchange.venue import Venue
from simulator.market.market import Market
from simulator.market.timeframes import format_time
from simulator.strategies import EqualWeight
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate

SYMBOLS = ("AAAUSDT", "BBBUSDT")
FINE = generate(SyntheticConfig(bars=400, seed=5, symbols=SYMBOLS, timeframe="1h"))
RULES = {symbol: SymbolRules(lot=0.01, tick=0.01, min_notional=5.0, taker_fee=0.002) for symbol in SYMBOLS}


def bars_of(market: Market, symbol: str, factor: float = 1.0) -> pd.DataFrame:
    column = market.column(symbol)
    rows = market.present[:, column]
    table = {name: factor * getattr(market, name)[rows, column] for name in ("open", "high", "low", "close")}
    table["volume"] = 1e6 * market.volume[rows, column]
    return pd.DataFrame({"timestamp": pd.to_datetime(market.open_time[rows], unit="ms"), **table})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Recorded-looking bars of 4h, and of 1h for one of the two symbols."""
    root = tmp_path / "bars"
    root.mkdir()
    for symbol in SYMBOLS:
        bars_of(FINE.resample("4h"), symbol).to_parquet(root / f"{symbol}-4h.parquet")
    bars_of(FINE, "AAAUSDT").to_parquet(root / "AAAUSDT-1h.parquet")
    return root


def config_on(folder: Path | str, **sections: dict[str, Any]) -> Config:
    return config_from_dict({"market": {"data": str(folder)}, **sections})


def loaded(config: Config) -> Market:
    return load_market(config.market, config.costs)


def test_weeks_are_generated_and_made_of_finer_bars_alike(tmp_path: Path) -> None:
    """Both begin on a Monday, and funding inside a week is paid at each of its settlements."""
    weeks = loaded(config_from_dict({"market": {"timeframe": "1w", "bars": 200, "coins": 1}}))
    assert format_time(int(weeks.open_time[0])) == "2019-12-30 00:00" and len(weeks.funding["AAAUSDT"]) > 20 * 200
    write_market(generate(SyntheticConfig(bars=700, seed=5, symbols=SYMBOLS, timeframe="12h")), tmp_path)
    made = loaded(config_from_dict({"market": {"timeframe": "12h", "resample": "1w", "data": str(tmp_path)}}))
    assert format_time(int(made.open_time[0])) == "2019-12-30 00:00" and len(made) == 50
    assert made.partial is not None and made.partial[:, 0].tolist() == [True] + [False] * 49


def test_rules_beside_the_bars_are_found_named_or_left_out(folder: Path, tmp_path: Path) -> None:
    market = loaded(config_on(folder))
    assert venue_of(config_on(folder), market).rules == {}
    write_rules(folder / "rules.json", {"AAAUSDT": RULES["AAAUSDT"], "ZZZUSDT": SymbolRules()})
    beside = venue_of(config_on(folder), market)
    assert beside.rules == {"AAAUSDT": RULES["AAAUSDT"]}
    assert describe_venue(beside, market) == "rules of AAAUSDT with taker fees of 0.2 % (none of BBBUSDT)"
    write_rules(tmp_path / "mine.json", RULES)
    named = config_on(folder, venue={"rules": str(tmp_path / "mine.json")})
    assert venue_of(named, market).rules == RULES
    dearer = {**RULES, "BBBUSDT": SymbolRules(taker_fee=0.003)}
    assert describe_venue(Venue(rules=dearer), market) == "rules of AAAUSDT, BBBUSDT with taker fees of 0.2 to 0.3 %"
    assert describe_venue(Venue(rules={"AAAUSDT": SymbolRules()}), market) == "rules of AAAUSDT (none of BBBUSDT)"
    assert venue_of(config_on(folder, venue={"rules": "none"}), market).rules == {}


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no file of rules": ({"rules": "absent.json"}, "absent.json: there is no such file"),
    "a symbol without rules": ({"rules": "rules-a.json"}, "no rules of BBBUSDT; it has AAAUSDT"),
    "rules that are not JSON": ({"rules": "bad.json"}, "bad.json: not a readable JSON file"),
    "not finer": ({"finer": "4h"}, "'4h' is not finer than the 4h bars"),
    "no finer bars": ({"finer": "1m"}, "no 1m bars of AAAUSDT, BBBUSDT between"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_venue_that_cannot_be_is_one_sentence(
    mistake: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rules("rules-a.json", {"AAAUSDT": SymbolRules()})
    Path("bad.json").write_text("{")
    venue, message = MISTAKES[mistake]
    config = config_on(folder, venue=venue)
    with pytest.raises(DataError) as caught:
        account_of(config, loaded(config))
    assert message in str(caught.value)


def test_a_generated_market_has_no_finer_bars() -> None:
    config = config_from_dict({"market": {"bars": 300}, "venue": {"finer": "1h"}})
    with pytest.raises(DataError, match="needs recorded bars"):
        venue_of(config, loaded(config))
    assert venue_of(config_from_dict({}), loaded(config)).mark is None


def test_finer_bars_serve_the_symbols_that_have_them(folder: Path) -> None:
    config = config_on(folder, venue={"finer": "1h"})
    market = loaded(config)
    account = account_of(config, market)
    finer = account.venue.finer
    assert finer is not None
    assert (finer.open_time[0], len(finer)) == (market.open_time[0], 4 * len(market))
    assert finer.present[:, 0].all() and not finer.present[:, 1].any()
    assert describe_venue(account.venue, market) == "1h bars inside those of AAAUSDT"
    bars = {name: getattr(finer, name).copy() for name in ("open", "high", "low", "close", "volume")}
    for column in bars.values():
        column[: 4 * 20] = np.nan
    partly = replace(account.venue, finer=replace(finer, **bars))
    assert describe_venue(partly, market, Window(9, 29)) == "1h bars inside those of AAAUSDT (10 of 20 bars)"
    assert describe_venue(partly, market, Window(19, 29)) == "1h bars inside those of AAAUSDT"
    none = "1h bars inside those of none, as there are none for this time"
    assert describe_venue(partly, market, Window(5, 15)) == none
    # A stop and a target in one bar: the finer bars know which was first, and both symbols can be traded.
    result = run_backtest(market, EqualWeight(), Window(5, len(market) - 1), **account.terms)
    assert {fill.symbol for fill in result.fills} == set(SYMBOLS)
    assert venue_record(account, market)["finer"] == finer.content_hash


def test_mark_prices_beside_the_bars_value_the_account(folder: Path) -> None:
    config = config_on(folder, costs={"taker_fee": 0.0, "half_spread_bps": 0.0})
    market = loaded(config)
    (folder / "mark").mkdir()
    half = bars_of(FINE.resample("4h"), "AAAUSDT", 0.9)
    half.iloc[:60].to_parquet(folder / "mark" / "AAAUSDT-4h.parquet")
    account = account_of(config, market)
    mark = account.venue.mark
    assert mark is not None
    assert np.allclose(mark.close[:60, 0], 0.9 * market.close[:60, 0])
    assert np.array_equal(mark.close[60:], market.close[60:]), "where there is none the trade price stands in"
    assert np.array_equal(mark.close[:, 1], market.close[:, 1])
    run = BacktestRun(market, Window(20, 40), **account.terms)
    run.apply([Order("AAAUSDT", 1.0)])
    assert run.account().mark["AAAUSDT"] == pytest.approx(0.9 * market.close[21, 0])


def test_mark_prices_and_finer_bars_fit_each_other(folder: Path) -> None:
    (folder / "mark").mkdir()
    bars_of(FINE, "AAAUSDT", 0.95).to_parquet(folder / "mark" / "AAAUSDT-1h.parquet")
    config = config_on(folder, venue={"finer": "1h"})
    market = loaded(config)
    account = account_of(config, market)
    mark = account.venue.mark
    assert mark is not None and len(mark) == 4 * len(market)
    assert np.allclose(mark.close[:, 0], 0.95 * FINE.close[:, 0])
    assert np.array_equal(mark.close[::4, 1], market.close[:, 1]), (
        "a bar without finer ones stands in their first place"
    )
    assert np.isnan(mark.close[1::4, 1]).all()
    result = run_backtest(market, EqualWeight(), Window(5, len(market) - 1), **account.terms)
    assert np.isfinite(result.equity).all() and result.fills


def test_mark_prices_that_are_coarser_than_the_bars_are_refused(folder: Path) -> None:
    (folder / "mark").mkdir()
    bars_of(FINE.resample("4h"), "AAAUSDT").to_parquet(folder / "mark" / "AAAUSDT-4h.parquet")
    config = config_on(folder, venue={"finer": "1h"})
    with pytest.raises(DataError, match=r"no 1h bars of AAAUSDT, BBBUSDT .*as fine as the bars .*move .*mark away"):
        venue_of(config, loaded(config))


def test_written_synthetic_markets_are_not_recorded(folder: Path, tmp_path: Path) -> None:
    assert is_historical(folder)
    write_market(FINE, tmp_path / "made")
    assert not is_historical(tmp_path / "made")
    assert not is_historical(tmp_path / "nowhere")


def test_what_training_does_not_score_is_named(folder: Path) -> None:
    config = config_on(folder)
    plain = account_of(config, loaded(config))
    assert unknown_to_training(plain) == []
    write_rules(folder / "rules.json", RULES)
    (folder / "mark").mkdir()
    bars_of(FINE, "AAAUSDT").to_parquet(folder / "mark" / "AAAUSDT-1h.parquet")
    config = config_on(
        folder,
        costs={"impact": 1.0, "participation": 0.1},
        venue={"finer": "1h"},
    )
    account = account_of(config, loaded(config))
    assert len(unknown_to_training(account)) == 5
    words = describe_costs(account.costs, loaded(config))
    for part in ("taker fee 0.05 %", "impact x 1", "at most 10 % of", "half spread 2 bps"):
        assert part in words
    assert other_costs(config_on(folder).costs, config.costs) == [
        "impact 1.0 instead of 0.0", "participation 0.1 instead of 0.0",
    ]  # fmt: skip


def test_impact_and_participation_of_recorded_bars_act(folder: Path) -> None:
    """Large money pays more than small money in the same window, and only with them."""

    def loss(cash: float, costs: dict[str, float]) -> float:
        config = config_on(folder, costs={"cash": cash, **costs})
        market = loaded(config)
        result = run_backtest(market, EqualWeight(), Window(60, 90), **account_of(config, market).terms)
        return sum(result.costs.values()) / cash

    real = {"impact": 1.0, "participation": 0.1}
    assert loss(1e8, real) > 1.5 * loss(1e4, real)
    assert loss(1e8, {}) == pytest.approx(loss(1e4, {}), rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    lot=st.sampled_from([0.001, 0.01, 0.1, 1.0, 3.0]),
    least=st.sampled_from([0.0, 5.0, 100.0]),
    targets=st.lists(st.floats(-1.0, 1.0), min_size=3, max_size=12),
    cash=st.sampled_from([500.0, 10_000.0]),
)
def test_targets_are_traded_in_whole_lots_and_never_refused_for_them(
    lot: float, least: float, targets: list[float], cash: float
) -> None:
    rules = {symbol: SymbolRules(lot=lot, min_notional=least, tick=0.01) for symbol in SYMBOLS}
    account = Account(cash, Config().costs.costs(), 2.0, venue_of(Config(), FINE))
    run = BacktestRun(
        FINE, Window(20, 20 + len(targets)), **{**account.terms, "venue": replace(account.venue, rules=rules)}
    )
    for target in targets:
        view, held = run.view(), run.account()
        run.apply(orders_for_target(view, held, "AAAUSDT", target, stop_fraction=0.3, target_fraction=0.4))
    reasons = {one.reason for one in run.result().rejections}
    assert not reasons & {"off_lot", "off_tick", "min_quantity"}
    for fill in run.result().fills:
        assert abs(fill.quantity / lot - round(fill.quantity / lot)) < 1e-6


def test_the_kind_of_bars_is_known_asked_for_or_charged_and_said(folder: Path) -> None:
    config = config_on(folder)
    market = loaded(config)
    assert market.kinds == {}
    words = describe_carry(account_of(config, market), market)
    assert words == (
        "AAAUSDT, BBBUSDT as spot, since nothing states what they are (instruments.json does): 10 % a year on what is "
        "borrowed"
    )
    write_instruments(folder / INSTRUMENTS_FILE, dict.fromkeys(market.symbols, "perpetual"))
    market = loaded(config)
    words = describe_carry(account_of(config, market), market, Window(10, 71))
    assert "as perpetuals: funding" in words
    assert "AAAUSDT lacks funding for 61 of 61 bars: both sides pay 0.01 % every eight hours there" in words
    write_rules(folder / "rules.json", {"AAAUSDT": SymbolRules(kind="spot")})
    with pytest.raises(DataError, match=r"has AAAUSDT as perpetual, rules.json has spot"):
        loaded(config)
    (folder / INSTRUMENTS_FILE).unlink()
    assert loaded(config).kinds == {"AAAUSDT": "spot"}
    record = venue_record(account_of(config, market), market)
    assert "perpetual" in record["carry"]


def test_thinking_is_charged_on_recorded_bars_unless_told_otherwise(folder: Path) -> None:
    assert thinking_time_of(config_on(folder)) == "measured"
    assert thinking_time_of(config_from_dict({})) == 0.0
    assert thinking_time_of(config_on(folder, costs={"thinking_time": "none"})) == 0.0
    assert thinking_time_of(config_from_dict({"costs": {"thinking_time": "measured"}})) == "measured"
    assert thinking_time_of(config_from_dict({"costs": {"thinking_time": 20}})) == 20.0
    assert "the time that decisions take" in unknown_to_training(account_of(config_on(folder), FINE), thinking=True)
    with pytest.raises(ConfigError, match="thinking_time"):
        config_from_dict({"costs": {"thinking_time": "soon"}})
