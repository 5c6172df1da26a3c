"""What is shown of a finished experiment: one page that works offline, the same blocks in the application, and the
cells of its table in the terminal."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from backend.experiments.analysis import ArmResult, ExperimentResult
from backend.experiments.folder import PAGE
from backend.experiments.measures import STATES_MEASURE, measure_called
from backend.reporting.blocks import Missing, Picture, ReportBlock, ReportSection, Table, TableRow
from backend.reporting.charts import BLUE, GREY, IntervalBar, interval_chart
from backend.reporting.html_page import render_sections
from backend.reporting.labels import Column
from cryptosentinel.protocol.untrusted import visible
from simulator.files import write_whole

_FIGURES = (
    Column("net_return", "earns, bp", "text", "mean return of a decision in basis points, net of costs"),
    Column("questions", "questions", "ratio", "in a decision in a held-out state"),
    Column("traded", "trades", "share", "share of the held-out states in which it trades"),
    Column("total_return", "return", "change", "mean of the traded windows"),
    Column("sharpe", "Sharpe", "ratio", "mean of the traded windows"),
    Column("max_drawdown", "drawdown", "share", "mean of the traded windows"),
    Column("turnover", "turnover", "ratio", "mean of the traded windows"),
    Column("costs", "costs", "small_share", "of the equity, mean of the traded windows"),
    Column("calls", "calls", "ratio", "of sub-agents in a decision"),
)
_SHARE = (
    "An arm's share is what it has beyond leaving all positions as they are, of what the best decision given all "
    "evidence has beyond it: the mean of the seeds' shares, with its interval."
)


def write_page(result: ExperimentResult, folder: Path) -> None:
    """Write the page into `folder`. Raises OSError."""
    sections = [
        ReportSection("Result", tuple(result_blocks(result))),
        ReportSection("How it was measured", (), how_measured(result)),
    ]
    source = (
        f"run {result.run}, {result.seconds:,.0f} seconds of work by {', '.join(result.programs)}; {result.trials} "
        f"ways of trading were tried on the first seed's windows, by {result.looks} runs"
    )
    question = f"experiment {result.name} · {result.question}"
    write_whole(folder / PAGE, render_sections(question, result.sentence, source, sections))


def how_measured(result: ExperimentResult) -> str:
    """Seeds, windows or states, test and interval, in sentences."""
    measure = measure_called(result.measure)
    seeds = f"{len(result.seeds)} seeds ({', '.join(map(str, result.seeds))})"
    where = "each on a market of its own" if result.nested else "all on the same windows"
    amount, paired = f"{result.windows} windows each", "seed and window"
    if result.measure == STATES_MEASURE:
        paired = "seed"
        amount = (
            f"{result.states} held-out states each, the same for all arms; each decision is scored over "
            f"{result.scenario_paths} common scenarios, by the outcome score from 0 to 1 that training pays. "
            f"{result.windows} windows each were traded besides"
        )
    method = (
        "Student's over the seeds, since what belongs to a seed shares its market"
        if result.nested
        else "of a random-effects analysis over seeds and windows, since both were drawn"
    )
    return (
        f"{seeds}, {where}; {amount}. The test was chosen before the run: the difference of {measure.words} "
        f"{measure.each} from {visible(result.against)}, paired by {paired}, two-sided at 5 %, with Holm's correction "
        f"over all comparisons. Intervals are {method}."
    )


def arm_cells(result: ExperimentResult) -> dict[str, dict[str, str]]:
    """By arm the cells of its row, as text: its mean, and what it has beyond the arm that all are compared with."""
    shown, compared = measure_called(result.measure), {one.arm: one for one in result.comparisons}
    rows: dict[str, dict[str, str]] = {}
    for arm in result.arms:
        mean, found = arm.means[result.measure], compared.get(arm.arm)
        row = {"mean": "-" if mean is None else f"{shown.scale * mean:.{shown.digits}f}"}
        if found is not None:
            low, beyond, high = (
                shown.signed(end) for end in (found.interval.low, found.interval.mean, found.interval.high)
            )
            row |= {"beyond": beyond, "interval": f"{low} to {high}", "p": f"{found.interval.p_value:.3f}",
                    "corrected": f"{found.adjusted:.3f}", "differs": "yes" if found.different else ""}  # fmt: skip
        rows[visible(arm.arm)] = row
    return rows


def result_blocks(result: ExperimentResult) -> list[ReportBlock]:
    """The differences from the arm that all are compared with, as a picture, and tables of the arms and seeds."""
    shown, against = measure_called(result.measure), visible(result.against)
    measure = f"{result.measure.replace('_', ' ')}{shown.axis}"
    blocks: list[ReportBlock] = [Missing("Differences", result.problem)] if result.problem else []
    rows = {}
    for one in result.comparisons:
        mean, low, high = (shown.scale * end for end in (one.interval.mean, one.interval.low, one.interval.high))
        seeds = [shown.scale * float(np.mean(seed)) for seed in one.values]
        rows[visible(one.arm)] = IntervalBar(mean, low, high, seeds, BLUE if one.different else GREY)
    if rows:
        caption = f"{measure.capitalize()} {shown.each} beyond {against}: mean and interval, and a dot for each seed."
        chart = interval_chart(rows, f"difference of {measure}", shown.axis, shown.digits, "one seed")
        blocks.append(Picture("Differences", caption, chart))
    columns = [
        Column("mean", measure, "text", "mean over the seeds"),
        Column("beyond", f"beyond {against}", "text", "mean difference, seed by seed"),
        Column("interval", "interval", "text", "of that difference"),
        Column("p", "p", "text", "how likely chance alone would do as much"),
        Column("corrected", "p corrected", "text", "the same, for all comparisons at once"),
        Column("differs", "differs", "text", ""),
    ]
    shares = any(arm.share is not None for arm in result.arms)
    columns += [Column("share", "of the achievable", "text", "of the achievable value")] if shares else []
    columns += [one for one in _FIGURES if any(arm.means.get(one.key) is not None for arm in result.arms)]
    columns += [Column("tokens", "tokens trained", "count", "")] if any(arm.tokens for arm in result.arms) else []
    cells = zip(result.arms, arm_cells(result).items(), strict=True)
    table = tuple(TableRow(name, _figures(arm) | row, arm.problem) for arm, (name, row) in cells)
    blocks.append(Table("Arms", _SHARE if shares else "", tuple(columns), table, "arm"))
    if result.measure == STATES_MEASURE:
        seeds_table = tuple(
            TableRow(visible(arm.arm), {str(seed): f"{values[0]:.{shown.digits}f}"
                                        for seed, values in zip(result.seeds, arm.values, strict=True)})
            for arm in result.arms
        )  # fmt: skip
        headings = tuple(Column(str(seed), str(seed), "text", "") for seed in result.seeds)
        blocks.append(Table(f"{measure.capitalize()} by seed", "", headings, seeds_table, "arm", folded=True))
    return blocks


def _figures(arm: ArmResult) -> dict[str, float | str | None]:
    """What is shown of an arm beside the measure."""
    earns = arm.means.get("net_return")
    ends = None if arm.share is None else (arm.share.mean, arm.share.low, arm.share.high)
    mean, low, high = (round(100.0 * end) for end in ends) if ends else (0, 0, 0)
    return {
        **arm.means,
        "net_return": None if earns is None else f"{1e4 * earns:+.1f}",
        "share": f"{mean} % ({low} to {high})" if ends else None,
        "tokens": arm.tokens,
    }
