"""Supervised fine-tuning: a team is listened to, the best of what it said becomes a data set for each role, and each
role learns its own. The result is a team folder: a base model and an adapter a role, a warmer start than the base
alone.

A run is a folder, and everything in it is written whole or not at all: the same call continues where it stopped.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import TypeAdapter
from torch import Tensor

from backend.builders.loaded_team import LoadedTeam, scripted_team
from backend.builders.market import split
from backend.builders.plugins import load_plugins
from backend.builders.spans import spans_trained_on
from backend.builders.teams import model_team, with_prompts_for
from backend.config.load import config_from_dict
from backend.config.schema import Config, ConfigError
from backend.models.manifest import TeamManifest, write_manifest
from backend.policies.adapters import save_versions
from backend.policies.build import role_policies
from backend.policies.hardware import hardware_of
from backend.policies.role_policies import RolePolicies
from backend.policies.tensor_files import read_tensors, write_tensors
from backend.processes import WorkReport
from backend.statistics.mean_interval import RESAMPLES
from backend.store.run_record import versions
from backend.training.curriculum.queries import QueryPool, gross_limit, pools_of
from backend.training.rollout.collect import rollout_settings
from backend.training.sft.collection import ROLLOUTS, ScoredConversation, collect_conversations, sources_of
from backend.training.sft.conversations import encode
from backend.training.sft.datasets import (
    DATA_MANIFEST,
    TRAIN,
    VALIDATION,
    Selection,
    SftRow,
    read_data_manifest,
    read_rows,
    select,
    write_data_set,
)
from backend.training.sft.role_scores import compare_roles, score_roles
from backend.training.sft.sft_trainer import Example, SftSettings, SupervisedTrainer, pad_examples
from backend.training.sft.shared_data import is_data_set, shared_rows, with_counts
from backend.training.start import NANO, begin
from cryptosentinel.agents.registry import STANDARD, roles_of
from cryptosentinel.llm.architecture import positions_of
from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.team import TOKENS_PER_COIN, derive_seed
from cryptosentinel.team_settings import LEAST_ANSWER
from simulator.documents import read_document
from simulator.errors import DataError, RunFailed, UserError
from simulator.files import write_whole
from simulator.folders import check_links
from simulator.market.market import Market

STATE, DATA, COLLECTED, TRAINING = "sft.json", "data", "collected", "training"
ADAPTERS, SCORES = "adapters", "scores.json"
_BATCH_TOKENS = 2048  # a step, with padding
_VALIDATION_SHARE = 0.1  # of the states, on which only the imitation loss is taken
_CHUNK = 32  # states whose conversations are written at a time
_COLLECTED: TypeAdapter[ScoredConversation] = TypeAdapter(ScoredConversation)
SAVE_EVERY = 25  # steps between two checkpoints of a role
LOSS_ROWS = 256  # validation conversations that the imitation loss is taken on


@dataclass(frozen=True)
class SftResult:
    """What came of a run: the folder of the team, the data set's manifest, the roles' scores, and by role the imitation
    loss (nats per token) on validation conversations before and after; None where there are none."""

    folder: Path
    manifest: dict[str, Any]
    scores: dict[str, dict[str, Any]]
    losses: dict[str, Sequence[float] | None]


def run_sft(config: Config, market: Market, sources: Sequence[str], folder: Path, report: WorkReport) -> SftResult:
    """Collect, choose, train and score in `folder`, continuing with what is there.

    `sources` are the teams that are listened to, as `collection.sources_of` takes them, and data sets that were made
    elsewhere, as `shared_data.is_data_set` knows them. Raises `UserError` for sources,
    a folder or a configuration that cannot be used, `RunFailed` where training cannot continue.
    """
    load_plugins(config)
    if config.team.roles[: len(STANDARD)] != STANDARD:
        raise ConfigError(
            f"team.roles = '{','.join(config.team.roles)}': sft trains the team of {', '.join(STANDARD)}, and "
            "roles of your own after these; leave team.roles out, or name them in this order"
        )
    if config.training.start_from:
        raise ConfigError(
            f"training.start_from = {config.training.start_from} is where a training begins, and `sft` begins with a "
            "base: leave it out, and name the folder that `sft` makes there"
        )
    if not sources or len(set(sources)) < len(sources):
        raise UserError(f"the sources are {', '.join(sources) or 'missing'}: name at least one team, each once")
    _claim(folder, {"config": config.to_dict(), "sources": list(sources), "data_hash": market.content_hash})
    if (folder / SCORES).is_file():
        return _finished(folder)
    shared = [
        row for source in sources if is_data_set(source) for row in shared_rows(source, roles_of(config.team.roles))
    ]
    base = begin(config, market, folder, report)
    config = config.model_copy(update={"team": with_prompts_for(config.team, base)})
    policies, codec = role_policies(
        base,
        config.training,
        think=config.team.thinking_tokens > 0,
        roles=roles_of(config.team.roles),
        hardware=hardware_of(config.training),
    )
    manifest = _data_set(config, market, sources, shared, folder, policies, codec, report)
    losses: dict[str, Sequence[float] | None] = {
        role: _train_role(config, folder, role, policies, codec, report) for role in roles_of(config.team.roles)
    }
    save_versions(policies, folder / ADAPTERS, folder.resolve().name, config.sft.steps)
    base_name = NANO if base == folder / NANO else os.path.relpath(base.resolve(), folder.resolve())
    trained_on = spans_trained_on(config, market)
    write_manifest(folder, TeamManifest.of(config, base=base_name, adapters=ADAPTERS, trained_on=trained_on))
    scores = _scores(config, market, base, folder, policies, codec, report)
    _write(folder / SCORES, {"roles": scores, "losses": losses, "versions": versions()})
    return SftResult(folder, manifest, scores, losses)


def _finished(folder: Path) -> SftResult:
    """What a run came to that was finished before."""
    try:
        saved = read_document(folder / SCORES, nan=True)
        return SftResult(folder, read_data_manifest(folder / DATA), saved["roles"], saved["losses"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder / SCORES} cannot be read ({error}): remove it to score again") from error


def _claim(folder: Path, document: dict[str, Any]) -> None:
    """Make `folder` this run's. Raises `UserError` when it is another run's or holds something else."""
    path = folder / STATE
    if folder.exists():
        check_links(folder)
    if not path.is_file():
        if folder.exists() and any(folder.iterdir()):
            raise UserError(f"{folder} is not empty and holds no {STATE}: choose a new folder with --out")
        folder.mkdir(parents=True, exist_ok=True)
        _write(path, document)
        return
    try:
        before = read_document(path)
        # Through the config, so that settings that were added since then have their defaults.
        before["config"] = config_from_dict(before["config"], str(path)).to_dict()
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} cannot be read ({error}): choose a new folder with --out") from error
    different = [key for key, value in document.items() if before.get(key) != value]
    if different:
        names = {"config": "settings", "sources": "sources", "data_hash": "data"}
        raise UserError(
            f"{folder} was begun with other {' and '.join(names[key] for key in different)}: choose a new folder with "
            "--out, or repeat the former command to continue"
        )


def _data_set(
    config: Config,
    market: Market,
    sources: Sequence[str],
    shared: Sequence[SftRow],
    folder: Path,
    policies: RolePolicies,
    codec: ChatFormat,
    report: WorkReport,
) -> dict[str, Any]:
    """The manifest of the data set, which is made unless it is there: what teams said, and `shared`, the rows of data
    sets from elsewhere."""
    if (folder / DATA / DATA_MANIFEST).is_file():
        return read_data_manifest(folder / DATA)
    selection = Selection(_VALIDATION_SHARE, config.sft_seed)
    rows, counts = select(_collect(config, market, sources, folder, policies, codec, report), selection)
    rows, counts = [*rows, *shared], with_counts(counts, shared)
    document = {
        "sources": list(sources),
        "seed": config.sft_seed,
        "data": {"source": market.source, "hash": market.content_hash},
        "base": policies.base_fingerprint,
        "counts": counts,
        "config": config.to_dict(),
        "versions": versions(),
    }
    write_data_set(folder / DATA, rows, document)
    return read_data_manifest(folder / DATA)


def _collect(
    config: Config,
    market: Market,
    sources: Sequence[str],
    folder: Path,
    policies: RolePolicies,
    codec: ChatFormat,
    report: WorkReport,
) -> list[ScoredConversation]:
    """All conversations of all sources about the same states of the training part, chunk by chunk."""
    settings, horizon = config.sft, config.team.horizon_bars
    [pool] = pools_of(
        config.training, market, [split(market, config.market, horizon).train], horizon, gross_limit(config)
    )
    queries = pool.draw(derive_seed(config.sft_seed, "states"), 0, settings.states, easy=False)
    teams = sources_of([source for source in sources if not is_data_set(source)], config, policies, codec)
    if not teams:
        return []
    (folder / COLLECTED).mkdir(exist_ok=True)
    said: list[ScoredConversation] = []
    for start in range(0, len(queries), _CHUNK):
        path = folder / COLLECTED / f"{start:07d}.json"
        if not path.is_file():
            chunk = queries[start : start + _CHUNK]
            heard = [
                one
                for team in teams
                for one in collect_conversations(team, chunk, rollout_settings(config, ROLLOUTS), config.sft_seed)
            ]
            _write(path, [asdict(one) for one in heard])
        said += _read_collected(path)
        report("collection", min(start + _CHUNK, len(queries)), len(queries))
    return said


def _read_collected(path: Path) -> list[ScoredConversation]:
    try:
        return [_COLLECTED.validate_python(one) for one in read_document(path, nan=True)]
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} cannot be read ({error}): remove it to collect these states again") from error


def _train_role(
    config: Config, folder: Path, role: str, policies: RolePolicies, codec: ChatFormat, report: WorkReport
) -> tuple[float, float] | None:
    """Train a role's adapter on its rows, continuing from its checkpoint; the imitation losses before and after.

    A role without rows keeps the base's answers.
    """
    rows = read_rows(folder / DATA, role)
    learnt = _examples(config, [row for row in rows if row.split == TRAIN], policies, codec)
    kept_back = _examples(config, [row for row in rows if row.split == VALIDATION][:LOSS_ROWS], policies, codec)
    before = _imitation_loss(policies, role, kept_back)
    if learnt:
        _fit(config, folder, role, policies, learnt, report)
    after = _imitation_loss(policies, role, kept_back)
    return None if before is None or after is None else (before, after)


def _fit(
    config: Config, folder: Path, role: str, policies: RolePolicies, examples: Sequence[Example], report: WorkReport
) -> None:
    """All steps of one role; a checkpoint now and then, from which they continue."""
    settings, path = config.sft, folder / TRAINING / f"{role}.safetensors"
    trainer = SupervisedTrainer(
        policies.trainable(role),
        lambda ids, mask: policies.logps(role, ids, mask)[0],
        examples,
        SftSettings(
            steps=settings.steps,
            batch_tokens=_BATCH_TOKENS,
            learning_rate=settings.learning_rate,
            warmup_steps=min(20, settings.steps // 5 + 1),
            weight_decay=0.0,  # it would pull an adapter to the base, which is not its prior
            seed=derive_seed(config.sft_seed, "sft", role),
            mixed=True,
        ),
    )
    data = read_data_manifest(folder / DATA)["sha256"][f"{role}.parquet"]
    header = {"kind": "sft", "role": role, "base": policies.base_fingerprint, "data": data}
    if path.is_file():
        tensors, saved = read_tensors(path)
        if any(saved.get(key) != value for key, value in header.items()):
            raise UserError(f"{path} belongs to another role, base model or data set: remove it to train {role} again")
        policies.load_role_state(role, _section(tensors, "policy/"))
        trainer.resume(int(saved["done"]), _section(tensors, "optimizer/"))
    what = f"sft {role}"
    report(what, trainer.done, settings.steps)
    while trainer.done < settings.steps:
        try:
            trainer.step()
        except ValueError as error:
            raise RunFailed(f"{role} cannot be trained: {error} (sft.learning_rate), in a new folder") from error
        report(what, trainer.done, settings.steps)
        if trainer.done % SAVE_EVERY == 0 or trainer.done == settings.steps:
            state = {f"policy/{name}": tensor for name, tensor in policies.role_state(role).items()}
            state |= {f"optimizer/{name}": tensor for name, tensor in trainer.optimizer_state().items()}
            write_tensors(path, state, {**header, "done": trainer.done})


def _section(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _examples(config: Config, rows: Sequence[SftRow], policies: RolePolicies, codec: ChatFormat) -> list[Example]:
    """The rows as ids and masks. Raises `UserError` for a conversation that the model has no positions for, or with an
    answer that `team.max_tokens` would cut off when the role gives it."""
    examples = [encode(codec, row.messages, row.schemas()) for row in rows]
    longest, limit = max((len(ids) for ids, _ in examples), default=0), positions_of(policies.base_config)
    if longest > limit:
        raise UserError(f"a conversation of {rows[0].role} has {longest} tokens, but the base has {limit} positions")
    answer = max((_longest_answer(mask) for _, mask in examples), default=0)
    room = config.team.answer_tokens(config.team.prompts == "full") + config.team.thinking_tokens
    if config.team.portfolio:
        room += TOKENS_PER_COIN * (config.coins_of_a_decision() - 1)
    if answer > room:
        raise UserError(
            f"an answer of {rows[0].role} has {answer} tokens of this model, and would be cut off after {room}: set "
            f"team.max_tokens = {LEAST_ANSWER * math.ceil(1.25 * answer / LEAST_ANSWER)}, in a new folder"
        )
    return examples


def _longest_answer(mask: npt.NDArray[np.bool_]) -> int:
    """Tokens of the longest turn in a loss mask (L,)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return int((edges[1::2] - edges[::2]).max())


def _imitation_loss(policies: RolePolicies, role: str, examples: Sequence[Example]) -> float | None:
    """Mean loss in nats per token under the role's policy; None without examples."""
    if not examples:
        return None
    total, tokens = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(examples), 8):
            ids, mask = pad_examples(examples[start : start + 8])
            logps, _ = policies.logps(role, ids, mask)
            total -= float(logps.sum())
            tokens += int(mask.sum())
    return total / tokens


def _scores(
    config: Config,
    market: Market,
    base: Path,
    folder: Path,
    policies: RolePolicies,
    codec: ChatFormat,
    report: WorkReport,
) -> dict[str, dict[str, Any]]:
    """Each role's held-out score as the base, as it is now, and as the scripted team, on the same states and draws."""
    settings, horizon = config.sft, config.team.horizon_bars
    parts = split(market, config.market, horizon)
    part = parts.held_out
    seed = derive_seed(config.sft_seed, "scores")
    queries = QueryPool(market, *part, horizon, gross_limit=gross_limit(config)).draw(
        seed, 0, settings.score_states, easy=False
    )
    temperature, precision = config.training.temperature, config.training.precision
    # Made one after the other, since each keeps a merged copy of the base for every role.
    teams: dict[str, Callable[[], LoadedTeam]] = {
        "before": lambda: model_team(
            "before",
            role_policies(base, config.training, roles=roles_of(config.team.roles))[0],
            codec,
            config.team,
            temperature,
            precision,
        ),
        "after": lambda: model_team("after", policies, codec, config.team, temperature, precision),
        "scripted": lambda: scripted_team(config.team),
    }
    asked = replace(rollout_settings(config, ROLLOUTS), rollouts_per_query=1)
    saved = {
        name: score_roles(make(), queries, asked, seed, partial(report, f"score {name}"))
        for name, make in teams.items()
    }
    return compare_roles(saved["before"], saved["after"], saved["scripted"], RESAMPLES, config.sft_seed)


def _write(path: Path, document: object) -> None:
    """JSON, written whole or not at all."""
    write_whole(path, json.dumps(document) + "\n")
