"""The page of an experiment: one file that works offline, with the sentence first, then pictures and tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup

from backend.experiments.analysis import (
    ArmResult,
    Comparison,
    ExperimentResult,
    MarketResult,
    difference_text,
)
from backend.experiments.folder import PAGE
from backend.experiments.measures import STATES_MEASURE, measure_called
from backend.reporting.charts import BLUE, GREY, INK
from backend.statistics.seed_grid import GridInterval
from cryptosentinel.protocol.untrusted import visible
from simulator.files import write_whole

_STYLE = Markup(
    "body{font:16px/1.5 system-ui,sans-serif;color:#1f2933;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%;font-size:14px}td,th{padding:.3rem .5rem;text-align:right;"
    "border-bottom:1px solid #e4e7eb}td:first-child,th:first-child{text-align:left}.said{font-size:1.15rem;"
    "border-left:4px solid #0072b2;padding-left:1rem}.sure{font-weight:600}small,figcaption{color:#5a6672}"
    "figure{margin:1rem 0;overflow-x:auto}h2{margin-top:2.2rem}"
)
_WIDTH, _LEFT, _ROW, _TOP, _BOTTOM = 760, 190, 46, 14, 46
_TICKS = 6
_MARKETS = {"as_is": "The market", "no_edge": "Control: the market without an edge"}
_COLUMNS = {
    "total_return": ("return %", 100.0, "+.2f"),
    "sharpe": ("Sharpe", 1.0, ".2f"),
    "max_drawdown": ("drawdown %", 100.0, ".1f"),
    "exposure": ("exposure", 1.0, ".2f"),
    "turnover": ("turnover", 1.0, ".2f"),
    "costs": ("costs %", 100.0, ".2f"),
    "hold_rate": ("holds", 1.0, ".2f"),
    "calls": ("calls", 1.0, ".2f"),
    "rulings": ("rulings", 1.0, ".2f"),
    "net_return": ("earns bp", 1e4, "+.1f"),
    "questions": ("questions", 1.0, ".2f"),
    "traded": ("trades %", 100.0, ".0f"),
    "traded_now": ("if now %", 100.0, ".0f"),
    "traded_later": ("if later %", 100.0, ".0f"),
}  # fmt: skip
_OF_STATES = (
    "net_return",
    "questions",
    "traded",
    "traded_now",
    "traded_later",
    "total_return",
    "costs",
)  # more would not fit


def write_page(result: ExperimentResult, folder: Path) -> None:
    """Write the page into `folder`. Raises OSError."""
    write_whole(folder / PAGE, str(page_of(result)))


def page_of(result: ExperimentResult) -> Markup:
    """The page as HTML; all text in it is escaped."""
    return Markup(
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        "<title>{name}</title><style>{style}</style></head><body><h1>{question}</h1>"
        '<p class="said">{sentence}</p>{how}{markets}{end}</body></html>\n'
    ).format(
        name=visible(result.name),
        style=_STYLE,
        question=visible(result.question),
        sentence=visible(result.sentence),
        how=_how(result),
        markets=Markup("").join(_market(result, one) for one in result.markets),
        end=_end(result),
    )


def _how(result: ExperimentResult) -> Markup:
    what = "each on a market of its own" if result.nested else "all on the same windows"
    measure = measure_called(result.measure)
    if result.measure == STATES_MEASURE:
        amount = Markup(
            "{} held-out states each, the same for all arms, in which everybody decides with the likeliest answers; "
            "each decision is scored over {} common scenarios, by the outcome score from 0 to 1 that training pays. "
            "{} windows each were traded besides"
        ).format(result.states, result.scenario_paths, result.windows)
        paired, values, places = "seed", "values", "states"
    else:
        amount = Markup("{} windows each").format(result.windows)
        paired, values, places = "seed and window", "means", "windows"
    method = (
        f"Student's over the seeds' {values}, since the {places} of a seed share its market"
        if result.nested
        else "of a random-effects analysis over seeds and windows, since both were drawn"
    )
    return Markup(
        "<p>{seeds} seeds ({numbers}), {what}; {amount}. The test was chosen before the run: the "
        "difference of {measure} {each} from {against}, paired by {paired}, two-sided at 5 %, with Holm's correction "
        "over all comparisons on a market. Intervals are {method}.</p>"
    ).format(
        seeds=len(result.seeds),
        numbers=", ".join(map(str, result.seeds)),
        what=what,
        amount=amount,
        measure=result.measure.replace("_", " "),
        each=measure.each,
        paired=paired,
        against=visible(result.against),
        method=method,
    )


def _market(result: ExperimentResult, market: MarketResult) -> Markup:
    parts = [Markup("<h2>{}</h2>").format(_MARKETS[market.market])]
    if market.problem:
        parts.append(Markup("<p>No difference can be judged: {}.</p>").format(visible(market.problem)))
    if market.comparisons:
        against = market.comparisons[0].against
        parts.append(
            Markup(
                "<figure>{}<figcaption>What each arm has beyond {}, {}: mean and interval, and a dot for each "
                "seed.</figcaption></figure>"
            ).format(_differences(result, market), visible(against), measure_called(result.measure).each)
        )
        parts.append(_comparison_table(result, market.comparisons))
    parts.append(_arm_table(result, market.arms))
    if result.measure == STATES_MEASURE:
        parts.append(
            Markup(
                "<p><small>What a decision earns is its mean return in basis points, net of costs. "
                "Questions and trades are those of the held-out states; &lsquo;if now&rsquo; and &lsquo;if "
                "later&rsquo; are the shares of trades where Trader says to send at once or to wait, over the seeds in "
                "which it was asked. Return and costs are those of the traded windows.</small></p>"
            )
        )
        if any(arm.share is not None for arm in market.arms):
            parts.append(
                Markup(
                    "<p><small>What the evidence allows is the best decision given all that can be known in a state, "
                    "without the price of questions. An arm's share is what it has beyond leaving all positions as "
                    "they are, of what this best decision has beyond it: the mean of the seeds' shares, with its "
                    "interval.</small></p>"
                )
            )
        parts.append(_seed_table(result, market.arms))
    return Markup("").join(parts)


def _differences(result: ExperimentResult, market: MarketResult) -> Markup:
    measure = measure_called(result.measure)
    scale = measure.scale
    rows = [
        _IntervalRow(
            one.arm,
            scale * one.interval.mean,
            scale * one.interval.low,
            scale * one.interval.high,
            [scale * float(np.mean(seed)) for seed in one.values],
            one.different,
        )
        for one in market.comparisons
    ]
    return _interval_picture(rows, measure.axis, f"{result.name}: differences, {market.market}")


def _comparison_table(result: ExperimentResult, comparisons: Sequence[Comparison]) -> Markup:
    rows = (
        (
            one.arm,
            [difference_text(result.measure, one.interval), f"{one.interval.p_value:.4f}", f"{one.adjusted:.4f}",
             str(one.interval.degrees), "yes" if one.different else "no"],
            one.different,
        )
        for one in comparisons
    )  # fmt: skip
    return _table(
        [
            "against " + comparisons[0].against,
            "difference " + measure_called(result.measure).each,
            "p",
            "p corrected",
            "degrees",
            "differs",
        ],
        rows,
    )


def _arm_table(result: ExperimentResult, arms: Sequence[ArmResult]) -> Markup:
    columns = _OF_STATES if result.measure == STATES_MEASURE else _COLUMNS
    shown = [key for key in columns if any(arm.means[key] is not None for arm in arms)]
    trained = any(arm.tokens is not None for arm in arms)
    allowed = any(arm.share is not None for arm in arms)

    def cells(arm: ArmResult) -> list[str]:
        found = arm.interval
        row = [arm.problem if found is None else difference_text(result.measure, found)]
        row += [_share(arm.share)] if allowed else []
        row += [_cell(arm.means, key) for key in shown]
        return [*row, "-" if arm.tokens is None else f"{arm.tokens:,.0f}"] if trained else row

    headings = ["arm", result.measure.replace("_", " ")]
    headings += ["of what the evidence allows"] if allowed else []
    headings += [_COLUMNS[key][0] for key in shown]
    headings += ["tokens trained"] if trained else []
    return _table(headings, ((arm.arm, cells(arm), False) for arm in arms))


def _seed_table(result: ExperimentResult, arms: Sequence[ArmResult]) -> Markup:
    """The measure of each arm on each seed."""
    shown = measure_called(result.measure)
    rows = ((arm.arm, [shown.signed(value) for [value] in arm.values], False) for arm in arms)
    return _table([f"{result.measure.replace('_', ' ')}{shown.axis}, by seed", *map(str, result.seeds)], rows)


def _share(share: GridInterval | None) -> str:
    if share is None:
        return "-"
    mean, low, high = (round(100.0 * value) for value in (share.mean, share.low, share.high))
    return f"{mean} % ({low} to {high})"


def _cell(means: Mapping[str, float | None], key: str) -> str:
    _, scale, form = _COLUMNS[key]
    value = means[key]
    return "-" if value is None else f"{scale * value:{form}}"


def _table(headings: Sequence[str], rows: Iterator[tuple[str, list[str], bool]]) -> Markup:
    head = Markup("").join(Markup("<th>{}</th>").format(visible(one)) for one in headings)
    body = Markup("").join(
        Markup("<tr{}><td>{}</td>{}</tr>").format(
            Markup(' class="sure"') if sure else Markup(""),
            visible(name),
            Markup("").join(Markup("<td>{}</td>").format(visible(cell)) for cell in cells),
        )
        for name, cells, sure in rows
    )
    return Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(head, body)


def _end(result: ExperimentResult) -> Markup:
    looks = "this run alone" if result.looks == 1 else f"{result.looks} runs so far, this one included"
    several = (
        Markup(" The cells were made by several states of the program: {}.").format(", ".join(result.programs))
        if len(result.programs) > 1
        else Markup("")
    )
    return Markup(
        "<p><small>Run {run}. The first market's windows were looked at by {looks}, with {trials} different ways of "
        "trading. {seconds:,.0f} seconds of work in all, by {program}.{several}</small></p>"
    ).format(
        run=visible(result.run), looks=looks, trials=result.trials, seconds=result.seconds,
        program=result.programs[0] if result.programs else "", several=several,
    )  # fmt: skip


@dataclass(frozen=True)
class _IntervalRow:
    """A row of `_interval_picture`: its label, the interval, a dot for each seed, and whether it stands out."""

    label: str
    mean: float
    low: float
    high: float
    dots: Sequence[float]
    main: bool


def _interval_picture(rows: Sequence[_IntervalRow], unit: str, title: str) -> Markup:
    """Means with their intervals over a dot for each seed, below each other; a dashed line at 0."""
    ends = [0.0, *(end for row in rows for end in (row.low, row.high, *row.dots))]
    first, last = min(ends), max(ends)
    margin = 0.06 * (last - first) or 1.0
    first, last = first - margin, last + margin
    height = _TOP + _ROW * len(rows) + _BOTTOM

    def place(value: float) -> float:
        return round(_LEFT + (value - first) / (last - first) * (_WIDTH - _LEFT - 20), 1)

    parts = [
        Markup(
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" role="img" '
            'font-family="system-ui, sans-serif" font-size="13"><title>{title}</title>'
            '<rect width="{w}" height="{h}" fill="#fff"/>'
        ).format(w=_WIDTH, h=height, title=visible(title))
    ]
    for value in _ticks(first, last):
        parts.append(
            Markup(
                '<line x1="{x}" x2="{x}" y1="{top}" y2="{bottom}" stroke="#e4e7eb"/>'
                '<text x="{x}" y="{label}" text-anchor="middle" fill="{grey}">{value}{unit}</text>'
            ).format(
                x=place(value),
                top=_TOP,
                bottom=height - _BOTTOM,
                label=height - _BOTTOM + 20,
                grey=GREY,
                value=f"{value:+.3g}" if value else "0",
                unit=unit,
            )
        )
    parts.append(
        Markup('<line x1="{x}" x2="{x}" y1="{top}" y2="{bottom}" stroke="{ink}" stroke-dasharray="4 3"/>').format(
            x=place(0.0), top=_TOP, bottom=height - _BOTTOM, ink=INK
        )
    )
    for number, row in enumerate(rows):
        y = _TOP + _ROW * (number + 0.5)
        colour = BLUE if row.main else GREY
        parts.append(
            Markup('<text x="{x}" y="{y}" text-anchor="end" fill="{ink}">{label}</text>').format(
                x=_LEFT - 12, y=y + 4, ink=INK, label=visible(row.label)
            )
        )
        for dot in row.dots:
            parts.append(
                Markup('<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}" opacity="0.4"/>').format(
                    x=place(dot), y=y - 12, colour=colour
                )
            )
        parts.append(
            Markup(
                '<line x1="{low}" x2="{high}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="5"/>'
                '<circle cx="{mean}" cy="{y}" r="6" fill="#fff" stroke="{colour}" stroke-width="3"/>'
            ).format(low=place(row.low), high=place(row.high), mean=place(row.mean), y=y, colour=colour)
        )
    return Markup("").join([*parts, Markup("</svg>")])


def _ticks(first: float, last: float) -> list[float]:
    """Round values between two ends."""
    step = 10.0 ** math.floor(math.log10((last - first) / _TICKS))
    step *= next(factor for factor in (1.0, 2.0, 5.0, 10.0) if (last - first) / (step * factor) <= _TICKS)
    values = np.arange(math.ceil(first / step), math.floor(last / step) + 1) * step
    return [round(value, 12) for value in values.tolist()]
