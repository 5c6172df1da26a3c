"""The bars that a team learns from, as its manifest has them, and which markets have the same bars."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from backend.builders.market import is_historical, split
from backend.config.market import MarketConfig
from backend.config.schema import Config
from backend.models.manifest import MANIFEST, TrainedSpan, is_generated_alone, read_manifest
from simulator.data.archive import MARKET_MANIFEST
from simulator.market.market import Market

RECORDED = "recorded"
# What makes two generated markets the same one, but for their length.
_GENERATED = ("seed", "kind", "edge", "drift_ratio", "news_accuracy", "timeframe", "coins", "symbols")


def trained_span(config: Config, market: Market) -> TrainedSpan:
    """What a training with `config` on `market` learns from or chooses a version by: all bars before the held-out
    part. Raises `DataError` where the market cannot be divided."""
    held_out, _ = split(market, config.market, config.team.horizon_bars).held_out
    return TrainedSpan(
        data_hash=market.content_hash, first=int(market.open_time[0]), until=_close(market, held_out),
        origin=origin_of(config.market), shares=config.market.shares,
        costs=config.costs, market=config.market if is_generated_alone(config.market) else None,
    )  # fmt: skip


def spans_trained_on(config: Config, market: Market, start: Path | None = None) -> tuple[TrainedSpan, ...]:
    """The span of a training, and before it those of the team in the folder `start` that it began with."""
    before = read_manifest(start).trained_on if start is not None and (start / MANIFEST).is_file() else ()
    return (*before, trained_span(config, market))


def origin_of(market: MarketConfig) -> str:
    """What two markets have alike that may be compared by time: `recorded`, or a digest of what one is generated
    from."""
    if not market.data:
        law = json.dumps([getattr(market, key) for key in _GENERATED])
        return f"generated {hashlib.sha256(law.encode()).hexdigest()[:16]}"
    if is_historical(market.data):
        return RECORDED
    written = Path(market.data) / MARKET_MANIFEST
    content = written.read_bytes() if written.is_file() else str(market.data).encode()
    return f"written {hashlib.sha256(content).hexdigest()[:16]}"


def _close(market: Market, bar: int) -> int:
    """The close of a bar, ms."""
    return int(market.open_time[bar]) + market.interval
