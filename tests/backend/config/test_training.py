"""The settings of the training: choices are those of the formulas, every key is read, contradictions name both keys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from backend.config.load import load_config
from backend.config.schema import ConfigError
from backend.config.training import TrainingConfig
from backend.training.algorithm.alignment import AlignmentMethod
from backend.training.chosen_recipe import recipe_of
from backend.training.rl_job import check_trainable
from benchmarks.run import TREND_MARKET


def test_the_alignments_are_those_of_the_formulas() -> None:
    assert set(get_args(TrainingConfig.model_fields["alignment"].annotation)) == set(get_args(AlignmentMethod))


def test_every_key_is_read_somewhere() -> None:
    backend = Path(__file__).parents[3] / "backend"
    text = "\n".join(path.read_text() for path in backend.rglob("*.py") if path.parent.name != "config")
    assert [key for key in TrainingConfig.model_fields if not re.search(rf"(config|training)\.{key}\b", text)] == []


# What is set, and what the message must name.
CONTRADICTIONS: tuple[tuple[list[str], tuple[str, ...]], ...] = (
    (["credit=shapley", "beta=[0.5, 0.0, 0.5]"], ("credit", "beta")),
    (["credit=shaply"], ("credit", "shapley")),
    (["recipe=grpo", "alignment=duplicate_drop"], ("recipe", "alignment")),
    (["freeze=nobody"], ("freeze", "nobody")),
    (["precision=nf4", "lora_rank=0"], ("precision", "lora_rank")),
    (["lr_end=0.1", "stage2_steps=0"], ("lr_end", "stage2_steps")),
    (["stage1_steps=5", "stage1_max_steps=4"], ("stage1_steps", "stage1_max_steps")),
    (["reward=mine:reward", "tail_weight=0.5"], ("tail_weight", "reward")),
)


@pytest.mark.parametrize(("overrides", "keys"), CONTRADICTIONS, ids=lambda value: " ".join(value))
def test_a_contradiction_names_both_keys(overrides: list[str], keys: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(TREND_MARKET, [f"training.{one}" for one in overrides])
    [line] = str(caught.value).splitlines()
    for key in keys:
        assert re.search(rf"\b{key}\b", line.partition(": ")[2]), line


def test_beliefs_about_too_many_coins_are_refused_by_name() -> None:
    settings = ["training.scenario_source=beliefs", "market.coins=7"]
    check_trainable(load_config("quick", [*settings, "market.data=bars"]))
    with pytest.raises(ConfigError, match=r"training\.scenario_source = 'beliefs' is for 6 coins .* market\.coins = 7"):
        check_trainable(load_config("demo", settings))


def test_what_is_set_arrives_at_the_clip() -> None:
    assert recipe_of(load_config("quick", ["training.clip_high=0.3"]).training).clip_high == 0.3
