"""The sections of a backtest: what they show, what they say where data or records lack it, that nothing breaks out."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.config import schema
from backend.decisions.backtest_document import StoredBacktest
from backend.decisions.document import GuardClamp, LaterClamp
from backend.reporting import charts, labels, trade_charts
from backend.reporting.backtest_sections import equity_section, loss_limits_of, sections, tiles, window_notes
from backend.reporting.blocks import Picture, Table
from backend.reporting.market_reload import MarketReload, candles, market_of, reload_market
from backend.reporting.report import all_facts, render, write_report
from backend.reporting.run_summary import RunSummary, WindowResult, summarise
from backend.reporting.trade_sections import candles_section, trades_section, withheld_of
from backend.store.store import Store
from simulator.data.archive import write_market
from simulator.errors import UserError
from simulator.market.timeframes import format_time
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.backend.reporting.test_report import EVIL, Page
from tests.stored_runs import add_backtest_run, altered, episode, small_market

HERE = MarketReload(small_market())
GONE = MarketReload(None, "the data is gone")


def test_the_first_screen_answers(window: WindowResult) -> None:
    found = {tile.label: tile for tile in tiles(window)}
    own, hold = (window.results[name].metrics for name in ("scripted", "hold"))
    made = found["Did it make money?"]
    assert made.value == f"{100 * own['total_return']:+.2f} %"
    assert made.note.startswith("Yes: " if own["total_return"] > 0 else "No: ") and "USDT, after all costs" in made.note
    against = found["Against holding"]
    assert float(against.value.removesuffix(" pp")) == pytest.approx(
        100 * (own["total_return"] - hold["total_return"]), abs=0.006
    )
    assert f"holding made {100 * hold['total_return']:+.2f} %" in against.note
    assert found["Largest drawdown"].value == f"{100 * own['max_drawdown']:.1f} %"
    costs = window.main_result.costs
    assert found["Costs paid"].value == f"{sum(costs.values()) / 100:.2f} %"  # of 10,000


def test_the_page_has_every_part(summary: RunSummary, window: WindowResult) -> None:
    page = Page(render(summary, HERE))
    labels = [attributes["aria-label"] for tag, attributes in page.tags if attributes.get("role") == "img"]
    assert labels == [
        "Equity", "Drawdown", "Exposure of Scripted team", *trades_first(window),
    ]  # fmt: skip
    for heading in ("Results", "Risk", "Months", "Deepest drawdowns",
                    "Costs in money", "Statistics"):  # fmt: skip
        assert heading in page.text
    assert f"{len(episode().result.trades)} from flat to flat" in page.text
    for picture in pictures(window):
        assert "Good: " in picture.caption
    assert not [word for word in ("nan", "inf", "None", "Undefined") if word in page.text.split()]


def lines_of_time(window: WindowResult) -> dict[str, Any]:
    return {one.title: one.figure for one in equity_section(window).blocks if isinstance(one, Picture)}


def trades_first(window: WindowResult) -> list[str]:
    """The traded symbols by the value of their fills."""
    value: dict[str, float] = {}
    for fill in window.main_result.fills:
        value[fill.symbol] = value.get(fill.symbol, 0.0) + abs(fill.quantity * fill.price)
    return sorted(value, key=lambda symbol: -value[symbol])


def pictures(window: WindowResult) -> list[Picture]:
    every = [*sections(window), candles_section(window, HERE)]
    return [block for section in every for block in section.blocks if isinstance(block, Picture)]


def test_every_column_has_numbers(window: WindowResult) -> None:
    for section in sections(window):
        for block in section.blocks:
            if isinstance(block, Table) and block.title != "Months":
                empty = [one.key for one in block.columns if all(row.values.get(one.key) is None for row in block.rows)]
                # In this scene nobody earned anything before costs, so they are no share of it.
                assert empty in ([], ["total_of_gross"]), f"{block.title}: {empty}"


def test_the_months_of_the_page_multiply_up(window: WindowResult) -> None:
    [months] = [block for one in sections(window) for block in one.blocks if block.title == "Months"]
    assert isinstance(months, Table)
    for key, name in (("total", "scripted"), ("hold", "hold")):
        total = math.prod(1.0 + row.values[key] for row in months.rows)
        assert total - 1.0 == pytest.approx(window.results[name].total_return)
    assert "Only in part: " in months.caption


def test_trades_stand_on_the_candles(window: WindowResult) -> None:
    own, symbol = window.main_result, "BBBUSDT"
    bars = candles(small_market(), symbol, own.times[0], own.times[-1])
    figure = trade_charts.candles_chart(bars, own.trades, own.fills)
    traces = {trace.name: trace for trace in figure.data}
    trades = [trade for trade in own.trades if trade.symbol == symbol]
    fills = {(fill.time, fill.symbol, round(fill.price, 3)) for fill in own.fills}
    for side, sign in (("long", 1), ("short", -1)):
        chosen = [trade for trade in trades if trade.quantity * sign > 0]
        assert chosen, "the scene has both sides"
        for what, key in (("entry", "entry_time"), ("exit", "exit_time")):
            marks = traces[f"{side}, {what}"]
            assert len(marks.x) == len(chosen)
            for one, price in zip(chosen, marks.y, strict=True):
                filled = {value for time, name, value in fills if (time, name) == (getattr(one, key), symbol)}
                still_open = one.reason == "open" and what == "exit"
                assert still_open or any(abs(price - value) < 0.01 for value in filled)
    looks = [(traces[f"{side}, {what}"].marker.symbol) for side in ("long", "short") for what in ("entry", "exit")]
    assert len(set(looks)) == 4
    assert len({trace.line.dash for trace in figure.data[1:] if trace.mode == "lines"}) == 2
    written = json.loads(figure.to_json())["data"]
    times = [time for trace in written if trace.get("mode") == "lines" for time in trace["x"]]
    assert min(times) >= str(charts.moments([own.times[0]])[0]), "a hole in a line is not in 1970"


def test_many_trades_are_cut_to_the_largest(window: WindowResult) -> None:
    one = window.main_result.trades[0]
    many = [replace(one, pnl=float(number)) for number in range(-700, 700)]
    drawn = trade_charts.drawn_trades(many, one.symbol)
    assert len(drawn) == trade_charts.MOST_TRADES
    assert {trade.pnl for trade in drawn} == {
        pnl for pnl in map(float, range(-700, 700)) if abs(pnl) >= 500.5 or pnl == -500
    }
    assert drawn == sorted(drawn, key=lambda trade: trade.pnl)


def test_what_needs_the_data_says_that_it_is_gone(summary: RunSummary, tmp_path: Path) -> None:
    with Store.open("mem://") as store:
        add_backtest_run(store, "b", data=str(tmp_path / "nowhere"))
        page = Page(write_report(store, "b", tmp_path).read_text(encoding="utf-8"))
    assert page.text.count("need the run's data again") == 1
    assert "nowhere" in page.text and "no such folder" in page.text
    assert "Monthly" not in page.text and "Months" in page.text, "what the records hold is still there"


def test_the_market_of_a_run_is_the_one_that_was_traded(tmp_path: Path) -> None:
    write_market(small_market(), tmp_path / "data")
    with Store.open("mem://") as store:
        add_backtest_run(store, "b", data=str(tmp_path / "data"))
        run = store.run("b")
    times = episode().result.times
    bars = candles(market_of(run), "BBBUSDT", int(times[0]), int(times[-1]))
    assert list(bars.open_time + small_market().interval) == list(times)
    assert list(bars.close) == list(small_market().close[180:, 1])
    write_market(generate(SyntheticConfig(bars=360, seed=4, symbols=("AAAUSDT", "BBBUSDT"))), tmp_path / "data")
    with pytest.raises(UserError, match="has changed since run b"):
        market_of(run)
    assert "has changed since run b" in reload_market(run).problem


def test_the_document_says_how_sure_the_numbers_are(summary: RunSummary) -> None:
    found = json.loads(json.dumps(all_facts(summary), allow_nan=False))
    window = summary.windows()[0]
    assert found["backtests"]["scripted"]["metrics"]["total_return"] == window.main_result.total_return
    assert set(found["evidence"]) == {"scripted", "hold"} and found["lookahead"] == {}
    intervals = window.evidence_of("scripted").intervals
    assert intervals is not None
    assert found["evidence"]["scripted"]["intervals"]["sharpe"] == list(intervals.sharpe)


def test_what_was_withheld_is_counted_by_rule(summary: RunSummary, window: WindowResult) -> None:
    clamps = Counter(f"Guard: {clamp.rule}" for _, decision in episode().decisions for clamp in decision.clamps)
    assert {who: count for who, count in withheld_of(window).items() if who.startswith("Guard")} == clamps and clamps
    clamp = GuardClamp(rule=EVIL, symbol="AAAUSDT", asked=2.0, allowed=0.5, detail="")
    decisions = [
        replace(one, document=one.document.model_copy(update={"clamps": (clamp,)})) for one in summary.decisions[:4]
    ]
    assert f"Guard: {EVIL}" in Page(render(replace(summary, decisions=decisions), GONE)).text


def test_the_loss_limits_that_were_reached_are_shown(window: WindowResult) -> None:
    every = window.decisions[window.main]
    first, second = every[0], every[-1]
    of_a_coin = GuardClamp(rule="max_drawdown", symbol="AAAUSDT", asked=2.0, allowed=0.0, detail="one order")
    later = LaterClamp(rule="daily_loss", symbol="", asked=0.0, allowed=0.0, detail="lost 6 %", time=first.time + 1)
    of_all = GuardClamp(rule="max_drawdown", symbol="", asked=0.0, allowed=0.0, detail="for good")
    decisions = [
        replace(first, document=first.document.model_copy(update={"later": (later,), "clamps": (of_a_coin,)})),
        replace(second, document=second.document.model_copy(update={"clamps": (of_all,)})),
    ]
    reached = replace(window, decisions={window.main: decisions})
    assert loss_limits_of(reached) == [
        (later.time, "daily_loss", "lost 6 %"), (second.time, "max_drawdown", "for good"),
    ]  # fmt: skip
    assert f"{format_time(later.time)} UTC (daily_loss: lost 6 %)" in window_notes(reached)[-1]


def test_untrusted_names_stay_text(summary: RunSummary) -> None:
    def evil(backtest: StoredBacktest) -> StoredBacktest:
        document = backtest.document
        changes = {
            "symbols": tuple(EVIL if symbol == "AAAUSDT" else symbol for symbol in document.symbols),
            "trades": tuple(replace(trade, symbol=EVIL) for trade in document.trades),
            "fills": tuple(replace(fill, symbol=EVIL) for fill in document.fills),
        }
        name = backtest.name if backtest.name != "scripted" else EVIL.replace("/", "")
        return replace(backtest, name=name, document=document.model_copy(update=changes))

    backtests = [evil(backtest) for backtest in summary.backtests]
    inside = {
        "config": {"costs": {EVIL: EVIL}},
        "teams": [EVIL.replace("/", "")],
        "notes": [EVIL],
        "venue": {"told": EVIL},
    }
    run = replace(summary.run, config=inside)
    market = replace(small_market(), symbols=(EVIL, "BBBUSDT"))
    html = render(replace(summary, run=run, backtests=backtests, decisions=[]), MarketReload(market))
    page = Page(html)
    assert page.count("img") == 0
    assert page.count("script") == 2 + len(page.figures)
    assert page.text.count("<script>alert(1)</script>") >= 4
    assert "onerror" in page.text
    labels = json.dumps([trace.get("name") for figure in page.figures for trace in figure["data"]])
    assert "<" not in labels and "&lt;" in labels, "plotly would read tags in a label as its own"


@pytest.mark.parametrize("examples", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_any_key_of_an_older_record_may_be_missing(examples: int) -> None:
    with Store.open("mem://") as store:
        add_backtest_run(store, "b")
        full = summarise(store, "b")
    settings(max_examples=examples)(given(st.data())(lambda data: _shown_without(data, full)))()


def _shown_without(data: st.DataObject, full: RunSummary) -> None:
    result = episode().result.to_dict()
    kept = data.draw(st.sets(st.sampled_from(sorted(result["metrics"]))))
    metrics = {key: result["metrics"][key] for key in {*kept, "total_return"}}
    costs = {key: result["costs"][key] for key in data.draw(st.sets(st.sampled_from(sorted(result["costs"]))))}
    late = data.draw(st.sets(st.sampled_from(["mae", "mfe", "holding_ms", "bars_held", "closing_price", "impact"])))
    trades = [{key: value for key, value in one.items() if key not in late} for one in result["trades"]]
    trades = trades[: data.draw(st.integers(0, len(trades)))]
    names = data.draw(st.sampled_from([("scripted",), ("scripted", "hold"), ("hold",)]))
    scripted = next(backtest.document for backtest in full.backtests if backtest.name == "scripted")
    older = altered(scripted, metrics=metrics, costs=costs, trades=trades)
    summary = replace(full, backtests=[StoredBacktest("b", name, older) for name in names])
    reload = data.draw(st.sampled_from([HERE, GONE]))
    page = Page(render(summary, reload))
    json.dumps(all_facts(summary), allow_nan=False)
    assert "Did it make money?" in page.text
    if "impact" not in costs:
        assert "Impact" in page.text and "not available" in page.text


def test_a_run_without_trades_or_too_short_is_said_to_be_so(summary: RunSummary) -> None:
    flat = next(record for record in summary.backtests if record.name == "flat")
    short = {key: getattr(flat.document, key)[:9] for key in ("times", "equity", "exposure")}
    alone = replace(summary, backtests=[replace(flat, document=altered(flat.document, **short))], decisions=[])
    page = Page(render(alone, HERE))
    for said in ("No: +0 on 10,000", "there were no trades", "it takes 30, and there are 8", "nothing was traded",
                 "no baseline that holds"):  # fmt: skip
        assert said in page.text


def test_long_lists_are_cut_and_say_so(window: WindowResult) -> None:
    own = window.main_result
    many = own.model_copy(update={"trades": (own.trades * 300)[:1_000]})
    listed = trades_section(replace(window, results={**window.results, "scripted": many})).blocks[-1]
    assert isinstance(listed, Table) and len(listed.rows) == 200
    assert "1000 from flat to flat; the first 200 are shown" in listed.caption


def test_symbols_beyond_the_figures_are_named(window: WindowResult) -> None:
    names = tuple(f"{letter}USDT" for letter in "ABCDEFGH")
    market = generate(SyntheticConfig(bars=360, seed=3, symbols=names))
    own = window.main_result
    fills = tuple(replace(own.fills[0], symbol=name, quantity=9.0 - number) for number, name in enumerate(names))
    changes = {"symbols": names, "fills": fills, "exposure": [[0.1] * 8] * len(own.times)}
    wide = replace(window, results={"scripted": own.model_copy(update=changes)})
    section = candles_section(wide, MarketReload(market))
    assert [block.title for block in section.blocks] == list(names[:6])
    assert section.caption.endswith("Left out: GUSDT, HUSDT.")
    [exposure] = [block for one in sections(wide) for block in one.blocks if block.title.startswith("Exposure")]
    assert isinstance(exposure, Picture)
    assert [(line.name, line.y[0]) for line in exposure.figure.data] == [("long", pytest.approx(80.0))]


def test_a_year_of_hours_makes_a_page_of_sensible_size(summary: RunSummary) -> None:
    bars = 365 * 24
    base = generate(SyntheticConfig(bars=bars, seed=5, symbols=("AAAUSDT", "BBBUSDT"), timeframe="1h"))
    equity = [1e4 * (1.0 + 0.2 * math.sin(number / 300) + 0.01 * math.sin(number)) for number in range(bars - 1)]
    times = (base.open_time[:-1] + base.interval).tolist()
    exposure = [[math.sin(number / 9), math.cos(number / 9)] for number in range(bars - 1)]
    long = {"start": 0, "times": times, "equity": equity, "exposure": exposure}
    document = summary.backtests[0].document.model_copy(update=long)
    backtests = [StoredBacktest("b", name, document) for name in schema.BASELINES]
    html = render(replace(summary, backtests=backtests, decisions=[]), MarketReload(base))
    assert len(html) < 3_000_000


@given(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from(labels.COLUMNS + labels.RISK_COLUMNS + labels.COST_COLUMNS),
)
def test_a_number_is_never_a_ruin_of_a_table(value: float, column: labels.Column) -> None:
    text = labels.number_text(value, column.kind)
    assert len(text) <= 20
    assert (text == "–") == (math.isnan(value) or value == -math.inf)
    assert (text == "∞") == (value == math.inf)
    assert not (text.startswith("-") and not any(digit in text for digit in "123456789")), "a zero has no sign"


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (0.0123, "change", "+1.23 %"),
        (-0.000001, "change", "+0.00 %"),
        (-0.000001, "small_share", "0.00 %"),
        (0.0123, "month", "+1.2 %"),
        (-1234.5, "money", "-1,234.50"),
        (5.25, "hours", "5.2 h"),
        (240.0, "hours", "10.0 d"),
        (1_600_000_000_000, "moment", "2020-09-13 12:26"),
        ("long", "text", "long"),
        ("<b>", "ratio", "–"),
        (None, "text", "–"),
        (1e300, "ratio", "1.00e+300"),
        (-1.7e308, "change", "-1.80e+308 %"),
        (2.5, "count", "2.5"),
    ],
)
def test_numbers_have_their_units(value: Any, kind: labels.NumberKind, text: str) -> None:
    assert labels.number_text(value, kind) == text


@pytest.mark.parametrize(
    ("symbols", "quote"),
    [
        (("BTCUSDT", "ETHUSDT"), "USDT"),
        (("BTCUSDT", "ETHUSDC"), "of the quote currency"),
        (("BTC-USD",), "USD"),
        (("GOLD",), "of the quote currency"),
        ((), "of the quote currency"),
    ],
)
def test_money_has_its_currency_where_it_is_known(symbols: tuple[str, ...], quote: str) -> None:
    assert labels.quote_of(symbols) == quote


def test_every_baseline_has_a_name_and_a_meaning() -> None:
    for name in schema.BASELINES:
        assert not labels.title_of(name).startswith("Team ") and labels.MEANINGS[name]
    assert labels.title_of("mine:Own") == "Strategy mine:Own"
    assert labels.listed("ABCDEFGH", 3) == "A, B, C and 5 more"


def test_equity_and_drawdown_have_a_band_behind_the_lines(window: WindowResult) -> None:
    """It begins at 0, where the account does."""
    whole = lines_of_time(window)
    for figure in (whole["Equity"], whole["Drawdown"]):
        low, high = figure.data[:2]
        assert high.fill == "tonexty" and high.name == "95 % band" and low.y[0] == high.y[0] == 0.0
        assert all(bottom <= top for bottom, top in zip(low.y, high.y, strict=True))
