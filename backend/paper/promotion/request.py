"""The file by which a session is told that its shadow is to take the place of its team.

It lies in the session's folder until the journal says that it was done, or why not; so neither a kill nor a stop
between the two loses it. It only asks: the session checks everything itself before anything changes.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from simulator.documents import parse_json
from simulator.files import write_whole

PROMOTE_FILE = "PROMOTE"


@dataclass(frozen=True)
class PromotionRequest:
    """That the team `team`, whose files have the SHA-256 `digest`, is to take the place. `at` (ms) tells two apart."""

    team: str
    digest: str
    at: int


def request_promotion(folder: Path, team: str, digest: str) -> PromotionRequest:
    """Ask the session in `folder` for it."""
    asked = PromotionRequest(team, digest, int(time.time() * 1000))
    write_whole(folder / PROMOTE_FILE, json.dumps(vars(asked)) + "\n")
    return asked


def read_request(folder: Path) -> PromotionRequest | None:
    """What is asked for; None where nothing is. A file that cannot be read asks for a team that there is not."""
    path = folder / PROMOTE_FILE
    if not path.exists():
        return None
    try:
        document = parse_json(path.read_bytes())
        return PromotionRequest(str(document["team"]), str(document["digest"]), int(document["at"]))
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return PromotionRequest("", "", 0)


def drop_request(folder: Path) -> None:
    """It was done, or refused."""
    (folder / PROMOTE_FILE).unlink(missing_ok=True)
