"""Settings on a form: the few that one changes as fields, all others as lines, as overrides of a preset."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import streamlit as st

from backend.config.schema import Config

# A setting's key, label, meaning, and how often its value is shown: 100 for a share in percent.
NumberField = tuple[str, str, str, float]


def number_fields(fields: Sequence[NumberField], preset: Config, columns: int, key: str = "") -> list[str]:
    """A field for each; those that were changed, as `--set` reads them."""
    places = st.columns(columns)
    changed = []
    for number, (name, label, meaning, scale) in enumerate(fields):
        former = value_of(preset, name)
        whole = isinstance(former, int)
        shown: Any = former if whole else round(scale * former, 10)
        value = places[number % columns].number_input(
            label, min_value=0 if whole else 0.0, max_value=2**31 - 1 if whole else 1e6, value=shown,
            step=1 if whole else 0.5, help=meaning, key=f"{key} {name}",
        )  # fmt: skip
        if value != shown:
            changed.append(f"{name}={json.dumps(int(value) if whole else value / scale)}")
    return changed


def other_settings(key: str, placeholder: str, place: Any = st) -> list[str]:
    """A field for all other settings, one a line, as `--set` takes them."""
    lines = place.text_area(
        "Other settings, one a line", key=f"{key} others", height=68, placeholder=placeholder,
        help="section.key=value, as --set takes them; `cryptosentinel config` lists all.",
    )  # fmt: skip
    return [line.strip() for line in lines.splitlines() if line.strip()]


def value_of(config: Config, name: str) -> Any:
    """The value of `section.key`."""
    section, _, key = name.partition(".")
    return getattr(getattr(config, section), key)
