"""Former names of settings: refused where a user writes them, understood where they were stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config.former import RENAMED, VALUES
from backend.config.load import config_from_dict, describe, load_config
from backend.config.schema import ConfigError

PRESENT = {entry.key for entry in describe()}


def test_what_is_called_otherwise_now_exists_and_the_former_does_not() -> None:
    assert set(RENAMED.values()) | set(VALUES) <= PRESENT
    assert not set(RENAMED) & PRESENT


@pytest.mark.parametrize(("former", "present"), RENAMED.items())
def test_a_former_key_is_refused_with_its_present_name(former: str, present: str, tmp_path: Path) -> None:
    section, key = former.split(".")
    path = tmp_path / "mine.toml"
    path.write_text(f"[{section}]\n{key} = 1\n")
    with pytest.raises(ConfigError, match=rf"mine\.toml: {former} is called otherwise now: write {present}"):
        load_config(path)
    with pytest.raises(ConfigError, match=f"override '{former}=1': {former} is called otherwise now: write {present}"):
        load_config("demo", [f"{former}=1"])


def test_a_former_value_is_refused_with_its_present_name() -> None:
    with pytest.raises(ConfigError, match=r"engine\.kind is called otherwise now: write engine\.kind = 'local'"):
        load_config("demo", ["engine.kind=transformers"])


def test_a_stored_configuration_of_former_names_is_understood() -> None:
    document = load_config("demo").to_dict()
    before = {section: dict(keys) for section, keys in document.items()}
    for former, present in RENAMED.items():
        (section, key), (now_section, now_key) = former.split("."), present.split(".")
        before[section][key] = before[now_section].pop(now_key)
    for name, values in VALUES.items():
        section, key = name.split(".")
        before[section][key] = next((old for old, new in values.items() if new == before[section][key]), "")
    assert before != document
    assert config_from_dict(before) == config_from_dict(document)
