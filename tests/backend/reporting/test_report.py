"""The report: all that it promises is there and comes from the records, it works offline, and nothing can break out."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plotly.offline import get_plotlyjs

from backend.decisions.document import EXAMPLE_DECISION
from backend.reporting import charts
from backend.reporting.html_page import _plotly as packed_plotly
from backend.reporting.labels import ABSENT, MEANINGS
from backend.reporting.market_reload import MarketReload
from backend.reporting.report import render, write_report
from backend.reporting.run_summary import RunSummary, run_facts, summarise
from backend.store.records import EvaluationRecord, RunRecord
from backend.store.store import Store
from simulator.errors import UserError
from tests.stored_runs import (
    add_backtest_run,
    add_demo_run,
    altered,
    comparison,
    decision_values,
    episode,
    full_document,
    small_market,
)

ROOT = Path(__file__).resolve().parents[3]
EVIL = '</script><script>alert(1)</script><img src="https://evil.example/x" onerror="alert(1)">'


def unpacked(text: str) -> str:
    """What is packed as base64 of gzip."""
    return gzip.decompress(base64.b64decode(text)).decode()


class Page(HTMLParser):
    """What a browser would see: tags with attributes, the text, and the content of the figures' data elements."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.figures: list[dict[str, Any]] = []
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        is_figure = tag == "script" and ("class", "plot-data") in attrs
        self._inside = "figure" if is_figure else tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "figure":
            self.figures.append(json.loads(unpacked(data)))
        elif self._inside not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def shown(summary: RunSummary) -> str:
    """The page of a run whose data is gone."""
    return render(summary, MarketReload(None, "the data is gone"))


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with Store.open("mem://") as opened:
        add_demo_run(opened, "demo")
        add_backtest_run(opened, "backtest")
        opened.add_run(RunRecord("stopped", "demo", 1, "hash", 1_700_000_000_000, {}))
        opened.finish_run("stopped", "interrupted", "stopped by the user")
        yield opened


@pytest.fixture(scope="module")
def demo(store: Store) -> RunSummary:
    return summarise(store, "demo")


def test_the_demo_writes_all_facts(store: Store, tmp_path: Path) -> None:
    page = write_report(store, "demo", tmp_path / "new" / "folder")
    found = json.loads(page.with_name("report.json").read_text())
    assert found["verdict"].startswith(found["answer"]["sentence"]) and len(found["answer"]["sentence"]) <= 240
    assert (found["wall_seconds"], found["peak_memory_mb"], found["seed"]) == (431.2, 1234.5, 7)
    assert found["data_hash"] == small_market().content_hash
    held_out = found["held_out"]
    assert held_out["difference"] == 0.02
    assert held_out["ci95"] == pytest.approx([0.014, 0.027])
    assert (held_out["trained"], held_out["warm_started"], held_out["oracle"]) == pytest.approx((0.021, 0.001, 0.06))
    assert held_out["baselines"] == {"scripted": 0.025, "hold": 0.004, "flat": 0.0, "matched_random": -0.003}
    assert found["no_edge"]["difference"] == -0.0001
    assert found["no_edge"]["ci95"] == pytest.approx([-0.0003, 0.0001])
    assert found["held_out_value"] == decision_values()
    assert found["behavior"] == {"exposure": 0.6, "trades": 4.25, "long_share": 0.55, "hold_rate": 0.4}


def test_the_demo_page_shows_it_all(demo: RunSummary) -> None:
    page = Page(shown(demo))
    answer = demo.evaluations["answer"]
    for said in (answer["sentence"], answer["learned"], answer["caveat"]):
        assert page.text.count(said) == 1
    for said in ("Initial team", "Oracle", "7 min 11 s", "1,234 MB"):
        assert said in page.text
    # The first screen: the answer, the cards and the picture; then what was learned, the values, the windows.
    parts = ("Gained by training", "Details", "finds the direction", "Trained earns more", "Results")
    order = [answer["sentence"], *parts]
    assert [page.text.index(said) for said in order] == sorted(page.text.index(said) for said in order)
    assert "+6.0 to +14.0" in page.text
    # One decision as a conversation: who was asked what, what they said, what followed.
    steps = ("MarketAnalyst, where is", "Up 20 %, flat 20 %, down 60 %.", "RiskAnalyst, may I hold", "Approve.",
             "Trader, how would you trade", "At the market", "My decision:", "Within the hard limits",
             "The account's change up to the next decision")  # fmt: skip
    places = [page.text.index(step) for step in steps]
    assert places == sorted(places)
    labels = {attributes.get("aria-label") for _, attributes in page.tags}
    assert {"Reward", "Format", "Expert score", "Validation", "Calls in a decision"} <= labels
    assert ABSENT not in page.text


@pytest.mark.parametrize("run", ["demo", "backtest", "stopped"])
def test_the_page_works_offline(store: Store, run: str) -> None:
    html = shown(summarise(store, run))
    page = Page(html)
    [packed] = re.findall(r'<script type="application/gzip" id="plotly">([A-Za-z0-9+/=]+)</script>', html)
    library = unpacked(packed)
    assert library.startswith("/**\n* plotly.js (finance - minified)")
    assert len(html) < 1_000_000
    assert html.index(packed) > html.index("</main>"), "the words come before the library"
    assert not [
        tag for tag, attributes in page.tags if attributes.keys() & {"src", "href"} or tag in ("link", "iframe")
    ]
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a)
    assert policy is not None and policy.startswith("default-src 'none'") and "http" not in policy
    plots = [a["class"] for _, a in page.tags if a.get("class") in ("plot", "plot-data")]
    assert plots == ["plot", "plot-data"] * len(page.figures), "each figure follows its place"


def test_the_smaller_bundle_draws_every_kind_of_figure() -> None:
    """And is of the same major version as the one whose JSON plotly writes."""
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "backend").rglob("*.py"))
    kinds = {name.removeprefix("add_") for name in dir(go.Figure) if name.startswith("add_")}
    kinds -= {"annotation", "hline", "vline", "hrect", "vrect", "shape", "trace", "traces", "layout_image"}
    used = kinds & set(re.findall(r"\bfigure\.add_(\w+)\(", source))
    assert {"bar", "candlestick", "scatter"} <= used
    assert used <= {"bar", "candlestick", "histogram", "ohlc", "pie", "scatter", "waterfall"}, "not in this bundle"
    versions = [re.search(r"plotly\.js[^\n]* v(\d+)\.", text) for text in (get_plotlyjs(), unpacked(packed_plotly()))]
    assert versions[0] is not None and versions[1] is not None and versions[0][1] == versions[1][1]


@pytest.mark.parametrize("time", [1_700_000_000_000, None])
@pytest.mark.parametrize("symbols", [["AAAUSDT"], []])
def test_no_caption_begins_with_a_comma(demo: RunSummary, symbols: list[str], time: int | None) -> None:
    stored = {**demo.evaluations[EXAMPLE_DECISION], "symbols": symbols, "time": time}
    html = shown(replace(demo, evaluations={**demo.evaluations, EXAMPLE_DECISION: stored}))
    captions = [text.strip() for text in re.findall(r'<p class="caption">(.*?)</p>', html, re.DOTALL)]
    assert len(captions) > 4 and not [text for text in captions if not text or text[0] in ",.;:"]


def test_every_section_is_in_the_contents(demo: RunSummary, store: Store) -> None:
    for summary in (demo, summarise(store, "backtest")):
        page = Page(shown(summary))
        names = [attributes.get("id") for tag, attributes in page.tags if tag == "section"]
        assert len(names) > 3 and all(names) and len(names) == len(set(names))
        assert any(tag == "nav" and attributes.get("id") == "contents" for tag, attributes in page.tags)


def test_untrusted_text_stays_text() -> None:
    document = full_document().to_json()
    message = {"role": "assistant", "content": EVIL}
    conversation = {**document["conversations"][0], "messages": [message], "problem": EVIL}
    evil = {**document, "conversations": [conversation], "symbols": [EVIL]}
    rows = {EVIL: {"total_return": 0.0}}
    with Store.open("mem://") as store:
        store.add_run(RunRecord("r", "demo", 1, "hash", 1_700_000_000_000, {"config": {"market": {"data": EVIL}}}))
        store.put(EvaluationRecord("r", EXAMPLE_DECISION, 0, evil))
        held_out = {**comparison(0.1), "rows": rows, "equity": {EVIL: [1.0, 1.1]}, "equity_days": [0, 1]}
        store.put(EvaluationRecord("r", "held_out", 0, held_out))
        store.put(EvaluationRecord("r", "summary", 0, {"verdict": EVIL}))
        store.finish_run("r", "failed", EVIL)
        page = Page(shown(summarise(store, "r")))
    assert page.count("img") == 0
    assert page.count("script") == 2 + len(page.figures)
    assert page.text.count("<script>alert(1)</script>") >= 5


def test_an_interrupted_run_says_what_is_missing(store: Store) -> None:
    summary = summarise(store, "stopped")
    page = Page(shown(summary))
    assert "No verdict: this run is interrupted (stopped by the user)." in page.text
    assert page.text.casefold().count(ABSENT) >= 4
    found = run_facts(summary)
    assert found["verdict"] is None and found["held_out"]["difference"] is None


def test_a_run_without_a_verdict_opens_with_how_it_ended(demo: RunSummary) -> None:
    training = replace(demo, evaluations={})
    assert training.opening == "Run demo has finished; it was not meant to give a verdict."
    assert replace(training, run=replace(demo.run, status="failed")).opening == "No verdict: this run is failed."
    # Without closing words the stages are read from the metrics.
    assert [(event.step, event.label) for event in training.events] == [(11, "stage 2")]


SHOWN = ("held_out", EXAMPLE_DECISION, "summary", "metrics", "config")


@pytest.mark.parametrize("examples", [8, pytest.param(100, marks=pytest.mark.slow)])
def test_any_part_may_be_missing(demo: RunSummary, examples: int) -> None:
    @settings(max_examples=examples)
    @given(kept=st.sets(st.sampled_from(SHOWN)), bare=st.booleans())
    def holds(kept: set[str], bare: bool) -> None:
        evaluations = {name: result for name, result in demo.evaluations.items() if name in kept}
        if bare and "held_out" in kept:
            evaluations["held_out"] = {"windows": 3, "rows": {"trained": {"total_return": 0.01}}}
        summary = replace(
            demo,
            evaluations=evaluations,
            metrics=demo.metrics if "metrics" in kept else [],
            run=demo.run if "config" in kept else replace(demo.run, config={}),
        )
        text = Page(shown(summary)).text
        assert (ABSENT in text.casefold()) == ((bare and "held_out" in kept) or not kept >= set(SHOWN))
        json.dumps(run_facts(summary), allow_nan=False)

    holds()


def test_the_backtest_page(store: Store) -> None:
    summary = summarise(store, "backtest")
    page = Page(shown(summary))
    result = episode().result
    assert f"Scripted team made {100 * result.metrics['total_return']:+.2f} %, buy and hold " in page.text
    assert "Not proven better." in page.text and "AAAUSDT, BBBUSDT from" in page.text
    assert f"{len(result.trades)} from flat to flat" in page.text
    active = sum(bool(decision.orders) for _, decision in episode().decisions)
    assert f"{active} of {len(episode().decisions)} decisions sent orders" in page.text
    assert len(page.figures) == 3  # equity, drawdown, exposure; no candles
    assert "lacks" not in page.text
    [holed] = [record for record in summary.backtests if record.name == "scripted"]
    others = [record for record in summary.backtests if record.name != "scripted"]
    with_gaps = replace(holed, document=altered(holed.document, absent_bars=17))
    assert "The data lacks 17 bars" in Page(shown(replace(summary, backtests=[*others, with_gaps]))).text


def test_a_folder_that_cannot_be_written_is_the_users_to_mend(store: Store, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(UserError, match=r"cannot be written to .*taken"):
        write_report(store, "demo", tmp_path / "taken")


def test_windows_of_an_evaluation_are_told_apart(demo: RunSummary, store: Store) -> None:
    records = summarise(store, "backtest")
    named = [replace(record, name=f"held_out/{record.name}") for record in records.backtests]
    decisions = [replace(record, backtest="held_out/scripted/0") for record in records.decisions]
    [window] = replace(demo, backtests=named, decisions=decisions).windows()
    assert (window.name, window.main) == ("held_out", "scripted")
    assert list(window.results) == ["scripted", "flat", "hold"]
    assert len(window.decisions["scripted"]) == len(decisions)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=4000))
def test_a_thinned_line_keeps_its_shape(values: list[float]) -> None:
    x, y = charts.thin(np.arange(len(values)), np.array(values))
    assert (x[0], x[-1]) == (0, len(values) - 1)
    assert (min(y), max(y)) == (min(values), max(values))
    assert list(x) == sorted(set(x)) and list(y) == [values[index] for index in x]
    assert len(x) <= 1_502
    if len(values) <= 1_500:
        assert list(y) == values


def test_curves_show_returns_drawdowns_and_holes() -> None:
    curve = {"trained": [100.0, 110.0, 99.0]}
    [line] = charts.equity_chart(curve, [0, 1, 2], "trained").data
    assert list(line.y) == pytest.approx([0.0, 10.0, -1.0])
    [line] = charts.drawdown_chart(curve, [0, 1, 2], "trained").data
    assert list(line.y) == pytest.approx([0.0, 0.0, -10.0])
    rewards = charts.step_chart({"trader": ([1, 2, 3], [0.5, math.nan, 0.7])}, [charts.Event(2, "stage", "stage 2")])
    np.testing.assert_array_equal(rewards.data[0].y, [0.5, math.nan, 0.7])
    assert rewards.data[0].name == "Trader"
    assert [line.x0 for line in rewards.layout.shapes] == [2]


def test_only_one_row_is_called_the_teacher() -> None:
    assert [name for name, meaning in MEANINGS.items() if "teacher" in meaning] == []
