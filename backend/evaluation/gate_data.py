"""Whether what a team was measured on is something that it has not learnt from."""

from __future__ import annotations

from collections.abc import Sequence

from backend.config.schema import Config
from backend.evaluation.gate import GateRule
from backend.evaluation.in_sample import STRANGER, UnknownTraining, comparable_spans, is_strange
from backend.evaluation.memorisation import cutoff_note
from backend.models.manifest import TeamManifest
from simulator.backtest.run import Window
from simulator.market.market import Market
from simulator.market.timeframes import format_time

_NAME = "held out"


def held_out_rules(manifest: TeamManifest, config: Config, market: Market, windows: Sequence[Window]) -> list[GateRule]:
    """Whether the `windows` of `market` lie apart from all that the team of `manifest` was trained and chosen on, and
    after what its model may have read."""
    rules = [_apart_from_training(manifest, market, windows, config)]
    cutoff = config.team.knowledge_cutoff or manifest.config.team.knowledge_cutoff
    if config.market.data and cutoff:
        first, last = _time(market, windows[0].start), _time(market, windows[-1].stop)
        note = cutoff_note("its model", cutoff, first, last)
        rules.append(
            GateRule("memory", note is None, note or f"its model knows nothing after {cutoff}, where the windows begin")
        )
    return rules


def _apart_from_training(manifest: TeamManifest, market: Market, windows: Sequence[Window], config: Config) -> GateRule:
    """By bars on the same market, by time on another recorded one; a generated market has nothing in common with a
    recorded one, nor with one of another law or seed."""
    try:
        spans = comparable_spans(manifest, config, market)
    except UnknownTraining as error:
        return GateRule(_NAME, False, str(error))
    if is_strange(manifest):
        return GateRule(_NAME, False, STRANGER)
    if not spans:
        return GateRule(_NAME, True, "measured on another market than it was trained on, which has no bar of that one")
    first, until = _time(market, windows[0].start), max(one.until for one in spans)
    said = f"the first window begins at {format_time(first)} UTC, and what decided on the team ends at "
    said += f"{format_time(until)} UTC"
    return GateRule(_NAME, first >= until, said if first >= until else f"{said}: measure it on later bars")


def _time(market: Market, bar: int) -> int:
    """The close of a bar, ms."""
    return int(market.open_time[bar]) + market.interval
