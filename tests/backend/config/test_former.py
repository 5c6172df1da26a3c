"""Former names of settings: refused where a user writes them, understood where they were stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.config.former import REMOVED, RENAMED, VALUES, Removed
from backend.config.load import config_from_dict, describe, load_config
from backend.config.schema import ConfigError

KEYS = {entry.key for entry in describe()}
PRESENT = KEYS | {key.rpartition(".")[0] for key in KEYS}
# What the guard of a former version did, and what the preset said then.
FORMER = [
    "guard.on_loss='freeze'",
    "guard.max_daily_turnover=0.0",
    "team.prompts=short",
    "team.max_tokens=64",
    "engine.key_variable=OPENAI_API_KEY",
    "engine.constrained=false",
    "evaluation.states=0",
    "evaluation.decisions_per_window=12",
    "training.shards=1",
    "training.validation_every=4",
    "training.validation_queries=64",
]


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


FORMER_DEMO = Path(__file__).parent / "former_demo.json"  # as the version before the sections were tidied stored it


def former_demo(**training: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(FORMER_DEMO.read_text())
    document["training"] |= training
    return document


def test_what_is_called_otherwise_now_exists_and_the_former_does_not() -> None:
    assert set(RENAMED.values()) | set(VALUES) <= PRESENT
    assert not (set(RENAMED) | set(REMOVED)) & PRESENT


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
    document = load_config("demo", ["team.prompts=full"]).to_dict()
    before = json.loads(json.dumps(document))
    for name, values in VALUES.items():
        present = taken(before, name)
        put(before, name, next(old for old, new in values.items() if new == present))
    for former, present in reversed(list(RENAMED.items())):
        put(before, former, taken(before, present))
    assert before != document
    assert config_from_dict(before) == config_from_dict(document)


def test_where_a_document_has_both_names_the_present_one_stands() -> None:
    both = {"specialise": {"steps": 3, "states": 9}, "sft": {"steps": 4}, "nano": {"hidden": 32, "hidden_size": 64}}
    loaded = config_from_dict(both)
    assert (loaded.sft.steps, loaded.sft.states, loaded.nano.hidden_size) == (4, 9, 64)


def test_what_is_no_table_is_refused_and_not_a_fault() -> None:
    with pytest.raises(ConfigError, match="sft"):
        config_from_dict({"specialise": 3})


def test_a_run_that_the_former_version_stored_is_todays() -> None:
    document = former_demo()
    assert "specialise" in document and "futures_paths" in document["training"] and "sft" not in document
    assert config_from_dict(document) == config_from_dict(document, to_continue=True) == load_config("demo", FORMER)
    assert document == former_demo(), "what was stored is not changed"


def test_what_the_former_version_had_set_comes_along() -> None:
    own = {"trader": {"clip_high": 0.3, "beta_end": [0.1, 0.9, 0.0]}}
    document = former_demo(hard_share=0.25, per_role=own, futures_from="beliefs", staleness=2, unsynchronised=True)
    training = config_from_dict(document, to_continue=True).training
    experimental = training.experimental
    assert (experimental.hard_share, experimental.staleness, experimental.newest_weights) == (0.25, 2, True)
    assert experimental.per_role["trader"].clip_high == 0.3 and training.scenario_source == "beliefs"
    assert training.of_role("trader").experimental.beta_end == (0.1, 0.9, 0.0)


@pytest.mark.parametrize(("name", "removed"), REMOVED.items())
def test_a_removed_setting_is_refused_in_what_a_user_writes(name: str, removed: Removed, tmp_path: Path) -> None:
    section, _, key = name.rpartition(".")
    path = tmp_path / "mine.toml"
    path.write_text(f"[{section}]\n{key} = 3\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value) == f"{path}: {name} was removed: leave it out ({removed.instead})"
    with pytest.raises(ConfigError, match=f"override '{name}=3': {name} was removed: leave it out"):
        load_config("demo", [f"{name}=3"])


def test_a_run_that_used_a_removed_setting_is_read_and_not_continued() -> None:
    used = former_demo(alternate=2)
    assert config_from_dict(used) == load_config("demo", FORMER), "its report can still be made"
    with pytest.raises(ConfigError, match=r"run r1: training\.alternate = 2: this version .* cannot continue"):
        config_from_dict(used, "run r1", to_continue=True)
    assert config_from_dict(former_demo(alternate=0), to_continue=True) == load_config("demo", FORMER)
