"""The table of sizes counts what git tracks, by hand on a small tree."""

from __future__ import annotations

import subprocess
from pathlib import Path

from pydantic import BaseModel

from scripts.size import Measure, measures, settings, tracked

SMALL = {
    "simulator/a.py": "one\ntwo\nthree\n",
    "backend/deep/b.py": "one\ntwo\n",
    "backend/templates/page.html": "not Python\n",
    "tests/test_a.py": "one\n",
    "benchmarks/bench_a.py": "one\ntwo\nthree\nfour\n",
    "README.md": "three short words\n",
    "docs/usage.md": "four words by hand\n",
    "docs/reference/settings.md": "two made\n",
    "CHANGELOG.md": "one entry\n",
    "requirements/base.txt": "numpy==2.2\n",
}


class Inner(BaseModel):
    x: int = 0
    y: tuple[int, ...] = ()


class Outer(BaseModel):
    inner: Inner = Inner()
    table: dict[str, int] = {}


def small_tree(root: Path) -> None:
    for name, text in SMALL.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    subprocess.run(["git", "add", "."], cwd=root, check=True)


def test_a_small_tree_is_counted(tmp_path: Path) -> None:
    small_tree(tmp_path)
    (tmp_path / "simulator" / "untracked.py").write_text("one\n" * 50, encoding="utf-8")
    found = {row.name.strip(): row.count for row in measures(tmp_path)}
    assert found.pop("settings") > 0
    assert found == {
        "product, lines of Python": 5,
        "simulator": 3,
        "cryptosentinel": 0,
        "backend": 2,
        "ui": 0,
        "product, files of Python": 2,
        "tests, lines of Python": 1,
        "benchmarks, files of Python": 1,
        "benchmarks, lines of Python": 4,
        "README and docs, words written by hand": 7,
        "docs/reference in git, words": 2,
        "changelog, words": 2,
        "lock files": 1,
        "lock files, lines": 1,
    }


def test_a_deleted_file_is_not_counted(tmp_path: Path) -> None:
    small_tree(tmp_path)
    (tmp_path / "simulator" / "a.py").unlink()
    assert Path("simulator/a.py") not in tracked(tmp_path)


def test_settings_of_sections_are_counted_and_a_table_is_one() -> None:
    assert settings(Outer) == 3


def test_only_more_than_the_limit_exceeds_it() -> None:
    assert [Measure("a", count, 5).exceeds for count in (4, 5, 6)] == [False, False, True]
