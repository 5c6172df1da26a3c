"""The manifest of a team's folder: base model, adapters and the configuration that they were trained with.

A team's folder may come from anybody. `read_manifest` takes from its manifest what `backend.config.artefacts` allows;
base and weights lie in the folder, or the base is one that the user names or has pulled himself.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, Self

from pydantic import Field

from backend.config.artefacts import Withheld, notice, places_in, taken_from
from backend.config.base import Section
from backend.config.ownership import is_signed, sign
from backend.config.schema import Config
from simulator.documents import read_document
from simulator.errors import UserError
from simulator.files import write_whole
from simulator.folders import check_links, path_inside

MANIFEST = "team.json"
SAMPLE_TEAM = "sample"  # the name of the trained team that is shipped
_IN_REPOSITORY = Path(__file__).resolve().parents[2] / "data" / "sample_team"
_IN_WHEEL = Path(__file__).resolve().parent / "sample_team"
_MOST_BYTES = 4 * 2**20


class TrainedSpan(Section):
    """Bars that a team learnt from, or that a version of it was chosen by: of the market with the hash `data_hash`,
    from `first` to the close `until` (ms). `origin` says which other markets have the same bars."""

    data_hash: str
    first: int
    until: int
    origin: str


class TeamManifest(Section):
    """What `team.json` says: where base model and adapters are, relative to it, and the configuration of the run.

    `adapters` is None where no version was kept, `start` where the run began with the base alone. `stated` is the
    configuration as it stands there, which is only compared and shown; `config` is what may be used of it. `signature`
    is that of the user who trained the team, of where base and data lie and of `trained_on`, the bars that it learnt
    from: what he wrote himself is no stranger's. Teams of former versions do not say `trained_on`.
    """

    base: str
    adapters: str | None
    start: str | None = None
    stated: Config = Field(alias="config")
    trained_on: tuple[TrainedSpan, ...] = ()
    signature: str = ""

    @property
    def config(self) -> Config:
        """The settings of the training that a team's folder may say."""
        return taken_from(self.stated, own_places=self.own)[0]

    @property
    def own(self) -> bool:
        """Whether this user has written where base and data of the team lie."""
        return is_signed(self._places(), self.signature)

    def signed(self) -> Self:
        """The manifest with this user's signature of where its base and data lie."""
        return self.model_copy(update={"signature": sign(self._places())})

    def withheld(self, given: Collection[str] = ()) -> tuple[Withheld, ...]:
        """The settings that a team's folder may not say, but for those that the user sets himself (`given`)."""
        return taken_from(self.stated, given, own_places=self.own)[1]

    def weights(self, *, trained: bool = True) -> str | None:
        """The weights that the team answers with, or with `trained` False did when its run began; None: the base's."""
        return self.adapters or self.start if trained else self.start

    def _places(self) -> dict[str, Any]:
        places = {"base": self.base, **places_in(self.stated)}
        if self.trained_on:  # the signatures of former versions hold
            places["trained_on"] = [one.model_dump() for one in self.trained_on]
        return places


def sample_team() -> Path:
    """The folder of the trained team that is shipped."""
    return _IN_WHEEL if _IN_WHEEL.is_dir() else _IN_REPOSITORY


def team_folder(name: str | Path) -> Path:
    """The folder of the team called `name`: the shipped one for `sample`, unless the user has such a folder with a team
    in it."""
    folder = Path(name)
    return sample_team() if str(folder) == SAMPLE_TEAM and not (folder / MANIFEST).is_file() else folder


def team_name(folder: Path) -> str:
    """How the team in `folder` is called in tables and reports."""
    return SAMPLE_TEAM if folder.resolve() == sample_team() else folder.resolve().name


def write_manifest(folder: Path, manifest: TeamManifest) -> None:
    """Make `folder` one that `load_team` reads."""
    document = manifest.model_dump(mode="json", by_alias=True)
    write_whole(folder / MANIFEST, json.dumps(document, indent=2) + "\n")


def read_manifest(folder: Path) -> TeamManifest:
    """The manifest in `folder`. Raises `UserError` for a folder that holds no team, and for weights outside it."""
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(
            f"no team '{folder}': give 'scripted' or the folder of a finished training run (one that holds {MANIFEST})"
        )
    path_inside(folder, MANIFEST, str(folder))
    try:
        document: Any = read_document(path, _MOST_BYTES)
        manifest = TeamManifest.model_validate_json(json.dumps(document))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be used: {error}. Give the folder of a finished training run") from error
    for name in (manifest.adapters, manifest.start):
        if name is not None:
            check_links(path_inside(folder, name, str(path)), folder)
    return manifest


def team_notice(folder: Path, manifest: TeamManifest, given: Collection[str] = ()) -> str:
    """One sentence on what was not taken from a team's folder; empty where nothing was withheld."""
    return notice(str(folder / MANIFEST), manifest.withheld(given))
