"""What a training begins with: a base model, given or made here, and the weights of a team that was trained before.

Whatever it has of another run's folder is copied into its own, but for a base that lies elsewhere itself: the other run
may continue, move or go.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from backend.builders.loaded_team import scripted_team, team_settings
from backend.builders.market import split
from backend.config.schema import Config, ConfigError
from backend.config.training import TrainingConfig
from backend.models.manifest import MANIFEST, TeamManifest, read_manifest, team_folder, write_manifest
from backend.models.registry import START, base_of_team, resolve_base
from backend.processes import ALONE, Workers, WorkReport
from backend.training.curriculum.queries import QueryPool, gross_limit
from backend.training.rollout.collect import rollout_settings
from backend.training.rollout.expected_value import check_within_evidence, decisions_in, evidence_values, scores_in
from backend.training.sft.spoken_markets import spoken_markets
from backend.training.sft.warm_start import make_nano
from cryptosentinel.agents.registry import roles_of
from simulator.errors import UserError
from simulator.files import copy_folder, whole_folder
from simulator.market.market import Market
from simulator.synthetic.oracle import regime_beliefs

NANO = "nano"
_TEACHER_STATES = 400  # in which a teacher is compared with the evidence


def require_start(training: TrainingConfig) -> None:
    """Raise `UserError` where the base model or the team to begin with cannot be had: before anything is created."""
    if training.start_from:
        team = _team_to_start_from(training)
        base_of_team(team, read_manifest(team), training.base_model)
    elif training.base_model:
        resolve_base(training.base_model)


def begin(config: Config, market: Market, folder: Path, report: WorkReport, workers: Workers = ALONE) -> Path:
    """The base model of the run in `folder`, made or copied there unless it is there already or lies elsewhere; with
    `training.start_from` the weights to begin with as well. Raises `UserError` where either cannot be had."""
    if config.training.start_from:
        _take_over(config, market, folder)
    base = base_of(config.training, folder)
    if base == folder / NANO and not base.is_dir():
        _make(config, market, base, report, workers)
    return base


def base_of(training: TrainingConfig, folder: Path) -> Path:
    """Where the base model of the run in `folder` lies, or is to lie: that of `training.base_model`, a folder or a
    pulled model's name on the hub, that of the team which it starts from, or nano in the run's own folder. Raises
    `UserError`."""
    if training.base_model:
        return resolve_base(training.base_model)
    start = start_of(training, folder)
    if start is None or not start.is_dir():
        return folder / NANO
    base = base_of_team(start, read_manifest(start))
    return Path(os.path.normpath(base))


def start_of(training: TrainingConfig, folder: Path) -> Path | None:
    """The weights that the run in `folder` begins with; None where it is the base alone."""
    return folder / START if training.start_from else None


def _take_over(config: Config, market: Market, folder: Path) -> None:
    """Copy weights, and a base of its own, from the team that the run starts from. The copy is a team as well."""
    kept = folder / START
    if kept.is_dir():  # whole, since it was renamed
        return
    team = _team_to_start_from(config.training)
    manifest = read_manifest(team)
    weights = _weights_of(team, manifest)
    _check_parts(config, market, manifest, team)
    base = base_of_team(team, manifest, config.training.base_model)
    own_base = base.resolve().is_relative_to(team.resolve())
    if own_base:
        _copy(base, folder / NANO)
    named = Path("..", "..", NANO) if own_base else Path(os.path.abspath(base))
    with whole_folder(kept) as unfinished:
        write_manifest(unfinished, manifest.model_copy(update={"base": str(named), "adapters": ".", "start": None}))
        for role in roles_of(config.team.roles):
            exported, whole = weights / role, weights / f"{role}.safetensors"
            if exported.is_dir():
                copy_folder(exported, unfinished / role)
            elif whole.is_file():
                shutil.copyfile(whole, unfinished / whole.name)
            else:
                raise UserError(
                    f"training.start_from: {weights} holds nothing of {role}: start from a team that has the role, or "
                    f"leave it out of team.roles = '{','.join(config.team.roles)}'"
                )


def _team_to_start_from(training: TrainingConfig) -> Path:
    team = team_folder(training.start_from)
    if not (team / MANIFEST).is_file():
        raise ConfigError(
            f"training.start_from = {team} is not the folder of a team: give one of a finished `sft` or `train`, with "
            f"a {MANIFEST} in it"
        )
    return team


def _weights_of(team: Path, manifest: TeamManifest) -> Path:
    weights = manifest.weights()
    if weights is None:
        raise ConfigError(
            f"training.start_from = {team}: this team is its base itself, so there is nothing to start from but the "
            f"base: set training.base_model = {team / manifest.base} in its place"
        )
    return team / weights


def _check_parts(config: Config, market: Market, manifest: TeamManifest, team: Path) -> None:
    """Raise `ConfigError` where the team has learned from bars that this run validates on or holds out."""
    alike = (one.shares for one in manifest.trained_on if one.data_hash == market.content_hash)
    for shares in (one for one in alike if one != config.market.shares):
        raise ConfigError(
            f"training.start_from = {team} was trained on this market in other parts, so it may have learnt from what "
            f"is held out here: set market.shares = {list(shares)} as there"
        )


def _copy(source: Path, target: Path) -> None:
    """A folder, whole or not at all; what is there stays."""
    if target.is_dir():
        return
    if not source.is_dir():
        raise UserError(f"there is no model folder {source}: put it back where it was")
    with whole_folder(target) as unfinished:
        copy_folder(source, unfinished)


def _make(config: Config, market: Market, base: Path, report: WorkReport, workers: Workers) -> None:
    """Nano, warm-started on the training part of the market. Raises `DataError` for a teacher that knows too much."""
    horizon = config.team.horizon_bars
    part = split(market, config.market, horizon).train
    if config.market.kind == "private" and not config.team.portfolio:
        _check_teacher(config, market, part)
    pools = [
        QueryPool(one, *part, horizon, gross_limit=gross_limit(config))
        for one in spoken_markets(market, config.nano_seed)
    ]
    settings, seed = team_settings(config.team, 1.0), config.nano_seed
    make_nano(base, pools, settings, config.nano, seed, report, config.training.shards, workers)


def _check_teacher(config: Config, market: Market, part: tuple[int, int]) -> None:
    """Refuse a teacher that earns more than the evidence allows."""
    horizon, teacher = config.team.horizon_bars, scripted_team(config.team, config.nano.teacher)
    beliefs = regime_beliefs(market)
    queries = QueryPool(market, *part, horizon, beliefs=beliefs).draw(config.nano_seed, 0, _TEACHER_STATES, easy=False)
    settings = rollout_settings(config, 1)
    hidden = [replace(query, belief=None) for query in queries]
    scores = scores_in(decisions_in(teacher.team, teacher.engine, hidden, settings, config.nano_seed))
    check_within_evidence(f"nano.teacher = {config.nano.teacher}", scores, evidence_values(queries, settings))
