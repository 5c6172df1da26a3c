"""Makes the trained team that ships with the sample: `python -m scripts.sample_team`.

It runs the demo (five minutes on two idle cores), or takes the folder of a finished one, and copies what a backtest
needs of its team into `data/sample_team`: base model, tokenizer, the adapters of the best step and the configuration.
`provenance.json` lists where they come from.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backend.api import demo
from backend.config.load import load_config
from backend.models.manifest import read_manifest, write_manifest
from simulator.documents import read_document
from simulator.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = "configs/demo.toml"
FOLDER = ROOT / "data" / "sample_team"
PROVENANCE = "provenance.json"
MOST_BYTES = 6_000_000
_REPORT = "report.json"
_MOST_REPORT = 16 * 2**20
# What makes the weights; other settings, such as those of the gate, do not.
MADE_OF = ("market", "costs", "nano", "team", "training")


def copy_team(source: Path, target: Path) -> int:
    """Copy the team of the finished demo in `source` to the new folder `target`; returns its size in bytes. Raises
    `UserError` for a team that was made with other settings."""
    manifest = read_manifest(source)
    if manifest.adapters is None or not (source / manifest.base).is_dir():
        raise UserError(f"{source} holds no adapters over a base of its own: give the folder of a finished demo")
    report = read_document(source / _REPORT, _MOST_REPORT)
    stated, preset = report["config"], load_config(ROOT / SETTINGS).to_dict()
    other = [section for section in MADE_OF if stated[section] != preset[section]]
    if other:
        raise UserError(f"{source} was not made with {SETTINGS}: different are {', '.join(other)}")
    shutil.copytree(source / manifest.base, target / "nano")
    shutil.copytree(source / manifest.adapters, target / "adapters")
    write_manifest(target, manifest.model_copy(update={"base": "nano", "adapters": "adapters", "start": None}))
    document = provenance(report, hashes_below(target))
    (target / PROVENANCE).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    for path in target.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return sum(path.stat().st_size for path in target.rglob("*") if path.is_file())


def provenance(report: Mapping[str, Any], files: Mapping[str, str]) -> dict[str, Any]:
    """Where the team comes from: settings and seeds, the run, the hash of its market, what it was made with, its result
    on the held-out windows, and the SHA-256 of each file."""
    held_out, config = report["held_out"], report["config"]
    return {
        "settings": SETTINGS,
        "seeds": {section: config[section]["seed"] for section in ("market", "training")},
        "run": report["run"],
        "best_step": report["training"]["best_step"],
        "data_hash": report["data_hash"],
        "versions": report["versions"],
        "held_out": {name: held_out[name] for name in ("windows", "difference", "ci95", "trained", "warm_started")},
        "verdict": report["verdict"],
        "files": dict(files),
    }


def hashes_below(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file of a team, by its path in the folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != PROVENANCE)
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def main(arguments: list[str]) -> int:
    """The exit code is 2 for a folder without a team that can ship."""
    parser = argparse.ArgumentParser(description="Make the team that ships with the sample.")
    parser.add_argument("source", type=Path, nargs="?", metavar="FOLDER", help="a finished demo; left out: play it")
    parser.add_argument("--out", type=Path, default=FOLDER, help="what lies there is replaced")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as work:
        try:
            source = given.source or demo(load_config(ROOT / SETTINGS), store="mem://", runs=Path(work) / "runs").folder
            size = copy_team(source, Path(work) / "team")
            if size > MOST_BYTES:
                raise UserError(f"the team has {size:,} bytes, and at most {MOST_BYTES:,} are shipped")
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        shutil.rmtree(given.out, ignore_errors=True)
        shutil.copytree(Path(work) / "team", given.out)
    print(f"{given.out}: {size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
