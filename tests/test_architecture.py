"""Rules of the code that no other tool checks: layers, sizes, what no file may say."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("simulator", "cryptosentinel", "backend", "ui")  # lowest first
CODE = (*LAYERS, "benchmarks", "scripts", "tests")
TEXT_SUFFIXES = {".py", ".md", ".toml", ".surql", ".txt", ".html", ".yml", ".yaml", ".json"}
LONGEST = 600

# Written in halves, so that this file does not contain what it looks for.
FORBIDDEN = {
    "a path of one machine": re.compile(
        "(?<![\\w.}])/(?:" + "wo" + "rk|ro" + r"ot|ho" + r"me|Us" + r"ers|t" + r"mp)/\w"
    ),
    "the address of a package index": re.compile("py" + r"pi\.org|python" + r"hosted\.org|--index" + "-url"),
    "something left for later": re.compile("TO" + r"DO\b|FIX" + r"ME\b|X" + r"XX\b|NotImplemented" + r"Error"),
}
ROOT_FILES = ("README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", ".ci/run")


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def texts() -> Iterator[Path]:
    yield from (ROOT / name for name in ROOT_FILES if (ROOT / name).exists())
    for folder in (*CODE, "configs", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in TEXT_SUFFIXES and "__pycache__" not in path.parts and path.is_file():
                yield path


def imported(tree: ast.AST) -> Iterator[str]:
    """Top-level names of all imports, also of those inside functions and under TYPE_CHECKING."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield (node.module or "").partition(".")[0]


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_layers_below_it(layer: str) -> None:
    above = {*LAYERS[LAYERS.index(layer) + 1 :], "benchmarks", "scripts", "tests"}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources(layer)
        for name in imported(ast.parse(path.read_text(encoding="utf-8")))
        if name in above
    ]
    assert not wrong


def test_the_simulator_knows_no_model_and_no_database() -> None:
    for path in sources("simulator"):
        assert not {"torch", "transformers", "peft", "tokenizers", "surrealdb"} & set(
            imported(ast.parse(path.read_text()))
        )


def distributions(requirements: Iterable[str]) -> set[str]:
    """The names that requirements begin with, as they are imported."""
    return {re.split(r"[<>=\[ ]", requirement)[0].lower().replace("-", "_") for requirement in requirements}


def test_every_dependency_is_imported_and_every_import_is_a_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = distributions([*project["dependencies"], *extras["ui"]])
    asked_for = distributions(one for name, extra in extras.items() if name not in ("dev", "ui") for one in extra)
    used = {name for path in sources(*LAYERS) for name in imported(ast.parse(path.read_text()))}
    declared = declared - {"ta_lib"} | {"talib"}  # imported by another name
    assert declared - used - {"tensorboard"} == set()  # that one is imported by torch.utils.tensorboard
    assert used - declared - asked_for - set(sys.stdlib_module_names) - set(LAYERS) == set()


def test_no_module_is_too_long() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources(*CODE)}
    assert {path: length for path, length in lengths.items() if length > LONGEST} == {}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_says(what: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in texts()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if FORBIDDEN[what].search(line)
    ]
    assert not found


def test_an_ignored_type_error_has_its_reason() -> None:
    comment = re.compile(r"#\s*type:\s*ignore")
    with_reason = re.compile(r"#\s*type:\s*ignore\[[\w, -]+\]\s+#\s*\w+")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources(*CODE)
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if comment.search(line) and not with_reason.search(line)
    ]
    assert not found


def test_make_knows_its_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in ("demo", "test", "test-all", "bench", "docs", "ui", "clean", "help"):
        assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE), target
    assert "torch==2.13.0" in (ROOT / "pyproject.toml").read_text()
