"""The lock files: complete, exact, with hashes, all that is installed from, and without the AGPL for users."""

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import distributions, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.install import unlocked_platform
from scripts.licenses import licenses_page, locked
from scripts.lock import CPU_BUILD, EXTRAS, PEERS, PROGRAM_EXTRAS, SITE, VLLM_CPU, entries

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRA_LISTS: dict[str, list[str]] = SETTINGS["project"]["optional-dependencies"]
FILES = sorted((ROOT / "requirements").glob("*.txt"))
PACKAGE_HOST = re.compile(r"https?:|\bindex-url\b|\bfind-links\b|@ file")


def wanted() -> Iterator[tuple[tuple[str, ...], str]]:
    """(lock files that together must hold it, requirement)."""
    for line in SETTINGS["project"]["dependencies"] + SETTINGS["build-system"]["requires"]:
        yield ("base",), line
        yield ("vllm",), line
    for extra, lines in EXTRA_LISTS.items():
        for line in lines if extra != "all" else ():
            yield ("vllm",) if extra == "vllm" else ("base", extra, "torch"), line
    for line in SETTINGS["dependency-groups"]["dev"]:
        yield ("base", "dev"), line
    yield from ((("peers",), line) for line in PEERS)
    yield from ((("site",), line) for line in SITE)
    yield ("vllm-cpu",), VLLM_CPU


def holds(names: tuple[str, ...], line: str) -> bool:
    requirement = Requirement(line)
    pinned = [locked(name)[canonicalize_name(requirement.name)] for name in names
              if canonicalize_name(requirement.name) in locked(name)]  # fmt: skip
    return any(
        requirement.specifier.contains(str(pin.specifier).removeprefix("=="), prereleases=True) for pin in pinned
    )


@pytest.mark.parametrize(
    ("names", "line"), [*wanted()], ids=lambda value: value if isinstance(value, str) else "+".join(value)
)
def test_the_locks_meet_what_the_project_asks_for(names: tuple[str, ...], line: str) -> None:
    assert holds(names, line), f"requirements/{'+'.join(names)} has no version that meets {line}: run `make lock`"


def test_every_extra_has_a_lock() -> None:
    assert {*PROGRAM_EXTRAS, *EXTRAS, "vllm", "all"} == set(EXTRA_LISTS)
    assert EXTRA_LISTS["all"] == [f"cryptosentinel[{','.join(PROGRAM_EXTRAS)}]"]
    assert {path.stem for path in FILES} == {
        "base",
        "torch",
        "cpu",
        "cuda",
        "dev",
        "vllm",
        "vllm-cpu",
        "peers",
        "site",
        *PROGRAM_EXTRAS,
        *EXTRAS,
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_entry_is_exact_and_has_hashes_and_no_place(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not PACKAGE_HOST.search(text)
    for key, block in entries(text).items():
        assert re.match(r"[a-z0-9-]+==[0-9][^ *]*( ;|$)", key), key
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", block), key


def test_both_builds_of_torch_have_one_version_and_stand_apart() -> None:
    """pip prefers a file whose hash its index states, so a list with both would bring CUDA's build everywhere."""
    (ordinary,) = locked("torch").values()
    assert f"{ordinary.name}{ordinary.specifier}+cpu" == CPU_BUILD[0]
    assert f"{CPU_BUILD[0]} \\\n    --hash=sha256:{CPU_BUILD[1]}\n" in (ROOT / "requirements" / "cpu.txt").read_text()
    assert not any("torch" in locked(name) for name in ("base", *PROGRAM_EXTRAS, "dev", "cuda", "vllm-cpu"))


def test_what_is_installed_here_is_what_is_locked() -> None:
    """Both ways: each locked package in its version, and each requirement of an installed one in a lock."""
    packages = {one: pin for name in ("base", *PROGRAM_EXTRAS, "torch", "dev") for one, pin in locked(name).items()}
    different = {
        name: (version(name), str(pin.specifier))
        for name, pin in packages.items()
        if not pin.specifier.contains(version(name), prereleases=True)
    }
    assert different == {}, "the environment is not the locked one: remove .venv and run make again"
    missing = set()
    for distribution in distributions():
        if canonicalize_name(distribution.name) in packages:
            for line in distribution.requires or []:
                requirement = Requirement(line)
                applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
                if applies and canonicalize_name(requirement.name) not in packages:
                    missing.add((distribution.name, requirement.name))
    # Only PyTorch's build for Nvidia's cards needs these; they have a lock of their own.
    cuda = locked("cuda")
    assert {pair for pair in missing if canonicalize_name(pair[1]) not in cuda} == set()


def test_no_user_installs_a_package_under_the_agpl() -> None:
    for name in ("base", *PROGRAM_EXTRAS, "cuda", "vllm", *EXTRAS):
        assert "backtesting" not in locked(name), name
    assert "backtesting" in locked("dev")
    for line in [*SETTINGS["project"]["dependencies"], *(line for lines in EXTRA_LISTS.values() for line in lines)]:
        assert Requirement(line).name != "backtesting"
    users, _, development = licenses_page().partition("## What only development installs")
    assert "Affero" not in users and "AGPL" not in users
    assert "**`backtesting` is under the AGPL-3.0**" in development
    product = [
        path for folder in ("simulator", "cryptosentinel", "backend", "ui") for path in (ROOT / folder).rglob("*.py")
    ]
    assert len(product) > 100
    assert not [path for path in product if re.search(r"^\s*(import|from) backtesting", path.read_text(), re.MULTILINE)]


def test_make_and_ci_install_from_the_locks_only() -> None:
    scripts = [ROOT / "Makefile", ROOT / ".ci" / "run", *(ROOT / "scripts").glob("*.py")]
    installing = [
        (path.name, line.strip())
        for path in scripts
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"pip\b.*\binstall\b", line) and not line.lstrip().startswith(("#", '"', "("))
    ]
    # The resolver itself, and the one place that installs.
    assert {name for name, _ in installing} <= {"install.py", "lock.py"}, installing
    install = (ROOT / "scripts" / "install.py").read_text(encoding="utf-8")
    assert install.count("[*pip, ") == install.count('"--require-hashes"') + install.count('"--editable"')


@pytest.mark.parametrize(
    ("platform", "locked_there"),
    [
        (((3, 11), "linux", "x86_64"), True),
        (((3, 13), "darwin", "arm64"), True),
        (((3, 14), "linux", "x86_64"), False),
        (((3, 10), "linux", "x86_64"), False),
        (((3, 11), "win32", "AMD64"), False),
    ],
)
def test_a_platform_without_a_lock_is_told(platform: tuple[tuple[int, int], str, str], locked_there: bool) -> None:
    refusal = unlocked_platform(*platform)
    assert (refusal is None) == locked_there
    assert refusal is None or "pip install" in refusal
