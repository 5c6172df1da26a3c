"""How much the masking of headlines hides, how much it withholds, and what it costs, on the recorded news.

Recall is measured on headlines that were labelled by hand (`tests/labelled_headlines.py`); the rest on all headlines of
the folder. Without the recorded news there is nothing to measure, and no row.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from benchmarks.pace import within
from benchmarks.run import Result
from cryptosentinel.conversation.headlines import masked_headline
from tests.labelled_headlines import headlines_of, measured, news_folder

LEAST_RECALL, MOST_LEAKY, MOST_WITHHELD, LIMIT_MS = 0.95, 0.05, 0.05, 1.0


def run() -> list[Result]:
    """The rows `team.masking.recall`, `.headlines`, `.withheld` and `.time`."""
    folder = news_folder()
    if folder is None:
        return []
    recall = measured(folder)
    masked_headline.cache_clear()
    texts = [text for path in sorted(folder.glob("*.parquet")) for text in headlines_of(path)]
    began = time.perf_counter()
    withheld = sum(masked_headline(text).withheld for text in texts)
    each = 1e3 * (time.perf_counter() - began) / len(texts)
    share = recall.caught.total() / recall.spans.total()
    low, high = _interval(recall.by_headline)
    leaky = recall.read_later - recall.clean_later
    return [
        Result(
            name="team.masking.recall", value=share, against="1",
            unit=f"of {recall.spans.total()} names, dates and levels; 95 % interval {low:.3f} to {high:.3f}; "
            f"{recall.headlines - recall.clean} of {recall.headlines} headlines let one through; mended since "
            "they were labelled",
            ratio=share, target=LEAST_RECALL, met=share >= LEAST_RECALL,
        ),
        Result(
            name="team.masking.headlines", value=leaky / recall.read_later, against=f"{MOST_LEAKY:g}",
            unit=f"of {recall.read_later} headlines that were read later show a name or a part of one ({leaky})",
            ratio=leaky / recall.read_later / MOST_LEAKY, target="<= 1.0", met=leaky <= MOST_LEAKY * recall.read_later,
        ),
        Result(
            name="team.masking.withheld", value=withheld / len(texts), unit=f"of {len(texts)} headlines",
            against=f"{MOST_WITHHELD:g}", ratio=withheld / len(texts) / MOST_WITHHELD, target="<= 1.0",
            met=withheld <= MOST_WITHHELD * len(texts),
        ),
        within("team.masking.time", each, "ms a headline", LIMIT_MS),
    ]  # fmt: skip


def _interval(by_headline: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """The 95 % interval of the recall. Names of one headline are missed together, so headlines are drawn anew."""
    counts, rng = np.array(by_headline), np.random.default_rng(0)
    drawn = counts[rng.integers(len(counts), size=(10_000, len(counts)))].sum(axis=1)
    low, high = np.percentile(1.0 - drawn[:, 1] / drawn[:, 0], [2.5, 97.5])
    return float(low), float(high)
