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
_WITH_TORCH = {"train", "vllm-cpu"}  # the lists that need PyTorch, which has lists of its own


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
    if _WITH_TORCH & {*names} and not _install_cpu_build(pip):
        lists += [argument for name in ("torch", "cuda") for argument in ("--requirement", str(FOLDER / f"{name}.txt"))]
    subprocess.run([*pip, "--require-hashes", *lists], check=True)
    if project:
        subprocess.run([*pip, "--no-build-isolation", "--editable", str(ROOT)], check=True)
        subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "check"], check=True)


def _install_cpu_build(pip: list[str]) -> bool:
    """PyTorch's CPU build, some GB smaller than the other one on Linux; False where the machine's pip knows of none."""
    if (sys.version_info[:2], sys.platform, platform.machine()) != ((3, 11), "linux", "x86_64"):
        return False
    command = [*pip, "--require-hashes", "--requirement", str(FOLDER / "cpu.txt")]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if done.returncode == 0:
        return True
    if "No matching distribution" in done.stderr:
        return False
    sys.stderr.write(done.stderr)
    raise subprocess.CalledProcessError(done.returncode, command)


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
