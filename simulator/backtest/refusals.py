"""Which requests of a run the exchange refused, and why, in a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

# Why a request is refused at once; every other reason ends one that was accepted, or a part of it.
REFUSED = frozenset({
    "unknown_symbol", "bad_quantity", "bad_delay", "bad_bracket", "bad_price", "bad_exposure", "bad_duration",
    "off_tick", "off_lot", "min_quantity", "max_quantity", "min_notional", "duplicate_id", "unknown_id", "stop_side",
    "target_side", "no_price", "delisted", "liquidated",
})  # fmt: skip
_LISTED = 3


class OrderRefusal(NamedTuple):
    """A request that was refused: the reason, its coin (empty for one that names an order) and the detail."""

    reason: str
    symbol: str
    detail: str


def refusal_text(refusals: Iterable[OrderRefusal]) -> str:
    """`1,464 orders refused: unknown symbol X (the market has A, B)`; empty where none was.

    Reasons are grouped, unknown symbols one by one, and the most frequent three are listed with their number and the
    detail of the first.
    """
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for one in refusals:
        what = one.reason.replace("_", " ") + (f" {one.symbol}" if one.reason == "unknown_symbol" else "")
        counts[what] += 1
        first.setdefault(what, f"{what} ({one.detail})")
    total = counts.total()
    if not total:
        return ""
    text = f"{total:,} order{'' if total == 1 else 's'} refused: "
    if len(counts) == 1:
        return text + next(iter(first.values()))
    listed = [f"{count:,} {first[what]}" for what, count in counts.most_common(_LISTED)]
    more = total - sum(count for _, count in counts.most_common(_LISTED))
    return text + "; ".join([*listed, *([f"{more:,} for other reasons"] if more else [])])
