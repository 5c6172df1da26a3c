"""The manifest of a team's folder: base model, adapters, and how the team is built from them.

A team's folder may come from anybody. Its manifest has no field for what is run, contacted, read elsewhere or spent:
those settings come from the user. Base and weights lie in the folder, or the base is one that the user names or has
pulled.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

from pydantic import Field, field_validator

from backend.config.base import LoraRank
from backend.config.market import CostsConfig, MarketConfig
from backend.config.schema import Config
from backend.config.training import PrecisionName, TrainingConfig
from cryptosentinel.team_settings import Section, TeamConfig
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
    """Bars that a team was trained on or selected by: of the market with the hash `data_hash`, from `first` to the
    close `until` (ms). `origin` tells which other markets have the same bars, `shares` are those of training and
    validation, and `costs` those at which it traded them. `market` is the recipe of a generated market."""

    data_hash: str
    first: int
    until: int
    origin: str
    shares: tuple[float, float]
    costs: CostsConfig
    market: MarketConfig | None = None

    @field_validator("market")
    @classmethod
    def _is_recipe(cls, market: MarketConfig | None) -> MarketConfig | None:
        if market is not None and not is_generated_alone(market):
            raise ValueError("a team's folder cannot name files or sources of a market: leave market out")
        return market


def is_generated_alone(market: MarketConfig) -> bool:
    """Whether a market is made from its recipe, and neither a file nor a source adds to it."""
    return not (market.data or market.source or market.funding_dir or market.news)


class TeamLora(Section):
    """What was trained: adapters of a rank, or with 0 whole copies of the base."""

    rank: LoraRank = 16


class TeamModel(Section):
    """How the model is sampled and computed."""

    temperature: float = Field(1.0, gt=0.0, le=5.0)
    precision: PrecisionName = "auto"


class TeamManifest(Section):
    """The content of `team.json`. Paths are relative to it; `adapters` is None where no version was kept, `start` where
    the run began with the base alone. `trained_on` are the bars that the team learned from."""

    base: str
    adapters: str | None
    start: str | None = None
    team: TeamConfig = TeamConfig()
    lora: TeamLora = TeamLora()
    model: TeamModel = TeamModel()
    trained_on: tuple[TrainedSpan, ...] = ()

    @field_validator("team")
    @classmethod
    def _no_code(cls, team: TeamConfig) -> TeamConfig:
        if team.tools:
            raise ValueError("a team's folder cannot name tools: set team.tools yourself, with --set or --config")
        return team

    @classmethod
    def of(cls, config: Config, **places: Any) -> Self:
        """The manifest of a team that was trained with `config`; `places` are the other fields."""
        training = config.training
        return cls(
            team=config.team.model_copy(update={"tools": ()}),
            lora=TeamLora(rank=training.lora_rank),
            model=TeamModel(temperature=training.temperature, precision=training.precision),
            **places,
        )

    @property
    def training(self) -> TrainingConfig:
        """The settings from which the policies are built again, the defaults in place of all others."""
        lora = {"lora_rank": self.lora.rank, "temperature": self.model.temperature}
        return TrainingConfig().model_copy(update=lora)

    @property
    def costs(self) -> CostsConfig | None:
        """The costs of its last training; None where that is not listed."""
        return self.trained_on[-1].costs if self.trained_on else None

    def weights(self, *, trained: bool = True) -> str | None:
        """The weights that the team answers with, or with `trained` False did when its run began; None: the base's."""
        return self.adapters or self.start if trained else self.start


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
    document = manifest.model_dump(mode="json")
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
