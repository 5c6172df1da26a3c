"""Settings that were once called otherwise: refused in what a user writes, brought up to date in what was stored.

A TOML file and `--set` are the user's own text, so a former key is an error that tells its new name. The configuration
of a stored run, of an export or of a team's folder is a record: `brought_up_to_date` renames its keys, so that old runs
stay readable and can be gone on with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Former key -> key. A dotted path; the section has to exist in both.
RENAMED: Mapping[str, str] = {
    "training.futures_paths": "training.scenario_paths",
    "training.futures_from": "training.scenario_source",
}
# Key -> its former values, and what each is called now.
VALUES: Mapping[str, Mapping[str, str]] = {
    "engine.kind": {"transformers": "local"},
}


def former_name(key: str, value: object = None) -> str | None:
    """What to write instead of `key` with `value`; None for one that is no former key or value.

    >>> former_name("training.futures_paths")
    'training.scenario_paths'
    >>> former_name("engine.kind", "transformers")
    "engine.kind = 'local'"
    """
    if key in RENAMED:
        return RENAMED[key]
    now = VALUES.get(key, {}).get(value) if isinstance(value, str) else None
    return None if now is None else f"{key} = '{now}'"


def brought_up_to_date(document: Mapping[str, Any]) -> dict[str, Any]:
    """A stored configuration (section -> key -> value) with the keys and values that it would be written with today.

    Where a document has a key under both names, the present one stands.
    """
    data = {section: dict(keys) if isinstance(keys, Mapping) else keys for section, keys in document.items()}
    for former, present in RENAMED.items():
        value = _taken(data, former)
        if value is not None:
            section, key = present.split(".")
            data.setdefault(section, {}).setdefault(key, value)
    for name, values in VALUES.items():
        section, key = name.split(".")
        keys = data.get(section)
        if isinstance(keys, dict) and isinstance(keys.get(key), str):
            keys[key] = values.get(keys[key], keys[key])
    return data


def _taken(data: dict[str, Any], name: str) -> Any:
    """The value of a key, which is taken out of `data`; None where it is not there."""
    section, key = name.split(".")
    keys = data.get(section)
    return keys.pop(key, None) if isinstance(keys, dict) else None
