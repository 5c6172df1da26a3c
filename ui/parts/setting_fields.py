"""Fields of a form about what a team thinks with, and settings that differ from a preset as overrides of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from backend.config.schema import PROMPTED, Config
from cryptosentinel.llm.endpoint.providers import PROVIDERS
from simulator.errors import UserError

SettingChange = tuple[str, Any, Any]  # a setting's key, what the form says, what the preset has

# What a user chooses, and `engine.kind` for it.
_PLACES: dict[str, str] = {
    "In the job's own process": "local",
    "A vLLM server, started for the job": "vllm",
    **{one.title if one.paid else f"{one.title} at {one.url}": one.name
       for one in PROVIDERS.values()},
    "Another endpoint like OpenAI's": "openai_api",
}  # fmt: skip


@dataclass(frozen=True)
class EngineChoice:
    """What the fields say: the untrained model's name, and all that differs from the preset, as overrides."""

    model: str
    overrides: list[str]
    changed: bool  # whether the model is another than the preset's

    def check(self, teams: Sequence[str]) -> None:
        """Raise `UserError` where the team 'model' has no model, or a model has no team that asks it."""
        if PROMPTED in teams and not self.model:
            raise UserError(
                f"the team '{PROMPTED}' has no model: write its name, or the folder that holds it, under Engine"
            )
        if self.model and self.changed and PROMPTED not in teams:
            raise UserError(
                f"no team asks the model '{self.model}': choose the team '{PROMPTED}' too, or empty the field Model"
            )


def engine_fields(preset: Config) -> EngineChoice:
    """Ask where models answer, which one, and what it may cost. Keys come from the environment, never from a page."""
    with st.expander("Engine: which model answers, and where"):
        st.caption("Only for trained teams and for models that were not trained here: the team 'model', or model=NAME.")
        left, right = st.columns(2)
        begun = _place_of(preset)
        place = left.selectbox(
            "Where models answer", list(_PLACES), index=list(_PLACES).index(begun),
            help="A provider's key is read from the environment variable where it usually is, such as OPENAI_API_KEY.",
        )  # fmt: skip
        model = right.text_input(
            "Model", preset.engine.model, help="Its name at the endpoint, or a folder. For the team 'model'."
        ).strip()
        url = left.text_input(
            "Address of the endpoint", preset.engine.url,
            help="As http://localhost:8000/v1. Empty: the provider's own.",
        ).strip()  # fmt: skip
        money = right.number_input(
            "Spend at most, USD", min_value=0.0, max_value=1e6, value=preset.budget.max_cost, step=1.0,
            help="For a provider's answers, in all. A request that could pass it is not sent. 0: any amount.",
        )  # fmt: skip
    changed: list[SettingChange] = [
        ("engine.kind", preset.engine.kind if place == begun else _PLACES[place], preset.engine.kind),
        ("engine.model", model, preset.engine.model),
        ("engine.url", url, preset.engine.url),
        ("budget.max_cost", money, preset.budget.max_cost),
    ]
    return EngineChoice(model, changed_settings(changed), model != preset.engine.model)


def _place_of(preset: Config) -> str:
    """Where models answer by a preset or by the settings of a stored run; the first place where it is none of these,
    such as an engine of the user's own, which stays as it is unless another place is chosen."""
    return next((label for label, kind in _PLACES.items() if kind == preset.engine.kind), next(iter(_PLACES)))


def percent_field(place: Any, label: str, share: float, explained: str) -> float:
    """A share between 0 and 1 that is asked in percent; the preset's own where it is not touched."""
    percent = place.number_input(
        label, min_value=1.0, max_value=100.0, value=100.0 * share, step=1.0, help=explained
    )  # fmt: skip
    return share if percent == 100.0 * share else percent / 100.0


def changed_settings(changes: Sequence[SettingChange]) -> list[str]:
    """Those that differ from the preset, as `--set` reads them: JSON of numbers, words and lists is TOML too."""
    return [f"{key}={json.dumps(value)}" for key, value, former in changes if value != former]
