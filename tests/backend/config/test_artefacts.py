"""What an artefact may say: every setting has a decision, and nothing that only the user may say is taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.config.artefacts import MAY_SET, USER_ONLY, effect_of, given_keys, notice, taken_from
from backend.config.load import config_from_dict, describe
from backend.config.ownership import SIGNATURE, is_own, key_file, signed, unsigned
from backend.config.schema import Config
from tests.hostile import dangerous_keys, hostile_config

KEYS = [one.key for one in describe()]


def _allowed(key: str) -> bool:
    section, _, name = key.partition(".")
    return any(f"{name}.".startswith(f"{known}.") for known in MAY_SET.get(section, ()))


def _refused(key: str) -> bool:
    return any(f"{key}.".startswith(f"{known}.") for known in USER_ONLY)


@pytest.mark.parametrize("key", KEYS)
def test_every_setting_has_one_decision(key: str) -> None:
    assert _allowed(key) != _refused(key), (
        f"{key}: say in backend/config/artefacts.py whether a team's folder or an imported run may set it: in MAY_SET "
        "if it only describes, in USER_ONLY if it decides what is run, contacted, read or spent"
    )


def test_the_tables_name_nothing_that_is_no_setting() -> None:
    named = [*USER_ONLY, *(f"{section}.{name}" for section, names in MAY_SET.items() for name in names)]
    assert [name for name in named if not any(f"{key}.".startswith(f"{name}.") for key in KEYS)] == []


def test_a_setting_without_a_decision_is_not_taken() -> None:
    assert effect_of("market.a_setting_of_tomorrow") is not None
    assert effect_of("a_section_of_tomorrow.name") is not None


@pytest.mark.parametrize("key", dangerous_keys())
def test_what_only_the_user_may_say_is_withheld_and_named(key: str) -> None:
    stated = config_from_dict(hostile_config(key))
    taken, withheld = taken_from(stated)
    defaults = {one.key: json.loads(one.default) for one in describe()}
    value: object = taken.to_dict()
    for part in key.split("."):
        assert isinstance(value, dict)
        value = value[part]
    assert value == defaults[key]
    assert key in {one.key for one in withheld}
    said = notice("team.json", withheld)
    assert key in said and ("--set" in said or "--data" in said or "--news" in said or "--funding" in said)
    assert taken_from(stated, given=[one.key for one in withheld])[1] == ()


def test_what_an_artefact_may_say_is_taken_as_it_is() -> None:
    stated = config_from_dict({"costs": {"taker_fee": 0.002}, "team": {"horizon_bars": 7}, "market": {"bars": 300}})
    assert taken_from(stated) == (stated, ())
    assert notice("team.json", ()) == ""


@given(st.sets(st.sampled_from(dangerous_keys()), max_size=4))
def test_nothing_dangerous_is_left_whatever_is_said_together(keys: set[str]) -> None:
    document = Config().to_dict()
    for key in sorted(keys):
        section = key.partition(".")[0]
        document[section] = hostile_config(key)[section]
    taken, _ = taken_from(config_from_dict(document))
    defaults = Config().to_dict()
    for key in dangerous_keys():
        one, other = taken.to_dict(), defaults
        for part in key.split("."):
            one, other = one[part], other[part]
        assert one == other


@pytest.mark.parametrize("key", ["training.recipe", "training.credit"])
@pytest.mark.parametrize(
    ("value", "runs"),
    [("shapley", False), ("module:Credit", True), (r'"module\u003aCredit"', True), (None, True), (["a"], True)],
)
def test_only_a_plain_name_of_a_recipe_or_credit_runs_nothing(key: str, value: object, runs: bool) -> None:
    """As an override is written: TOML has escapes, with which a colon need not be seen."""
    assert effect_of(key, value) == ("runs" if runs else None)


def test_the_options_and_overrides_of_a_user_are_known() -> None:
    keys = given_keys(["engine.kind=vllm", "market.data = x"], data=None, funding="f", news=None)
    assert keys == {"engine.kind", "market.data", "market.funding_dir"}


def test_a_run_is_its_users_own_by_a_signature_that_only_he_can_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mine"))
    document = {"config": {"engine": {"kind": "vllm"}}}
    own = signed("train-1", document)
    assert is_own("train-1", own) and is_own("train-1", json.loads(json.dumps(own)))
    assert not is_own("train-1", document) and not is_own("train-2", own)
    assert not is_own("train-1", {**own, "config": {"engine": {"kind": "local"}}})
    assert not is_own("train-1", {**own, "sources": {"scripted": {"team": "module:Class"}}}), "all of it is signed"
    assert not is_own("train-1", own, "gate") and not is_own("train-1", signed("train-1", document, "gate"))
    assert is_own("train-1", signed("train-1", document, "gate"), "gate")
    assert not any(is_own("train-1", {**own, SIGNATURE: odd}) for odd in ("", "é", None, 7, own[SIGNATURE][:-1]))
    assert unsigned(own) == document
    assert key_file().stat().st_mode & 0o777 == 0o600
    key_file().chmod(0o644)  # others could have read it
    assert not is_own("train-1", own)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "theirs"))
    assert not is_own("train-1", own)
    assert not is_own("train-1", signed("train-1", document) | {SIGNATURE: own[SIGNATURE]})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    )
)
def test_a_signature_holds_for_a_document_as_a_store_gives_it_back(value: Any) -> None:
    """With texts for keys, and whatever numpy's numbers and tuples become."""
    document = {"config": {}, "value": value, "pair": (1, np.float64(0.5)), "count": np.int64(7)}
    record = signed("train-1", document)
    stored = json.loads(json.dumps(record, default=lambda number: number.item()))
    assert is_own("train-1", record) and is_own("train-1", stored)
    assert not is_own("train-1", {**stored, "pair": [1, 0.25]})


def test_without_a_place_for_the_key_a_run_is_not_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert signed("train-1", {"config": {}}) == {"config": {}}
