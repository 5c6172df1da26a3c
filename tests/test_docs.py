"""What the documentation says about files, headings and settings is true."""

import ast
import re
import tomllib
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import typer

from backend.cli.main import app, commands_below
from backend.config.load import describe
from backend.config.schema import Config
from backend.training.algorithm.recipes import RECIPES
from scripts.make_reference import anchor, pages
from tests.shown_commands import CODE, DOCUMENTS, FENCE, PRESENT, ROOT, shown_commands

MODULES = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if ".venv" not in str(path)]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FOLDERS = "backend benchmarks configs cryptosentinel data docs scripts simulator tests ui"
COMMANDS: dict[str, Any] = dict(commands_below(typer.main.get_command(app), "cryptosentinel"))
TOP = tuple(f"{folder}/" for folder in FOLDERS.split())
STOPS = 7
MOST_WORDS, WIDEST = 25, 160  # of a sentence; characters of a line of prose
PATHS = ("From `make demo` to the line that computes an advantage", "An order's way to its fill")
# Pages that a user reads from beginning to end.
PLAIN = [path for path in DOCUMENTS if path.name not in ("CHANGELOG.md", "demo.md")]

GENERATED = {ROOT / "docs" / name: text for name, text in pages().items()}
KEYS = {entry.key for entry in describe()}


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def text_of(path: Path) -> str:
    """The text of a page, also of a generated one, which no file has."""
    return GENERATED[path] if path in GENERATED else path.read_text(encoding="utf-8")


def prose(path: Path) -> str:
    """A page without its blocks of code."""
    return FENCE.sub("", text_of(path))


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings; a heading that comes twice gets a number."""
    seen: dict[str, int] = {}
    made = set()
    for line in prose(path).splitlines():
        if match := re.match(r"#{1,6} (.+)", line):
            name = anchor(match[1])
            made.add(f"{name}-{seen[name]}" if name in seen else name)
            seen[name] = seen.get(name, 0) + 1
    return made


def broken_links(path: Path) -> Iterator[str]:
    for target in LINK.findall(prose(path)):
        if re.match(r"[a-z]+:", target):
            continue  # an address outside
        name, _, heading = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() and file not in GENERATED:
            yield f"{target}: there is no {name}"
        elif heading and (file.suffix != ".md" or heading not in anchors(file)):
            yield f"{target}: {label(file)} has no heading '{heading}'"


def is_there(name: str) -> bool:
    """Whether a path as the pages write it exists: with a function after a colon, or a pattern of names. What is in
    braces, or is a word in capitals such as NAME, stands for something."""
    file, _, symbol = name.rstrip("/").partition(":")
    if re.search(r"\{|/[A-Z]+$", file):
        return True
    if "*" in file:
        return any(ROOT.glob(file))
    return (ROOT / file).exists() and (not symbol or defines(ROOT / file, symbol))


def defines(file: Path, symbol: str) -> bool:
    """Whether a module has a function, a class, a method (`Class.method`), a field or a constant of this name."""
    body: list[ast.stmt] = ast.parse(file.read_text(encoding="utf-8")).body
    for part in symbol.split("."):
        for node in body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names = [getattr(node, "name", None), *(getattr(target, "id", None) for target in targets)]
            if part in names:
                body = getattr(node, "body", [])
                break
        else:
            return False
    return True


@pytest.mark.parametrize("path", [*DOCUMENTS, *GENERATED], ids=label)
def test_every_link_leads_somewhere(path: Path) -> None:
    assert list(broken_links(path)) == []


@pytest.mark.parametrize("path", PRESENT, ids=label)
def test_every_path_of_the_repository_that_a_page_names_exists(path: Path) -> None:
    names = [code for code in CODE.findall(prose(path)) if code.startswith(TOP) and " " not in code]
    assert [name for name in names if not is_there(name)] == []


@pytest.mark.parametrize("path", PRESENT, ids=label)
def test_every_module_that_a_page_names_by_its_end_exists(path: Path) -> None:
    ends = re.findall(r"`([\w/]+\.py)(?::[\w.]+)?`", prose(path))
    assert [end for end in ends if not any(f"/{module}".endswith(f"/{end}") for module in MODULES)] == []


def is_a_key(name: str) -> bool:
    """Whether it is a setting, a section, or an entry of a table such as `training.experimental.per_role.trader.kl`."""
    return any(f"{name}.".startswith(f"{key}.") or key.startswith(f"{name}.") for key in KEYS)


def problem_of(line: str) -> str | None:
    """What is wrong with a command line that a page shows, None if the program knows it."""
    if " -- " in line:  # what follows is a command of its own, as of `jobs run`
        outer, _, inner = line.partition(" -- ")
        return problem_of(outer) or problem_of(f"cryptosentinel {inner}")
    words = re.sub(r"[…<>|\[\]]", " ", line).partition("cryptosentinel ")[2].split()
    path = "cryptosentinel"
    while words and f"{path} {words[0]}" in COMMANDS:
        path = f"{path} {words.pop(0)}"
    command = COMMANDS[path]
    if words and getattr(command, "commands", {}) and not command.invoke_without_command and words[0][0] != "-":
        return f"{line}: there is no command '{words[0]}'"
    options = {name: parameter for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for word, value in zip_longest(words, words[1:], fillvalue=""):
        if not re.match(r"--?[a-z]", word):
            continue
        if word.partition("=")[0] not in {*options, "--help"}:
            return f"{line}: there is no option {word}"
        if word in ("--set", "-s") and "=" in value and not is_a_key(value.partition("=")[0]):
            return f"{line}: there is no setting {value.partition('=')[0]}"
    return None


@pytest.mark.parametrize("path", PRESENT, ids=label)
def test_every_command_that_a_page_shows_is_one(path: Path) -> None:
    assert [problem for line in shown_commands(path) if (problem := problem_of(line))] == []


@pytest.mark.parametrize("path", PRESENT, ids=label)
def test_every_setting_that_a_page_names_is_one(path: Path) -> None:
    sections = "|".join(Config.model_fields)
    names = re.findall(rf"`((?:{sections})\.[a-z_]+(?:\.[a-z_]+)*)\b(?!\()[^`\n]*`", prose(path))
    files = re.compile(r".*\.(?:py|json|jsonl|log|toml|parquet|safetensors|md)")
    assert [name for name in names if not files.fullmatch(name) and not is_a_key(name)] == []


def test_the_table_of_recipes_has_all_of_them() -> None:
    page = prose(ROOT / "docs" / "concepts" / "training.md")
    section = page.split("## Variants of the objective")[1].split("\n## ")[0]
    table = section.split("| `recipe` |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(RECIPES)


@pytest.mark.parametrize("path", PRESENT, ids=label)
def test_every_block_of_toml_has_settings_that_exist(path: Path) -> None:
    for block in re.findall(r"^```toml\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        for section, keys in tomllib.loads(block).items():
            assert [key for key in keys if not is_a_key(f"{section}.{key}")] == []


@pytest.mark.parametrize("title", PATHS)
def test_a_path_through_the_code_has_at_most_seven_stops_that_exist(title: str) -> None:
    text = (ROOT / "docs" / "concepts" / "reading.md").read_text(encoding="utf-8")
    stops = re.findall(r"^(\d)\. `([\w/]+\.py:[\w.]+)`", text.split(f"## {title}\n")[1].split("\n## ")[0], re.MULTILINE)
    assert [int(number) for number, _ in stops] == list(range(1, len(stops) + 1))
    assert 2 <= len(stops) <= STOPS
    assert [stop for _, stop in stops if not is_there(stop)] == []


def sentences(text: str) -> Iterator[str]:
    """The sentences of a page's prose: of paragraphs, entries of lists and cells of tables. Code counts as a word, a
    number as none."""
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", re.sub(r"`[^`]*`", "code", text))
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[*|#]|\d+\.) ?)|(?<!\\)\|| · ", text):
        yield from re.split(r"(?<=[.!?])\)?\s+", block.replace("*", ""))


def too_long(text: str) -> list[str]:
    wide = [line for line in text.splitlines() if len(line) > WIDEST and not line.startswith("|")]
    return wide + [one for one in sentences(text) if len(re.findall(r"[^\W\d_][\w’'-]*", one)) > MOST_WORDS]


@pytest.mark.parametrize("form", ["{}.", "One. {}!", "* one\n* {}", "| a | {} |", "[{}](page.md)", "{}\nand `a. b`."])
def test_a_long_sentence_is_found(form: str) -> None:
    assert len(too_long(form.format("word " * 27))) == 1
    assert too_long(form.format("word " * 20 + "1 2 3 4 5 6 7")) == [] and too_long("x" * 161) == ["x" * 161]


@pytest.mark.parametrize("path", PLAIN, ids=label)
def test_a_sentence_is_short_and_a_line_fits_a_screen(path: Path) -> None:
    assert too_long(prose(path)) == []


def test_the_readme_is_three_minutes() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150


def test_pictures_are_small() -> None:
    large = {label(path): path.stat().st_size for path in (ROOT / "docs" / "images").iterdir()}
    assert {name: size for name, size in large.items() if size > 200_000} == {}
