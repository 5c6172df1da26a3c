"""Settings that were once called otherwise: refused in what a user writes, brought up to date in what was stored.

A TOML file and `--set` are the user's own text, so a former key is an error that tells its new name. The configuration
of a stored run, of an export or of a team's folder is a record: `brought_up_to_date` renames its keys, so that old runs
stay readable and can be continued.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Former key or section -> what it is called now, as dotted paths. They apply in this order.
RENAMED: Mapping[str, str] = {
    "specialise": "sft",
    "sft.waver": "sft.random_share",
    "training.futures_paths": "training.scenario_paths",
    "training.futures_from": "training.scenario_source",
    "nano.hidden": "nano.hidden_size",
    "nano.intermediate": "nano.intermediate_size",
}
# Key -> its former values, and what each is called now.
VALUES: Mapping[str, Mapping[str, str]] = {
    "engine.kind": {"transformers": "local"},
}
_MISSING = object()


def former_name(key: str, value: object = None) -> str | None:
    """What to write instead of `key` with `value`; None for one that is no former key or value.

    >>> former_name("training.futures_paths")
    'training.scenario_paths'
    >>> former_name("specialise.waver")
    'sft.random_share'
    >>> former_name("engine.kind", "transformers")
    "engine.kind = 'local'"
    """
    present = key
    for former, now in RENAMED.items():
        if f"{present}.".startswith(f"{former}."):
            present = now + present[len(former) :]
    if present != key:
        return present
    known = VALUES.get(key, {}).get(value) if isinstance(value, str) else None
    return None if known is None else f"{key} = '{known}'"


def brought_up_to_date(document: Mapping[str, Any]) -> dict[str, Any]:
    """A stored configuration (section -> key -> value) with the keys and values that it would be written with today.

    Where a document has a key under both names, the present one stands.
    """
    data: dict[str, Any] = _copied(document)
    for former, present in RENAMED.items():
        value = _taken(data, former.split("."))
        if value is not _MISSING:
            _put(data, present.split("."), value)
    for name, values in VALUES.items():
        *sections, key = name.split(".")
        keys = _section(data, sections)
        if keys is not None and isinstance(keys.get(key), str):
            keys[key] = values.get(keys[key], keys[key])
    return data


def _copied(value: Any) -> Any:
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _section(data: dict[str, Any], path: list[str]) -> dict[str, Any] | None:
    """The table at `path`; None where there is none."""
    found: Any = data
    for part in path:
        found = found.get(part) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None


def _taken(data: dict[str, Any], path: list[str]) -> Any:
    """The value at `path`, which is taken out of `data`; `_MISSING` where it is not there."""
    keys = _section(data, path[:-1])
    return _MISSING if keys is None else keys.pop(path[-1], _MISSING)


def _put(data: dict[str, Any], path: list[str], value: Any) -> None:
    """Put `value` at `path`; into a table that is there already, and in the place of nothing."""
    for part in path[:-1]:
        inner = data.setdefault(part, {})
        data = inner if isinstance(inner, dict) else {}  # what is no table is refused later, by its type
    there = data.setdefault(path[-1], value)
    if isinstance(there, dict) and isinstance(value, dict):
        data[path[-1]] = value | there
