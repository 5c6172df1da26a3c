"""What the documentation says about files, headings and settings is true."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import cryptosentinel as cs
from backend.cli.main import app, commands_below
from backend.config.load import describe, load_config
from backend.config.schema import Config
from backend.training.algorithm.advantages import group_advantages
from backend.training.algorithm.alignment import align
from backend.training.algorithm.recipes import RECIPES
from backend.training.algorithm.rewards import main_reward, sub_reward
from scripts.make_reference import anchor, pages
from setup import MOVED
from simulator.folders import SAMPLE, data_folder, named_data, sample_data
from tests.shown_commands import CODE, DOCUMENTS, FENCE, PRESENT, ROOT, shown_commands

MODULES = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if ".venv" not in str(path)]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FOLDERS = "backend benchmarks configs cryptosentinel data docs scripts simulator tests ui"
COMMANDS: dict[str, Any] = dict(commands_below(typer.main.get_command(app), "cryptosentinel"))
TOP = tuple(f"{folder}/" for folder in FOLDERS.split())
STOPS = 7
PATHS = ("From `make demo` to the line that computes an advantage", "An order's way to its fill")
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


def test_the_readme_is_three_minutes() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150


def test_pictures_are_small() -> None:
    large = {label(path): path.stat().st_size for path in (ROOT / "docs" / "images").iterdir()}
    assert {name: size for name, size in large.items() if size > 200_000} == {}


ROOT = Path(__file__).resolve().parents[1]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
IMPORT = re.compile(r"\b(?:import|from) ((?:[a-z_]+)(?:\.\w+)*)")
NAME = re.compile(r"\bcs\.([A-Za-z_]\w*)")


@pytest.mark.parametrize("page", PRESENT, ids=lambda page: page.name)
def test_documented_imports_work_in_a_wheel(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    code = [*PYTHON.findall(text), *re.findall(r"`([^`\n]+)`", FENCE.sub("", text))]
    named = [name for part in code for name in IMPORT.findall(part)]
    moved = [name for name in named if name.partition(".")[0] in MOVED]
    if page.name != "architecture.md":  # which says how the wheel is made
        assert moved == [], "in a wheel these are inside the package: name what `cryptosentinel` has"
    assert {name for part in code for name in NAME.findall(part)} <= set(cs.__all__)


def test_the_sample_has_a_name_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert sample_data() == data_folder(SAMPLE) == ROOT / "data" / "synthetic"
    assert load_config(None, ["market.data=sample"]).market.data == str(sample_data())
    frame = cs.backtest("ema_cross", data="sample", start="2021-06-01", end="2021-06-20", store="mem://").frame()
    assert "ema_cross" in frame.index
    (tmp_path / SAMPLE).mkdir()
    assert named_data(SAMPLE) == Path(SAMPLE), "the user's own folder of that name goes before"


DOCS = Path(__file__).resolve().parents[1] / "docs"
OUTCOMES = (0.60, 0.40, 0.80, 0.40)
# (rollout, expert score) of each call of MarketAnalyst.
CALLS = ((0, 0.7), (0, 0.5), (1, 0.9), (3, 0.5))


def texts_of(picture: str) -> list[str]:
    """What a picture says, in the order of the file."""
    source = (DOCS / "images" / picture).read_text(encoding="utf-8")
    return re.findall(r"<text[^>]*>([^<]*)</text>", source)


def row_of(rollout: int, weight: float, reward: float, advantage: float) -> list[str]:
    return [str(rollout + 1), f"1/{round(1 / weight)}", f"{reward:.2f}", f"{advantage:+.2f}".replace("-", "−")]


def rows(picture: str, count: int) -> list[list[str]]:
    """The rows of the groups: four texts_of each, the first of them a rollout's number."""
    words = texts_of(picture)
    starts = [at for at, word in enumerate(words) if re.fullmatch(r"\d", word)]
    assert len(starts) == count
    return [words[at : at + 4] for at in starts]


def test_the_pictures_show_what_the_algorithm_computes() -> None:
    team = [main_reward(True, 1.0, outcome) for outcome in OUTCOMES]
    advantages, _ = group_advantages(team)
    manager = [row_of(k, 0.25, reward, value) for k, (reward, value) in enumerate(zip(team, advantages, strict=True))]

    counts = [sum(k == rollout for rollout, _ in CALLS) for k in range(len(OUTCOMES))]
    weights = align(counts, "fractional", 1, np.random.default_rng(0))
    rewards = [sub_reward(True, 1.0, OUTCOMES[rollout], expert) for rollout, expert in CALLS]
    assert None not in rewards
    advantages, _ = group_advantages(np.asarray(rewards, np.float64), weights)
    analyst = [
        row_of(rollout, float(weight), float(reward or 0), float(value))
        for (rollout, _), weight, reward, value in zip(CALLS, weights, rewards, advantages, strict=True)
    ]
    assert rows("mgrpo-groups.svg", 8) == [*manager, *analyst]


def test_the_rollouts_of_the_picture_are_those_of_the_example() -> None:
    words = texts_of("mgrpo-rollouts.svg")
    starts = [at for at, word in enumerate(words) if word.startswith("k = ")]
    stretches = [words[at:end] for at, end in zip(starts, [*starts[1:], len(words)], strict=True)]
    assert [stretch.count("MarketAnalyst") for stretch in stretches] == [2, 1, 0, 1]
    assert [f"{outcome:.2f}" in stretch for outcome, stretch in zip(OUTCOMES, stretches, strict=True)] == [True] * 4


def test_the_page_names_the_same_numbers() -> None:
    page = (DOCS / "concepts" / "mgrpo.md").read_text(encoding="utf-8")
    assert "0.1 + 0.9 × 0.60 = 0.64" in page and "0.1 + 0.4 × 0.60 + 0.5 × 0.70 = 0.69" in page
    assert "+1.03" in page and "−0.90" in page
