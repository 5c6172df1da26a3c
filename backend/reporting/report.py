"""The report of a run: `report.html`, one file that works offline and by itself, and `report.json` beside it.

Both are made from the store's records; the candles and the regimes of a backtest need its data again, and say so where
it is gone or has changed. What a run did not get to is said to be not available.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from backend.decisions.document import StoredDecision
from backend.decisions.tree import decision_tree
from backend.evaluation.attribution import attribution
from backend.reporting import charts
from backend.reporting.backtest_sections import sections, tiles
from backend.reporting.blocks import ReportSection
from backend.reporting.comparison.decision_value import HELD_OUT_VALUE, above_teacher, value_section
from backend.reporting.comparison.story import story_pictures
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
_SHOWN_DIGITS = 4  # of a fraction that is shown in percent with two
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
        "interval_meaning": interval_meaning,
        "columns": COLUMNS,
        "meanings": MEANINGS,
        "who_learned": who_learned(summary.settings),
        "how": how_it_was_run(summary),
        "config": json.dumps(summary.settings, indent=2) if summary.settings else None,
        "value": _value(summary),
        "above_teacher": _above_teacher(summary),
        "story": [
            (picture, figures.add(picture.title, picture.figure))
            for picture in story_pictures(summary.evaluations.get(HELD_OUT_VALUE, {}))
        ],
        "difference": _difference(figures, summary),
        "equity": _mean_equity(figures, summary),
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


def who_learned(settings: Mapping[str, Any]) -> str:
    """What the stages of a training taught which roles, by its `settings` (the sections of a configuration)."""
    team, training = settings.get("team") or {}, settings.get("training") or {}
    roles = ["manager", *team.get("roles", ())]
    frozen = [role for role in roles if role in training.get("freeze", ())]
    learning = [role for role in roles if role not in frozen]
    first = "Stage 1 teaches the format. " if training.get("stage1_max_steps") else ""
    whole = "the outcome of the team's trades"
    if len(learning) == 1:
        second = f"In stage 2 the {_in_words(learning)} alone learns, from {whole}"
    elif frozen:
        second = f"In stage 2 the {_in_words(learning)} share {whole}"
    else:
        second = f"In stage 2 all {len(roles)} roles share {whole}"
    return f"{first}{second}{f'; the {_in_words(frozen)} kept the initial weights' if frozen else ''}."


def _in_words(roles: Sequence[str]) -> str:
    *most, last = [role.replace("_", " ") for role in roles]
    return f"{', '.join(most)} and {last}" if most else last


def interval_meaning(low: float, high: float) -> str:
    """What a 95 % interval of a difference says, in words. An end that is shown as 0.00 % counts as 0, so that no
    sentence contradicts the numbers above it."""
    if low == high == 0.0:
        return "nothing differed: both teams did the same"
    low, high = round(low, _SHOWN_DIGITS), round(high, _SHOWN_DIGITS)
    if low > 0.0:
        return "wholly above 0: sampled answers earn more"
    if high < 0.0:
        return "wholly below 0: sampled answers earn less"
    return "holds 0: chance alone may explain it"


def _value(summary: RunSummary) -> ReportSection | None:
    document = summary.evaluations.get(HELD_OUT_VALUE)
    return None if document is None else value_section(document)


def _above_teacher(summary: RunSummary) -> tuple[float, float, float, str] | None:
    document = summary.evaluations.get(HELD_OUT_VALUE)
    return None if document is None else above_teacher(document)


def _difference(figures: PageFigures, summary: RunSummary) -> PageFigure | None:
    rows = {}
    for name, label in (("held_out", "Held-out windows"), ("no_edge", "No-edge twin")):
        difference = summary.evaluations.get(name, {}).get("difference")
        if difference:
            rows[label] = difference
    return figures.add("Trained minus warm-started", charts.difference_chart(rows)) if rows else None


def _mean_equity(figures: PageFigures, summary: RunSummary) -> PageFigure | None:
    result = summary.evaluations.get("held_out", {})
    if not result.get("equity"):
        return None
    chart = charts.equity_chart(result["equity"], result["equity_days"], "days into the window", "trained")
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
