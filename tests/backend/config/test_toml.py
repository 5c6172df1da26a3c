"""Settings as TOML: what is written is read back as it was."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.config.load import as_toml, load_config

_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_SCALARS = st.booleans() | st.integers(-(2**60), 2**60) | _FLOATS | st.text(max_size=12)
_TABLES = st.recursive(
    st.dictionaries(st.text(max_size=6), _SCALARS | st.lists(_SCALARS, max_size=3), max_size=4),
    lambda inner: st.dictionaries(st.text(max_size=6), inner | _SCALARS, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(table=_TABLES)
def test_any_settings_come_back(table: dict[str, Any]) -> None:
    assert tomllib.loads(as_toml(table)) == table


@pytest.mark.parametrize("preset", ["demo", "recorded"])
def test_a_configuration_comes_back(preset: str, tmp_path: Path) -> None:
    config = load_config(preset)
    path = tmp_path / "saved.toml"
    path.write_text(as_toml(config.to_dict()), encoding="utf-8")
    assert load_config(str(path)) == config
