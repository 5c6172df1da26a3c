"""Installs from the lock files: `python scripts/install.py NAME... [--new FOLDER]`.

Every NAME is one of `requirements/`. Packages are installed in exactly the locked versions, and pip refuses a file
whose hash is not in the lock. Into the environment of the Python that runs this, with the project itself in place; or,
with `--new`, into a new environment in FOLDER, without the project, which is made whole or not at all.

Nothing but Python's own library is used: this runs in an environment that is still empty.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "requirements"
_LOCKED = {("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64")}
_NEEDS_CUDA = "import importlib.metadata as m; print(any('nvidia' in line for line in m.requires('torch') or []))"


def unlocked_platform(version: tuple[int, int], system: str, machine: str) -> str | None:
    """Why the lock files do not hold for a platform; None where they do."""
    if (3, 11) <= version < (3, 14) and (system, machine) in _LOCKED:
        return None
    return (
        "the lock files hold for Python 3.11 to 3.13 on Linux (x86_64, aarch64) and on Macs with Apple's processors, "
        f"not for Python {version[0]}.{version[1]} on {system} {machine}: take another Python, or install without them "
        "(`pip install -e .`), which takes whatever versions are the newest"
    )


def install(names: list[str], python: str, *, project: bool) -> None:
    """Install the lists into the environment of `python`. Raises `CalledProcessError` where pip fails; its words are
    on stderr."""
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps"]
    lists = [argument for name in names for argument in ("--requirement", str(FOLDER / f"{name}.txt"))]
    # No dependencies are resolved: the lists are complete, which `pip check` confirms at the end.
    subprocess.run([*pip, "--require-hashes", *lists], check=True)
    if "base" in names:
        torch = subprocess.run([python, "-c", _NEEDS_CUDA], check=True, stdout=subprocess.PIPE, text=True)
        if torch.stdout.strip() == "True":
            cuda = ["--requirement", str(FOLDER / "cuda.txt")]
            subprocess.run([*pip, "--require-hashes", *cuda], check=True)
    if project:
        subprocess.run([*pip, "--no-build-isolation", "--editable", str(ROOT)], check=True)
        subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "check"], check=True)


def main(arguments: list[str]) -> int:
    """The exit code is 1 where pip failed, 2 where the command line or the platform is wrong."""
    known = sorted(path.stem for path in FOLDER.glob("*.txt"))
    parser = argparse.ArgumentParser(description="Install from the lock files.")
    parser.add_argument("names", nargs="+", choices=known, metavar="NAME", help="one of " + ", ".join(known))
    parser.add_argument("--new", type=Path, metavar="FOLDER", help="a new environment, without the project")
    given = parser.parse_args(arguments)
    version = (sys.version_info.major, sys.version_info.minor)
    refusal = unlocked_platform(version, sys.platform, platform.machine())
    if given.new is not None and given.new.exists():
        refusal = f"{given.new} is there already: remove it, or give another folder"
    if refusal is not None:
        print(refusal, file=sys.stderr)
        return 2
    try:
        if given.new is None:
            install(given.names, sys.executable, project=True)
        else:
            venv.create(given.new, with_pip=True)
            install(given.names, str(given.new / "bin" / "python"), project=False)
    except BaseException as error:
        if given.new is not None:
            shutil.rmtree(given.new, ignore_errors=True)
        if not isinstance(error, subprocess.CalledProcessError):
            raise
        print(f"{', '.join(given.names)} could not be installed; what pip says stands above", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
