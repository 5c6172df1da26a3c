"""What the use cases return: where a run is, and its results as pandas tables and plotly figures."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from backend.config.schema import Config
from backend.decisions.backtest_document import BacktestDocument
from backend.evaluation.paired_runs import ComparedResult
from backend.reporting import charts
from backend.reporting.blocks import Picture
from backend.reporting.report import write_pages
from backend.reporting.result_stats import Drawdown, deepest_drawdowns
from backend.reporting.run_summary import RunSummary, WindowResult
from backend.reporting.training_sections import CURVES, curves_section, windows_section
from simulator.checks.verdict import LookaheadVerdict
from simulator.errors import UserError
from simulator.files import write_whole

if TYPE_CHECKING:  # torch and plotly, which a strategy's backtest does not need
    import plotly.graph_objects as go

    from backend.training.checkpoints import TrainingState


_SHOWN = ("total_return", "sharpe", "max_drawdown", "exposure", "trades")  # columns of a result that is printed


@dataclass(frozen=True, repr=False)
class BacktestOutcome:
    """A finished backtest. `summary` is all that was stored of it, `page` the path of its report. Printed, it is the
    answer in a sentence and a small table."""

    run: str
    folder: Path
    page: Path
    config: Config
    summary: RunSummary

    def __repr__(self) -> str:
        return f"{self._window.sentence}\n\n{self._small().to_string(float_format='{:.3f}'.format)}\n\n{self.page}"

    def _repr_html_(self) -> str:
        sentence, table = html.escape(self._window.sentence), self._small().to_html(float_format="{:.3f}".format)
        return f"<p>{sentence}</p>{table}<p><code>{html.escape(str(self.page))}</code></p>"

    def _small(self) -> pd.DataFrame:
        return self.frame()[list(_SHOWN)].sort_values("total_return", ascending=False)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the first that was tested; `frame` has them of all."""
        return dict(self._window.main_result.metrics)

    @property
    def notes(self) -> list[str]:
        """What a reader must know before the numbers."""
        return self.summary.notes

    @property
    def lookahead(self) -> dict[str, LookaheadVerdict]:
        """The look-ahead verdict on each strategy of the user's own."""
        results = self._window.results
        return {name: result.lookahead for name, result in results.items() if result.lookahead is not None}

    def frame(self) -> pd.DataFrame:
        """A row for each team, strategy and baseline: return, Sharpe ratio, drawdown, costs and the other metrics."""
        return _named(self._window.rows)

    @property
    def equity(self) -> pd.DataFrame:
        """Equity at each bar's close (UTC), a column for each team, strategy and baseline."""
        curves = {name: result.equity for name, result in self._window.results.items()}
        return pd.DataFrame(curves, index=_utc(self._window.main_result.times).rename("time"))

    @property
    def trades(self) -> pd.DataFrame:
        """All round trips, by team, strategy and baseline."""
        rows = [
            {"team": name, **asdict(trade)} for name, result in self._window.results.items() for trade in result.trades
        ]
        table = pd.DataFrame(rows, columns=None if rows else ["team"])
        for column in table.columns.intersection(["entry_time", "exit_time"]):
            table[column] = _utc(table[column].tolist())
        return table

    @property
    def decisions(self) -> pd.DataFrame:
        """The decisions of the teams: when, how many conversations and orders, and the return until the next one."""
        decisions = self.summary.decisions
        return pd.DataFrame(
            {
                "team": [decision.backtest for decision in decisions],
                "number": [decision.ordinal for decision in decisions],
                "time": _utc([decision.time for decision in decisions]),
                "conversations": [len(decision.document.conversations) for decision in decisions],
                "orders": [len(decision.document.orders) for decision in decisions],
                "net_return": [decision.document.net_return for decision in decisions],
            }
        )

    def drawdowns(self, name: str = "", most: int = 5) -> pd.DataFrame:
        """The deepest drawdowns, the deepest first: `depth` as a fraction of the peak, and `peak`, `valley` and
        `recovery` (UTC, missing where the account did not get back) with `days` from peak to recovery or the end."""
        result = self._result(name)
        rows = deepest_drawdowns(result.times, result.equity, most)
        table = pd.DataFrame([asdict(row) for row in rows], columns=[field.name for field in fields(Drawdown)])
        for column in ("peak", "valley", "recovery"):
            table[column] = pd.to_datetime(table[column], unit="ms", utc=True)
        return table

    def compared(self, name: str = "") -> list[ComparedResult]:
        """What can be compared with other backtests: those that were tested, with the baselines where it is only one,
        or the one of this name."""
        window = self._window
        names = [name] if name else list(window.subjects if len(window.subjects) > 1 else window.results)
        results = [self._result(one) for one in names]
        return [ComparedResult(self.summary.run, one, result) for one, result in zip(names, results, strict=True)]

    def to_csv(self, folder: str | Path) -> list[Path]:
        """Write `metrics.csv`, `equity.csv`, `trades.csv` and `decisions.csv` to `folder`, which is made. Raises
        `UserError` where it cannot be written."""
        tables = {"metrics": self.frame(), "equity": self.equity, "trades": self.trades, "decisions": self.decisions}
        paths = [Path(folder) / f"{name}.csv" for name in tables]
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            for path, (name, table) in zip(paths, tables.items(), strict=True):
                table.to_csv(path, index=name in ("metrics", "equity"))
        except OSError as error:
            raise UserError(f"{folder} cannot be written: {error.strerror}") from error
        return paths

    def report(self, path: str | Path | None = None) -> Path:
        """The path of the report, one page that works offline, with the tearsheet; a copy of it is written to `path` if
        that is given. Raises `UserError` where it cannot be."""
        return _copied(self.page, path)

    def plot(self) -> go.Figure:
        """Return since the start of each team, strategy and baseline."""
        curves = {name: result.equity for name, result in self._window.results.items()}
        times = charts.moments(self._window.main_result.times)
        return charts.equity_chart(curves, times, self._window.main)

    @property
    def _window(self) -> WindowResult:
        return self.summary.windows()[0]

    def _result(self, name: str) -> BacktestDocument:
        results = self._window.results
        if name and name not in results:
            raise UserError(f"no result of '{name}'; there are {', '.join(results)}")
        return results[name or self._window.main]


@dataclass(frozen=True)
class TrainOutcome:
    """A finished training. The team is in `folder`; `state` is where the training ended, `summary` all that was stored
    of the run."""

    run: str
    folder: Path
    config: Config
    state: TrainingState
    summary: RunSummary

    def frame(self) -> pd.DataFrame:
        """A row for each step, with a column for each metric, such as `team/outcome` or `manager/reward/mean`."""
        return _stepwise(self.summary)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report into the team's folder, and a copy of it to `path` if that is given; returns the path.
        Raises `UserError` where it cannot be written."""
        return _copied(write_pages(self.summary, self.folder), path)

    def plot(self, title: str = "Reward") -> go.Figure:
        """One picture of the report, such as Reward, Format, Expert score, Calls in a decision, Validation or Entropy.

        Raises `UserError` for any other title.
        """
        blocks = [block for name in CURVES for block in curves_section(name, self.summary).blocks]
        curves = {block.title: block.figure for block in blocks if isinstance(block, Picture)}
        if title not in curves:
            raise UserError(f"no picture '{title}'; there are {', '.join(curves) or 'none, as no step was recorded'}")
        return curves[title]


@dataclass(frozen=True)
class EvaluationOutcome:
    """A finished evaluation or demo: the verdict in words, and the documents behind it. The team is in `folder` after a
    demo. `page` is the path of the report; `value` what
    decisions are worth on held-out states (`evaluation.states`), and `answer` the result in money
    (`backend.evaluation.answer`), where that was measured.
    """

    run: str
    folder: Path
    page: Path
    config: Config
    verdict: str
    held_out: dict[str, Any]
    value: dict[str, Any] | None = None
    answer: dict[str, Any] | None = None

    def frame(self) -> pd.DataFrame:
        """A row for each team and baseline: means over the held-out windows."""
        return _named(self.held_out["rows"])

    @property
    def equity(self) -> pd.DataFrame:
        """Equity from 1 on over the held-out windows end to end, by days traded."""
        return pd.DataFrame(self.held_out["equity"], index=pd.Index(self.held_out["equity_days"], name="days"))

    @property
    def differences(self) -> pd.DataFrame:
        """Trained minus initial, in return a window: the mean with its 95 % interval."""
        row = self.held_out["difference"]
        return _named({"Held-out windows": {"mean": row["mean"], "low": row["ci95"][0], "high": row["ci95"][1]}})

    def report(self, path: str | Path | None = None) -> Path:
        """The path of the report, one page that works offline; a copy of it is written to `path` if that is given.
        Raises `UserError` where it cannot be."""
        return _copied(self.page, path)

    def plot(self) -> go.Figure:
        """The paired differences of the windows, their mean and its 95 % interval."""
        [picture] = [block for block in windows_section(self.held_out).blocks[:1] if isinstance(block, Picture)]
        return picture.figure


@dataclass(frozen=True)
class SftOutcome:
    """A finished fine-tuning: the team is in `folder`.

    By role: `counts` of the conversations that were collected, kept and dropped; `scores` before and after; `losses`,
    the imitation loss in nats a token on validation conversations before and after, None where there are none.
    """

    folder: Path
    config: Config
    counts: dict[str, dict[str, int]]
    scores: dict[str, dict[str, Any]]
    losses: dict[str, Sequence[float] | None]

    def frame(self) -> pd.DataFrame:
        """A row for each role: its conversations, and its score on held-out states before and after."""
        rows = {}
        for role, score in self.scores.items():
            losses = self.losses[role] or (None, None)
            rows[role] = {
                **self.conversations(role),
                "score_before": score["before"],
                "score_after": score["after"],
                "loss_before": losses[0],
                "loss_after": losses[1],
            }
        return _named(rows)

    def conversations(self, role: str) -> dict[str, int]:
        """How many conversations of a role were collected, dropped and kept, and how the kept ones were divided."""
        count = self.counts[role]
        return {
            "collected": count["collected"],
            "dropped": count["collected"] - count["kept"],
            "kept": count["kept"],
            "train": count["train"],
            "validation": count["validation"],
        }

    def dropped(self, role: str) -> dict[str, int]:
        """How many conversations of a role were dropped, by reason."""
        from backend.training.sft.datasets import DROP_REASONS  # it imports torch

        return {reason: self.counts[role][reason] for reason in DROP_REASONS if self.counts[role][reason]}


def _copied(page: Path, path: str | Path | None) -> Path:
    if path is None:
        return page
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, page.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"the report {page} cannot be copied to {target} ({error.strerror})") from error
    return target


def _named(rows: dict[str, dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame.from_dict(rows, orient="index")


def _stepwise(summary: RunSummary) -> pd.DataFrame:
    steps = pd.Index([record.step for record in summary.metrics], name="step")
    return pd.DataFrame([record.values for record in summary.metrics], index=steps)


def _utc(times: Sequence[int]) -> pd.DatetimeIndex:
    return pd.to_datetime(list(times), unit="ms", utc=True)
