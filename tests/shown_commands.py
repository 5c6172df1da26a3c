"""The commands that the documentation shows, read out of its pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "data/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
PRESENT = [path for path in DOCUMENTS if path.name != "CHANGELOG.md"]  # that one tells of files as they were
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
VARIABLES = r"(?:[A-Z_]+=\S+ )*"
PROGRAM = re.compile(rf"{VARIABLES}(?:\.venv/bin/)?cryptosentinel [-\w]")
# Other programs that a reader is told to start, where a line begins with them.
OTHER = re.compile(
    rf"{VARIABLES}(?:\.venv/bin/)?"
    r"(?:make [\w.]|source |export |mkdir |pip \w|python3? |docker |vllm \w|systemctl |tensorboard )"
)


def shell_lines(path: Path) -> Iterator[str]:
    """The lines of a page for a shell, without their comments and with single spaces: in its blocks of code, on
    indented lines, and between backticks."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    prose = FENCE.sub("", text)
    lines = [line for block in FENCE.findall(text) for line in block.splitlines()]
    lines += [line for line in prose.splitlines() if line.startswith("    ")]
    for line in [*lines, *CODE.findall(prose)]:
        if PROGRAM.match(line.strip()) or OTHER.match(line.strip()):
            yield " ".join(re.sub(r"\s#.*", "", line.strip()).split())


def shown_commands(path: Path) -> Iterator[str]:
    """Those of `shell_lines` that start this program."""
    return (line for line in shell_lines(path) if PROGRAM.match(line))
