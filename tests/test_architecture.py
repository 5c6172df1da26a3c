"""Rules of the code that no other tool checks: layers, sizes, what no file may say."""

from __future__ import annotations

import ast
import os
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("simulator", "cryptosentinel", "backend", "ui")  # lowest first
CODE = (*LAYERS, "benchmarks", "scripts", "tests")
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".html", ".yml", ".yaml", ".json"}
LONGEST = 600  # lines of a file
SHORT = 40  # below it a file has to be used by two others, or it belongs into the one that uses it
MOST_FILES, MOST_LEVELS = 20, 3  # Python files of a folder; folders below a layer's own
# Short files that nothing in the product imports: what is started by name.
STARTED = {
    "cryptosentinel/__main__.py",
    "backend/cli/__main__.py",
    "ui/app.py",
    "ui/server.py",
}
# Public names that several modules have on purpose: each role's file says who it is and what it is told first.
REPEATED = {"ROLE", "brief"}
# Written in halves, so that this file does not contain what it looks for.
FORBIDDEN = {
    "a path of one machine": re.compile(
        "(?<![\\w.}])/(?:" + "wo" + "rk|ro" + r"ot|ho" + r"me|Us" + r"ers|t" + r"mp)/\w"
    ),
    "the address of a package index": re.compile("py" + r"pi\.org|python" + r"hosted\.org|--index" + "-url"),
    "something left for later": re.compile("TO" + r"DO\b|FIX" + r"ME\b|X" + r"XX\b|NotImplemented" + r"Error"),
}
EXTRAS = ("train", "llm", "ui", "paper")
ROOT_FILES = (
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CITATION.cff", "Makefile", "pyproject.toml",
    ".ci/run", ".pre-commit-config.yaml", ".devcontainer/devcontainer.json",
)  # fmt: skip


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def texts() -> Iterator[Path]:
    yield from (ROOT / name for name in ROOT_FILES if (ROOT / name).exists())
    for folder in (*CODE, "configs", "docs", ".github"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in TEXT_SUFFIXES and "__pycache__" not in path.parts and path.is_file():
                yield path


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports_in(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """All imports of a module, also those inside functions and under TYPE_CHECKING."""
    return tuple(node for node in ast.walk(parsed(path)) if isinstance(node, ast.Import | ast.ImportFrom))


def imported(path: Path) -> Iterator[str]:
    """Their top-level names."""
    for node in imports_in(path):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        else:
            assert node.level == 0, "relative import"
            yield (node.module or "").partition(".")[0]


def test_a_folder_is_small_and_not_deep() -> None:
    counted = Counter(path.parent.relative_to(ROOT) for path in sources(*LAYERS))
    assert {str(folder): count for folder, count in counted.items() if count > MOST_FILES} == {}
    assert [str(folder) for folder in counted if len(folder.parts) - 1 > MOST_LEVELS] == []


@cache
def modules() -> dict[str, Path]:
    """Every module of the product by dotted name; a package goes by its own name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sources(*LAYERS)
    }


def import_graph() -> dict[str, set[str]]:
    """Which modules each module imports, wherever it does: at the top, in functions, under TYPE_CHECKING."""
    graph: dict[str, set[str]] = {}
    for module, path in modules().items():
        named: set[str] = set()
        for node in imports_in(path):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif node.module:
                inside = {f"{node.module}.{alias.name}" for alias in node.names}
                named |= {name if name in modules() else node.module for name in inside}
        graph[module] = {name for name in named if name in modules() and name != module}
    return graph


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """The groups of modules that import each other, by taking away all that is in none."""
    left = {module: set(imports) for module, imports in graph.items()}
    while True:
        ends = {module for module, imports in left.items() if not imports & left.keys()}
        used = set().union(*left.values()) if left else set()
        gone = ends | (left.keys() - used)
        if not gone:
            return [{module, *(imports & left.keys())} for module, imports in left.items()]
        left = {module: imports for module, imports in left.items() if module not in gone}


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert {"b", "c"} in circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}})


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert circles(import_graph()) == []


def public_names(tree: ast.Module) -> Iterator[str]:
    """What a module defines at its top without an underscore: functions, classes, constants."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def test_a_public_name_is_defined_once() -> None:
    # A command and a page are named after what they call, and nothing imports them.
    named_after = ("backend.cli.", "ui.", "backend.api")
    where = defaultdict(list)
    for module, path in modules().items():
        if not module.startswith(named_after):
            for name in dict.fromkeys(public_names(parsed(path))):  # overloads of one function are one
                if not name.startswith("_") and name not in REPEATED:
                    where[name].append(module)
    assert {name: found for name, found in where.items() if len(found) > 1} == {}


def test_the_simulator_knows_no_model_and_no_database() -> None:
    for path in sources("simulator"):
        assert not {"torch", "transformers", "peft", "tokenizers", "surrealdb"} & set(imported(path))


def test_only_one_module_compiles() -> None:
    """What is compiled past `jit.py` has no stamp of the whole simulator, and old code of it would be used."""
    users = {str(path.relative_to(ROOT)) for path in sources(*LAYERS) if "numba" in set(imported(path))}
    assert users == {"simulator/kernel/jit.py"}


def distributions(requirements: Iterable[str]) -> set[str]:
    """The names that requirements begin with, as they are imported."""
    return {re.split(r"[<>=\[ ]", requirement)[0].lower().replace("-", "_") for requirement in requirements}


def test_every_dependency_is_imported_and_every_import_is_a_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = distributions([*project["dependencies"], *(one for name in EXTRAS for one in extras[name])])
    asked_for = distributions(one for name, extra in extras.items() if name not in EXTRAS for one in extra)
    used = {name for path in sources(*LAYERS) for name in imported(path)}
    declared = declared - {"ta_lib"} | {"talib"}  # imported by another name
    assert declared - used - {"tensorboard"} == set()  # that one is imported by torch.utils.tensorboard
    assert used - declared - asked_for - set(sys.stdlib_module_names) - set(LAYERS) == set()


def test_no_module_is_too_long() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources(*CODE)}
    assert {path: length for path, length in lengths.items() if length > LONGEST} == {}


def test_a_short_module_has_two_that_use_it() -> None:
    users = Counter(imported for imports in import_graph().values() for imported in imports)
    for path in sources(*LAYERS):
        name, length = str(path.relative_to(ROOT)), len(path.read_text().splitlines())
        if length < SHORT and path.name != "__init__.py" and name not in STARTED:
            assert users[name.removesuffix(".py").replace("/", ".")] > 1, f"{name} has {length} lines"


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
    for target in ("install", "demo", "test", "test-all", "bench", "site", "ui", "clean", "help"):
        assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE), target
    assert "torch==2.13.0" in (ROOT / "pyproject.toml").read_text()


def drawn() -> list[str]:
    """The examples of a property, with the settings of this suite."""
    seen: list[str] = []

    @given(st.lists(st.floats(), max_size=5))
    def draws(values: list[float]) -> None:
        seen.append(repr(values))

    draws()
    assert len(seen) > 40
    return seen


@pytest.mark.skipif(bool(os.environ.get("EVERY_EXAMPLE")), reason="`make test-all` draws others each time")
def test_two_runs_have_the_same_examples() -> None:
    assert drawn() == drawn()
