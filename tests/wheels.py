"""Builds the wheel for a test, and installs it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("backend", "cryptosentinel", "simulator", "ui")


def build_wheel(source: Path, out: Path) -> Path:
    """Build the wheel into `out`, from a copy in `source`: a build leaves its folders where it works."""
    kept_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in (*LAYERS, "configs", "data"):
        shutil.copytree(ROOT / folder, source / folder, ignore=kept_out)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "wheel", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--wheel-dir", str(out), str(source)], check=True)
    [built] = out.glob("*.whl")
    return built


def install_wheel(wheel: Path, environment: Path) -> Path:
    """Install the wheel into a new environment that finds all other packages where this one has them, which takes
    seconds; returns the environment's `site-packages`. An editable installation there is not found, as Python reads the
    `.pth` files of its own environment only."""
    venv.create(environment, symlinks=True)
    [packages] = environment.glob("lib/python*/site-packages")
    (packages / "packages of the tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "--quiet"]
    install = [
        "--disable-pip-version-check",
        "install",
        "--no-deps",
        "--no-index",
        "--no-compile",
        "--ignore-installed",
    ]
    subprocess.run([*pip, *install, str(wheel)], check=True)
    return packages
