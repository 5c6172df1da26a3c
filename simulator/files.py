"""Text files that are whole or as they were, whenever the program or the machine ends."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write `text` (UTF-8) to `path` in one step: a reader, or whoever comes after a kill, finds the former file or the
    new one. Raises OSError; then the former file is untouched and nothing is left beside it."""
    part = path.with_name(f"{path.name}.tmp")  # of a killed writer it is written over
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
