"""Records are untrusted text: nothing in them reaches the terminal as anything but text, nor the report or the page."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.progress import Progress, TextColumn
from rich.text import Text

from backend.cli import main as cli
from backend.cli.console import PlainConsole, console, narrow_table
from backend.reporting.report import write_report
from backend.store.store import Store
from backend.store.transfer import export_run
from cryptosentinel.protocol.untrusted import visible
from tests.hostile import write_team
from tests.hostile_runs import HOSTILE, RUN, dangerous, hostile_store


@pytest.fixture
def said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """said("runs", ...) runs the program in an empty folder; its exit code, and all that it printed, as it was."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "_width", 400)

    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["cryptosentinel", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
            sys.exit(0)
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out + printed.err

    return run


@pytest.mark.parametrize(
    "command",
    [
        ("runs",),
        ("runs", "show", RUN),
        ("runs", "show", RUN, "--decision", "0"),
        ("runs", "show", RUN, "--decision", "7"),
        ("runs", "export", RUN, "out.jsonl.gz"),
        ("doctor", RUN),
        ("train", "--resume", RUN),
    ],
    ids=" ".join,
)
def test_a_command_prints_a_hostile_run_as_text(
    command: tuple[str, ...], said: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    hostile_store(tmp_path / "runs" / "store")
    code, printed = said(*command)
    assert code in (0, 2) and "Traceback" not in printed
    assert dangerous(printed) == []
    if "[bold red" in printed:  # shown as it is, and so not obeyed
        assert "[bold red]m[/bold red]" in printed and ":smile:" in printed


def test_an_imported_hostile_run_is_printed_as_text(said: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    hostile_store(tmp_path / "theirs")
    with Store.open(tmp_path / "theirs") as store:
        export_run(store, RUN, tmp_path / "run.jsonl.gz")
    for command in (("runs", "import", "run.jsonl.gz"), ("runs",), ("runs", "show", RUN)):
        code, printed = said(*command)
        assert code == 0 and dangerous(printed) == [], printed


def test_hostile_folders_are_printed_as_text(said: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    name = HOSTILE.replace("/", "|")[:200]
    (write_team(tmp_path / "runs" / name, **{HOSTILE: HOSTILE}) / "adapters" / "step-000001").mkdir(parents=True)
    (tmp_path / "runs" / name / "adapters" / "step-000001" / "trader.safetensors").write_bytes(b"x")
    (tmp_path / "models" / name).mkdir(parents=True)
    (tmp_path / "models" / name / "config.json").write_text(json.dumps({"model_type": HOSTILE}))
    write_team(tmp_path / "team", base=HOSTILE)
    write_team(tmp_path / "other", team={HOSTILE: HOSTILE})
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / f"{name}.parquet").write_bytes(b"x")
    (tmp_path / "data" / "rules.json").write_text(json.dumps({HOSTILE: {HOSTILE: HOSTILE}}))
    (tmp_path / "my.toml").write_text(f"[{json.dumps(HOSTILE)}]\n")
    for command in (
        ("models", "list"), ("models", "check", "team"), ("models", "check", "other"), ("evaluate", "team"),
        ("data", "list", "data"), ("data", "check", "data"), ("config", "--config", "my.toml"),
        ("backtest", "--team", "team"),
    ):  # fmt: skip
        code, printed = said(*command)
        assert code in (0, 2) and "Traceback" not in printed, (command, printed)
        assert dangerous(printed) == [], (command, printed)


@pytest.mark.parametrize("argument", ["a\x1b[2Jb", "a\x9bb", "a\rb"])
def test_an_argument_with_a_control_character_is_refused(argument: str, said: Callable[..., tuple[int, str]]) -> None:
    code, printed = said("runs", "show", argument)
    assert code == 2 and "control character" in printed and dangerous(printed) == []


TEXTS = st.lists(
    st.one_of(st.text(), st.sampled_from(["\x1b[2J", "\x9b", "\u202e", "[red]", "[/]", ":smile:", "\r", "\0", "\\["]))
).map("".join)


@given(TEXTS, st.booleans())
def test_the_console_obeys_no_text(text: str, terminal: bool) -> None:
    file = io.StringIO()
    out = PlainConsole(file=file, force_terminal=terminal, width=10_000, color_system=None, highlight=False)
    table = narrow_table(text)
    table.add_column(text)
    table.add_row(text, Text(text))
    out.print(text)
    out.print(text, style="red", markup=True, emoji=True)
    out.print(Text(text), table, sep=text)
    out.print_json(data={text: text})
    with Progress(TextColumn("{task.description}", markup=False), console=out) as progress:
        progress.update(progress.add_task(text, total=1), completed=1)
    printed = re.sub(r"\x1b\[\??[0-9;]*[A-Za-z]", "", file.getvalue()) if terminal else file.getvalue()
    assert set(dangerous(printed)) <= ({"0xd"} if terminal else set())  # the cursor goes back for the next picture
    assert visible(text).strip("\n").split("\n")[0].rstrip() in file.getvalue() or not text.strip()


class _Tags(HTMLParser):
    """The tags of a page, and the attributes that run something."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.seen += [name for name, value in attrs if name.startswith("on") or (value or "").startswith("javascript")]


def _texts(page: str) -> Iterator[str]:
    """A page without its scripts."""
    yield re.sub(r"<script.*?</script>", "", page, flags=re.S)


@pytest.mark.parametrize("kind", ["backtest", "demo"])
def test_the_report_obeys_no_text(kind: str, tmp_path: Path) -> None:
    hostile_store(tmp_path / "runs" / "store", kind)
    with Store.open(tmp_path / "runs" / "store") as store:
        page = write_report(store, RUN, tmp_path / "report").read_text(encoding="utf-8")
    tags = _Tags()
    tags.feed(page)
    assert "img" not in tags.seen and not [one for one in tags.seen if one.startswith("on")]
    assert "alert(1)</script>" not in page
    for text in _texts(page):
        assert [one for one in dangerous(text) if one not in ("0x9", "0xad")] == []
