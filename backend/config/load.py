"""The settings of a run: typed, bounded, each with one line of meaning.

`load_config` reads a TOML preset or file, applies `section.key=value` overrides and returns a frozen `Config`. The
sections are separate models, so that a part of the program depends on its own section only.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from backend.config.base import suggestion
from backend.config.schema import Config, ConfigError
from cryptosentinel.team_settings import Section
from simulator.documents import MOST_DEPTH, depth_of, read_bytes

_MOST_BYTES = 4 * 2**20  # of a file of settings
# A key as a.b.c, of too many parts: the parser takes minutes for one of 50,000.
_DEEP_KEY = re.compile(rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{MOST_DEPTH}}}""")
# A part of a key as TOML writes it: in quotes where it holds a dot, such as a model's name.
_PART = re.compile(r"""\s*+("[^"]++"|'[^']++'|[^."'=]++)(\.|\Z)""")
_SHIPPED = Path(__file__).resolve().parent / "presets"  # where a wheel installs them
PRESETS = _SHIPPED if _SHIPPED.is_dir() else Path(__file__).resolve().parents[2] / "configs"


@dataclass(frozen=True)
class KeyHelp:
    """One key of the config, for `--help` and the documentation."""

    key: str
    meaning: str
    default: str
    allowed: str


def describe(model: type[Section] = Config, prefix: str = "") -> list[KeyHelp]:
    """Every key with its meaning, default and what is allowed, in the order of the sections."""
    found: list[KeyHelp] = []
    for name, info in model.model_fields.items():
        section = _section_of(info)
        if section is not None:
            found += describe(section, f"{prefix}{name}.")
        else:
            default = json.dumps(info.get_default(call_default_factory=True), default=list)
            found.append(KeyHelp(f"{prefix}{name}", info.description or "", default, _allowed(info)))
    return found


def presets() -> list[str]:
    """Names of the presets in `configs/`."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def load_config(
    source: str | Path | Config | None,
    overrides: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    name: str = "",
) -> Config:
    """The settings of a preset (`demo`), a TOML file or a configuration, None for the defaults; over them overrides
    such as `training.seed=5`, and over these the `options` of a command, by their dotted keys.

    All are merged as plain tables and validated once. What none of them sets has its default. `name` is what a message
    calls a configuration that is given. Raises `ConfigError` for a missing or malformed file, an unknown key, a value
    of the wrong type or out of range, and for settings of which one would do nothing beside another.
    """
    data, blamed = merged_settings(source, overrides, options)
    if isinstance(source, Config):
        where = name or "the configuration"
    else:
        where = name or "the options" if source is None else str(_find(source))
    return _validated(data, where, blamed)


def merged_settings(
    source: str | Path | Config | None, overrides: Sequence[str] = (), options: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """What `load_config` validates, as plain tables; and which override has set a key, by key."""
    data = source.to_dict() if isinstance(source, Config) else {} if source is None else _read(_find(source))
    blamed = {_apply(data, one): one for one in overrides}
    for key, value in (options or {}).items():
        _set(data, key.split("."), value, f"option {key}")
        blamed = {known: text for known, text in blamed.items() if known != key}
    return data, blamed


def config_from_dict(data: dict[str, Any], source: str = "stored config") -> Config:
    """The config that `Config.to_dict` gave. Raises `ConfigError`, naming `source`, as `load_config` does."""
    return _validated(data, source, {})


def _read(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(read_bytes(path, _MOST_BYTES).decode("utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: this is not valid TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text. Raises `ValueError` for what is not TOML, for one nested deeper than `MOST_DEPTH`,
    and for numbers of absurd length."""
    if _DEEP_KEY.search(text):
        raise ValueError(f"it is nested deeper than {MOST_DEPTH} levels")
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if depth_of(data) > MOST_DEPTH:
        raise ValueError(f"it is nested deeper than {MOST_DEPTH} levels")
    return data


def _find(source: str | Path) -> Path:
    if "\0" in str(source):
        raise ConfigError(f"{str(source)!r} is the name of no file: presets are {', '.join(presets())}")
    path = Path(source)
    if path.suffix == ".toml" or len(path.parts) > 1:
        if not path.is_file():
            raise ConfigError(f"{path}: no such config file; presets are {', '.join(presets())}")
        return path
    if str(source) not in presets():
        raise ConfigError(
            f"no preset '{source}'{suggestion(str(source), presets())}; presets are {', '.join(presets())}, "
            "or give the path of a .toml file"
        )
    return PRESETS / f"{source}.toml"


def _apply(data: dict[str, Any], override: str) -> str:
    """Set one `section.key=value` in `data`; returns the key."""
    key, equals, text = override.partition("=")
    key, parts = key.strip(), _parts(key.strip())
    if not equals or len(parts) < 2:
        raise ConfigError(f"override '{override}': write it as section.key=value, for example training.seed=5")
    try:
        value = parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a bare word, as in training.alignment=none
    except ValueError as error:
        raise ConfigError(f"override '{override[:80]}': {error}") from error
    _set(data, parts, value, f"override '{override}'")
    return key


def _set(data: dict[str, Any], parts: Sequence[str], value: Any, where: str) -> None:
    for part in parts[:-1]:
        data = data.setdefault(part, {})
        if not isinstance(data, dict):
            raise ConfigError(f"{where}: '{part}' is not a section")
    data[parts[-1]] = value


def _parts(key: str) -> list[str]:
    """The names in a dotted key, without their quotes; none where it is not such a key."""
    parts, place = [], 0
    while part := _PART.match(key, place):
        parts.append(part[1].strip().strip("\"'"))
        place = part.end()
        if not part[2]:
            return parts if all(parts) else []
    return []


def _validated(data: dict[str, Any], source: str, overridden: dict[str, str]) -> Config:
    for place, text in _texts(data):
        if "\0" in text or (not text.isascii() and any("\ud800" <= one <= "\udfff" for one in text)):
            raise ConfigError(
                f"{source}: {place} holds a NUL character or half a surrogate pair: {text[:60]!r}; write it again"
            )
    try:
        # Through JSON, because strict validation takes a list for a tuple only there.
        return Config.model_validate_json(json.dumps(data, default=str))
    except ValidationError as error:
        if any(not problem["loc"] for problem in error.errors(include_url=False)):
            raise ConfigError(f"{source}: {error.errors(include_url=False)[0]['msg']}") from error
        problems = [_problem(problem, source, overridden) for problem in error.errors(include_url=False)]
        raise ConfigError("\n".join(dict.fromkeys(problems))) from error


def _texts(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Every text in a document, keys among them, with the dotted name of where it stands."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for key, item in value.items():
            name = f"{place}.{key}" if place else str(key)
            yield "a key" if "\0" in str(key) else name, str(key)
            yield from _texts(item, name)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item, place)


def _dotted(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location)


def _problem(problem: Any, source: str, overridden: dict[str, str]) -> str:
    """One line: where, which key, which value, what is allowed."""
    *location, last = problem["loc"]
    of_name = last == "[key]"  # pydantic's word for the name of a table's entry
    location = tuple(location) if of_name else (*location, last)
    # Which of the two types of a key was tried.
    if str(last).startswith("literal[") or last in ("float", "constrained-float"):
        location = location[:-1]
    key = _dotted(location)
    where = _blame(key, source, overridden)
    if problem["type"] == "extra_forbidden":
        siblings = _siblings(location)
        kind = "section" if len(location) == 1 else "key"
        hint = suggestion(str(location[-1]), siblings) or _elsewhere(location)
        return f"{where}: unknown {kind} '{key}'{hint}; known: {', '.join(siblings)}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{where}: {key}: {message}"
    described = next((entry for entry in describe() if f"{key}.".startswith(f"{entry.key}.")), None)
    allowed = "" if described is None else described.allowed
    inside = () if described is None else location[described.key.count(".") + 1 :]
    if len(inside) > 1 and isinstance(inside[1], str):  # a key of a table's entry: these are not described one by one
        allowed = ""
    if of_name:
        return f"{where}: {key} is not allowed: expected {allowed}"
    value = json.dumps(problem["input"], default=str)
    if percent := re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*%\s*", str(problem["input"])):
        fraction = f"{Decimal(percent[1]) / 100:f}"
        return f"{where}: {key} = {value} is not allowed: write it as a fraction, {key}={fraction}"
    return f"{where}: {key} = {value} is not allowed: {f'expected {allowed}' if allowed else message}"


def _blame(key: str, source: str, overridden: dict[str, str]) -> str:
    """The override that set `key`; else the file, with the overrides that reach into `key` if there are any."""
    for name, text in overridden.items():
        if key == name or key.startswith(f"{name}."):
            return f"override '{text}'"
    inside = [text for name, text in overridden.items() if name.startswith(f"{key}.")]
    return f"{source} with {', '.join(repr(text) for text in inside)}" if inside else source


def _elsewhere(location: tuple[int | str, ...]) -> str:
    """A hint at the key of that name in another table of the same section; nothing where there is none."""
    section, name = str(location[0]), str(location[-1])
    keys = {entry.key.rpartition(".")[2]: entry.key for entry in describe() if entry.key.startswith(f"{section}.")}
    return f" (did you mean '{keys[name]}'?)" if name in keys else ""


def _siblings(location: tuple[int | str, ...]) -> list[str]:
    """Names that would have been right at `location`."""
    model: type[Section] = Config
    for part in location[:-1]:
        section = _section_of(model.model_fields[str(part)])
        assert section is not None  # pydantic descends into sections only
        model = section
    return list(model.model_fields)


def _section_of(info: FieldInfo) -> type[Section] | None:
    kind = info.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


_TYPES: dict[Any, str] = {int: "integer", float: "number", bool: "true or false", str: "text"}
_BOUNDS = {
    "ge": "at least", "gt": "above", "le": "at most", "lt": "below", "multiple_of": "a multiple of",
    "pattern": "that matches",
}  # fmt: skip


def _allowed(info: FieldInfo) -> str:
    """What a field takes, in words: type, bounds, choices."""
    choices = getattr(info.annotation, "__args__", ())
    if choices and all(isinstance(choice, str) for choice in choices):
        return "one of " + ", ".join(f"'{choice}'" for choice in choices)
    if get_origin(info.annotation) is UnionType or get_origin(info.annotation) is Union:
        return " or ".join(_allowed(FieldInfo.from_annotation(choice)) for choice in choices)
    if get_origin(info.annotation) is dict:
        names, value = get_args(info.annotation)
        if get_origin(names) is Literal:
            entries = _allowed(FieldInfo.from_annotation(value))
            return f"table by {', '.join(get_args(names))}, each {entries}"
        if get_origin(value) is Annotated:
            return f"table, each entry {_allowed(FieldInfo.from_annotation(value))}"
        if get_origin(value) is not tuple:
            return "table of values as JSON has them"
        return f"table, each entry a list of {len(get_args(value))} numbers from 0 up"
    words = [_TYPES.get(info.annotation, "list")]
    for rule in info.metadata:
        for part in rule.metadata if isinstance(rule, FieldInfo) else [rule]:
            words += [f"{word} {getattr(part, rule)}" for rule, word in _BOUNDS.items() if hasattr(part, rule)]
    return ", ".join(words)
