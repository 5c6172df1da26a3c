"""Runs as rows of a table. A run of `sft` or an experiment has one result of its own: the evaluation that has the name
of the run's kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from backend.decisions.backtest_document import BacktestDocument
from backend.evaluation.evidence import evidence_of
from backend.reporting.labels import ABSENT, listed, title_of
from backend.store.errors import StoreError
from backend.store.records import RunRecord
from backend.store.store import Store
from cryptosentinel.agents.registry import role_title
from simulator.market.timeframes import format_time

SINGLE_RESULT = ("sft", "experiment")  # kinds of runs that come to one result of their own


@dataclass(frozen=True)
class RunRow:
    """A run in a line. What it did not get to, or what a run of its kind does not have, is None or empty.

    `total_return` is of the first team of a backtest, or the mean over the held-out windows of an evaluation.
    `difference` is the trained team minus the initial one, of an evaluation, and the return minus that of holding,
    of a backtest; `interval` is its 95 % interval. Of a backtest it is that of the final wealth over that of holding,
    times what holding came to.
    """

    run: str
    kind: str
    status: str
    started_at: int
    seed: int
    teams: str
    data: str
    total_return: float | None = None
    difference: float | None = None
    interval: tuple[float, float] | None = None
    verdict: str = ""
    window: str = ""  # from when to when, or the number of windows or states
    bp: tuple[float, float] | None = None  # what a decision of a measured team earns, and more than holding


def run_row(store: Store, run: RunRecord, *, intervals: bool = True) -> RunRow:
    """The row of a run, for which little of its records is read; without `intervals`, which take time, there is no
    verdict on a backtest. Raises `StoreError` where the store fails."""
    teams = _teams(run)
    found: dict[str, Any] = {}
    try:
        if run.kind in SINGLE_RESULT:
            results = [one.result for one in store.evaluations(run.run) if one.name == run.kind]
            found = row_of_result(run.kind, results[0]) if results else {}
        else:
            found = _of_backtest(store, run.run, teams[0], intervals) if teams else _of_evaluation(store, run.run)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        found = {"verdict": "its records cannot be read"}
    except StoreError as error:
        if run.status == "deleting":
            raise
        found = {"verdict": str(error)[:200]}
    if run.message and run.status != "finished":
        found["verdict"] = run.message
    return replace(bare_row(run), **found)


def bare_row(run: RunRecord) -> RunRow:
    """The row of a run as far as its own record tells, without what came of it."""
    settings = run.config.get("config")
    market = settings.get("market") if isinstance(settings, dict) else None
    teams = _teams(run)
    return RunRow(
        run.run,
        run.kind,
        run.status,
        run.started_at,
        run.seed,
        listed([title_of(name) for name in teams]) if teams else "",
        str(market.get("data") or "synthetic market") if isinstance(market, dict) else "",
    )


def _teams(run: RunRecord) -> list[str]:
    stated = run.config.get("teams")
    return [str(name) for name in stated] if isinstance(stated, list) else []


def _of_backtest(store: Store, run: str, main: str, intervals: bool) -> dict[str, Any]:
    documents = {
        record.name: BacktestDocument.from_json(record.result, f"backtest {record.name} in run {run}")
        for name in dict.fromkeys((main, "hold"))
        for record in store.backtests(run, name)
    }
    own, hold = documents.get(main), documents.get("hold")
    if own is None:
        return {}
    if main == "hold":
        hold = None
    against = None if hold is None else own.total_return - hold.total_return
    first, last = (format_time(time)[:10] for time in (own.times[0], own.times[-1]))
    plain = {"total_return": own.total_return, "difference": against, "window": f"{first} to {last}"}
    if not intervals:
        return plain
    sure = evidence_of(own, hold, 1)  # what is read of it does not depend on the number of trials
    lead = None if sure.intervals is None else sure.intervals.against
    held = 1.0 if hold is None else 1.0 + hold.total_return
    seen_ahead = "" if own.lookahead is None else own.lookahead.sentence()
    return {
        **plain,
        "interval": None if lead is None else (held * lead.low, held * lead.high),
        "verdict": f"{sure.verdict} {seen_ahead}".strip(),
    }


def _of_evaluation(store: Store, run: str) -> dict[str, Any]:
    newest = {record.name: record.result for record in store.evaluations(run)}
    held_out, closing = newest.get("held_out", {}), newest.get("summary", {})
    rows = held_out.get("rows", {})
    own = rows.get("trained") or {}
    difference = held_out.get("difference") or {}
    low, high = difference.get("ci95") or (None, None)
    answer, value = newest.get("answer"), newest.get("held_out_value")
    where = f"{held_out['windows']} held-out windows" if held_out.get("windows") else ""
    return {
        "teams": title_of("trained") if own else "",
        "window": f"{value['states']} held-out states" if value else where,
        "bp": None if answer is None else (float(answer["bp"]["trained"]), float(answer["minus_holding"][0])),
        "total_return": own.get("total_return"),
        "difference": difference.get("mean"),
        "interval": None if low is None or high is None else (float(low), float(high)),
        "verdict": str(closing.get("verdict") or ""),
    }


def row_of_result(kind: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the table's row. Raises `KeyError`, `TypeError`, `ValueError` or `IndexError` for a damaged one."""
    if kind == "experiment":
        arms = [str(arm["arm"]) for arm in result["arms"]]
        return {"teams": listed(arms), "verdict": str(result["sentence"])}
    return {"verdict": "; ".join(_scored(role, score) for role, score in result["scores"].items())}


def single_result_text(kind: str, result: Mapping[str, Any]) -> str:
    """What an opened run of this kind came to; says so where its result is damaged or not there yet."""
    try:
        return str(row_of_result(kind, result)["verdict"]) if result else "the run did not come to its end"
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        return "its records cannot be read"


def _scored(role: str, score: Mapping[str, Any]) -> str:
    """A role's mean score on held-out states before sft and after it, with the interval of the difference."""
    before, after = (ABSENT if score[key] is None else f"{score[key]:.3f}" for key in ("before", "after"))
    found = score["difference"]
    ends = "" if found is None or None in found["ci95"] else " ({:+.3f} to {:+.3f})".format(*found["ci95"])
    return f"{role_title(role)} {before} to {after}{ends}"
