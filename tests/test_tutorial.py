"""The tutorial is carried out as it is written: its commands, and what they print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import program

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "start" / "tutorial.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PLACE = re.compile(r"(?:runs/)?(train|backtest)-…")


def steps() -> Iterator[tuple[str, str, list[str]]]:
    """(kind, text, expected lines) of each block: a file or code in Python, or one command."""
    blocks = [(match[1], match[2]) for match in BLOCK.finditer(PAGE.read_text(encoding="utf-8"))]
    for (kind, text), (after, expected) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if kind == "python":
            yield kind, text, []
        elif kind == "":
            assert after == "text" and len(text.splitlines()) == 1, f"say what this prints: {text}"
            yield "command", text.strip(), expected.splitlines()


def newest(folder: Path, kind: str) -> str:
    """The folder of the last run of a kind, relative to `folder`."""
    return max(folder.glob(f"runs/{kind}-*"), key=lambda path: path.stat().st_mtime_ns).relative_to(folder).as_posix()


def as_pattern(line: str) -> str:
    return r"\s+".join(re.escape(word).replace("…", ".*?") for word in line.split())


def test_each_command_of_the_page_says_what_it_prints() -> None:
    commands = [text for kind, text, _ in steps() if kind == "command"]
    assert len(commands) >= 8 and all(text.startswith("cryptosentinel ") for text in commands)
    assert all(expected for kind, _, expected in steps() if kind == "command")


@pytest.mark.slow
def test_each_step_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some 70 seconds of processor time; `make test-wheel` runs it beside the wheel's tests."""
    (tmp_path / "data").symlink_to(ROOT / "data")
    run = program(tmp_path, monkeypatch, capsys)
    for kind, text, expected in steps():
        if kind == "python" and text.startswith("# my_strategy.py"):
            (tmp_path / "my_strategy.py").write_text(text, encoding="utf-8")
        elif kind == "python":
            exec(compile(text, str(PAGE), "exec"), {})
            assert "donchian_breakout is" in capsys.readouterr().out
        else:
            place = PLACE.search(text)
            if place is not None:
                folder_of_run = newest(tmp_path, place[1])
                text = text.replace(
                    place[0], folder_of_run if place[0].startswith("runs/") else Path(folder_of_run).name
                )
            result = run(*text.split()[1:])
            assert result.code == 0, result.err
            missing = [line for line in expected if not re.search(as_pattern(line), result.out)]
            assert missing == [], f"{text} printed {result.out}"
