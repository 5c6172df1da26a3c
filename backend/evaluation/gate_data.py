"""Whether what a team was measured on is something that it has not learnt from."""

from __future__ import annotations

from collections.abc import Sequence

from backend.config.schema import Config
from backend.evaluation.gate import GateRule
from backend.evaluation.in_sample import comparable_spans
from backend.models.manifest import TeamManifest
from simulator.backtest.run import Window
from simulator.market.market import Market
from simulator.market.timeframes import format_time

_NAME = "held out"
_NOT_TRAINED_HERE = (
    "no run in this store trained the team, so what it was trained on cannot be verified: train it yourself, also from "
    "its weights with --set training.start_from=FOLDER"
)


def held_out_rules(
    manifest: TeamManifest, config: Config, market: Market, windows: Sequence[Window], *, trained_here: bool
) -> list[GateRule]:
    """Whether the `windows` of `market` lie apart from all that the team of `manifest` was trained and selected on. On
    recorded bars the manifest counts only for a team that was `trained_here`: anybody may have written any other."""
    if config.market.data and not trained_here:
        return [GateRule(_NAME, False, _NOT_TRAINED_HERE)]
    return [_apart_from_training(manifest, market, windows, config)]


def _apart_from_training(manifest: TeamManifest, market: Market, windows: Sequence[Window], config: Config) -> GateRule:
    """By bars on the same market, by time on another recorded one; a generated market has nothing in common with a
    recorded one, nor with one of another law or seed."""
    spans = comparable_spans(manifest, config, market)
    if not spans:
        return GateRule(_NAME, True, "measured on another market than it was trained on, which has no bar of that one")
    first, until = _time(market, windows[0].start), max(one.until for one in spans)
    said = f"the first window begins at {format_time(first)} UTC, and what decided on the team ends at "
    said += f"{format_time(until)} UTC"
    return GateRule(_NAME, first >= until, said if first >= until else f"{said}: measure it on later bars")


def _time(market: Market, bar: int) -> int:
    """The close of a bar, ms."""
    return int(market.open_time[bar]) + market.interval
