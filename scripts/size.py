"""Prints the size of the tree beside its limits: `python -m scripts.size`.

Counted are the files that git tracks, as they are on disk now. Lines are those of `wc -l`. Settings are the keys of
the configuration's model. The command ends with exit code 1 where a limit is exceeded.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from backend.config.schema import Config

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("simulator", "cryptosentinel", "backend", "ui")


@dataclass(frozen=True)
class Measure:
    """One row: what is counted, how many there are, and how many there may be."""

    name: str
    count: int
    most: int

    @property
    def exceeds(self) -> bool:
        """Whether there are more than there may be."""
        return self.count > self.most


def tracked(root: Path) -> list[Path]:
    """The files of the repository at `root` that git tracks and that exist, relative to it.

    Raises `subprocess.CalledProcessError` where `root` is not in a git repository.
    """
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    return sorted(Path(name) for name in listed.split("\0") if name and (root / name).is_file())


def lines(root: Path, files: Iterable[Path]) -> int:
    """The number of line ends in `files` together."""
    return sum((root / path).read_bytes().count(b"\n") for path in files)


def words(root: Path, files: Iterable[Path]) -> int:
    """The number of words in `files` together, divided by white space."""
    return sum(len((root / path).read_text(encoding="utf-8").split()) for path in files)


def settings(model: type[BaseModel] = Config) -> int:
    """The number of keys of a configuration's model, those of its sections included."""
    kinds = [info.annotation for info in model.model_fields.values()]
    return sum(settings(kind) if isinstance(kind, type) and issubclass(kind, BaseModel) else 1 for kind in kinds)


def measures(root: Path = ROOT) -> list[Measure]:
    """All rows of the table, for the tree at `root`."""
    files = tracked(root)
    python = [path for path in files if path.suffix == ".py"]
    by_top = {top: [path for path in python if path.parts[0] == top] for top in (*LAYERS, "tests", "benchmarks")}
    product = [path for layer in LAYERS for path in by_top[layer]]
    pages = [path for path in files if path.suffix == ".md" and path.parts[0] == "docs"]
    reference = [path for path in pages if path.parts[1] == "reference"]
    locks = [path for path in files if path.parts[0] == "requirements" or path.name == "uv.lock"]
    by_hand = [Path("README.md"), *(path for path in pages if path not in reference)]
    most_of_layers = dict(zip(LAYERS, (14_000, 11_000, 32_500, 2_500), strict=True))
    return [
        Measure("product, lines of Python", lines(root, product), 60_000),
        *(Measure(f"  {layer}", lines(root, by_top[layer]), most) for layer, most in most_of_layers.items()),
        Measure("product, files of Python", len(product), 400),
        Measure("tests, lines of Python", lines(root, by_top["tests"]), 42_000),
        Measure("benchmarks, files of Python", len(by_top["benchmarks"]), 20),
        Measure("benchmarks, lines of Python", lines(root, by_top["benchmarks"]), 3_000),
        Measure("settings", settings(), 120),
        Measure("README and docs, words written by hand", words(root, by_hand), 30_000),
        Measure("docs/reference in git, words", words(root, reference), 0),
        Measure("changelog, words", words(root, [Path("CHANGELOG.md")]), 300),
        Measure("lock files", len(locks), 21),
        Measure("lock files, lines", lines(root, locks), 19_880),
    ]


def table(rows: Sequence[Measure]) -> Table:
    """The rows as they are printed."""
    made = Table("measure", "today", "at most", "", box=None)
    for column in made.columns[1:3]:
        column.justify = "right"
    for row in rows:
        made.add_row(
            row.name, f"{row.count:,}", f"{row.most:,}", f"{row.count - row.most:,} over" if row.exceeds else ""
        )
    return made


def main() -> int:
    """Print the table; 1 where a limit is exceeded, else 0."""
    rows = measures()
    Console().print(table(rows))
    return int(any(row.exceeds for row in rows))


if __name__ == "__main__":
    sys.exit(main())
