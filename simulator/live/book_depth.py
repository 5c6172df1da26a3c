"""What the levels of an order book say about the cost of an order that is bigger than the best one."""

from __future__ import annotations

import math
from collections.abc import Sequence


def least_impact(bids: Sequence[tuple[float, float]], asks: Sequence[tuple[float, float]]) -> float:
    """The smallest c with which ``half spread + c sqrt(quantity)`` is at no quantity cheaper than taking the levels.

    Args:
        bids, asks: (price, size) of each level, the best one first; sizes in base units.

    Returns:
        c, a fraction of the mid price by the square root of base units: the form of the kernel's market impact, so an
        order that walks the book pays its levels at least, by that rule. Beyond the last level it goes on as there.
        0 for a book of one level.

    Taking a quantity q whose last unit stands at the distance d_k of level k costs, beyond the half spread h, a unit
    ``g(q) = (d_k - h) - sum_j<k (d_k - d_j) size_j / q``; ``g(q) / sqrt(q)`` has its maximum inside the level at
    ``q = 3 sum / (d_k - h)``, or at the level's ends.
    """
    middle = (bids[0][0] + asks[0][0]) / 2.0
    half = (asks[0][0] - bids[0][0]) / 2.0 / middle
    largest = 0.0
    for levels in (bids, asks):
        before = valued = 0.0  # size of the levels so far, and its value by distance
        for price, size in levels:
            away = abs(price / middle - 1.0)
            beyond, saved = away - half, away * before - valued
            if beyond > 0.0 and size > 0.0:
                quantity = min(max(3.0 * saved / beyond, before), before + size)
                for at in (quantity, before + size):
                    if at > 0.0:
                        largest = max(largest, (beyond - saved / at) / math.sqrt(at))
            before, valued = before + size, valued + away * size
    return largest
