"""Whether a window overlaps what a team was trained or chosen on: then what it earns there is no evidence.

A team's manifest lists these bars. Two recorded markets are compared by time, since coins move together; a generated
one only with its like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backend.builders.spans import origin_of
from backend.config.schema import Config
from backend.models.manifest import MANIFEST, TeamManifest, TrainedSpan, read_manifest, team_folder
from simulator.errors import UserError
from simulator.market.market import Market
from simulator.market.timeframes import format_time

IN_SAMPLE = "in_sample"  # of a run's record: a sentence for each team that was tested on what it was trained on


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
