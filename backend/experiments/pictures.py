"""Pictures of an experiment as SVG: small, sharp in print and without a script, so that a page is a few kilobytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from backend.reporting.charts import BLUE, GREY, INK
from cryptosentinel.protocol.untrusted import visible

_WIDTH, _LEFT, _ROW, _TOP, _BOTTOM = 760, 190, 46, 14, 46
_TICKS = 6


@dataclass(frozen=True)
class IntervalRow:
    """A row of `interval_picture`: its label, the interval, a dot for each seed, and whether it stands out."""

    label: str
    mean: float
    low: float
    high: float
    dots: Sequence[float]
    main: bool


def interval_picture(rows: Sequence[IntervalRow], unit: str, title: str) -> Markup:
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
