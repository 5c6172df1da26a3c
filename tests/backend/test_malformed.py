"""Mutated artefacts of every kind: whoever reads one succeeds or raises an error of this project, and nothing else."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.builders.loaded_team import recording, replayed_team, scripted_team
from backend.config.load import load_config
from backend.decisions.checked_documents import check_document
from backend.models.manifest import MANIFEST, TeamManifest, read_manifest, write_manifest
from backend.models.registry import base_of_team, describe_base
from backend.policies.tensor_files import read_tensors, write_tensors
from backend.reporting.report import write_report
from backend.store import transfer
from backend.store.store import Store
from backend.store.transfer import export_run, import_run
from backend.training.checkpoints import TrainingState, read_kept
from backend.training.learning.learner import LearnerState
from backend.training.sft.datasets import DATA_MANIFEST, read_rows, write_data_set
from cryptosentinel.llm.engine import Request, Sampling
from cryptosentinel.team_settings import TeamConfig
from simulator.data.archive import MARKET_MANIFEST, write_market
from simulator.data.catalog import Catalog
from simulator.data.venue import RULES_FILE, read_rules, write_rules
from simulator.errors import UserError
from simulator.exchange.rules import SymbolRules
from tests.small_world import small_config, small_market
from tests.stored_runs import add_backtest_run

# What is put in the place of a value of JSON, as it stands in the file.
TOKENS = (
    "null", "true", "-1", "0", "1e999", "-1e999", "NaN", "Infinity", "9" * 5000, "9" * 400, "0.1e-400", '""', '"text"',
    '"\\u0000"', '"\\ud800"', '"\\u001b[2J"', '"../../x"', '"/etc/passwd"', "[]", "{}", "[[]]", '{"a": {}}',
    "[" * 90 + "]" * 90, "[" * 20_000 + "]" * 20_000, '{"a":' * 2000 + "1" + "}" * 2000, "[null]", '["x"]',
    '{"x": null}', "1.5", "1" + "0" * 18,
)  # fmt: skip
_MARK = "@@here@@"


@dataclass(frozen=True)
class Kind:
    """A kind of artefact: `make` writes a whole one into a folder and returns the file that is mutated, `read` reads
    it from there. `lines`: it holds a document a line."""

    make: Callable[[Path], Path]
    read: Callable[[Path], object]
    lines: bool = False
    binary: bool = False
    packed: bool = False


@cache
def _exported() -> bytes:
    with Store.open("mem://") as store:
        add_backtest_run(store, "run-1")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.jsonl.gz"
            export_run(store, "run-1", path)
            return gzip.decompress(path.read_bytes())


def _export(folder: Path) -> Path:
    # The run, a backtest's result cut to one, a decision and the end: short lines, and each kind of document.
    lines = _exported().splitlines(keepends=True)
    seen: Counter[str] = Counter()
    kept = [lines[0]]
    for line in lines[1:]:
        table = json.loads(line)[0]
        seen[table] += 1
        kept += [line] if seen[table] == 1 else []
    path = folder / "run.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(kept)))
    return path


def _read_export(folder: Path) -> None:
    with Store.open("mem://") as store:
        run, _ = import_run(store, folder / "run.jsonl.gz", check_document)
        write_report(store, run, folder / "report")


def _recording(folder: Path) -> Path:
    loaded, recorder = recording(scripted_team(TeamConfig()), folder / "tape.jsonl")
    codec = loaded.team.codec
    ids = codec.start("Be brief.", "C1: held 0.0, day 0.0, volatility 0.1\n")
    recorder.generate([Request("manager", tuple(ids), Sampling(1.0, 64), 1)])
    recorder.close()
    return folder / "tape.jsonl"


def _team(folder: Path) -> Path:
    (folder / "team" / "nano").mkdir(parents=True)
    (folder / "team" / "nano" / "config.json").write_text("{}")
    write_manifest(folder / "team", TeamManifest.of(small_config(), base="nano", adapters=None))
    return folder / "team" / MANIFEST


def _read_team(folder: Path) -> None:
    manifest = read_manifest(folder / "team")
    base_of_team(folder / "team", manifest)


def _toml(folder: Path) -> Path:
    path = folder / "my.toml"
    tables: dict[str, dict[str, Any]] = {
        "market": {"symbols": ["A", "B"], "bars": 400, "edge": True, "drift_ratio": 0.1},
        "costs": {"taker_fee": 0.0004},
        "budget.prices": {"m": [1.0, 1.0, 1.0]},
    }
    text = "".join(
        f"[{section}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
        for section, keys in tables.items()
    )
    path.write_text(text)
    return path


def _rules(folder: Path) -> Path:
    one = SymbolRules(kind="spot", tick=0.01, lot=0.001, min_quantity=0.0, max_quantity=10.0, min_notional=5.0,
                      maker_fee=None, taker_fee=0.001, tiers=())  # fmt: skip
    write_rules(folder / RULES_FILE, {"AAAUSDT": one})
    return folder / RULES_FILE


def _market(folder: Path) -> None:
    write_market(small_market(), folder / "data")


def _market_list(folder: Path) -> Path:
    _market(folder)
    return folder / "data" / MARKET_MANIFEST


def _bars(folder: Path) -> Path:
    _market(folder)
    return folder / "data" / "AAAUSDT-4h.parquet"


def _headlines(folder: Path) -> Path:
    _market(folder)
    return folder / "data" / "news.parquet"


def _state(folder: Path) -> Path:
    path = folder / "state.json"
    path.write_text(json.dumps(asdict(TrainingState(3, 1, 0, 0.5, 2, [(1, "trader")], 9, 9))))
    return path


def _read_state(folder: Path) -> None:
    read_kept(folder / "state.json", TrainingState, "remove it")


def _learner(folder: Path) -> Path:
    path = folder / "learner.json"
    path.write_text(json.dumps(asdict(LearnerState(1, 2, 3))))
    return path


def _read_learner(folder: Path) -> None:
    read_kept(folder / "learner.json", LearnerState, "remove it")


def _tensors(folder: Path) -> Path:
    write_tensors(folder / "x.safetensors", {"a": torch.zeros(2)}, {"role": "trader", "mode": "lora", "lora": {"r": 2}})
    return folder / "x.safetensors"


def _read_tensors(folder: Path) -> None:
    read_tensors(folder / "x.safetensors")


def _data_set(folder: Path) -> Path:
    write_data_set(folder / "sft", [], {"counts": {}})
    return folder / "sft" / DATA_MANIFEST


KINDS: dict[str, Kind] = {
    "export": Kind(_export, _read_export, lines=True, packed=True),
    "export, as it is": Kind(_export, _read_export, binary=True),
    "team": Kind(_team, _read_team),
    "recording": Kind(_recording, lambda folder: replayed_team(folder / "tape.jsonl"), lines=True),
    "settings": Kind(_toml, lambda folder: load_config(folder / "my.toml"), binary=True),
    "rules": Kind(_rules, lambda folder: read_rules(folder / RULES_FILE)),
    "market's list": Kind(_market_list, lambda folder: Catalog(folder / "data").load(None, "4h")),
    "bars": Kind(_bars, lambda folder: Catalog(folder / "data").load(None, "4h"), binary=True),
    "headlines": Kind(_headlines, lambda folder: Catalog(folder / "data").load(None, "4h"), binary=True),
    "checkpoint's state": Kind(_state, _read_state),
    "learner": Kind(_learner, _read_learner),
    "tensors": Kind(_tensors, _read_tensors, binary=True),
    "data set": Kind(_data_set, lambda folder: read_rows(folder / "sft", "manager")),
}


def mutated(content: bytes, kind: Kind, rng: random.Random) -> bytes:
    """`content` with one thing wrong."""
    if kind.binary or rng.random() < 0.2:
        return _damaged(content, rng)
    if not kind.lines:
        return _replaced(content, rng)
    lines = content.splitlines(keepends=True)
    chosen = rng.randrange(len(lines))
    lines[chosen] = _replaced(lines[chosen], rng).rstrip(b"\n") + b"\n"
    return b"".join(lines)


def _damaged(content: bytes, rng: random.Random) -> bytes:
    """Bytes that were lost, changed or added."""
    data = bytearray(content)
    place = rng.randrange(len(data) + 1)
    match rng.randrange(5):
        case 0:
            return bytes(data[:place])
        case 1:
            for _ in range(rng.choice((1, 8))):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 2:
            added = (b"\0", b"\xff\xfe", b"\x1b[2J", b"[" * 5000, b"9" * 5000, b"1e999", b'"', b"\n")
            data[place:place] = rng.choice(added)
        case 3:
            del data[place : place + rng.randrange(1, 40)]
        case _:
            data[place:place] = rng.randbytes(rng.randrange(1, 200))
    return bytes(data)


def _replaced(content: bytes, rng: random.Random) -> bytes:
    """A document of JSON in which one value is another, is missing, or stands under another name."""
    document = json.loads(content)
    places = list(_places(document))
    if not places:
        return rng.choice(TOKENS).encode()
    holder, key = rng.choice(places)
    action = rng.random()
    if action < 0.15:
        del holder[key]
    elif action < 0.25 and isinstance(holder, dict):
        holder[rng.choice(("", "\x1b[2J", "a\0b", "x" * 10_000))] = holder.pop(key)
    elif isinstance(holder[key], str) and action < 0.5 and holder[key].startswith("{"):
        inner = _replaced(holder[key].encode(), rng)  # a document inside a document, as text
        holder[key] = inner.decode(errors="replace")
    else:
        holder[key] = _MARK
    token = rng.choice(TOKENS) if rng.random() < 0.97 else "[" * 200_000
    return json.dumps(document).replace(f'"{_MARK}"', token).encode()


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (holder, key) of a document, at most some of a long list."""
    found: list[tuple[Any, Any]] = []
    pending = [value]
    while pending:
        one = pending.pop()
        keys = list(one) if isinstance(one, dict) else list(range(min(len(one), 5))) if isinstance(one, list) else []
        for key in keys:
            found.append((one, key))
            pending.append(one[key])
    return found


def _try(name: str, seeds: range, folder: Path) -> None:
    kind = KINDS[name]
    whole = folder / "whole"
    whole.mkdir()
    path = kind.make(whole)
    content = gzip.decompress(path.read_bytes()) if kind.packed else path.read_bytes()
    kind.read(whole)  # as it was made, it is read
    for seed in seeds:
        changed = mutated(content, kind, random.Random(f"{name} {seed}"))
        place = folder / "changed"
        shutil.copytree(whole, place)
        (place / path.relative_to(whole)).write_bytes(gzip.compress(changed, 1) if kind.packed else changed)
        try:
            kind.read(place)
        except UserError as error:
            assert str(error)
        except Exception as error:
            raise AssertionError(f"{name}, seed {seed}: {type(error).__name__}: {error}") from error
        shutil.rmtree(place)


@pytest.mark.parametrize("name", KINDS)
def test_a_malformed_artefact_is_read_or_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _try(name, range(12), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_many_malformed_artefacts_are_read_or_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _try(name, range(12, 1500), tmp_path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "tokenizer_config.json"])
def test_a_malformed_base_model_is_described_or_refused(name: str, nano: Path, tmp_path: Path) -> None:
    kind = Kind(lambda folder: folder / name, lambda folder: None, binary=name.endswith("safetensors"))
    content = (nano / name).read_bytes()
    for seed in range(6):
        shutil.copytree(nano, tmp_path / "base")
        (tmp_path / "base" / name).write_bytes(mutated(content, kind, random.Random(f"{name} {seed}")))
        try:
            describe_base(tmp_path / "base")
        except Exception as error:
            raise AssertionError(f"{name}, seed {seed}: {type(error).__name__}: {error}") from error
        shutil.rmtree(tmp_path / "base")


def test_a_line_without_an_end_is_refused_before_it_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_LONGEST", 2**20)
    path = tmp_path / "run.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"format": "' + b"x" * (64 * 2**20), 1))
    with Store.open("mem://") as store:
        tracemalloc.start()
        with pytest.raises(UserError, match="damaged"):
            import_run(store, path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 16 * 2**20
