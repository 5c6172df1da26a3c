"""What a model sampled as HTML, each piece on a ground that says how probable it was. All words are escaped."""

from __future__ import annotations

import math

from markupsafe import Markup, escape

from backend.decisions.document import SampledTurn
from cryptosentinel.protocol.untrusted import visible

# Least probability, its words, and the ground: one hue that deepens, which colour blindness does not change; a line
# below says it once more.
_STEPS = (
    (0.9, "90 % and more", "none", "none"),
    (0.5, "50 to 90 %", "rgba(0,114,178,.16)", "none"),
    (0.1, "10 to 50 %", "rgba(0,114,178,.38)", "1px dotted"),
    (0.0, "below 10 %", "rgba(0,114,178,.62)", "2px solid"),
)
_BOX = "white-space:pre-wrap;overflow-wrap:anywhere;font-family:monospace;font-size:.875rem;line-height:1.7"


def coloured_tokens(turn: SampledTurn) -> str:
    """A turn as HTML; the probability of each piece is its title."""
    pieces = Markup("").join(_span(visible(text), math.exp(min(0.0, logp))) for text, logp in turn)
    return str(Markup('<div style="{}">{}</div>').format(_BOX, pieces))


def token_legend() -> str:
    """What the grounds mean, as HTML."""
    steps = Markup(" ").join(Markup('<span style="{}">{}</span>').format(_style(step), step[1]) for step in _STEPS)
    return str(
        Markup('<div style="font-size:.875rem">Probability of a token when it was sampled: {}</div>').format(steps)
    )


def _span(text: str, probability: float) -> Markup:
    step = next(one for one in _STEPS if probability >= one[0])
    shown = escape(text)
    return Markup('<span style="{}" title="{}">{}</span>').format(_style(step), f"{100 * probability:.3g} %", shown)


def _style(step: tuple[float, str, str, str]) -> str:
    _, _, ground, line = step
    return f"background:{ground};border-bottom:{line};padding:1px 0"
