"""The manifest of a team's folder: base model, adapters and the configuration that they were trained with."""

from __future__ import annotations

import json
from pathlib import Path

from backend.config.base import Section
from backend.config.former import brought_up_to_date
from backend.config.schema import Config
from simulator.errors import UserError

MANIFEST = "team.json"


class TeamManifest(Section):
    """What `team.json` says: where base model and adapters are, relative to it, and the configuration of the run.

    `adapters` is None where no version was kept, `start` where the run began with the base alone.
    """

    base: str
    adapters: str | None
    start: str | None = None
    config: Config

    def weights(self, *, trained: bool = True) -> str | None:
        """The weights that the team answers with, or with `trained` False did when its run began; None: the base's."""
        return self.adapters or self.start if trained else self.start


def write_manifest(folder: Path, manifest: TeamManifest) -> None:
    """Make `folder` one that `load_team` reads."""
    (folder / MANIFEST).write_text(json.dumps(manifest.model_dump(mode="json"), indent=2) + "\n")


def read_manifest(folder: Path) -> TeamManifest:
    """The manifest in `folder`. Raises `UserError` for a folder that holds no team."""
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(
            f"no team '{folder}': give 'scripted' or the folder of a finished training run (one that holds {MANIFEST})"
        )
    try:
        document = json.loads(path.read_text())
        if isinstance(document, dict) and isinstance(document.get("config"), dict):
            document["config"] = brought_up_to_date(document["config"])
        return TeamManifest.model_validate_json(json.dumps(document))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be used: {error}. Give the folder of a finished training run") from error
