"""The report of a run: `report.html`, one file that works offline and by itself, and `report.json` beside it.

Both are made from the store's records; the candles and the regimes of a backtest need its data again, and say so where
it is gone or has changed. What a run did not get to is said to be not available.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backend.decisions.document import StoredDecision
from backend.decisions.tree import decision_tree
from backend.evaluation.attribution import attribution
from backend.reporting import charts
from backend.reporting.backtest_sections import sections, tiles
from backend.reporting.blocks import ReportSection
from backend.reporting.comparison.answer_view import answer_picture, answer_tiles, learned_table
from backend.reporting.comparison.decision_value import CONTROL_VALUE, HELD_OUT_VALUE, value_section
from backend.reporting.comparison.teams import teams_section
from backend.reporting.decision_narrative import headline, narrate
from backend.reporting.drawing.figure import finite
from backend.reporting.html.page import PageFigure, PageFigures, render_page
from backend.reporting.json_facts import backtest_facts
from backend.reporting.labels import ABSENT, COLUMNS, MEANINGS
from backend.reporting.market_reload import MarketReload, reload_market
from backend.reporting.run_summary import RunSummary, how_it_was_run, run_facts, summarise
from backend.reporting.trade_sections import candles_section
from backend.reporting.training.curves import learning_curves, optimizer_curves, reward_curves
from backend.store.store import Store
from simulator.errors import UserError
from simulator.files import write_whole

_NOT_NEEDED = MarketReload(None, "only a backtest needs its market again")
_DECISIONS_SHOWN = 5  # before the largest gains, and as many before the largest losses


def write_report(store: Store, run_id: str, folder: Path) -> Path:
    """Write `report.html` and `report.json` of a run into `folder` (made if absent); returns the path of the page.

    Raises `StoreError` for an unknown run, `UserError` where the files cannot be written.
    """
    return write_pages(summarise(store, run_id), folder)


def write_pages(summary: RunSummary, folder: Path) -> Path:
    """`write_report` of a run that was read from the store. Raises `UserError` where the files cannot be written."""
    reload = reload_market(summary.run) if summary.run.kind == "backtest" else _NOT_NEEDED
    page = folder / "report.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        document = json.dumps(finite(all_facts(summary, reload)), indent=2, allow_nan=False)
        write_whole(folder / "report.json", document + "\n")
        write_whole(page, render(summary, reload))
    except OSError as error:
        raise UserError(
            f"the report cannot be written to {folder} ({error.strerror}): free some space or choose another folder; "
            "the records of the run are safe in the store"
        ) from error
    return page


def all_facts(summary: RunSummary, reload: MarketReload) -> dict[str, Any]:
    """`run_facts` of the run, and of a backtest with a result also `backtest_facts` under `backtest`."""
    document = run_facts(summary)
    if summary.run.kind == "backtest" and summary.backtests:
        document["backtest"] = backtest_facts(summary.windows()[0], summary.settings, reload)
    return document


def render(summary: RunSummary, reload: MarketReload) -> str:
    """The page as HTML. All text is escaped: what models and news said is untrusted.

    `reload` is the market of the run, for the candles and regimes of a backtest.
    """
    figures, example, metrics = PageFigures(), summary.example, summary.metrics
    context: dict[str, Any] = {
        "summary": summary,
        "run": summary.run,
        "is_training": summary.run.kind in ("demo", "train") or bool(summary.metrics),
        "is_comparison": summary.run.kind in ("demo", "evaluate") or "held_out" in summary.evaluations,
        "absent": ABSENT,
        "attribution": attribution,
        "columns": COLUMNS,
        "meanings": MEANINGS,
        "how": how_it_was_run(summary),
        "config": json.dumps(summary.settings, indent=2) if summary.settings else None,
        "answer": _answer(summary, figures),
        "value": _value(summary),
        "difference": _difference(figures, summary),
        "equity": _equity(figures, summary),
        "curves": [
            (curve, figures.add(curve.title, curve.picture(summary.events).figure))
            for curve in (*learning_curves(metrics), *reward_curves(metrics), *optimizer_curves(metrics))
        ],
        "calls": figures.add("Calls per decision", charts.calls_chart(summary.calls)) if summary.calls else None,
        "example": example,
        "example_lines": narrate(decision_tree(example)) if example else [],
        "backtest": _backtest(summary, reload),
    }
    return render_page("report.html.j2", figures, context)


def _answer(summary: RunSummary, figures: PageFigures) -> dict[str, Any] | None:
    """The first screen of a measured team; None where decisions were not scored."""
    answer = summary.answer
    if answer is None:
        return None
    picture = answer_picture(answer)
    return {
        "tiles": answer_tiles(answer),
        "caption": picture.caption,
        "picture": figures.add(picture.title, picture.figure),
    }


def _value(summary: RunSummary) -> list[ReportSection]:
    sections = []
    if summary.answer is not None:
        sections.append(ReportSection("What each role learned", (learned_table(summary.answer),)))
    value = summary.evaluations.get(HELD_OUT_VALUE)
    if value is not None:
        sections.append(value_section(value, summary.evaluations.get(CONTROL_VALUE)))
    return sections


def _difference(figures: PageFigures, summary: RunSummary) -> PageFigure | None:
    difference = summary.evaluations.get("held_out", {}).get("difference")
    if not difference:
        return None
    return figures.add("Trained minus initial", charts.difference_chart({"Held-out windows": difference}))


def _equity(figures: PageFigures, summary: RunSummary) -> PageFigure | None:
    result = summary.evaluations.get("held_out", {})
    if not result.get("equity"):
        return None
    chart = charts.equity_chart(result["equity"], result["equity_days"], "days traded", "trained")
    return figures.add("Equity on held-out windows", chart)


def _backtest(summary: RunSummary, reload: MarketReload) -> dict[str, Any] | None:
    """What the page of a backtest run shows of it; None where there is no result."""
    if summary.run.kind != "backtest" or not summary.backtests:
        return None
    window = summary.windows()[0]
    shown = sections(window, summary.settings, reload)
    shown.insert(-1, candles_section(window, reload))
    against = teams_section(window, summary.run)
    if against is not None:
        shown.insert(1, against)
    decisions = window.decisions.get(window.main, [])
    trees = [(decision, decision_tree(decision.document)) for decision in _extremes(decisions)]
    return {
        "window": window,
        "tiles": tiles(window),
        "sections": shown,
        "decisions": [(decision.time, headline(tree), narrate(tree)) for decision, tree in trees],
        "decisions_in_all": len(decisions),
        "decisions_with_orders": sum(bool(decision.document.orders) for decision in decisions),
    }


def _extremes(decisions: Sequence[StoredDecision]) -> list[StoredDecision]:
    """Of the decisions that sent orders those followed by the largest gains and losses, in order of time."""
    active = [decision for decision in decisions if decision.document.orders] or decisions
    ranked = sorted(active, key=lambda decision: decision.document.net_return or 0.0)
    chosen = ranked[:_DECISIONS_SHOWN] + ranked[-_DECISIONS_SHOWN:]
    return sorted({decision.ordinal: decision for decision in chosen}.values(), key=lambda decision: decision.ordinal)
