"""The gate: whether what was measured of a team is enough for it to take the place of one that trades.

A few rules, each with its figure, its limit, and a sentence. Intervals are for the number of ways of trading that were
tried on the same windows (Bonferroni): whoever tries many teams, or one with many seeds, needs a larger lead. All
rivals must be beaten, so that several of them need no further correction (Berger 1982, intersection-union test).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from backend.config.schema import Config
from backend.decisions.document import StoredDecision
from backend.evaluation.evaluate import TRAINED
from backend.evaluation.in_sample import comparable_spans
from backend.models.manifest import TeamManifest
from backend.statistics.mean_interval import RESAMPLES, mean_interval
from simulator.backtest.run import Window
from simulator.market.market import Market
from simulator.market.timeframes import format_time

GATE_RECORD = "gate"  # name of the record
_HELD_OUT = "held out"
_NOT_TRAINED_HERE = (
    "no run in this store trained the team, so what it was trained on cannot be verified: train it yourself, also from "
    "its weights with --set training.start_from=FOLDER"
)
_LEVEL = 0.95
OWN_BEGINNING = "warm_started"  # the team as its training began
RIVALS = (OWN_BEGINNING, "flat")  # whom a team must beat: itself untrained, and doing nothing
LEAST_WINDOWS = 12  # with fewer, the width of an interval of means is itself uncertain
# What the guard does only when a loss limit is passed, or when it fails itself.
_ENDS_TRADING = frozenset({"max_drawdown", "daily_loss", "guard_error"})


@dataclass(frozen=True)
class GateRule:
    """One rule: whether it is kept, and why, in a sentence."""

    name: str
    passed: bool
    sentence: str


@dataclass(frozen=True)
class GateVerdict:
    """All rules, on the team whose files have the SHA-256 `team_digest`."""

    team: str
    team_digest: str
    data_hash: str
    rules: tuple[GateRule, ...]

    @property
    def passed(self) -> bool:
        """Whether every rule is kept."""
        return all(rule.passed for rule in self.rules)

    def sentence(self) -> str:
        """In words."""
        if self.passed:
            return f"gate: passed, all {len(self.rules)} rules, for the team with the digest {self.team_digest[:12]}"
        failed = ", ".join(rule.name for rule in self.rules if not rule.passed)
        return f"gate: not passed ({failed})"

    def to_json(self) -> dict[str, Any]:
        """For the store."""
        return {**asdict(self), "passed": self.passed}


def judged(
    seed: int,
    held_out: Mapping[str, Any],
    control: Mapping[str, Any] | None,
    decisions: Sequence[StoredDecision],
) -> list[GateRule]:
    """The rules on what was measured: the document of `backend.evaluation.evaluate.measure` on the held-out windows,
    what decisions are worth on the no-edge `control` where there is one, and the trained team's decisions."""
    rules = [_enough_windows(held_out)]
    rules += [_beats(rival, seed, held_out) for rival in RIVALS]
    if control is not None:
        rules.append(_no_luck(control))
    rules.append(_guard_was_idle(decisions))
    return rules


def _enough_windows(held_out: Mapping[str, Any]) -> GateRule:
    count = int(held_out["windows"])
    enough = count >= LEAST_WINDOWS
    advice = "" if enough else f": evaluate with --set evaluation.windows={LEAST_WINDOWS} or more"
    return GateRule("windows", enough, f"{count} held-out windows, at least {LEAST_WINDOWS} are asked for{advice}")


def _beats(rival: str, seed: int, held_out: Mapping[str, Any]) -> GateRule:
    """The lead over `rival` is above 0 by its whole interval."""
    rows, name = held_out["rows"], f"better than {rival}"
    if rival not in rows:
        return GateRule(name, False, f"{rival} was not measured: add it to evaluation.baselines")
    gains = np.subtract(rows[TRAINED]["per_window"], rows[rival]["per_window"])
    tried = max(1, int(held_out.get("trials") or 1))
    level = 1.0 - (1.0 - _LEVEL) / tried
    low, high = mean_interval(gains, RESAMPLES, seed, level)
    size = f"{100 * gains.mean():+.2f} percentage points a window ({100 * low:+.2f} to {100 * high:+.2f}"
    many = f", {100 * level:.4g} % because {tried} ways of trading were tried on these windows)" if tried > 1 else ")"
    against = "its beginning" if rival == OWN_BEGINNING else rival
    judgement = "ahead of" if low > 0.0 else "not for certain ahead of"
    return GateRule(name, low > 0.0, f"{judgement} {against}: {size}{many}")


def _no_luck(control: Mapping[str, Any]) -> GateRule:
    """Where nothing can be known, a decision of the team is not better than to leave all positions as they are."""
    lead = next(one for one in control["differences"] if one["against"] == "holding")
    low, high = lead["net_return_ci95"]
    size = f"{1e4 * lead['net_return']:+.1f} bp a decision against holding ({1e4 * low:+.1f} to {1e4 * high:+.1f})"
    judgement = "gains where nothing can be known" if low > 0.0 else "gains nothing where nothing can be known"
    return GateRule("no-edge control", low <= 0.0, f"{judgement}: {size}")


def _guard_was_idle(decisions: Sequence[StoredDecision]) -> GateRule:
    """The guard never had to end trading for a loss, and never failed."""
    ended: dict[str, int] = {}
    for decision in decisions:
        for clamp in (*decision.document.clamps, *decision.document.later):
            if clamp.rule in _ENDS_TRADING and not clamp.symbol:
                ended[clamp.rule] = ended.get(clamp.rule, 0) + 1
    if ended:
        how = ", ".join(f"{count} times {rule}" for rule, count in sorted(ended.items()))
        return GateRule("guard", False, f"on held-out windows the guard had to end trading: {how}")
    return GateRule("guard", True, f"in {len(decisions)} held-out decisions the guard never had to end trading")


def held_out_rules(
    manifest: TeamManifest, config: Config, market: Market, windows: Sequence[Window], *, trained_here: bool
) -> list[GateRule]:
    """Whether the `windows` of `market` lie apart from all that the team of `manifest` was trained and selected on. On
    recorded bars the manifest counts only for a team that was `trained_here`: anybody may have written any other."""
    if config.market.data and not trained_here:
        return [GateRule(_HELD_OUT, False, _NOT_TRAINED_HERE)]
    return [_apart_from_training(manifest, market, windows, config)]


def _apart_from_training(manifest: TeamManifest, market: Market, windows: Sequence[Window], config: Config) -> GateRule:
    """By bars on the same market, by time on another recorded one; a generated market has nothing in common with a
    recorded one, nor with one of another law or seed."""
    spans = comparable_spans(manifest, config, market)
    if not spans:
        return GateRule(_HELD_OUT, True, "measured on a market that has no bar in common with that of its training")
    first, until = int(market.open_time[windows[0].start]) + market.interval, max(one.until for one in spans)
    said = f"the first window begins at {format_time(first)} UTC, and what decided on the team ends at "
    said += f"{format_time(until)} UTC"
    return GateRule(_HELD_OUT, first >= until, said if first >= until else f"{said}: measure it on later bars")
