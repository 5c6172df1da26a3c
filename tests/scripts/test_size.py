"""The table of sizes counts what git tracks, and the pages that are made from the source have what the code has."""

from __future__ import annotations

import re
import subprocess
from dataclasses import fields
from pathlib import Path

import numpy as np

import cryptosentinel
from backend.store.records import Record
from scripts.code_reference import api_page, metrics_page, records_page
from scripts.size import measures
from simulator.backtest import metrics

SMALL = {
    "simulator/deleted.py": "one\n",
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


def test_a_small_tree_is_counted(tmp_path: Path) -> None:
    for name, text in SMALL.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    (tmp_path / "simulator" / "deleted.py").unlink()
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


def test_every_public_name_has_its_words() -> None:
    page = api_page(vars(cryptosentinel)["_PLACES"], vars(cryptosentinel)["_MODULES"])
    sections = dict(zip(*[iter(re.split(r"^## (\w+)\n", page, flags=re.MULTILINE)[1:])] * 2, strict=True))
    assert set(sections) == set(dir(cryptosentinel))
    assert [name for name, text in sections.items() if len(text.split()) < 4] == []


def test_every_metric_is_named() -> None:
    flat = metrics.compute(np.full(3, 100.0), metrics.DAY_MS, np.zeros((3, 1)), (), 0.0)
    page = metrics_page()
    assert [name for name in flat if not re.search(rf"\b{name}\b", page)] == []


def test_every_table_has_its_fields() -> None:
    page = records_page()
    sections = dict(zip(*[iter(re.split(r"^## (\w+)\n", page, flags=re.MULTILINE)[1:])] * 2, strict=True))
    records = {kind.table: kind for kind in Record.__subclasses__()}
    assert set(sections) == set(records)
    for table, kind in records.items():
        names = {item.name for item in fields(kind)} - {"run"}
        assert set(re.findall(r"^\| `(\w+)` \|", sections[table], re.MULTILINE)) == names, table
