"""Property tests have the same examples in every run, and none that an earlier run kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]
DRAWING = """
from hypothesis import given, strategies as st

from tests.conftest import settings

@given(st.lists(st.floats(), max_size=5))
def test_draws(values):
    print("drawn", values)
"""


def drawn(folder: Path, *options: str, **environment: str) -> list[str]:
    """The examples that pytest draws for a property in a process of its own, with the settings of this suite."""
    path = folder / "test_drawing.py"
    path.write_text(DRAWING, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-n", "0", "-c", "pyproject.toml"]
    done = subprocess.run(
        [*command, "--rootdir", str(ROOT), str(path), *options],
        cwd=ROOT,
        env={"PATH": "", "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    examples = [line for line in done.stdout.splitlines() if line.startswith("drawn")]
    assert len(examples) > 50
    return examples


def test_two_runs_have_the_same_examples_and_a_seed_draws_others(tmp_path: Path) -> None:
    first = drawn(tmp_path)
    assert drawn(tmp_path) == first
    assert drawn(tmp_path, "--hypothesis-seed=7", EVERY_EXAMPLE="1") != first
    assert not (tmp_path / ".hypothesis").exists()


def test_no_property_fails_by_the_clock() -> None:
    profile = settings()
    assert profile.deadline is None and profile.database is None
    assert HealthCheck.too_slow in profile.suppress_health_check
