"""What a page shows of a run: its sections, lines and words, so that the page only draws them.

`RunPage` is the one door from the pages to the report's parts. What it gives is made of `backend.reporting.blocks` and
of the narrative's lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from backend.config.load import as_toml
from backend.decisions.document import StoredDecision
from backend.decisions.tree import DecisionTree, decision_tree, traced_tree
from backend.reporting import charts
from backend.reporting.backtest_sections import NEED_MARKET, SECTIONS, lines_of_time, section, tiles
from backend.reporting.blocks import Missing, Picture, ReportBlock, ReportSection, Table, TableRow, Tile
from backend.reporting.comparison.answer_view import answer_picture, answer_tiles, learned_table
from backend.reporting.comparison.decision_value import CONTROL_VALUE, HELD_OUT_VALUE, value_section
from backend.reporting.comparison.single_result import SINGLE_RESULT, blocks_of_result
from backend.reporting.comparison.teams import teams_section
from backend.reporting.decision.behaviour import TITLE as BEHAVIOUR
from backend.reporting.decision.behaviour import behaviour_section
from backend.reporting.decision.graph import delegation_graph
from backend.reporting.decision.timeline import timeline
from backend.reporting.decision_narrative import Line, headline, narrate
from backend.reporting.decision_views import decision_facts, decision_page
from backend.reporting.labels import COLUMNS, duration_text, title_of
from backend.reporting.market_reload import MOST_CANDLES, MarketReload, market_of, reload_market
from backend.reporting.result_stats import traded_notional
from backend.reporting.run_summary import RunSummary, WindowResult, calls_per_rollout, how_it_was_run, summarise
from backend.reporting.trade_sections import candles_block
from backend.reporting.training.curves import CurveMark, Curves, learning_curves, optimizer_curves, reward_curves
from backend.store.records import RunRecord
from backend.store.run_record import stored_config
from backend.store.store import Store
from simulator.market.market import Market
from simulator.market.timeframes import format_time

_READ_FIRST = (
    "This run was imported. With --config its settings count as your own: first read what they run, contact and open."
)


@dataclass(frozen=True)
class RunPage:
    """A run of any kind; what it did not get to is left out or said to be not available."""

    summary: RunSummary

    @classmethod
    def read(cls, store: Store, run_id: str) -> RunPage:
        """Read a run. Raises `StoreError` where there is none or a document of it cannot be read."""
        return cls(summarise(store, run_id))

    @classmethod
    def read_training(cls, store: Store, run_id: str) -> RunPage:
        """What a training has recorded so far, without its decisions. Raises `StoreError` where there is none."""
        run = store.run(run_id)
        metrics = store.metrics(run_id)
        return cls(RunSummary(run, {}, metrics, [], [], calls_per_rollout(metrics)))

    @property
    def run(self) -> RunRecord:
        return self.summary.run

    @property
    def warnings(self) -> list[str]:
        """How it ended, if not well, and what a reader must know before the numbers."""
        run = self.run
        ending = f"This run is {run.status}" + (f": {run.message}" if run.message else ".")
        return [*([ending] if run.status not in ("finished", "running") else []), *self.summary.notes]

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Label and value of what one needs to run it again and to judge it."""
        return [*how_it_was_run(self.summary), ("Wall time", duration_text(self.summary.wall_seconds))]

    @property
    def settings(self) -> Mapping[str, Any]:
        """The config of the run."""
        return self.summary.settings

    def settings_file(self) -> tuple[str, str]:
        """The settings as a TOML file for --config, and a warning for those of an imported run; else empty. Raises
        `ConfigError` for settings that cannot be read."""
        return as_toml(stored_config(self.run).to_dict()), _READ_FIRST if self.run.imported else ""

    @cached_property
    def windows(self) -> list[WindowPage]:
        """The windows whose results are stored: that of a backtest, or the first one of each evaluation."""
        return [WindowPage(window, self.run, self.settings) for window in self.summary.windows()]

    def single_result(self) -> tuple[ReportBlock, ...] | None:
        """What the run came to, where it has one result of its own; None for other kinds."""
        kind = self.run.kind
        return blocks_of_result(kind, self.summary.evaluations.get(kind, {})) if kind in SINGLE_RESULT else None

    @property
    def tiles(self) -> list[Tile]:
        """The cards of a measured team; none where decisions were not scored."""
        return [] if self.summary.answer is None else answer_tiles(self.summary.answer)

    def comparison(self) -> ReportSection:
        """The effect of training: what a decision is worth, and the held-out windows."""
        found = self.summary.evaluations
        value, held_out = found.get(HELD_OUT_VALUE), found.get("held_out")
        blocks: list[ReportBlock] = []
        if self.summary.answer is not None:
            blocks += [answer_picture(self.summary.answer), learned_table(self.summary.answer)]
        if value is not None:
            blocks += value_section(value, found.get(CONTROL_VALUE)).blocks
        if not held_out:
            return ReportSection("Did it help?", (*blocks, Missing("Held-out windows", "it was not measured")))
        if held_out.get("difference"):
            caption = "On the same windows. A bar wholly right of 0: the trained team earned more than the initial one."
            rows = {"Held-out windows": held_out["difference"]}
            blocks.append(Picture("Trained minus initial", caption, charts.difference_chart(rows)))
        rows_of_table = tuple(TableRow(title_of(name), row) for name, row in held_out["rows"].items())
        blocks.append(Table("Held-out windows", "", COLUMNS, rows_of_table))
        if held_out.get("equity"):
            chart = charts.equity_chart(held_out["equity"], held_out["equity_days"], "days traded", "trained")
            caption = "Return over the held-out windows, end to end, net of all costs."
            blocks.append(Picture("Equity on held-out windows", caption, chart))
        return ReportSection("Did it help?", tuple(blocks))

    def learning(self, marks: Sequence[CurveMark] = ()) -> ReportSection:
        """The curves of training, and whom the manager asked. `marks` are drawn where they belong."""
        curves = self._pictures(learning_curves(self.summary.metrics), marks)
        if self.summary.calls:
            curves.append(Picture("Whom the manager asked", "", charts.calls_chart(self.summary.calls)))
        blocks = tuple(curves) or (Missing("Curves", "the run stored no metrics"),)
        return ReportSection("How it learned", blocks)

    def rewards(self, marks: Sequence[CurveMark] = ()) -> ReportSection:
        """What each role's reward was made of."""
        curves = tuple(self._pictures(reward_curves(self.summary.metrics), marks))
        return ReportSection("What was paid for", curves or (Missing("Curves", "the run stored none of them"),))

    def optimizer(self, marks: Sequence[CurveMark] = ()) -> ReportSection:
        """The curves of what the optimizer saw."""
        curves = tuple(self._pictures(optimizer_curves(self.summary.metrics), marks))
        return ReportSection("What the optimizer saw", curves or (Missing("Curves", "the run stored none of them"),))

    def _pictures(self, curves: Sequence[Curves], marks: Sequence[CurveMark]) -> list[Picture]:
        return [one.picture(self.summary.events, marks) for one in curves]

    @property
    def steps(self) -> dict[int, dict[str, float]]:
        """The metrics of training by step."""
        return {record.step: dict(record.values) for record in self.summary.metrics}

    def example(self) -> list[Line]:
        """The decision that the run chose to be shown; empty where there is none."""
        document = self.summary.example
        return [] if document is None else narrate(decision_tree(document))


@dataclass(frozen=True)
class WindowPage:
    """One window of a run: some sections and the candles need its market, as `market` gives it."""

    result: WindowResult
    run: RunRecord
    settings: Mapping[str, Any]
    drawn: dict[str, ReportSection] = field(default_factory=dict, compare=False, repr=False)  # that need no market

    @property
    def name(self) -> str:
        """The evaluation that the window belongs to, empty for a backtest."""
        return self.result.name

    @property
    def tiles(self) -> list[Tile]:
        return tiles(self.result)

    @property
    def absent_bars(self) -> int:
        return self.result.main_result.absent_bars

    @property
    def symbols(self) -> list[str]:
        """The coins, those that were traded most first."""
        traded = list(traded_notional(self.result.main_result))
        return [*traded, *(symbol for symbol in self.result.main_result.symbols if symbol not in traded)]

    def market(self, load: Callable[[RunRecord], Market]) -> MarketReload:
        """The market of the run as `load` gives it, or why there is none."""
        return reload_market(self.run, load)

    def section(self, name: str, load: Callable[[RunRecord], Market]) -> ReportSection:
        """One of `SECTIONS`; the market is only loaded for one that needs it."""
        if name in NEED_MARKET:
            return section(name, self.result, self.settings, self.market(load))
        if name not in self.drawn:
            self.drawn[name] = section(name, self.result, self.settings, MarketReload(None))
        return self.drawn[name]

    @property
    def has_finer_lines(self) -> bool:
        """Whether the lines of the whole window leave bars out, so that a part of it shows more."""
        return len(self.result.main_result.times) > charts.MOST_POINTS

    def equity(self, span: tuple[int, int]) -> ReportSection:
        """The section "Equity" with the lines of a part of the window (ms), as fine as a screen has room for."""
        whole, times = self.section(SECTIONS[0], market_of), self.result.main_result.times  # it needs no market
        if span == (times[0], times[-1]):
            return whole
        finer = {picture.title: picture for picture in lines_of_time(self.result, span)}
        return replace(whole, blocks=tuple(finer.get(block.title, block) for block in whole.blocks))

    def against(self) -> ReportSection | None:
        """Those that were tested against one another; None where there is only one."""
        return teams_section(self.result, self.run)

    def behaviour(self, load: Callable[[RunRecord], Market]) -> ReportSection:
        """What the teams did, and how well their forecasts fit what came. It needs the run's market again."""
        reload = self.market(load)
        if reload.market is None:
            return ReportSection(BEHAVIOUR, (Missing(BEHAVIOUR, reload.problem),))
        if BEHAVIOUR not in self.drawn:
            self.drawn[BEHAVIOUR] = behaviour_section(self.result, self.run, self.settings, reload.market)
        return self.drawn[BEHAVIOUR]

    def graph(self, team: str, decision: StoredDecision, dark: bool) -> str:
        """The delegation of a decision as a graph in DOT, down to its fills and outcome."""
        return delegation_graph(self._traced(team, decision), dark)

    def cost(self, decision: StoredDecision) -> list[str]:
        """The names behind the aliases, and what the conversations took."""
        return decision_facts(decision_tree(decision.document))

    def timeline(self, team: str) -> Picture:
        """All of a team's decisions, each where it was made and with what the account made of it."""
        return timeline(self.result.decisions[team])

    def candles(self, market: MarketReload, symbol: str, span: tuple[int, int] | None = None) -> ReportBlock:
        """The candles of one coin with the trades in it; `span` is the part of the window that is shown (ms)."""
        if market.market is None:
            return Missing(symbol, market.problem)
        return candles_block(self.result, market.market, symbol, span)

    def zoomable(self, market: MarketReload) -> bool:
        """Whether the window has more bars than are drawn as they are, so that a part of it shows finer ones."""
        times = self.result.main_result.times
        return market.market is not None and (times[-1] - times[0]) // market.market.interval > MOST_CANDLES

    def label(self, decision: StoredDecision) -> str:
        """When it was made, what was decided and what the account made."""
        return f"{format_time(decision.time)} · {headline(decision_tree(decision.document))}"

    def lines(self, decision: StoredDecision) -> list[Line]:
        """A decision in sentences."""
        return narrate(decision_tree(decision.document))

    def transcript(self, team: str, decision: StoredDecision) -> str:
        """All of a decision as one HTML page."""
        return decision_page(decision, self._traced(team, decision))

    def _traced(self, team: str, decision: StoredDecision) -> DecisionTree:
        return traced_tree(decision, self.result.decisions[team], self.result.results.get(team))
