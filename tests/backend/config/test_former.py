"""Former names of settings: refused where a user writes them, understood where they were stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.config.former import RENAMED, VALUES
from backend.config.load import config_from_dict, describe, load_config
from backend.config.schema import ConfigError

KEYS = {entry.key for entry in describe()}
PRESENT = KEYS | {key.rpartition(".")[0] for key in KEYS}


def put(data: dict[str, Any], path: str, value: Any) -> None:
    *sections, key = path.split(".")
    for part in sections:
        data = data.setdefault(part, {})
    data[key] = value


def taken(data: dict[str, Any], path: str) -> Any:
    *sections, key = path.split(".")
    for part in sections:
        data = data[part]
    return data.pop(key)


def test_what_is_called_otherwise_now_exists_and_the_former_does_not() -> None:
    assert set(RENAMED.values()) | set(VALUES) <= PRESENT
    assert not set(RENAMED) & PRESENT


@pytest.mark.parametrize(("former", "present"), RENAMED.items())
def test_a_former_key_is_refused_with_its_present_name(former: str, present: str, tmp_path: Path) -> None:
    section, _, key = former.rpartition(".")
    path = tmp_path / "mine.toml"
    path.write_text(f"[{section}]\n{key} = 1\n" if section else f"[{key}]\nsteps = 1\n")
    with pytest.raises(ConfigError, match=rf"mine\.toml: {former} is called otherwise now: write {present}"):
        load_config(path)
    if section:
        told = f"override '{former}=1': {former} is called otherwise now: write {present}"
        with pytest.raises(ConfigError, match=told):
            load_config("demo", [f"{former}=1"])


def test_a_key_of_a_former_section_is_refused_with_the_present_section() -> None:
    with pytest.raises(ConfigError, match=r"'specialise\.steps=9': specialise is called otherwise now: write sft"):
        load_config("demo", ["specialise.steps=9"])


def test_a_former_value_is_refused_with_its_present_name() -> None:
    with pytest.raises(ConfigError, match=r"engine\.kind is called otherwise now: write engine\.kind = 'local'"):
        load_config("demo", ["engine.kind=transformers"])


def test_a_stored_configuration_of_former_names_is_understood() -> None:
    document = load_config("demo").to_dict()
    before = json.loads(json.dumps(document))
    for former, present in reversed(list(RENAMED.items())):
        put(before, former, taken(before, present))
    for name, values in VALUES.items():
        present = taken(before, name)
        put(before, name, next((old for old, new in values.items() if new == present), ""))
    assert before != document
    assert config_from_dict(before) == config_from_dict(document)


def test_where_a_document_has_both_names_the_present_one_stands() -> None:
    both = {"specialise": {"steps": 3, "states": 9}, "sft": {"steps": 4}, "nano": {"hidden": 32, "hidden_size": 64}}
    loaded = config_from_dict(both)
    assert (loaded.sft.steps, loaded.sft.states, loaded.nano.hidden_size) == (4, 9, 64)


def test_what_is_no_table_is_refused_and_not_a_fault() -> None:
    with pytest.raises(ConfigError, match="sft"):
        config_from_dict({"specialise": 3})
