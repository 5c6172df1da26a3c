"""A shadow beside the team that trades: what it would have earned more on the same bars, with an interval.

The figures are paired close by close, so that what the market did to both cancels. The interval is that of the mean
difference, by a block bootstrap that wraps around (Politis and Romano 1992): positions last, so that returns which
follow each other hang together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from backend.evaluation.attribution import attribution
from backend.paper.journal import entries_of
from backend.paper.records.stored import session_record, shadow_name
from backend.paper.review.decision_figures import DecisionFigures, figures_of_session
from backend.paper.review.drift import LEVEL, block_means
from backend.runs.requests import STORE
from backend.store.run_record import store_at
from backend.store.store import Store
from cryptosentinel.team import derive_seed
from simulator.errors import UserError

LEAST_COMPARED = 20  # decisions


@dataclass(frozen=True)
class ShadowComparison:
    """Two teams on the same `decisions` closes.

    Attributes:
        gain: mean of the shadow's return less the trading team's, of the equity, a decision; `low` and `high` are its
            95 % interval, 0 where there are too few decisions.
        costs_saved: mean of what the shadow paid less.
        agreed: share of the closes at which neither, or both, changed something.
        missing: what is lacking for an interval; empty where nothing is.
    """

    team: str
    shadow: str
    decisions: int
    gain: float
    low: float
    high: float
    costs_saved: float
    agreed: float
    missing: str = ""

    @property
    def better(self) -> bool:
        """Whether the shadow is better for certain."""
        return not self.missing and self.low > 0.0

    def sentence(self) -> str:
        """In words."""
        if self.missing:
            return f"shadow {self.shadow} against {self.team}: {self.missing}"
        if self.low > 0.0:
            said = "the shadow earns more"
        elif self.high < 0.0:
            said = "the shadow earns less"
        else:
            said = "no difference can be told"
        gain, low, high = (1e4 * one for one in (self.gain, self.low, self.high))
        parts = attribution(self.gain, self.costs_saved, 1e4, "+.3g")
        return (
            f"shadow {self.shadow} against {self.team}, {self.decisions} decisions: {said}: {gain:+.3g} bps a decision "
            f"({low:+.3g} to {high:+.3g}): {parts}; at {100 * self.agreed:.0f} % of the "
            "closes both changed something, or neither did"
        )


def paper_comparison(run: str, store: Store | str | Path = STORE) -> ShadowComparison:
    """Compare the session `run` with its shadow. Raises `UserError` for a session that has none."""
    with store_at(store) as opened:
        record = session_record(opened, run)
        if not record.config.get("shadow"):
            raise UserError(f"session {run} has no shadow: begin one with `paper run --shadow TEAM`")
        sides = [figures_of_session(entries_of(opened, one)) for one in (run, shadow_name(record))]
    return compared_teams(
        str(record.config["team"]), str(record.config["shadow"]), sides[0], sides[1], derive_seed(record.seed, "shadow")
    )


def compared_teams(
    team: str, shadow: str, mine: Sequence[DecisionFigures], other: Sequence[DecisionFigures], seed: int
) -> ShadowComparison:
    """Compare the figures of the trading team and of its shadow at the closes that both have."""
    theirs = {one.time: one for one in other}
    pairs = [(one, theirs[one.time]) for one in mine if one.time in theirs]
    if len(pairs) < LEAST_COMPARED:
        lacking = f"{LEAST_COMPARED - len(pairs)} more decisions are missing for a comparison"
        return ShadowComparison(team, shadow, len(pairs), 0.0, 0.0, 0.0, 0.0, 0.0, lacking)
    gains = np.array([its.returned - one.returned for one, its in pairs], np.float64)
    means = block_means(gains, len(gains), np.random.default_rng(seed))
    low, high = np.quantile(means, [(1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0])
    return ShadowComparison(
        team, shadow, len(pairs), float(gains.mean()), float(low), float(high),
        float(np.mean([one.costs - its.costs for one, its in pairs])),
        float(np.mean([(one.held < one.asked) == (its.held < its.asked) for one, its in pairs])),
    )  # fmt: skip
