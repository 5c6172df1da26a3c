"""The report of a run: `report.html`, one file that works offline and by itself, and `report.json` beside it.

Both are made from the store's records; the candles of a backtest need its data again, and say so where it is gone or
has changed. What a run did not get to is said to be not available.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from backend.decisions.document import ExampleDecision, StoredDecision
from backend.decisions.tree import decision_tree
from backend.reporting.backtest_sections import sections, tiles, window_notes
from backend.reporting.blocks import Missing, ReportSection
from backend.reporting.comparison import teams_section
from backend.reporting.decision_narrative import headline, narrate
from backend.reporting.html_page import render_page
from backend.reporting.labels import ABSENT, duration_text, title_of
from backend.reporting.market_reload import MarketReload, reload_market
from backend.reporting.run_summary import RunSummary, WindowResult, how_it_was_run, run_facts, summarise
from backend.reporting.trade_sections import candles_section
from backend.reporting.training_sections import (
    CURVES,
    answer_picture,
    answer_tiles,
    comparison_sections,
    curves_section,
)
from backend.store.store import Store
from simulator.errors import UserError
from simulator.files import write_whole
from simulator.market.timeframes import format_time

_NOT_NEEDED = MarketReload(None, "only a backtest needs its market again")
_DECISIONS_SHOWN = 5  # before the largest gains, and as many before the largest losses
_OF_THE_COIN = "Percentages of a position are of the part of the account that the coin has to itself."


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
        document = json.dumps(_finite(all_facts(summary)), indent=2, allow_nan=False)
        write_whole(folder / "report.json", document + "\n")
        write_whole(page, render(summary, reload))
    except OSError as error:
        raise UserError(
            f"the report cannot be written to {folder} ({error.strerror}): free some space or choose another folder; "
            "the records of the run are safe in the store"
        ) from error
    return page


def all_facts(summary: RunSummary) -> dict[str, Any]:
    """`run_facts` of the run, and of a backtest with a result how sure it is and the look-ahead verdicts."""
    document = run_facts(summary)
    if summary.run.kind == "backtest" and summary.backtests:
        window = summary.windows()[0]
        verdicts = {name: one.lookahead for name, one in window.results.items() if one.lookahead is not None}
        document["evidence"] = {name: one.facts() for name, one in window.evidence.items()}
        document["lookahead"] = {name: {**one.to_dict(), "text": one.sentence()} for name, one in verdicts.items()}
    return document


def render(summary: RunSummary, reload: MarketReload) -> str:
    """The page as HTML. All text is escaped: what models and news said is untrusted.

    `reload` is the market of the run, for the candles of a backtest.
    """
    run, answer = summary.run, summary.answer
    context: dict[str, Any] = {
        "name": run.run,
        "kicker": f"{run.kind} · {run.run}",
        "source": f"run {run.run}",
        "heading": summary.opening if answer is None else answer["sentence"],
        "notes": [f"{note}." for note in summary.notes],
        "facts": [*how_it_was_run(summary), ("Wall time", duration_text(summary.wall_seconds))],
        "config": json.dumps(summary.settings, indent=2) if summary.settings else None,
        "sections": [],
    }
    if run.kind == "backtest":
        return render_page(context | _backtest(summary, reload))
    if run.kind in ("demo", "evaluate") or "held_out" in summary.evaluations:
        context["sections"] += comparison_sections(summary)
        context["talks"] = _example(summary.example)
    if run.kind in ("demo", "train") or summary.metrics:
        curves = [curves_section(title, summary) for title in CURVES]
        missing = ReportSection("How it learned", (Missing("Curves", "the run stored no metrics"),))
        context["sections"] += [one for one in curves if not isinstance(one.blocks[0], Missing)] or [missing]
    if answer is not None:
        context |= {"lead": f"{answer['learned']} {answer['caveat']}", "tiles": answer_tiles(answer),
                    "first": answer_picture(answer)}  # fmt: skip
    return render_page(context)


def _example(example: ExampleDecision | None) -> dict[str, Any]:
    """The decision of a demo or an evaluation, line by line."""
    where = [] if example is None else [", ".join(example.symbols)] * bool(example.symbols)
    if example is not None and example.time is not None:
        where.append(f"{format_time(example.time)} UTC")
    return {
        "title": "One decision, line by line",
        "caption": f"{', '.join(where)}. Indented lines are consultations. {_OF_THE_COIN}".removeprefix(". "),
        "whole": None if example is None else narrate(decision_tree(example)),
        "decisions": [],
        "absent": ABSENT.capitalize(),
    }


def _backtest(summary: RunSummary, reload: MarketReload) -> dict[str, Any]:
    """What the page of a backtest run shows of it."""
    if not summary.backtests:
        return {"sections": [ReportSection("Result", (Missing("Result", "the run stored none"),))]}
    window = summary.windows()[0]
    shown = [*sections(window), candles_section(window, reload)]
    against = teams_section(window, summary.run)
    if against is not None:
        shown.insert(1, against)
    return {
        "lead": window.where,
        "tiles": tiles(window),
        "notes": [*(f"{note}." for note in summary.notes), *window_notes(window)],
        "sections": shown,
        "talks": _extremes(window),
    }


def _extremes(window: WindowResult) -> dict[str, Any]:
    """Of the decisions that sent orders those followed by the largest gains and losses, in order of time."""
    decisions: Sequence[StoredDecision] = window.decisions.get(window.main, [])
    active = [decision for decision in decisions if decision.document.orders]
    ranked = sorted(active or decisions, key=lambda decision: decision.document.net_return or 0.0)
    chosen = {one.ordinal: one for one in ranked[:_DECISIONS_SHOWN] + ranked[-_DECISIONS_SHOWN:]}
    trees = [(chosen[number].time, window.traced(chosen[number])) for number in sorted(chosen)]
    return {
        "title": "Decisions",
        "caption": f"{len(active)} of {len(decisions)} decisions sent orders. Shown are those after which the account "
        f"gained and lost most up to the next decision; all are in the store. {_OF_THE_COIN}",
        "whole": None,
        "decisions": [(f"{format_time(time)} · {headline(tree)}", narrate(tree)) for time, tree in trees],
        "absent": f"{ABSENT.capitalize()}: the store holds no decisions of {title_of(window.main)}. Teams have them, "
        "strategies do not.",
    }


def _finite(value: Any) -> Any:
    """`value` with None for every float in it that is NaN or infinite, which JSON cannot hold."""
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
