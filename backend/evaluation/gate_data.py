"""Whether what a team was measured on is something that it has not learnt from."""

from __future__ import annotations

from collections.abc import Sequence

from backend.builders.market import load_market, split
from backend.config.schema import Config
from backend.evaluation.gate import GateRule
from backend.evaluation.memorisation import cutoff_note
from backend.models.manifest import TeamManifest
from simulator.backtest.run import Window
from simulator.errors import UserError
from simulator.market.market import Market
from simulator.market.timeframes import format_time

_NAME = "held out"
# What makes two generated markets the same one, but for their length.
_GENERATED = ("seed", "kind", "edge", "drift_ratio", "news_accuracy", "timeframe", "coins", "symbols")


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
    stated, now = manifest.stated.market, config.market
    if stated.data and not manifest.own:
        return GateRule(
            _NAME, False,
            "the manifest bears a stranger's signature, so nobody vouches for what the team was trained on: train it "
            "yourself, or go on training it with --set training.start_from=FOLDER",
        )  # fmt: skip
    if bool(stated.data) != bool(now.data):
        return GateRule(_NAME, True, "trained on a generated market and measured on a recorded one, or the other way")
    if not now.data and any(getattr(stated, key) != getattr(now, key) for key in _GENERATED):
        return GateRule(_NAME, True, "measured on another generated market than it was trained on")
    try:
        trained = load_market(stated, manifest.stated.costs)
        parts = split(trained, stated, manifest.stated.team.horizon_bars)
    except UserError as error:
        return GateRule(_NAME, False, f"what the team was trained on cannot be read ({error}): put it back there")
    first, until = _time(market, windows[0].start), _time(trained, parts.held_out[0])
    said = f"the first window begins at {format_time(first)} UTC, and what decided on the team ends at "
    said += f"{format_time(until)} UTC"
    return GateRule(_NAME, first >= until, said if first >= until else f"{said}: measure it on later bars")


def _time(market: Market, bar: int) -> int:
    """The close of a bar, ms."""
    return int(market.open_time[bar]) + market.interval
