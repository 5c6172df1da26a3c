"""Whether a window overlaps what a team was trained or chosen on: then what it earns there is no evidence.

A team's manifest says which bars these were. Of a team of a former version, which does not, its market is loaded again.
Two recorded markets are compared by time, since coins move together; a generated one only with its like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backend.builders.market import load_market
from backend.builders.spans import origin_of, trained_span
from backend.config.schema import Config
from backend.models.manifest import MANIFEST, TeamManifest, TrainedSpan, read_manifest, team_folder
from simulator.errors import UserError
from simulator.market.market import Market
from simulator.market.timeframes import format_time

IN_SAMPLE = "in_sample"  # of a run's record: a sentence for each team that was tested on what it was trained on
STRANGER = (
    "the manifest bears a stranger's signature, so nobody vouches for what the team was trained on: train it yourself, "
    "or go on training it with --set training.start_from=FOLDER"
)


class UnknownTraining(UserError):
    """Nobody vouches for what a team was trained on, or it cannot be read."""


def comparable_spans(manifest: TeamManifest, config: Config, market: Market) -> tuple[TrainedSpan, ...]:
    """The bars that the team of `manifest` learnt from and that have anything in common with `market`, which is that of
    `config`. Raises `UnknownTraining`."""
    spans = manifest.trained_on or _reloaded(manifest, config)
    origin = origin_of(config.market)
    alike = tuple(one for one in spans if one.data_hash == market.content_hash or one.origin == origin)
    if is_strange(manifest) and not alike:
        raise UnknownTraining(STRANGER)
    return alike


def is_strange(manifest: TeamManifest) -> bool:
    """Whether a manifest says of recorded bars that a team was trained on what nobody vouches for."""
    return bool(manifest.stated.market.data) and not manifest.own


def overlaps(
    teams: Sequence[str], config: Config, market: Market, first: int, last: int, *, allowed: bool
) -> tuple[dict[str, str], list[str]]:
    """By name a sentence on each team whose training overlaps the window from the close `first` to `last` (ms); and a
    note on each team of which that is not known. `teams` are as the user names them; only folders of teams count.

    Raises `UserError` for an overlap unless it is `allowed`.
    """
    marked: dict[str, str] = {}
    unknown: list[str] = []
    for name in teams:
        folder = team_folder(name)
        if not (folder / MANIFEST).is_file():
            continue
        manifest = read_manifest(folder)
        try:
            spans = comparable_spans(manifest, config, market)
        except UnknownTraining as error:
            unknown.append(f"whether {name} was trained on this window is not known: {error}")
            continue
        until = max((one.until for one in spans if first < one.until and one.first < last), default=None)
        if until is None:
            if spans and is_strange(manifest):
                unknown.append(f"whether {name} was trained on this window is not known: {STRANGER}")
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
    return marked, unknown


def marks_of(record: Mapping[str, object]) -> list[str]:
    """The sentences with which a run's record is marked; none for a run out of sample."""
    marked = record.get(IN_SAMPLE)
    return [str(one) for one in marked.values()] if isinstance(marked, dict) else []


def is_marked(record: Mapping[str, object], subject: str) -> bool:
    """Whether the team or variant called `subject` in a run's record was trained on its window."""
    marked, sources = record.get(IN_SAMPLE), record.get("sources")
    source = sources.get(subject) if isinstance(sources, dict) else None
    return isinstance(marked, dict) and isinstance(source, dict) and source.get("team") in marked


def _reloaded(manifest: TeamManifest, config: Config) -> tuple[TrainedSpan, ...]:
    """The span of a team whose manifest does not say it. Nothing is loaded where it cannot be compared anyway."""
    stated = manifest.stated
    if is_strange(manifest) or bool(stated.market.data) != bool(config.market.data):
        return ()
    if not stated.market.data and origin_of(stated.market) != origin_of(config.market):
        return ()
    try:
        return (trained_span(stated, load_market(stated.market, stated.costs)),)
    except UserError as error:
        raise UnknownTraining(f"what the team was trained on cannot be read ({error}): put it back there") from error
