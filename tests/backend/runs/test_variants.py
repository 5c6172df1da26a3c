"""Variants of a team in one backtest, and a backtest like a stored one."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.builders.loaded_team import scripted_team
from backend.builders.variants import ABLATIONS, VARIANTS, Variant
from backend.decisions.backtest_document import read_backtests
from backend.decisions.document import read_decisions
from backend.reporting.blocks import Picture, Table
from backend.reporting.comparison import teams_section
from backend.reporting.labels import title_of
from backend.reporting.run_summary import summarise
from backend.runs.backtest import plan_backtest
from backend.runs.requests import BacktestRequest
from backend.runs.stored_setup import like_stored, stored_setup
from backend.store.store import Store
from cryptosentinel.team_settings import TeamConfig
from simulator.backtest.run import BacktestRun, Window
from simulator.checks.perturbation import AlteredRun
from simulator.errors import UserError
from simulator.exchange.orders import Target
from simulator.market.market import set_index
from tests.stored_runs import small_market

BASE = "scripted"


@pytest.fixture
def store(played: Path) -> Store:
    return Store.open(played / "store")


def only_run(store: Store) -> str:
    return store.runs()[-1].run


def test_variants_are_played_beside_their_team_and_compared(played: Path) -> None:
    with Store.open(played / "store") as store:
        run = only_run(store)
        summary = summarise(store, run)
        [window] = summary.windows()
        assert window.subjects == (
            BASE, f"{BASE}, without Trader", f"{BASE}, verdicts do not bind", f"{BASE}, days shuffled",
            f"{BASE}, unmasked", f"{BASE}, another future",
        )  # fmt: skip
        section = teams_section(window, summary.run)
        assert section is not None
        table, picture = section.blocks
        assert isinstance(table, Table) and isinstance(picture, Picture)
        rows = {row.label: row for row in table.rows}
        assert len(rows) == 5 and all(" to " in row.values["interval"] for row in table.rows)
        # The rules see neither names nor the future: their orders are the same, so the difference is nothing.
        same = [rows[title_of(f"{BASE}, {variant}")] for variant in ("unmasked", "another future")]
        assert [row.values["wealth"] for row in same] == pytest.approx([0.0, 0.0])
        assert window.results[f"{BASE}, another future"].fills == window.results[BASE].fills
        asked = {name: {c.role for d in read_decisions(store, run) if d.backtest == name
                        for c in d.document.conversations} for name in window.subjects}  # fmt: skip
        assert "trader" in asked[BASE] and "trader" not in asked[f"{BASE}, without Trader"]
        assert not any(d.document.rulings for d in read_decisions(store, run) if d.backtest.endswith("not bind"))
        assert window.results[f"{BASE}, days shuffled"].equity != window.results[BASE].equity


def test_a_run_with_another_future_shows_only_the_past_as_it_was() -> None:
    market, window = small_market(), Window(180, 354, 6)
    real, altered = BacktestRun(market, window), AlteredRun(market, window, 7)
    while not altered.done:
        now = altered.index
        assert altered.view().bars("AAAUSDT", 50).close.tolist() == real.view().bars("AAAUSDT", 50).close.tolist()
        later = altered.view()
        set_index(later, now + 6)  # as a tool with a defect would look
        assert later.bars("AAAUSDT", 6).close.tolist() != market.close[now + 1 : now + 7, 0].tolist()
        for run in (real, altered):
            run.apply([Target("AAAUSDT", 0.5 if now % 12 else -0.5)])
    assert altered.result().equity.tolist() == real.result().equity.tolist(), "it is traded at the real prices"


def test_a_backtest_like_a_stored_one_has_its_market_window_and_seed(played: Path) -> None:
    with Store.open(played / "store") as store:
        run = only_run(store)
        setup = stored_setup(store, run)
        again = plan_backtest(like_stored(store, BacktestRequest(like=run, teams=())))
        assert [subject.name for subject in again.subjects] == [BASE]
        assert (again.window, again.seed) == (setup.window, 4)
        assert again.market.content_hash == setup.run.data_hash
        assert again.config == setup.config
        first = {one.name: one.document for one in read_backtests(store, run)}[BASE]
        assert (again.window.start, again.window.stop) == (first.start, first.start + len(first.times) - 1)
        with pytest.raises(UserError, match="the window is that of run"):
            like_stored(store, BacktestRequest(like=run, start="2020-02-01"))


@pytest.mark.parametrize("text", ["without", "without:", "nonsense", "scripted", "no_veto:trader", "without:nobody"])
def test_a_variant_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="variant"):
        Variant.parse(text).of(scripted_team(TeamConfig()))


@pytest.mark.parametrize("text", VARIANTS)
def test_every_variant_has_a_name_of_its_own(text: str) -> None:
    variant = Variant.parse(text)
    assert str(variant) == text and variant.suffix.startswith(", ")
    assert len({Variant.parse(one).suffix for one in VARIANTS}) == len(VARIANTS)
    assert variant.changes_market == (text in ("shuffled_news", "shuffled_days"))
    assert not (variant.changes_market and text in ABLATIONS)
