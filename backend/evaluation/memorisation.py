"""What a team owes to knowing which coin and which time it looks at.

A model that has read about a period may remember how it went. Two guards against believing such a result: the same
team is played with and without masks, and a note says what of the headlines was masked, and how much gets through.
"""

from __future__ import annotations

import math

import numpy as np

from backend.statistics.mean_interval import mean_interval
from cryptosentinel.conversation.headlines import masked_headline
from cryptosentinel.conversation.masking import MAX_TEXT_CHARS
from cryptosentinel.protocol.untrusted import clean
from simulator.backtest.run import BacktestResult
from simulator.market.coins import COINS, base_coin
from simulator.market.market import Market
from simulator.market.timeframes import DAY_MS

# Headlines that were drawn and read by hand after the lists and rules were written, and those of them in which every
# name, date and level was masked whole. A test holds the figures.
HEADLINES, CLEAN = 160, 152
NEWS_BEFORE = 30 * DAY_MS  # how far back before a window the tools look

_PARTS = 24  # of a window, for an interval; fewer where it has fewer bars
_SAMPLES = 5_000


def masking_note(name: str, masked: BacktestResult, unmasked: BacktestResult, seed: int) -> str:
    """A sentence on the paired difference between a team's two runs over one window, with a 95 % interval.

    The window is cut into equal parts; the difference of the money earned in each is one value, in percent of the
    equity at the start. Parts follow one another, so the interval is a little too narrow.
    """
    parts = min(_PARTS, len(masked.equity) - 1)
    places = np.linspace(0, len(masked.equity) - 1, parts + 1).round().astype(int)
    gains = [100.0 * np.diff(run.equity[places]) / run.equity[0] for run in (masked, unmasked)]
    totals = [float(gain.sum()) for gain in gains]
    text = f"{name} made {totals[0]:+.2f} % with masks and {totals[1]:+.2f} % with names and dates shown"
    if parts < 2:
        return f"{text}; the window is too short for an interval"
    low, high = (parts * edge for edge in mean_interval(gains[1] - gains[0], _SAMPLES, seed))
    verdict = (
        "which may be memory: trust the masked figures" if low > 0.0
        else "so knowing the names costs it something" if high < 0.0
        else "so knowing the names shows no effect"
    )  # fmt: skip
    return (
        f"{text}: shown less masked {totals[1] - totals[0]:+.2f} percentage points, 95 % interval {low:+.2f} to "
        f"{high:+.2f} over {parts} parts of the window, {verdict}"
    )


def headlines_note(name: str, market: Market, first: int, last: int) -> str | None:
    """What a masked team reads of the headlines of a window from `first` to `last` (ms); None where no headline names
    anything, as those of a synthetic market."""
    known = [item.text for item in market.news if first - NEWS_BEFORE <= item.known_at <= last]
    texts = {clean(text, MAX_TEXT_CHARS) for text in known}
    others = frozenset({base_coin(symbol) for symbol in market.symbols} - COINS.keys())
    masked = [masked_headline(text, others) for text in texts]
    changed = sum(one.replaced > 0 for one in masked)
    if not changed:
        return None
    withheld = sum(one.withheld for one in masked)
    # An interval of the headlines: names of one headline are missed together, so they are no independent trials.
    low, high = wilson_interval(HEADLINES - CLEAN, HEADLINES)
    return (
        f"{name}: headlines were masked, {changed} of {len(texts)}, and {withheld} withheld. Some names get through: "
        f"of {HEADLINES} others that were read by hand, {HEADLINES - CLEAN} showed a name or a part of one "
        f"({100 * (1 - CLEAN / HEADLINES):.1f} %, 95 % interval {100 * low:.1f} to {100 * high:.1f})"
    )


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a share by Wilson's score, for one independent trial or more."""
    share, z = successes / trials, 1.959964
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / (1 + z * z / trials)
    return middle - half, middle + half
