"""Builds the wheel for a test."""

from __future__ import annotations

import shutil
import subprocess
import sys
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
