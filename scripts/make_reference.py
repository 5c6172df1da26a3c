"""The generated pages of the documentation. `make site` puts them into the site; git does not have them.

The settings come from the configuration's schema, the commands from the command line's tree of commands, the Python
API, metrics and records from the source, the licenses from the metadata of what is installed, and the table of layers
from the import contracts in `pyproject.toml`.
"""

from __future__ import annotations

import enum
import inspect
import re
import tomllib
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import typer

import cryptosentinel
from backend.cli.main import app, commands_below
from backend.config.load import PRESETS, KeyHelp, describe, presets
from backend.config.schema import Config
from cryptosentinel.team_settings import Section
from scripts.code_reference import api_page, metrics_page, records_page
from scripts.licenses import licenses_page

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = "cryptosentinel"


def pages() -> dict[str, str]:
    """The generated pages: path below `docs` -> text."""
    return {
        "reference/settings.md": settings_page(),
        "reference/commands.md": commands_page(),
        "reference/layers.md": layers_page(),
        "reference/api.md": api_page(vars(cryptosentinel)["_PLACES"], vars(cryptosentinel)["_MODULES"]),
        "reference/metrics.md": metrics_page(),
        "reference/records.md": records_page(),
        "reference/licenses.md": licenses_page(),
    }


def settings_page() -> str:
    """All keys of the configuration by section, with the presets that set them."""
    sections: dict[str, list[KeyHelp]] = {}
    for entry in describe():
        sections.setdefault(entry.key.rpartition(".")[0], []).append(entry)
    lines = [
        "# Settings",
        "",
        f"All {sum(map(len, sections.values()))} keys of the configuration. Write them in a TOML file for `--config`, "
        "or as `--set section.key=value`. `cryptosentinel config --config NAME` prints the values of a preset or a "
        "file. The last column names the presets in `configs/` that set the key; all others keep the default.",
        "",
        _contents(f"[{name}]" for name in sections),
    ]
    set_in = _set_in()
    for name, entries in sections.items():
        lines += ["", f"## [{name}]", "", _paragraphs(_section(name).__doc__), ""]
        lines += ["| key | meaning | default | allowed | set in |", "| --- | --- | --- | --- | --- |"]
        for entry in entries:
            where = ", ".join(set_in.get(entry.key, ()))
            cells = (f"`{entry.key.rpartition('.')[2]}`", entry.meaning, f"`{entry.default}`", entry.allowed, where)
            lines.append(_row(*cells))
    return "\n".join(lines) + "\n"


def commands_page() -> str:
    """All commands with their arguments and options."""
    commands = list(commands_below(typer.main.get_command(app), PROGRAM))
    lines = [
        "# Commands",
        "",
        "All commands, as their `--help` has them. An option that may be repeated is marked with `…`. An error that a "
        "user can fix ends with exit code 2; see [exit codes](../concepts/architecture.md#errors-and-exit-codes).",
        "",
        _contents(path for path, _ in commands),
    ]
    for path, command in commands:
        lines += ["", f"## {path}", "", _paragraphs(command.help)]
        rows = [row for parameter in command.params if (row := _parameter_row(parameter)) is not None]
        if rows:
            lines += ["", "| argument or option | meaning | default |", "| --- | --- | --- |", *rows]
    return "\n".join(lines) + "\n"


def layers_page() -> str:
    """The layers inside each package: a column a contract, the highest layer first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    columns = {
        contract["containers"][0]: [_modules(contract["containers"][0], layer) for layer in contract["layers"]]
        for contract in project["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers" and "containers" in contract
    }
    rows = zip_longest(*([layer for layer in column if layer] for column in columns.values()), fillvalue="")
    lines = [
        "# Layers",
        "",
        "The layers inside each package, from the contracts in `pyproject.toml`. A line imports only from lines below "
        "it. Packages on the same line do not import each other. [Architecture](../concepts/architecture.md) says why.",
        "",
        *(_row(*columns), _row(*("---" for _ in columns)), *(_row(*row) for row in rows)),
    ]
    return "\n".join(lines) + "\n"


def _modules(container: str, layer: str) -> str:
    """The modules of a layer that exist; one in parentheses may be missing."""
    folder = ROOT / container.replace(".", "/")
    names = [name.strip(" ()") for name in layer.split("|")]
    return ", ".join(name for name in names if (folder / name).is_dir() or (folder / f"{name}.py").exists())


def _set_in() -> dict[str, list[str]]:
    """Key -> the presets that set it."""
    known = {entry.key for entry in describe()}
    where: dict[str, list[str]] = {}
    for preset in presets():
        for key in _keys(tomllib.loads((PRESETS / f"{preset}.toml").read_text(encoding="utf-8")), known):
            where.setdefault(key, []).append(preset)
    return where


def _keys(data: dict[str, Any], known: set[str], prefix: str = "") -> Iterator[str]:
    """The dotted keys of a TOML document; a key whose value is a table of its own is one key."""
    for name, value in data.items():
        if isinstance(value, dict) and f"{prefix}{name}" not in known:
            yield from _keys(value, known, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _section(name: str) -> type[Section]:
    """The model of a section by its dotted name."""
    model: Any = Config
    for part in name.split("."):
        model = model.model_fields[part].annotation
    assert isinstance(model, type) and issubclass(model, Section)
    return model


def _parameter_row(parameter: Any) -> str | None:
    """The row of an argument or option; None for one that is hidden."""
    if parameter.hidden:
        return None
    is_option = parameter.opts[0].startswith("-")
    names = [f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts)]
    if not is_option:
        names = [f"`{(parameter.metavar or parameter.name).upper()}`"]
    more = " …" if parameter.multiple or parameter.nargs == -1 else ""
    meaning = re.sub(r"\s+", " ", parameter.help or "").strip()
    return _row(" ".join(names) + more, meaning, _default(parameter))


def _default(parameter: Any) -> str:
    """The default in words; required parameters say so, and a default that is no plain value is left to the meaning."""
    if parameter.required:
        return "required"
    value = parameter.default
    value = value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, str | int | float | Path) and str(value):
        return f"`{value}`"
    return ""


def _contents(headings: Iterable[str]) -> str:
    return " · ".join(f"[{heading.strip('[]')}](#{anchor(heading)})" for heading in headings)


def anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)  # a link's text
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


def _paragraphs(text: str | None) -> str:
    """A docstring as Markdown: each of its paragraphs on one line."""
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(text or "").split("\n\n"))


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
