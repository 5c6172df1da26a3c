"""Data sets of the roles: the best conversations of each question, one Parquet file a role.

A folder holds `{role}.parquet` and `manifest.json`, which says where the rows come from, how many were
dropped and why, and the hash of every file. Rows are in the chat format (see `conversations.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from backend.training.sft.collection import ScoredConversation
from cryptosentinel.agents.registry import ROLES
from cryptosentinel.llm.chat_format import ChatMessages
from cryptosentinel.team import derive_seed
from simulator.documents import parse_json, read_document
from simulator.errors import DataError
from simulator.files import write_whole

DATA_MANIFEST = "manifest.json"
_FORMAT = 1
TRAIN, VALIDATION = "train", "validation"
DROP_REASONS = ("invalid", "unscored", "duplicate", "not_best")
_MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])
_SCHEMA = pa.schema(
    [
        ("role", pa.string()), ("source", pa.string()), ("state", pa.string()), ("symbol", pa.string()),
        ("bar", pa.int64()), ("exposure", pa.float64()), ("question", pa.string()), ("rollout", pa.int64()),
        ("score", pa.float64()), ("margin", pa.float64()), ("split", pa.string()), ("tools", pa.string()),
        ("messages", pa.list_(_MESSAGE)),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class SftRow:
    """A conversation that is learnt. `margin` is how far its score is above the mean of those it was chosen from;
    `tools` are the schemas in its system turn as JSON, or None."""

    role: str
    source: str
    state: str
    symbol: str
    bar: int
    exposure: float
    question: str
    rollout: int
    score: float
    margin: float
    split: str
    tools: str | None
    messages: ChatMessages

    def schemas(self) -> list[dict[str, Any]] | None:
        """`tools`, read."""
        return None if self.tools is None else parse_json(self.tools)


@dataclass(frozen=True)
class Selection:
    """Which share of the states is kept for validation, and the seed by which they are drawn."""

    validation_share: float
    seed: int


def select(said: Iterable[ScoredConversation], settings: Selection) -> tuple[list[SftRow], dict[str, dict[str, int]]]:
    """The best conversation of every question about every state, and how many of each role were dropped, and why. A
    share of the states is kept for validation.

    The best has the highest score, the earliest among equals. Equal conversations are duplicates
    within a question only: between states they say how often an answer was the best one to the same evidence, and
    without them a lucky answer would weigh as much as a good one.

    Counts are by role: collected, kept, train, validation and each reason of `DROP_REASONS`; what is dropped has one
    reason.
    """
    counts = {role: dict.fromkeys(("collected", *DROP_REASONS, "kept", TRAIN, VALIDATION), 0) for role in ROLES}
    groups: dict[tuple[str, str, str], list[ScoredConversation]] = {}
    for one in said:
        count = counts[one.role]
        count["collected"] += 1
        if not one.valid:
            count["invalid"] += 1
        elif one.score is None:
            count["unscored"] += 1
        else:
            groups.setdefault((one.role, one.state, one.question), []).append(one)
    rows: list[SftRow] = []
    for (role, state, _), group in groups.items():
        count = counts[role]
        distinct = list({json.dumps(one.messages): one for one in reversed(group)}.values())[::-1]
        count["duplicate"] += len(group) - len(distinct)
        scores = [one.score for one in distinct if one.score is not None]
        best = max(range(len(distinct)), key=lambda i: (scores[i], -i))
        margin = max(0.0, scores[best] - float(np.mean(scores)))  # rounding may pass 0 by a last bit
        count["not_best"] += len(distinct) - 1
        split = _split(state, settings)
        count["kept"] += 1
        count[split] += 1
        rows.append(_row(distinct[best], scores[best], margin, split))
    return rows, counts


def write_data_set(folder: Path, rows: Sequence[SftRow], manifest: Mapping[str, Any]) -> None:
    """Write the rows of every role and the manifest, to which format and hashes are added. The manifest comes last, so
    that a folder with one is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DATA_MANIFEST).unlink(missing_ok=True)
    hashes: dict[str, str] = {}
    for role in ROLES:
        own = [asdict(row) for row in rows if row.role == role]
        path = folder / f"{role}.parquet"
        pq.write_table(pa.Table.from_pylist(own, schema=_SCHEMA), path)
        hashes[path.name] = _hash(path)
    write_whole(folder / DATA_MANIFEST, json.dumps({**manifest, "format": _FORMAT, "sha256": hashes}, indent=2) + "\n")


def read_data_manifest(folder: Path) -> dict[str, Any]:
    """The manifest in `folder`. Raises `DataError` where it is missing, damaged or of another format."""
    path = folder / DATA_MANIFEST
    try:
        manifest = read_document(path)
    except FileNotFoundError:
        raise DataError(f"{folder} holds no {DATA_MANIFEST}: give the folder of a finished data set") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}): remove {folder} and collect again") from error
    if (
        not isinstance(manifest, dict)
        or manifest.get("format") != _FORMAT
        or not isinstance(manifest.get("sha256"), dict)
    ):
        raise DataError(f"{path} is not a manifest of format {_FORMAT}: remove {folder} and collect again")
    return manifest


def read_rows(folder: Path, role: str) -> list[SftRow]:
    """The rows of a role, as they were written. Raises `DataError` for a file that is missing or has changed since."""
    path = folder / f"{role}.parquet"
    wanted = read_data_manifest(folder)["sha256"].get(path.name)
    if not path.is_file() or _hash(path) != wanted:
        raise DataError(f"{path} is not the file that {DATA_MANIFEST} describes: remove {folder} and collect again")
    return [SftRow(**row) for row in pq.read_table(path, schema=_SCHEMA).to_pylist()]


def _split(state: str, settings: Selection) -> str:
    """A state is wholly in one split, whatever role answered about it."""
    share = derive_seed(settings.seed, "split", state) / 2**63
    return VALIDATION if share < settings.validation_share else TRAIN


def _row(said: ScoredConversation, score: float, margin: float, split: str) -> SftRow:
    return SftRow(
        role=said.role,
        source=said.source,
        state=said.state,
        symbol=said.symbol,
        bar=said.bar,
        exposure=said.exposure,
        question=said.question,
        rollout=said.rollout,
        score=score,
        margin=margin,
        split=split,
        tools=json.dumps(said.tools) if said.tools else None,
        messages=said.messages,
    )


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
