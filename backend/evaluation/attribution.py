"""Which part of a difference between two teams lower trading costs explain, in words."""

from __future__ import annotations


def attribution(gain: float, saved: float, unit: str = "") -> str:
    """`lower trading costs +0.66, trading itself -0.66`: the two parts of `gain`, each in percent with its own sign.

    Args:
        gain: difference of the returns, net of costs. saved: what the first paid less in costs, the same unit; negative
            where it paid more. The rest, ``gain - saved``, is the difference before costs.
    """

    def shown(value: float) -> str:
        text = f"{100 * value:+.2f}"
        return (text.replace("-", "+") if not float(text) else text) + unit  # what rounds to 0 has no sign of its own

    rest = f"trading itself {shown(gain - saved)}"
    if shown(saved) == shown(0.0):
        return f"{rest}, trading costs the same"
    return f"{'lower' if saved > 0.0 else 'higher'} trading costs {shown(saved)}, {rest}"
