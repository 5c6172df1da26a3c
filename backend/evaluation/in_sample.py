"""Whether a window overlaps what a team was trained or chosen on: then what it earns there is no evidence.

A team's manifest lists these bars. Two recorded markets are compared by time, since coins move together; a generated
one only with its like.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from backend.builders.market import is_historical, split
from backend.config.market import MarketConfig
from backend.config.schema import Config
from backend.models.manifest import MANIFEST, TeamManifest, TrainedSpan, read_manifest, team_folder
from simulator.data.archive import MARKET_MANIFEST
from simulator.errors import UserError
from simulator.market.market import Market
from simulator.market.timeframes import format_time

IN_SAMPLE = "in_sample"  # of a run's record: a sentence for each team that was tested on what it was trained on
_RECORDED = "recorded"
# What makes two generated markets the same one, but for their length.
_GENERATED = ("seed", "kind", "edge", "drift_ratio", "news_accuracy", "timeframe", "coins", "symbols")


def trained_span(config: Config, market: Market) -> TrainedSpan:
    """What a training with `config` on `market` learns from or chooses a version by: all bars before the held-out
    part. Raises `DataError` where the market cannot be divided."""
    held_out, _ = split(market, config.market, config.team.horizon_bars).held_out
    return TrainedSpan(
        data_hash=market.content_hash, first=int(market.open_time[0]), until=_close(market, held_out),
        origin=origin_of(config.market), shares=(config.market.train_share, config.market.validation_share),
        costs=config.costs,
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
        return _RECORDED
    written = Path(market.data) / MARKET_MANIFEST
    content = written.read_bytes() if written.is_file() else str(market.data).encode()
    return f"written {hashlib.sha256(content).hexdigest()[:16]}"


def comparable_spans(manifest: TeamManifest, config: Config, market: Market) -> tuple[TrainedSpan, ...]:
    """The bars that the team of `manifest` learned from and that have anything in common with `market`, which is that
    of `config`."""
    origin = origin_of(config.market)
    return tuple(one for one in manifest.trained_on if one.data_hash == market.content_hash or one.origin == origin)


def overlaps(
    teams: Sequence[str], config: Config, market: Market, first: int, last: int, *, allowed: bool
) -> dict[str, str]:
    """By name a sentence on each team whose training overlaps the window from the close `first` to `last` (ms), by
    its manifest. `teams` are as the user names them; only folders of teams count.

    Raises `UserError` for an overlap unless it is `allowed`.
    """
    marked: dict[str, str] = {}
    for name in teams:
        folder = team_folder(name)
        if not (folder / MANIFEST).is_file():
            continue
        spans = comparable_spans(read_manifest(folder), config, market)
        until = max((one.until for one in spans if first < one.until and one.first < last), default=None)
        if until is None:
            continue
        if not allowed:
            raise UserError(
                f"{name} was trained or chosen on bars until {format_time(until)} UTC, and the window begins at "
                f"{format_time(first)} UTC: what it earns there is no evidence. Take a later window, or say "
                "--in-sample, which marks the result so for ever"
            )
        marked[name] = (
            f"IN SAMPLE: {name} was trained or chosen on bars of this window, until {format_time(until)} UTC, so what "
            "it earned here is no evidence"
        )
    return marked


def marks_of(record: Mapping[str, object]) -> list[str]:
    """The sentences with which a run's record is marked; none for a run out of sample."""
    marked = record.get(IN_SAMPLE)
    return [str(one) for one in marked.values()] if isinstance(marked, dict) else []


def is_marked(record: Mapping[str, object], subject: str) -> bool:
    """Whether the team or variant called `subject` in a run's record was trained on its window."""
    marked, sources = record.get(IN_SAMPLE), record.get("sources")
    source = sources.get(subject) if isinstance(sources, dict) else None
    return isinstance(marked, dict) and isinstance(source, dict) and source.get("team") in marked


def _close(market: Market, bar: int) -> int:
    """The close of a bar, ms."""
    return int(market.open_time[bar]) + market.interval
