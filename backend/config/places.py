"""Where runs lie, if a caller names no other place: apart, so that a command that only lists them starts at once."""

from __future__ import annotations

from pathlib import Path

STORE = "runs/store"  # where runs are recorded, and the folder of their files
RUNS = Path("runs")
