"""The settings of the training: choices are those of the formulas, every key is read, contradictions name both keys."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from backend.builders.market import load_market
from backend.config.experimental import ExperimentalConfig
from backend.config.load import config_from_dict, load_config
from backend.config.schema import Config, ConfigError
from backend.config.training import TrainingConfig
from backend.training.algorithm.alignment import AlignmentMethod
from backend.training.algorithm.counterfactual import CreditMethod
from backend.training.algorithm.credit import GroupKey
from backend.training.algorithm.objective import Aggregation, ImportanceKind, PolicyLoss, RatioKind
from backend.training.rl_job import check_trainable
from backend.training.sft_job import run_sft
from benchmarks.run import TREND_MARKET
from tests.small_world import training_table

CHOICES = {
    "alignment": AlignmentMethod, "group": GroupKey, "ratio": RatioKind, "policy_loss": PolicyLoss,
    "aggregation": Aggregation, "importance": ImportanceKind, "credit": CreditMethod,
}  # fmt: skip


SETTINGS = dict(TrainingConfig.model_fields) | dict(ExperimentalConfig.model_fields)


@pytest.mark.parametrize("key", CHOICES)
def test_choices_are_those_of_the_formulas(key: str) -> None:
    assert set(get_args(SETTINGS[key].annotation)) == set(get_args(CHOICES[key]))


def test_every_key_is_read_somewhere() -> None:
    backend = Path(__file__).parents[3] / "backend"
    text = "\n".join(path.read_text() for path in backend.rglob("*.py") if path.parent.name != "config")
    of_training = r"(config|training|own)\.{}\b"
    unread = [key for key in TrainingConfig.model_fields if not re.search(of_training.format(key), text)]
    unread += [key for key in ExperimentalConfig.model_fields if not re.search(rf"experimental\.{key}\b", text)]
    assert unread == []


def test_what_was_stored_before_there_were_variants_still_loads() -> None:
    before: dict[str, Any] = Config().to_dict()
    for key in ("group", "aggregation", "credit", "importance", "scale_rewards", "dynamic_rounds"):
        del before["training"]["experimental"][key]
    assert config_from_dict(before) == Config()
    del before["training"]["experimental"]
    assert config_from_dict(before) == Config()


def dotted(override: str) -> str:
    """An override of a key of the training, with its section."""
    name = re.split(r"[.=]", override)[0]
    return f"training.experimental.{override}" if name in ExperimentalConfig.model_fields else f"training.{override}"


# What is set, and the two keys that the message must name.
CONTRADICTIONS: tuple[tuple[list[str], tuple[str, str]], ...] = (
    (["min_group=3"], ("min_group", "group")),
    (["group=ordinal", "min_group=9"], ("min_group", "rollouts_per_query")),
    (["single_calls=batch", "reward_aggregation=normalize_then_sum"], ("single_calls", "reward_aggregation")),
    (["constant_length=100"], ("constant_length", "aggregation")),
    (["aggregation=dr_grpo"], ("aggregation", "constant_length")),
    (["aggregation=dapo", "ratio=sequence"], ("aggregation", "ratio")),
    (["aggregation=bnpo", "ratio=trajectory"], ("aggregation", "ratio")),
    (["policy_loss=cispo", "ratio=sequence"], ("policy_loss", "ratio")),
    (["importance=none", "importance_cap=3.0"], ("importance_cap", "importance")),
    (
        ["reward_aggregation=normalize_then_sum", "scale_rewards=false"],
        ("reward_aggregation", "scale_rewards"),
    ),
    (["overlong_buffer=5"], ("overlong_buffer", "overlong_length")),
    (["overlong_length=50"], ("overlong_length", "overlong_buffer")),
    (["overlong_length=50", "overlong_buffer=51"], ("overlong_length", "overlong_buffer")),
    (["credit=shapley", "beta=[0.5, 0.0, 0.5]"], ("credit", "beta")),
    (["credit=counterfactual", "beta=[0.5, 0.0, 0.5]"], ("credit", "beta")),
    (["dynamic_rounds=2", "stage2_steps=0"], ("dynamic_rounds", "stage2_steps")),
    (["hard_share=0.5", "stage2_steps=0"], ("hard_share", "stage2_steps")),
    (["practice_queries=0", "practice_roles=trader"], ("practice_roles", "practice_queries")),
    (["practice_queries=4", "practice_roles=manager"], ("practice_roles", "manager")),
    (["freeze=nobody"], ("freeze", "nobody")),
    (["start_from=runs/sft", "base_model=models/Qwen3"], ("start_from", "base_model")),
    (["alignment_target=3"], ("alignment_target", "alignment")),
    (["alignment_window=3"], ("alignment_window", "alignment")),
    (
        ["alignment=duplicate_drop", "alignment_target=3", "alignment_window=2"],
        ("alignment_window", "alignment_target"),
    ),
    (["per_role.trader.alignment_target=3"], ("alignment_target", "alignment")),
    (["per_role.manager.beta=[0.1, 0.4, 0.5]"], ("beta", "manager")),
    (["per_role.trader.beta=[0.1, 0.4, 0.6]"], ("beta", "per_role")),
    (["sharding=fsdp", "data_parallel=2", "quantization=nf4"], ("sharding", "quantization")),
    (["sharding=fsdp", "data_parallel=2", "weights=full", "optimizer=adafactor"], ("sharding", "optimizer")),
    (["optimizer=adamw8bit", "device=cpu"], ("optimizer", "device")),
    (["optimizer=sgd", "adam_betas=[0.9, 0.99]"], ("adam_betas", "optimizer")),
    (["lr_end=0.1"], ("lr_end", "lr_schedule")),
    (["lr_schedule=linear", "stage2_steps=0"], ("lr_schedule", "stage2_steps")),
    (["beta_end=[0.1, 0.5, 0.4]", "stage2_steps=1"], ("beta_end", "stage2_steps")),
    (["per_role.trader.beta_end=[0.1, 0.5, 0.4]", "stage2_steps=1"], ("beta_end", "stage2_steps")),
    (["beta_end=[0.5, 0.5]"], ("beta_end", "beta")),
    (["alpha_end=[0.5, 0.4]"], ("alpha_end", "sum")),
    (["invalid_penalty=0.1", "reward_aggregation=normalize_then_sum"], ("invalid_penalty", "reward_aggregation")),
    (["invalid_penalty=0.1", "single_calls=batch"], ("invalid_penalty", "single_calls")),
    (["advice_weight=0.5", "scores=market_analyst=mine:score"], ("advice_weight", "market_analyst")),
    (["verdict_weight=0.5", "scores=risk_analyst=mine:score"], ("verdict_weight", "risk_analyst")),
    (["resampled_answers=2", "dynamic_rounds=1"], ("resampled_answers", "dynamic_rounds")),
    (["entropy_target=0.05"], ("entropy_target", "entropy")),
    (["per_role.trader.entropy_target=0.05"], ("entropy_target", "trader")),
)


@pytest.mark.parametrize(("overrides", "keys"), CONTRADICTIONS, ids=lambda value: " ".join(value))
def test_a_contradiction_names_both_keys(overrides: list[str], keys: tuple[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(TREND_MARKET, [dotted(one) for one in overrides])
    [line] = str(caught.value).splitlines()
    for key in keys:
        assert re.search(rf"\b{key}\b", line.partition("training: ")[2]), line


VARIANTS: tuple[list[str], ...] = (
    ["group=ordinal", "min_group=3"],
    ["group=question", "min_group=3", "single_calls=batch"],
    ["aggregation=dr_grpo", "constant_length=100", "scale_rewards=false"],
    [
        "aggregation=dapo",
        "clip_high=0.28",
        "dynamic_rounds=3",
        "overlong_length=80",
        "overlong_buffer=20",
    ],
    ["aggregation=dapo", "policy_loss=cispo", "clip_low=1.0", "clip_high=4.0"],
    ["ratio=sequence", "clip_low=0.0003", "clip_high=0.0004"],
    ["importance=mask", "importance_cap=5.0"],
    ["importance=none"],
    ["reward_aggregation=normalize_then_sum"],
    ["invalid_penalty=0.1", "entropy=0.001", "entropy_target=0.05"],
    ["credit=shapley", "mask_truncated=true"],
    ["alignment=duplicate_drop", "alignment_window=8", "per_role.trader.alignment_target=2"],
    [
        "per_role.manager.clip_high=0.28",
        "per_role.manager.kl=0.01",
        "per_role.trader.entropy=0.001",
    ],
    ["optimizer=adafactor", "weight_decay=0.01", "lr_schedule=cosine", "lr_end=0.1"],
    ["beta_end=[0.1, 0.9, 0.0]", "alpha_end=[0.0, 1.0]", "adam_betas=[0.9, 0.999]"],
    ["credit=shapley", "beta=[0.5, 0.0, 0.5]", "beta_end=[0.1, 0.9, 0.0]"],
    ["credit=shapley", "per_role.market_analyst.beta=[0.5, 0.0, 0.5]"],
)


@pytest.mark.parametrize("overrides", VARIANTS, ids=lambda value: " ".join(value))
def test_the_recipes_of_the_papers_can_be_set_and_come_back_from_json(overrides: list[str]) -> None:
    config = load_config(TREND_MARKET, [dotted(one) for one in overrides])
    assert config != load_config(TREND_MARKET)
    assert config_from_dict(config.to_dict()) == config


@given(
    st.fixed_dictionaries(
        {},
        optional={
            **{key: st.sampled_from(get_args(kind)) for key, kind in CHOICES.items()},
            "min_group": st.integers(2, 10), "constant_length": st.integers(0, 3), "scale_rewards": st.booleans(),
            "importance_cap": st.sampled_from([2.0, 3.0]), "overlong_length": st.integers(0, 3),
            "overlong_buffer": st.integers(0, 3), "dynamic_rounds": st.integers(0, 1),
            "reward_aggregation": st.sampled_from(["sum_then_normalize", "normalize_then_sum"]),
        },
    )
)  # fmt: skip
def test_any_combination_is_taken_or_refused_with_a_sentence(values: dict[str, Any]) -> None:
    try:
        made = TrainingConfig.model_validate_json(json.dumps(training_table(**values)))
    except ValidationError as error:
        [problem] = error.errors()
        assert problem["type"] == "value_error"
        assert sum(key in problem["msg"] for key in SETTINGS) >= 2
        return
    # What is taken is consistent: the formulas do not refuse it either.
    own = made.experimental
    assert own.ratio == "token" or (own.aggregation, own.policy_loss) == ("grpo", "clip")
    assert (own.aggregation == "dr_grpo") == (own.constant_length > 0)
    assert own.overlong_buffer <= own.overlong_length and (own.overlong_buffer > 0) == (own.overlong_length > 0)


def test_a_market_that_is_kept_for_a_headline_is_not_trained_on(tmp_path: Path) -> None:
    kept = load_config("demo").seeds.confirm
    assert kept and load_config("demo").market.seed not in kept
    config = load_config("demo", [f"market.seed={kept[-1]}"])
    market = load_market(load_config("quick", ["market.bars=600"]).market, config.costs)
    for refused in (
        lambda: check_trainable(config),
        lambda: run_sft(config, market, ["scripted"], tmp_path, lambda *_: None),
    ):
        with pytest.raises(ConfigError, match=rf"market\.seed = {kept[-1]} is one of seeds\.confirm"):
            refused()
    assert list(tmp_path.iterdir()) == []
    check_trainable(load_config("demo", [f"market.seed={kept[-1]}", "seeds.confirm=[]"]))
    check_trainable(load_config("quick", ["seeds.confirm=[7]", "market.seed=7", "market.data=bars"]))  # not generated
    with pytest.raises(ConfigError, match="a seed is named twice"):
        load_config("demo", ["seeds.confirm=[4, 4]"])


def test_beliefs_about_too_many_coins_are_refused_by_name() -> None:
    settings = ["training.scenario_source=beliefs", "market.coins=7"]
    check_trainable(load_config("quick", [*settings, "market.data=bars"]))
    with pytest.raises(ConfigError, match=r"training\.scenario_source = 'beliefs' is for 6 coins .* market\.coins = 7"):
        check_trainable(load_config("demo", settings))


def test_weights_are_divided_among_two_processes_or_more() -> None:
    check_trainable(load_config("demo", ["training.sharding=fsdp", "training.data_parallel=2"]))
    with pytest.raises(ConfigError, match=r"training\.sharding = 'fsdp' .* training\.data_parallel, which is 1"):
        check_trainable(load_config("demo", ["training.sharding=fsdp"]))
