"""What the records of a run say, gathered for the report and the page. What a run did not get to is None or empty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from backend.config.schema import BASELINES
from backend.decisions.backtest_document import BacktestDocument, StoredBacktest, read_backtests
from backend.decisions.checked_documents import check_document
from backend.decisions.document import EXAMPLE_DECISION, ExampleDecision, StoredDecision, read_decisions
from backend.decisions.tree import DecisionTree, decision_tree, traced_tree
from backend.evaluation.answer import ANSWER, HOLDING
from backend.evaluation.evidence import Evidence, evidence_of
from backend.reporting.charts import Event
from backend.reporting.labels import ABSENT, listed, number_text, title_of
from backend.statistics.bootstrap import PathBand, path_band
from backend.store.records import EvaluationRecord, MetricRecord, RunRecord
from backend.store.store import Store
from cryptosentinel.agents.registry import role_title
from simulator.backtest.metrics import returns_of
from simulator.market.timeframes import format_time


@dataclass(frozen=True)
class WindowResult:
    """What teams and baselines made of one window. `results` has that of `main` first.

    `name` is empty for a backtest run, else that of the evaluation that the window belongs to. `subjects` are those
    that were tested, `main` the first of them; the other results are baselines. `decisions` are by team. `trials` are
    all ways of trading that had been tried on this data and window when this was measured.
    """

    name: str
    main: str
    subjects: tuple[str, ...]
    results: dict[str, BacktestDocument]
    decisions: dict[str, list[StoredDecision]]
    trials: int = 1

    @property
    def main_result(self) -> BacktestDocument:
        """The result of `main`."""
        return self.results[self.main]

    @property
    def hold(self) -> BacktestDocument | None:
        """The result of holding, where there is one that is not the main result itself."""
        return self.results.get("hold") if self.main != "hold" else None

    def evidence_of(self, name: str) -> Evidence:
        """How sure the numbers of one that was tested are, or of holding, which is one trial."""
        against = None if name == "hold" else self.hold
        return evidence_of(self.results[name], against, self.trials if name in self.subjects else 1)

    @property
    def evidence(self) -> dict[str, Evidence]:
        """`evidence_of` those that were tested, and holding."""
        held = [] if self.hold is None else ["hold"]
        return {name: self.evidence_of(name) for name in dict.fromkeys([*self.subjects, *held])}

    def tree(self, decision: StoredDecision) -> DecisionTree:
        """The tree of one of the decisions, which is built once."""
        key = decision.backtest, decision.ordinal
        if key not in self._trees:
            self._trees[key] = decision_tree(decision.document)
        return self._trees[key]

    def traced(self, decision: StoredDecision) -> DecisionTree:
        """The same with what became of its orders, where the result of its backtest is here."""
        team = decision.backtest.removeprefix(f"{self.name}/").partition("/")[0]
        return traced_tree(self.tree(decision), decision, self.decisions[team], self.results.get(team))

    @cached_property
    def _trees(self) -> dict[tuple[str, int], DecisionTree]:
        return {}

    @cached_property
    def band(self) -> PathBand | None:
        """Where the main account might have been by the luck of the order; None where nothing can be said."""
        return path_band(returns_of(np.asarray(self.main_result.equity, np.float64)))

    @property
    def title(self) -> str:
        """The result, that of holding, and whether the difference is more than chance."""
        own = self.main_result
        is_code = own.lookahead is not None and ":" not in self.main  # a class or function of a notebook
        who = self.main if is_code else title_of(self.main)
        text = f"{who} made {number_text(own.total_return, 'change')}"
        if own.inference_money:
            text += f" ({number_text(own.return_after_inference, 'change')} after the cost of its model)"
        if self.hold is not None:
            text += f", buy and hold {number_text(self.hold.total_return, 'change')}"
            verdict = self.evidence_of(self.main).verdict
            text += f". {verdict}".rstrip(". ")
        text += "."
        return f"Nothing was traded: {own.refused}. {text}" if own.refused and not own.fills else text

    @property
    def sentence(self) -> str:
        """The title, and the verdict on look-ahead where there is one."""
        if self.main_result.lookahead is None:
            return self.title
        said = self.main_result.lookahead.sentence()
        return f"{self.title} {said[:1].upper()}{said[1:]}."

    @property
    def where(self) -> str:
        """What was traded and when."""
        own = self.main_result
        period = f"{format_time(own.times[0])} to {format_time(own.times[-1])} UTC"
        return f"{listed(own.symbols)} from {period}, net of all costs of trading"

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """A table of results."""
        return {
            name: {
                **result.metrics,
                **({"deflated_sharpe": self.evidence_of(name).deflated} if name in self.subjects else {}),
                "costs": sum(result.costs.values()) / result.equity[0],
                "hold_rate": self._hold_rate(name),
            }
            for name, result in self.results.items()
        }

    def _hold_rate(self, name: str) -> float | None:
        """Share of a team's decisions that sent no orders; None for those whose decisions are not stored."""
        decisions = self.decisions.get(name)
        return sum(not one.document.orders for one in decisions) / len(decisions) if decisions else None


@dataclass(frozen=True)
class RunSummary:
    """Everything that is shown of a run. `evaluations` holds the newest result of each name."""

    run: RunRecord
    evaluations: dict[str, dict[str, Any]]
    metrics: list[MetricRecord]
    backtests: list[StoredBacktest]
    decisions: list[StoredDecision]

    @property
    def closing(self) -> dict[str, Any]:
        """What the run wrote at its end; empty for one that did not get there."""
        in_config = self.run.config.get("summary")
        return self.evaluations.get("summary") or (in_config if isinstance(in_config, dict) else {})

    @property
    def verdict(self) -> str | None:
        return self.closing.get("verdict")

    @property
    def answer(self) -> dict[str, Any] | None:
        """What a demo or an evaluation found, in money; None where decisions were not scored."""
        return self.evaluations.get(ANSWER)

    @property
    def opening(self) -> str:
        """The first sentences about the run: its verdict, what a backtest came to, or how far it got."""
        if self.verdict is not None:
            return self.verdict
        if self.run.kind == "backtest" and self.backtests:
            return self.windows()[0].sentence
        if self.run.status == "finished":
            return f"Run {self.run.run} has finished; it was not meant to give a verdict."
        return f"No verdict: this run is {self.run.status}" + (f" ({self.run.message})." if self.run.message else ".")

    @property
    def wall_seconds(self) -> float | None:
        """As the run measured it, else from its first to its last record; None while it runs."""
        measured = self.closing.get("wall_seconds")
        if measured is None and self.run.finished_at is not None:
            return (self.run.finished_at - self.run.started_at) / 1000
        return measured

    @property
    def events(self) -> list[Event]:
        """Stage boundaries, rollbacks and the best step, to be marked in the curves."""
        events = [Event(step, "stage", f"stage {stage}") for stage, step in self._stages() if step > 0]
        for rollback in self.closing.get("rollbacks", []):
            events.append(Event(int(rollback["step"]), "rollback", f"{role_title(rollback['role'])} rolled back"))
        if self.closing.get("best_step") is not None:
            events.append(Event(int(self.closing["best_step"]), "best", "kept: best validation"))
        return events

    def _stages(self) -> list[tuple[int, int]]:
        """(stage, its first step); from the metric `stage` where the closing words are missing."""
        if "stages" in self.closing:
            return [(int(stage["stage"]), int(stage["from_step"])) for stage in self.closing["stages"]]
        first: dict[int, int] = {}
        for record in self.metrics:
            if "stage" in record.values:
                first.setdefault(int(record.values["stage"]), record.step)
        return sorted((stage, step) for stage, step in first.items() if stage > 1)

    @property
    def warnings(self) -> list[str]:
        """How the run ended, if not well, and what a reader must know before the numbers."""
        run = self.run
        ending = f"This run is {run.status}" + (f": {run.message}" if run.message else ".")
        return [*([ending] if run.status not in ("finished", "running") else []), *self.notes]

    @property
    def notes(self) -> list[str]:
        """What a reader must know before the numbers, such as that a team was trained with other costs."""
        notes = self.run.config.get("notes")
        return [str(note) for note in notes] if isinstance(notes, list) else []

    @property
    def settings(self) -> dict[str, Any]:
        """The config of the run."""
        config = self.run.config.get("config")
        return config if isinstance(config, dict) else {}

    @property
    def example(self) -> ExampleDecision | None:
        """The decision that the run chose to be shown. Raises `StoreError` where it cannot be read."""
        stored = self.evaluations.get(EXAMPLE_DECISION)
        if stored is None:
            return None
        return ExampleDecision.from_json(stored, f"evaluation {EXAMPLE_DECISION} in run {self.run.run}")

    def windows(self) -> list[WindowResult]:
        """The stored windows: that of a backtest run, or those of an evaluation, named `evaluation/team`."""
        return self._windows

    @cached_property
    def _windows(self) -> list[WindowResult]:
        windows: dict[str, dict[str, BacktestDocument]] = {}
        for backtest in self.backtests:
            window, _, name = backtest.name.rpartition("/")
            windows.setdefault(window, {})[name] = backtest.document
        return [self._window(window, results) for window, results in windows.items()]

    def _window(self, window: str, results: dict[str, BacktestDocument]) -> WindowResult:
        decisions: dict[str, list[StoredDecision]] = {}
        for name in results:
            full = f"{window}/{name}" if window else name
            of_team = [one for one in self.decisions if one.backtest == full or one.backtest.startswith(f"{full}/")]
            if of_team:
                decisions[name] = of_team
        listed = [name for name in self.run.config.get("teams", []) if name in results]
        tested = [*listed, *decisions, *(name for name in results if name not in BASELINES)] or list(results)[:1]
        ordered = {name: results[name] for name in [*tested, *results]}
        subjects = tuple(dict.fromkeys(tested))
        counted = self.run.config.get("trials")
        trials = max(len(listed), counted if isinstance(counted, int) else 1)
        return WindowResult(window, tested[0], subjects, ordered, decisions, trials)


def summarise(store: Store, run_id: str) -> RunSummary:
    """Read a run. Raises `StoreError` if there is none with this id or a document of it cannot be read."""
    run, evaluations = store.run(run_id), store.evaluations(run_id)
    for record in (run, *evaluations):
        check_document(record)
    metrics = store.metrics(run_id)
    return RunSummary(
        run=run,
        evaluations=_newest(evaluations),
        metrics=metrics,
        backtests=read_backtests(store, run_id),
        decisions=read_decisions(store, run_id),
    )


def summarise_training(store: Store, run_id: str) -> RunSummary:
    """What a training has recorded so far, without its decisions. Raises `StoreError` where there is none."""
    return RunSummary(store.run(run_id), {}, store.metrics(run_id), [], [])


def run_facts(summary: RunSummary) -> dict[str, Any]:
    """The run as one JSON document; `null` stands for what is not available."""
    run, closing = summary.run, summary.closing
    held_out, control = summary.evaluations.get("held_out", {}), summary.evaluations.get("control_value", {})
    trained = held_out.get("rows", {}).get("trained", {})
    return {
        "run": run.run,
        "kind": run.kind,
        "status": run.status,
        "message": run.message,
        "verdict": summary.verdict,
        "answer": summary.answer,
        "wall_seconds": summary.wall_seconds,
        "peak_memory_mb": closing.get("peak_memory_mb"),
        "held_out": _comparison(held_out),
        "no_edge": _on_control(control),
        "held_out_value": summary.evaluations.get("held_out_value"),
        "behavior": {key: trained.get(key) for key in ("exposure", "trades", "long_share", "hold_rate")},
        "training": {key: closing.get(key) for key in ("stages", "rollbacks", "best_step")},
        "backtests": {
            backtest.name: {key: getattr(backtest.document, key) for key in ("metrics", "costs", "absent_bars")}
            for backtest in summary.backtests
        },
        "seed": run.seed,
        "data_hash": run.data_hash,
        "versions": run.config.get("versions"),
        "config": run.config.get("config"),
    }


def _comparison(result: dict[str, Any]) -> dict[str, Any]:
    """Mean returns per window of the rows, with the paired difference trained - initial and its interval."""
    rows: dict[str, dict[str, Any]] = result.get("rows", {})
    returns = {name: row.get("total_return") for name, row in rows.items()}
    difference = result.get("difference") or {}
    named = ("trained", "warm_started", "oracle")
    return {
        "windows": result.get("windows"),
        "difference": difference.get("mean"),
        "ci95": difference.get("ci95"),
        "costs_saved": difference.get("costs_saved"),
        **{name: returns.get(name) for name in named},
        "baselines": {name: value for name, value in returns.items() if name not in named},
        "rows": {name: {key: value for key, value in row.items() if key != "per_window"} for name, row in rows.items()},
    }


def _on_control(control: dict[str, Any]) -> dict[str, Any]:
    """What a decision of the trained team earns more than holding on the no-edge control, a fraction of the equity."""
    found: dict[str, Any] = next((one for one in control.get("differences", ()) if one["against"] == HOLDING), {})
    return {"difference": found.get("net_return"), "ci95": found.get("net_return_ci95")}


def _newest(evaluations: Sequence[EvaluationRecord]) -> dict[str, dict[str, Any]]:
    """The result of each name at its highest step; they come in order of the step."""
    return {record.name: record.result for record in evaluations}


def _plugin(record: dict[str, Any]) -> str:
    """A plug-in in words: `tool own_tool:TOOL (own-tool 1.0, 3f2a9c0112ab34cd)`."""
    what = " ".join(str(record[key]) for key in ("package", "version") if record.get(key))
    origin = ", ".join(part for part in (what, str(record.get("digest", ""))) if part)
    return f"{record.get('kind', '?')} {record.get('name', '?')}" + (f" ({origin})" if origin else "")


def how_it_was_run(summary: RunSummary) -> list[tuple[str, str]]:
    """Label and value of what one needs to run it again and to judge it."""
    run = summary.run
    memory = summary.closing.get("peak_memory_mb")
    versions, market = run.config.get("versions"), summary.settings.get("market")
    rows = [
        ("Run", run.run),
        ("Kind", run.kind),
        ("Status", f"{run.status} ({run.message})" if run.message else run.status),
        ("Started", f"{format_time(run.started_at)} UTC"),
        ("Seed", str(run.seed)),
        ("Data", str(market.get("data") or "synthetic market") if isinstance(market, dict) else ABSENT),
        ("Data hash (SHA-256)", run.data_hash),
        ("Peak memory", f"{memory:,.0f} MB" if isinstance(memory, int | float) else ABSENT),
    ]
    venue = run.config.get("venue")
    if isinstance(venue, dict) and venue.get("told"):
        rows.append(("Venue", str(venue["told"])))
    if isinstance(venue, dict) and venue.get("carry"):
        rows.append(("Cost of holding", str(venue["carry"])))
    if run.config.get("gaps"):
        rows.append(("Gaps in the data", str(run.config["gaps"])))
    plugins = run.config.get("plugins")
    if isinstance(plugins, list):
        rows.append(("Plug-ins", "; ".join(_plugin(one) for one in plugins if isinstance(one, dict))))
    if isinstance(versions, dict):
        rows.append(("Versions", ", ".join(f"{name} {version}" for name, version in versions.items())))
    return rows
